//! Jinja's filters that lay out a text or write it for elsewhere, and those that no prompt can have.
//! What they make is charged to the rendering's [`Budget`]. Knows no templates.

use std::fmt::Write as _;

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind};

use super::arguments::{by_name, text, truth, whole};
use super::budget::Budget;
use super::python::{failed, string};
use super::wordwrap::{Wrap, wordwrap};
use super::{entities, markup, pprint};

/// A filter: its operand, what else it is given, and what it may cost.
type Filter = fn(&Value, &[Value], &Budget) -> Result<String, Error>;

/// Adds the filters of this file.
pub(crate) fn add_filters(environment: &mut Environment<'_>, budget: &Budget) {
    let all: [(&'static str, Filter); 9] = [
        ("truncate", truncate),
        ("wordwrap", wrapped),
        ("striptags", striptags),
        ("urlencode", urlencode),
        ("filesizeformat", filesizeformat),
        ("pprint", printed),
        ("xmlattr", xmlattr),
        ("random", random),
        ("urlize", urlize),
    ];
    for (name, filter) in all {
        let budget = budget.clone();
        environment.add_filter(name, move |value: &Value, given: Rest<ValueOrKwargs>| {
            let given = given.into_values();
            budget.weigh(value)?;
            given.iter().try_for_each(|given| budget.weigh(given))?;
            filter(value, &given, &budget).map_err(|error| named(name, error))
        });
    }
}

/// `error` with the filter that it is of.
fn named(filter: &str, error: Error) -> Error {
    match error.kind() {
        ErrorKind::OutOfFuel => error,
        kind => Error::new(kind, format!("{filter}: {}", error.detail().unwrap_or(""))),
    }
}

/// The text that a filter is for.
fn operand(value: &Value) -> Result<&str, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(""),
        _ => value
            .as_str()
            .ok_or_else(|| failed("what it is given is not a text")),
    }
}

/// `truncate(length=255, killwords=False, end="...", leeway=5)`.
fn truncate(value: &Value, given: &[Value], budget: &Budget) -> Result<String, Error> {
    let [length, kill, end, leeway] = by_name(["length", "killwords", "end", "leeway"], given)?;
    let words = operand(value)?;
    let end = text("end", end.as_ref())?.unwrap_or("...");
    let length = whole("length", length.as_ref())?.unwrap_or(255);
    let leeway = whole("leeway", leeway.as_ref())?.unwrap_or(5);
    let room = usize::try_from(length).ok();
    let room = room.and_then(|length| length.checked_sub(end.chars().count()));
    let (Some(room), 0..) = (room, leeway) else {
        let problem = "the length cannot be less than the end's, nor the leeway less than zero";
        return Err(failed(problem));
    };
    if words.chars().count() as i64 <= length.saturating_add(leeway) {
        return Ok(words.to_owned());
    }
    let cut = words.char_indices().nth(room);
    let start = &words[..cut.map_or(words.len(), |(at, _)| at)];
    let start = match start.rsplit_once(' ') {
        Some((before, _)) if !truth(kill.as_ref(), false) => before,
        _ => start,
    };
    budget.spend_text(start.len() + end.len())?;
    Ok([start, end].concat())
}

/// `wordwrap(width=79, break_long_words=True, wrapstring="\n", break_on_hyphens=True)`.
fn wrapped(value: &Value, given: &[Value], budget: &Budget) -> Result<String, Error> {
    let names = [
        "width",
        "break_long_words",
        "wrapstring",
        "break_on_hyphens",
    ];
    let [width, long, between, hyphens] = by_name(names, given)?;
    let width = whole("width", width.as_ref())?.unwrap_or(79);
    let wrap = Wrap {
        width: usize::try_from(width)
            .ok()
            .filter(|&width| width > 0)
            .ok_or_else(|| failed("the width is to be one or more"))?,
        break_long_words: truth(long.as_ref(), true),
        between: text("wrapstring", between.as_ref())?.unwrap_or("\n"),
        break_on_hyphens: truth(hyphens.as_ref(), true),
    };
    wordwrap(operand(value)?, &wrap, budget)
}

/// `striptags`: without comments and tags, with what references stand for.
fn striptags(value: &Value, given: &[Value], budget: &Budget) -> Result<String, Error> {
    let [] = by_name([], given)?;
    let marked = string(value);
    budget.spend_text(marked.len())?;
    let mut kept = String::with_capacity(marked.len());
    let mut rest = marked.as_str();
    while let Some(start) = rest.find('<') {
        let (before, tag) = rest.split_at(start);
        let behind = match tag.strip_prefix("<!--") {
            Some(comment) => comment.split_once("-->"),
            None => tag.split_once('>'),
        };
        let Some((_, behind)) = behind else {
            break;
        };
        kept.push_str(before);
        rest = behind;
    }
    kept.push_str(rest);
    let mut spaced = String::with_capacity(kept.len());
    let words = kept.split(super::characters::is_space);
    for word in words.filter(|word| !word.is_empty()) {
        if !spaced.is_empty() {
            spaced.push(' ');
        }
        spaced.push_str(word);
    }
    Ok(entities::unescape(&spaced))
}

