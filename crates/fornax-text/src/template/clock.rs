//! What time it is, for templates that write today's date.

use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// Where `strftime_now` has its time from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// The local time now, as Python's `datetime.now()`.
    Local,
    /// Always the same moment, so that a prompt can be repeated.
    Fixed {
        /// Seconds since 1970-01-01 00:00 UTC; shown in UTC.
        unix_seconds: i64,
    },
}

impl Clock {
    /// The time in the form that `format` describes (C's `strftime`); the error says what is wrong
    /// with the format or the moment.
    pub(crate) fn format(self, format: &str) -> Result<String, String> {
        let now = match self {
            Clock::Local => Zoned::now(),
            Clock::Fixed { unix_seconds } => Timestamp::from_second(unix_seconds)
                .map_err(|error| error.to_string())?
                .to_zoned(TimeZone::UTC),
        };
        strtime::format(as_the_engine_has_it(format), &now).map_err(|error| error.to_string())
    }
}

/// The format with what the time crate has otherwise than Python, whose `strftime` is the C
/// library's in its plain locale: `datetime.now()` has no zone, microseconds have six digits, and
/// what is no directive is written as it stands.
fn as_the_engine_has_it(format: &str) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let (directive, behind) = rest[at..].split_at(directive_length(&rest[at..]));
        rest = behind;
        let behind_flags = directive[1..].trim_start_matches(FLAGS);
        let flags = &directive[1..directive.len() - behind_flags.len()];
        match directive.chars().last() {
            Some('c') => out.push_str("%a %b %e %H:%M:%S %Y"),
            Some('x') => out.push_str("%m/%d/%y"),
            Some('X') => out.push_str("%H:%M:%S"),
            Some('r') => out.push_str("%I:%M:%S %p"),
            Some('f') => out.push_str("%6f"),
            Some('z' | 'Z') => {}
            Some(known) if DIRECTIVES.contains(known) && directive.len() > 1 => {
                out.extend(["%", flags]);
                out.push(known);
            }
            _ => out.extend(["%", directive]),
        }
    }
    out + rest
}

/// Directives that both have alike.
const DIRECTIVES: &str = "%aAbBCdDeFgGhHIjklmMnpPRsStTuUVwWyY";

/// What may stand before the letter of a directive.
const FLAGS: [char; 5] = ['-', '_', '0', '^', '#'];

/// Length of a directive: the sign, its flags, perhaps one of C's two modifiers, and a letter.
fn directive_length(text: &str) -> usize {
    let letters = text.char_indices().skip(1);
    let mut letters = letters.skip_while(|(_, letter)| FLAGS.contains(letter));
    let modified = |(_, letter): &(usize, char)| matches!(letter, 'E' | 'O');
    match (letters.next(), letters.next()) {
        (Some(first), Some((at, letter))) if modified(&first) => at + letter.len_utf8(),
        (Some((at, letter)), _) => at + letter.len_utf8(),
        (None, _) => text.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_as_python_does() {
        let clock = Clock::Fixed {
            unix_seconds: 1_709_210_096,
        };
        // datetime.fromtimestamp(1709210096, timezone.utc).strftime(…)
        for (format, expected) in [
            ("%d %b %Y", "29 Feb 2024"),
            ("%A, %B %d, %Y", "Thursday, February 29, 2024"),
            ("%Y-%m-%dT%H:%M:%S", "2024-02-29T12:34:56"),
            ("%a %j %y %I %p %%", "Thu 060 24 12 PM %"),
        ] {
            assert_eq!(clock.format(format).as_deref(), Ok(expected));
        }
        // datetime(2024, 2, 29, 12, 34, 56).strftime(…)
        for (format, expected) in [
            ("%c|%x|%X", "Thu Feb 29 12:34:56 2024|02/29/24|12:34:56"),
            ("%r|%f", "12:34:56 PM|000000"),
            ("[%z%Z]", "[]"),
            ("%Ey %Od %-d %e %k %P", "24 29 29 29 12 pm"),
            ("%Q %E %L %v %+ %", "%Q %E %L %v %+ %"),
        ] {
            assert_eq!(clock.format(format).as_deref(), Ok(expected), "{format}");
        }
    }
}
