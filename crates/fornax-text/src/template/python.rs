//! Where Jinja in Python shows through: how values are written, and the methods of
//! dictionaries and lists that templates call. What the engine's own
//! compatibility layer has is left to it.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::budget::Budget;
use super::characters::is_printable;
use super::objects;
use super::string_methods;

/// Calls `method` on `value`: ours first, then the engine's.
pub(crate) fn method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let ours = match value.kind() {
        ValueKind::String => {
            string_methods::call(value.as_str().unwrap_or_default(), method, arguments)?
        }
        ValueKind::Seq => sequence_method(value, method, arguments)?,
        ValueKind::Map => dictionary_method(value, method, arguments)?,
        _ => None,
    };
    match ours {
        Some(answer) => Ok(answer),
        None => unknown_method_callback(state, value, method, arguments),
    }
}

/// Writes `value` into the prompt, or into the text that a block or macro makes, as Python's `str`
/// would, and charges it.
pub(crate) fn write_value(out: &mut Output, value: &Value, budget: &Budget) -> Result<(), Error> {
    let written;
    let text = match value.as_str() {
        Some(text) => text,
        None => {
            budget.weigh(value)?;
            written = string(value);
            &written
        }
    };
    budget.spend_text(text.len())?;
    out.write_str(text)
        .map_err(|_| Error::new(ErrorKind::WriteFailure, "the prompt could not be written"))
}

/// The filter `string`: Python's `str`.
pub(crate) fn string(value: &Value) -> String {
    let mut written = String::new();
    if objects::write(&mut written, value) {
        return written;
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Number => {
            let mut out = String::new();
            write_repr(&mut out, value);
            out
        }
        _ => value.to_string(),
    }
}

/// Python's `repr`.
pub(super) fn write_repr(out: &mut String, value: &Value) {
    if objects::write(out, value) {
        return;
    }
    match value.kind() {
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = match (value.is_tuple(), value.len()) {
                (false, _) => ("[", "]"),
                (true, Some(1)) => ("(", ",)"),
                (true, _) => ("(", ")"),
            };
            let items: Vec<Value> = value.try_iter().into_iter().flatten().collect();
            write_items(out, [open, close], &items, write_repr);
        }
        ValueKind::Map => {
            let keys: Vec<Value> = value.try_iter().into_iter().flatten().collect();
            write_items(out, ["{", "}"], &keys, |out, key| {
                write_repr(out, key);
                out.push_str(": ");
                write_repr(out, &value.get_item(key).unwrap_or_default());
            });
        }
        _ => match float(value) {
            Some(float) => out.push_str(&float_text(float)),
            None => out.push_str(&value.to_string()),
        },
    }
}

/// What `write` writes of each item, between brackets.
pub(super) fn write_items<T>(
    out: &mut String,
    [open, close]: [&str; 2],
    items: &[T],
    write: impl Fn(&mut String, &T),
) {
    out.push_str(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write(out, item);
    }
    out.push_str(close);
}

/// In single quotes, unless only these are inside; what cannot be printed is escaped.
fn write_quoted(out: &mut String, text: &str) {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    out.push(quote);
    for character in text.chars() {
        let code = u32::from(character);
        let written = match character {
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            '\\' => out.write_str("\\\\"),
            _ if character == quote => write!(out, "\\{quote}"),
            _ if is_printable(character) => out.write_char(character),
            _ if code < 0x100 => write!(out, "\\x{code:02x}"),
            _ if code < 0x1_0000 => write!(out, "\\u{code:04x}"),
            _ => write!(out, "\\U{code:08x}"),
        };
        written.expect("invariant: a String takes all text");
    }
    out.push(quote);
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

/// The methods of `list` and `tuple` that the engine lacks.
fn sequence_method(
    list: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "index" => place_in(list, arguments)?,
        "copy" if !list.is_tuple() => {
            let () = from_args(arguments)?;
            list.clone()
        }
        "append" | "extend" | "insert" | "remove" | "pop" | "clear" | "sort" | "reverse"
            if !list.is_tuple() =>
        {
            return Err(failed(
                "a template cannot change a list (nor can it in transformers); make another with +",
            ));
        }
        _ => return Ok(None),
    }))
}

/// `list.index(value, start=0, stop=the end)`.
fn place_in(list: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let (wanted, start, stop): (&Value, Option<i64>, Option<i64>) = from_args(arguments)?;
    let length = list.len().unwrap_or(0);
    let place = |at: i64| match usize::try_from(at) {
        Ok(at) => at.min(length),
        Err(_) => length.saturating_sub(at.unsigned_abs().try_into().unwrap_or(usize::MAX)),
    };
    let (start, stop) = (start.map_or(0, place), stop.map_or(length, place));
    for (index, item) in list.try_iter()?.checked().enumerate().take(stop) {
        if item? == *wanted && index >= start {
            return Ok(Value::from(index));
        }
    }
    Err(failed("the value is not in the list"))
}

/// The methods of `dict` that the engine lacks.
fn dictionary_method(
    map: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "copy" => {
            let () = from_args(arguments)?;
            map.clone()
        }
        "keys" | "values" | "items" => {
            let () = from_args(arguments)?;
            return Ok(objects::view(map, method));
        }
        "clear" | "pop" | "popitem" | "setdefault" | "update" => {
            return Err(failed(
                "a template cannot change a dictionary (nor can it in transformers); make another \
                 with dict()",
            ));
        }
        _ => return Ok(None),
    }))
}

pub(super) fn failed(problem: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}