/// `urlencode`: a text, or a query of pairs.
fn urlencode(value: &Value, given: &[Value], budget: &Budget) -> Result<String, Error> {
    let [] = by_name([], given)?;
    let mut out = String::new();
    let pairs: Vec<(Value, Value)> = match value.kind() {
        ValueKind::Undefined => Vec::new(),
        ValueKind::Map => {
            let pair = |key: Value| value.get_item(&key).map(|item| (key, item));
            value.try_iter()?.map(pair).collect::<Result<_, _>>()?
        }
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter()?.map(pair).collect::<Result<_, _>>()?
        }
        _ => {
            let text = string(value);
            budget.spend_text(text.len().saturating_mul(3))?;
            push_quoted(&mut out, &text, "/", "%20");
            return Ok(out);
        }
    };
    for (index, (key, item)) in pairs.iter().enumerate() {
        let [key, item] = [key, item].map(string);
        budget.spend_text((key.len() + item.len()).saturating_mul(3))?;
        out.push_str(if index > 0 { "&" } else { "" });
        push_quoted(&mut out, &key, "", "+");
        out.push('=');
        push_quoted(&mut out, &item, "", "+");
    }
    Ok(out)
}

/// The two values that an item of a query is.
fn pair(item: Value) -> Result<(Value, Value), Error> {
    let values: Vec<Value> = match item.as_str() {
        Some(text) => text
            .chars()
            .map(|one| Value::from(one.to_string()))
            .collect(),
        None => item.try_iter()?.collect(),
    };
    let pair: Result<[Value; 2], _> = values.try_into();
    let [key, item] = pair.map_err(|_| failed("a query is of pairs"))?;
    Ok((key, item))
}

/// Writes what a URL cannot have as the numbers of its bytes (RFC 3986, 2.1).
fn push_quoted(out: &mut String, text: &str, safe: &str, space: &str) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(char::from(byte));
            }
            b' ' => out.push_str(space),
            _ if safe.as_bytes().contains(&byte) => out.push(char::from(byte)),
            _ => write!(out, "%{byte:02X}").expect("invariant: a String takes all text"),
        }
    }
}

/// `filesizeformat(binary=False)`.
fn filesizeformat(value: &Value, given: &[Value], _: &Budget) -> Result<String, Error> {
    let [binary] = by_name(["binary"], given)?;
    let (base, infix): (i128, &str) = match truth(binary.as_ref(), false) {
        true => (1024, "i"),
        false => (1000, ""),
    };
    let bytes = match value.kind() {
        ValueKind::Bool => f64::from(u8::from(value.is_true())),
        ValueKind::String => operand(value)?
            .trim_matches(super::characters::is_space)
            .parse()
            .map_err(|_| failed("the text is not a number"))?,
        ValueKind::Number => f64::try_from(value.clone())?,
        _ => return Err(failed("what it is given is not a number")),
    };
    if bytes == 1.0 {
        return Ok("1 Byte".to_owned());
    }
    if bytes < base as f64 {
        return match bytes.is_finite() {
            true => Ok(format!("{} Bytes", Value::from(bytes.trunc() as i128))),
            false => Err(failed("no number of bytes is without end")),
        };
    }
    let mut unit = base;
    for prefix in ["k", "M", "G", "T", "P", "E", "Z", "Y"] {
        unit *= base;
        if !bytes.is_nan() && (bytes as i128) < unit || prefix == "Y" {
            let prefix = if infix.is_empty() {
                prefix
            } else {
                upper(prefix)
            };
            let number = base as f64 * bytes / unit as f64;
            let number = match number.is_nan() {
                true => "nan".to_owned(),
                false => format!("{number:.1}"),
            };
            return Ok(format!("{number} {prefix}{infix}B"));
        }
    }
    unreachable!("invariant: the last prefix takes every number")
}

/// A kibibyte has a capital, a kilobyte has none.
fn upper(prefix: &str) -> &str {
    if prefix == "k" { "K" } else { prefix }
}

/// `pprint`.
fn printed(value: &Value, given: &[Value], budget: &Budget) -> Result<String, Error> {
    let [] = by_name([], given)?;
    pprint::pprint(value, budget)
}

/// `xmlattr(autospace=True)`.
fn xmlattr(value: &Value, given: &[Value], budget: &Budget) -> Result<String, Error> {
    let [space] = by_name(["autospace"], given)?;
    if value.kind() != ValueKind::Map {
        return Err(failed("what it is given is not a dictionary"));
    }
    let mut out = String::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        if item.is_none() || item.is_undefined() {
            continue;
        }
        let name = string(&key);
        let spoils = |character: char| {
            character.is_ascii_whitespace() || matches!(character, '\x0B' | '/' | '>' | '=')
        };
        if name.contains(spoils) {
            return Err(failed("a name has white space or one of / > = in it"));
        }
        let [name, item] = [markup::escaped(&key), markup::escaped(&item)];
        budget.spend_text(name.len() + item.len())?;
        out.push_str(if out.is_empty() { "" } else { " " });
        write!(out, "{name}=\"{item}\"").expect("invariant: a String takes all text");
    }
    let space = truth(space.as_ref(), true) && !out.is_empty();
    Ok(if space { [" ", &out].concat() } else { out })
}

fn random(_: &Value, _: &[Value], _: &Budget) -> Result<String, Error> {
    Err(failed(
        "not supported: a prompt that is drawn by chance cannot be made again; take an item by its place",
    ))
}

fn urlize(_: &Value, _: &[Value], _: &Budget) -> Result<String, Error> {
    Err(failed(
        "not supported: it makes links of HTML, for browsers; write the text as it is",
    ))
}
