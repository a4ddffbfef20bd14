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
        strtime::format(format, &now).map_err(|error| error.to_string())
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
        assert!(clock.format("%").is_err());
    }
}
