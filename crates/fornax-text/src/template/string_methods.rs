//! The methods of Python's strings that the template engine lacks or answers otherwise than
//! Python. Knows no templates.

use minijinja::Error;
use minijinja::value::{Tuple, Value, from_args};
use unicode_general_category::{GeneralCategory, get_general_category};

use super::python::failed;

/// The methods of `str` that the engine lacks or answers otherwise than Python.
pub(super) fn call(text: &str, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (characters,): (Option<&str>,) = from_args(arguments)?;
            Value::from(stripped(text, method, characters))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            partition(text, separator, method == "rpartition")?
        }
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(arguments)?;
            rsplit(text, separator, most)?
        }
        "find" => Value::from(found(text, arguments, false)?.unwrap_or(-1)),
        "rfind" => Value::from(found(text, arguments, true)?.unwrap_or(-1)),
        "index" => Value::from(
            found(text, arguments, false)?.ok_or_else(|| failed("substring not found"))?,
        ),
        "startswith" | "endswith" => affixed(text, method, arguments)?,
        "split" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(arguments)?;
            split(text, separator, most)?
        }
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(arguments)?;
            let lines = lines(text).into_iter();
            match keep {
                Some(true) => lines.map(|(line, end)| [line, end].concat()).collect(),
                _ => lines.map(|(line, _)| Value::from(line)).collect(),
            }
        }
        "title" => Value::from(title(text)),
        "swapcase" => Value::from(swapped_case(text)),
        "isdecimal" => Value::from(
            !text.is_empty()
                && text.chars().all(|character| {
                    get_general_category(character) == GeneralCategory::DecimalNumber
                }),
        ),
        "zfill" | "ljust" | "rjust" | "center" => padded(text, method, arguments)?,
        _ => return Ok(None),
    }))
}

fn stripped<'t>(text: &'t str, method: &str, characters: Option<&str>) -> &'t str {
    let goes = |character: char| match characters {
        Some(characters) => characters.contains(character),
        None => is_python_space(character),
    };
    let text = if method == "rstrip" {
        text
    } else {
        text.trim_start_matches(goes)
    };
    if method == "lstrip" {
        text
    } else {
        text.trim_end_matches(goes)
    }
}

/// `str.isspace`: beside Unicode white space, the four separators of ASCII.
fn is_python_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\x1C'..='\x1F')
}

fn partition(text: &str, separator: &str, from_right: bool) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(failed("empty separator"));
    }
    let halves = if from_right {
        text.rsplit_once(separator)
    } else {
        text.split_once(separator)
    };
    let parts = match (halves, from_right) {
        (Some((before, behind)), _) => [before, separator, behind],
        (None, false) => [text, "", ""],
        (None, true) => ["", "", text],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn rsplit(text: &str, separator: Option<&str>, most: Option<i64>) -> Result<Value, Error> {
    let most = most
        .and_then(|most| usize::try_from(most).ok())
        .unwrap_or(usize::MAX);
    let pieces = most.saturating_add(1);
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(failed("empty separator")),
        Some(separator) => text.rsplitn(pieces, separator).collect(),
        None => rsplit_white_space(text, most),
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

/// The words of `text` from the right; what is left after `most` cuts stays in one piece.
fn rsplit_white_space(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_python_space);
    while !rest.is_empty() {
        match rest.rfind(is_python_space).filter(|_| parts.len() < most) {
            Some(space) => {
                parts.push(rest[space..].trim_start_matches(is_python_space));
                rest = rest[..space].trim_end_matches(is_python_space);
            }
            None => {
                parts.push(rest);
                break;
            }
        }
    }
    parts
}

fn padded(text: &str, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<&str>) = from_args(arguments)?;
    let room = width.saturating_sub(text.chars().count());
    if room > 10_000 {
        return Err(failed(
            "a width of more than 10000 characters is not supported",
        ));
    }
    let fill = fill.unwrap_or(if method == "zfill" { "0" } else { " " });
    let (before, behind) = match method {
        "ljust" => (0, room),
        // Python puts the odd one to the left where the width is odd too.
        "center" => {
            let left = room / 2 + (room & width & 1);
            (left, room - left)
        }
        _ => (room, 0),
    };
    let (sign, text) = match text.strip_prefix(['+', '-']) {
        Some(digits) if method == "zfill" => text.split_at(text.len() - digits.len()),
        _ => ("", text),
    };
    let padded = [sign, &fill.repeat(before), text, &fill.repeat(behind)].concat();
    Ok(Value::from(padded))
}

