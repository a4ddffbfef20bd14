//! Where Jinja in Python shows through: how values are written, and the methods of
//! strings, dictionaries and lists that templates call. What the engine's own
//! compatibility layer has is left to it.

use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Calls `method` on `value`: ours first, then the engine's.
pub(crate) fn method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let ours = match value.kind() {
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), method, arguments)?,
        ValueKind::Seq => sequence_method(value, method, arguments)?,
        _ => None,
    };
    match ours {
        Some(answer) => Ok(answer),
        None => unknown_method_callback(state, value, method, arguments),
    }
}

/// Writes `value` into the prompt as Python's `str` would.
pub(crate) fn write_value(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    let written = match float(value) {
        Some(float) => out.write_str(&float_text(float)),
        None => std::fmt::Write::write_fmt(out, format_args!("{value}")),
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "the prompt could not be written"))
}

/// The filter `string`.
pub(crate) fn string(value: &Value) -> String {
    float(value).map_or_else(|| value.to_string(), float_text)
}

/// What `error` says, with the place left to the caller.
pub(crate) fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// `float` as Python's `repr` writes it: the shortest digits that read back as the same number,
/// with an exponent below 1e-4 and from 1e16 on.
pub(crate) fn float_text(float: f64) -> String {
    if float.is_nan() {
        return "nan".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific
        .split_once('e')
        .expect("invariant: asked for with {:e}");
    let exponent: i32 = exponent
        .parse()
        .expect("invariant: an exponent is an integer");
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = float.to_string();
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

fn float(value: &Value) -> Option<f64> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    f64::try_from(value.clone()).ok()
}

/// The methods of `str` that the engine lacks or answers otherwise than Python.
fn string_method(text: &str, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
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
        "index" => {
            let (part,): (&str,) = from_args(arguments)?;
            let at = text
                .find(part)
                .ok_or_else(|| failed("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
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

/// The methods of `list` that the engine lacks.
fn sequence_method(
    list: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    if method != "index" {
        return Ok(None);
    }
    let (wanted,): (&Value,) = from_args(arguments)?;
    for (index, item) in list.try_iter()?.checked().enumerate() {
        if item? == *wanted {
            return Ok(Some(Value::from(index)));
        }
    }
    Err(failed("the value is not in the list"))
}

fn failed(problem: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}
