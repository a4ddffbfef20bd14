//! The methods of Python's strings that the template engine lacks or answers otherwise than
//! Python. Knows no templates.

use std::collections::HashSet;

use minijinja::Error;
use minijinja::value::{Tuple, Value, from_args};

use super::arguments::{by_name, truth, whole};
use super::characters::{self, is_space};
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
            let (separator, most) = cuts(arguments)?;
            rsplit(text, separator.as_deref(), most)?
        }
        "find" => Value::from(found(text, arguments, false)?.unwrap_or(-1)),
        "rfind" => Value::from(found(text, arguments, true)?.unwrap_or(-1)),
        "index" | "rindex" => Value::from(
            found(text, arguments, method == "rindex")?
                .ok_or_else(|| failed("substring not found"))?,
        ),
        "count" => Value::from(counted(text, arguments)?),
        "startswith" | "endswith" => affixed(text, method, arguments)?,
        "split" => {
            let (separator, most) = cuts(arguments)?;
            split(text, separator.as_deref(), most)?
        }
        "splitlines" => {
            let [keep] = by_name(["keepends"], arguments)?;
            let lines = lines(text).into_iter();
            match truth(keep.as_ref(), false) {
                true => lines.map(|(line, end)| [line, end].concat()).collect(),
                false => lines.map(|(line, _)| Value::from(line)).collect(),
            }
        }
        "expandtabs" => {
            let [size] = by_name(["tabsize"], arguments)?;
            Value::from(expanded(
                text,
                whole("tabsize", size.as_ref())?.unwrap_or(8),
            ))
        }
        "translate" => {
            let (table,): (&Value,) = from_args(arguments)?;
            Value::from(translated(text, table)?)
        }
        "zfill" | "ljust" | "rjust" | "center" => padded(text, method, arguments)?,
        _ => return of_characters(text, method, arguments),
    }))
}

/// The methods that ask for the kind of characters, or change their case.
fn of_characters(text: &str, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let all = |is: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(is));
    let answer = match method {
        "title" => Value::from(characters::title(text)),
        "capitalize" => Value::from(characters::capitalized(text)),
        "swapcase" => Value::from(characters::swapped_case(text)),
        "casefold" => Value::from(characters::folded(text)),
        "isalpha" => all(characters::is_letter),
        "isdecimal" => all(characters::is_decimal),
        "isdigit" => all(characters::is_digit),
        "isnumeric" => all(characters::is_numeric),
        "isalnum" => all(|one| one != '_' && characters::is_word(one)),
        "isspace" => all(is_space),
        "isprintable" => Value::from(text.chars().all(characters::is_printable)),
        "isidentifier" => Value::from(characters::is_identifier(text)),
        "islower" => Value::from(characters::is_all(text, false)),
        "isupper" => Value::from(characters::is_all(text, true)),
        "istitle" => Value::from(characters::is_title(text)),
        _ => return Ok(None),
    };
    let () = from_args(arguments)?;
    Ok(Some(answer))
}

pub(super) fn stripped<'t>(text: &'t str, method: &str, characters: Option<&str>) -> &'t str {
    let characters: Option<HashSet<char>> = characters.map(|given| given.chars().collect());
    let goes = |character: char| match &characters {
        Some(characters) => characters.contains(&character),
        None => is_space(character),
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

/// `sep=None, maxsplit=-1`.
fn cuts(arguments: &[Value]) -> Result<(Option<String>, Option<i64>), Error> {
    let [separator, most] = by_name(["sep", "maxsplit"], arguments)?;
    let separator = super::arguments::text("sep", separator.as_ref())?;
    let separator = separator.map(str::to_owned);
    Ok((separator, whole("maxsplit", most.as_ref())?))
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
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        match rest.rfind(is_space).filter(|_| parts.len() < most) {
            Some(space) => {
                parts.push(rest[space..].trim_start_matches(is_space));
                rest = rest[..space].trim_end_matches(is_space);
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
    let fill = match (fill, method) {
        (None, "zfill") => "0",
        (None, _) => " ",
        (Some(fill), "ljust" | "rjust" | "center") if fill.chars().count() == 1 => fill,
        _ => return Err(failed("a text is filled up with one character")),
    };
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
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = rest.find(is_space).filter(|_| parts.len() < most);
                let (part, behind) = rest.split_at(end.unwrap_or(rest.len()));
                parts.push(Value::from(part));
                rest = behind.trim_start_matches(is_space);
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

/// How often a part stands in `text`; nothing stands around each character.
fn counted(text: &str, arguments: &[Value]) -> Result<usize, Error> {
    let (part, start, stop): (&str, Option<i64>, Option<i64>) = from_args(arguments)?;
    let (within, before) = slice(text, start, stop);
    let beyond = within.is_empty() && is_beyond(text, start, stop, before);
    Ok(if beyond {
        0
    } else {
        within.matches(part).count()
    })
}

/// Whether a slice begins behind its end, or behind the text, where not even nothing is found.
fn is_beyond(text: &str, start: Option<i64>, stop: Option<i64>, before: usize) -> bool {
    let length = text.chars().count();
    let stop = match stop {
        None => length,
        Some(stop @ 0..) => length.min(usize::try_from(stop).unwrap_or(length)),
        Some(stop) => length.saturating_sub(stop.unsigned_abs().try_into().unwrap_or(length)),
    };
    start.is_some_and(|start| start > length as i64) || before > stop
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

/// `expandtabs(tabsize=8)`: spaces up to the next column that tabs stop at.
fn expanded(text: &str, size: i64) -> String {
    let size = usize::try_from(size).unwrap_or(0);
    let mut out = String::with_capacity(text.len());
    let mut column = 0;
    for character in text.chars() {
        match character {
            '\t' if size == 0 => {}
            '\t' => {
                let spaces = size - column % size;
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            _ => {
                out.push(character);
                column = if matches!(character, '\n' | '\r') {
                    0
                } else {
                    column + 1
                };
            }
        }
    }
    out
}

/// `translate`: what a table has for the number of each character, and none for what goes.
fn translated(text: &str, table: &Value) -> Result<String, Error> {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        let other = table.get_item(&Value::from(u32::from(character)))?;
        match (other.as_str(), other.as_i64()) {
            (Some(other), _) => out.push_str(other),
            (None, Some(code)) => {
                let other = u32::try_from(code).ok().and_then(char::from_u32);
                let problem = "translate: a number in the table is no character's";
                out.push(other.ok_or_else(|| failed(problem))?);
            }
            _ if other.is_none() => {}
            _ if other.is_undefined() => out.push(character),
            _ => return Err(failed("translate: the table is of texts, numbers and none")),
        }
    }
    Ok(out)
}