/// Text and line end of each line, as Python knows line ends.
pub(super) fn lines(text: &str) -> Vec<(&str, &str)> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_line_end).unwrap_or(rest.len());
        let (line, behind) = rest.split_at(end);
        let length = match behind.starts_with("\r\n") {
            true => 2,
            false => behind.chars().next().map_or(0, char::len_utf8),
        };
        let (line_end, behind) = behind.split_at(length);
        lines.push((line, line_end));
        rest = behind;
    }
    lines
}

fn is_line_end(character: char) -> bool {
    matches!(
        character,
        '\n' | '\r' | '\x0B' | '\x0C' | '\x1C'..='\x1E' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

fn split(text: &str, separator: Option<&str>, most: Option<i64>) -> Result<Value, Error> {
    let most = most.and_then(|most| usize::try_from(most).ok());
    let most = most.unwrap_or(usize::MAX);
    Ok(match separator {
        Some("") => return Err(failed("empty separator")),
        Some(separator) => text
            .splitn(most.saturating_add(1), separator)
            .map(Value::from)
            .collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start_matches(is_python_space);
            while !rest.is_empty() {
                let end = rest.find(is_python_space).filter(|_| parts.len() < most);
                let (part, behind) = rest.split_at(end.unwrap_or(rest.len()));
                parts.push(Value::from(part));
                rest = behind.trim_start_matches(is_python_space);
            }
            parts.into_iter().collect()
        }
    })
}

/// `text[start:stop]`, and how many characters stand before it.
fn slice(text: &str, start: Option<i64>, stop: Option<i64>) -> (&str, usize) {
    let length = text.chars().count() as i64;
    let place = |at: i64| (if at < 0 { at + length } else { at }).clamp(0, length) as usize;
    let (start, stop) = (start.map_or(0, place), stop.map_or(length as usize, place));
    let byte = |place: usize| {
        text.char_indices()
            .nth(place)
            .map_or(text.len(), |(at, _)| at)
    };
    match start <= stop {
        true => (&text[byte(start)..byte(stop)], start),
        false => ("", start),
    }
}

/// Where a part stands first or last, in characters.
fn found(text: &str, arguments: &[Value], from_right: bool) -> Result<Option<i64>, Error> {
    let (part, start, stop): (&str, Option<i64>, Option<i64>) = from_args(arguments)?;
    let (text, before) = slice(text, start, stop);
    let at = match from_right {
        true => text.rfind(part),
        false => text.find(part),
    };
    Ok(at.map(|at| (before + text[..at].chars().count()) as i64))
}

/// `startswith` and `endswith`, with one text or several to choose from.
fn affixed(text: &str, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (affixes, start, stop): (&Value, Option<i64>, Option<i64>) = from_args(arguments)?;
    let (text, _) = slice(text, start, stop);
    let fits = |affix: &Value| {
        let affix = affix
            .as_str()
            .ok_or_else(|| failed("a text or a tuple of texts is expected"))?;
        Ok(match method {
            "startswith" => text.starts_with(affix),
            _ => text.ends_with(affix),
        })
    };
    if affixes.as_str().is_some() {
        return fits(affixes).map(Value::from);
    }
    for affix in affixes.try_iter()?.checked() {
        if fits(&affix?)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

/// A capital behind everything that is no letter.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for character in text.chars() {
        match inside {
            true => out.extend(character.to_lowercase()),
            false => out.extend(character.to_uppercase()),
        }
        inside = character.is_lowercase() || character.is_uppercase();
    }
    out
}

fn swapped_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_uppercase() {
            true => out.extend(character.to_lowercase()),
            false => out.extend(character.to_uppercase()),
        }
    }
    out
}
