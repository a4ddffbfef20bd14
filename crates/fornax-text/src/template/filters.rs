//! Jinja's filters where the template engine's differ from those of Python. Knows no templates.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::markup;
use super::python::failed;
use super::string_methods::lines;

/// No layout is wider, and no page longer.
pub(super) const WIDEST: usize = 1000;

/// `indent(width=4, first=False, blank=False)`; the width is a number or the text itself.
pub(super) fn indent(
    given: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<Value, Error> {
    let text = given
        .as_str()
        .ok_or_else(|| failed("indent: what it is given is not a text"))?;
    let width = width.or(named.get("width")?).unwrap_or(Value::from(4));
    let first = first.or(named.get("first")?).unwrap_or(false);
    let blank = blank.or(named.get("blank")?).unwrap_or(false);
    named.assert_all_used()?;
    let margin = match (width.as_str(), width.as_usize()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(width @ ..=WIDEST)) => " ".repeat(width),
        _ => return Err(failed("indent: the width is a number up to 1000 or a text")),
    };
    let text = text.to_owned() + "\n";
    let mut out = String::new();
    for (index, (line, _)) in lines(&text).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let indented = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        out.push_str(if indented { &margin } else { "" });
        out.push_str(line);
    }
    Ok(markup::like(given, out))
}

/// `replace(old, new, count=None)`.
pub(super) fn replace(
    text: &Value,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    let text = super::python::string(text);
    let count = count.and_then(|count| usize::try_from(count).ok());
    Ok(match count {
        Some(count) => text.replacen(old, new, count),
        None => text.replace(old, new),
    })
}

/// `items`: the pairs of a dictionary; what is undefined has none.
pub(super) fn items(value: &Value) -> Result<Value, Error> {
    match value.is_undefined() {
        true => Ok(Value::from(Vec::<Value>::new())),
        false => minijinja::filters::items(value),
    }
}

/// `int(default=0, base=10)`: what is no number becomes the default.
pub(super) fn int(
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    named: Kwargs,
) -> Result<Value, Error> {
    let default = default.or(named.get("default")?).unwrap_or(Value::from(0));
    let base = base.or(named.get("base")?).unwrap_or(10);
    named.assert_all_used()?;
    if !matches!(base, 2..=36) {
        return Err(failed("int: the base is a number from 2 to 36"));
    }
    let number = match value.kind() {
        ValueKind::Bool => Some(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Some(value.clone()),
        ValueKind::Number => f64::try_from(value.clone()).ok().and_then(whole),
        ValueKind::String => integer(value.as_str().unwrap_or_default().trim(), base),
        _ => None,
    };
    Ok(number.unwrap_or(default))
}

/// `float(default=0.0)`: what is no number becomes the default.
pub(super) fn float(value: &Value, default: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let default = default.or(named.get("default")?);
    named.assert_all_used()?;
    let number = match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => value.as_str().unwrap_or_default().trim().parse().ok(),
        _ => None,
    };
    let default = || default.unwrap_or(Value::from(0.0));
    Ok(number.map_or_else(default, Value::from))
}

/// `center(width=80)`.
pub(super) fn center(value: &Value, width: Option<usize>, named: Kwargs) -> Result<String, Error> {
    let width = width.or(named.get("width")?).unwrap_or(80);
    named.assert_all_used()?;
    if width > WIDEST {
        return Err(failed("center: the width is a number up to 1000"));
    }
    let text = super::python::string(value);
    let margin = width.saturating_sub(text.chars().count());
    // Python puts the odd space before the text where the width is odd, too.
    let before = margin / 2 + (margin & width & 1);
    Ok(" ".repeat(before) + &text + &" ".repeat(margin - before))
}

/// `wordcount`: runs of letters, digits and underscores.
pub(super) fn wordcount(value: &Value) -> usize {
    let text = super::python::string(value);
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    let words = text.split(|character| !is_part(character));
    words.filter(|word| !word.is_empty()).count()
}

fn integer(text: &str, base: u32) -> Option<Value> {
    let lower = text.to_ascii_lowercase();
    let digits = match base {
        16 => lower.trim_start_matches("0x"),
        8 => lower.trim_start_matches("0o"),
        2 => lower.trim_start_matches("0b"),
        _ => &lower,
    };
    match i128::from_str_radix(digits, base) {
        Ok(number) => Some(Value::from(number)),
        Err(_) => text.parse().ok().and_then(whole),
    }
}

/// The number without its fraction.
fn whole(number: f64) -> Option<Value> {
    (number.is_finite() && number.abs() < 1e38).then(|| Value::from(number.trunc() as i128))
}

/// The test `sequence`: what has a length and items, which texts and dictionaries have too,
/// and Jinja's undefined.
pub(super) fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Map, Seq, String, Undefined};
    matches!(value.kind(), Seq | Map | String | Undefined)
}

/// The error for a panic of the template engine.
pub(super) fn panicked() -> Error {
    let problem = "the template engine gave up on this template";
    Error::new(ErrorKind::InvalidOperation, problem)
}
