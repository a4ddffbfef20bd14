//! Jinja's `pprint`: values laid out as Python's `pprint.pformat` lays them out, in 80 columns, with
//! the keys of dictionaries sorted. Charges what it makes. Knows no templates.

use std::cmp::Ordering;

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use super::budget::{Budget, LONGEST};
use super::characters::is_space;
use super::objects;
use super::python;
use super::string_methods::lines;

/// Columns of a page.
const WIDTH: i64 = 80;

/// `value` over as many lines as it takes.
///
/// # Errors
/// It costs more than is left.
pub(super) fn pprint(value: &Value, budget: &Budget) -> Result<String, Error> {
    let mut page = Page {
        out: String::new(),
        budget,
    };
    page.write(value, Place::default())?;
    Ok(page.out)
}

/// Where a value is written.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Columns before it.
    indent: usize,
    /// Columns that what closes behind it takes.
    allowance: usize,
    /// Values that it is in.
    depth: usize,
}

struct Page<'b> {
    out: String,
    budget: &'b Budget,
}

impl Page<'_> {
    fn write(&mut self, value: &Value, place: Place) -> Result<(), Error> {
        self.budget.weigh(value)?;
        let text = repr(value);
        let room = WIDTH - (place.indent + place.allowance) as i64;
        if text.chars().count() as i64 <= room {
            return self.push(&text);
        }
        match value.kind() {
            _ if objects::write(&mut String::new(), value) => self.push(&text),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), place),
            ValueKind::Seq | ValueKind::Iterable => self.write_items(value, place),
            ValueKind::Map => self.write_map(value, place),
            _ => self.push(&text),
        }
    }

    fn write_items(&mut self, value: &Value, place: Place) -> Result<(), Error> {
        let items: Vec<Value> = value.try_iter()?.collect();
        let (open, close) = match (value.is_tuple(), items.len()) {
            (false, _) => ("[", "]"),
            (true, 1) => ("(", ",)"),
            (true, _) => ("(", ")"),
        };
        self.push(open)?;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.push(",")?;
                self.next_line(place.indent + 1)?;
            }
            self.write(item, place.inside(1, index + 1 == items.len(), close.len()))?;
        }
        self.push(close)
    }

    fn write_map(&mut self, value: &Value, place: Place) -> Result<(), Error> {
        let pairs = sorted_pairs(value);
        self.push("{")?;
        for (index, (key, item)) in pairs.iter().enumerate() {
            if index > 0 {
                self.push(",")?;
                self.next_line(place.indent + 1)?;
            }
            let key = repr(key);
            self.push(&key)?;
            self.push(": ")?;
            let before = 1 + key.chars().count() + 2;
            self.write(item, place.inside(before, index + 1 == pairs.len(), 1))?;
        }
        self.push("}")
    }

    /// A long text, in pieces that Python's parser would join again.
    fn write_text(&mut self, text: &str, place: Place) -> Result<(), Error> {
        let outermost = place.depth == 0;
        let indent = place.indent + usize::from(outermost);
        let allowance = place.allowance + usize::from(outermost);
        let pieces = self.text_pieces(text, WIDTH - indent as i64, allowance as i64)?;
        if let [piece] = pieces.as_slice() {
            return self.push(piece);
        }
        self.push(if outermost { "(" } else { "" })?;
        for (index, piece) in pieces.iter().enumerate() {
            if index > 0 {
                self.next_line(indent)?;
            }
            self.push(piece)?;
        }
        self.push(if outermost { ")" } else { "" })
    }

    /// The lines of a text, those that are too long in runs of words.
    fn text_pieces(&self, text: &str, room: i64, allowance: i64) -> Result<Vec<String>, Error> {
        let fits = |text: &str, last: bool| {
            let room = if last { room - allowance } else { room };
            repr(&Value::from(text)).chars().count() as i64 <= room
        };
        self.budget
            .spend(text.chars().filter(|c| c.is_control()).count())?;
        let lines = lines(text);
        let mut pieces = Vec::new();
        for (index, (line, line_end)) in lines.iter().enumerate() {
            let last_line = index + 1 == lines.len();
            let line = [*line, *line_end].concat();
            if fits(&line, last_line) {
                self.budget.spend(1)?;
                pieces.push(repr(&Value::from(line)));
                continue;
            }
            let mut current = String::new();
            let mut rest = line.as_str();
            while !rest.is_empty() {
                let (word, behind) = word(rest);
                rest = behind;
                self.budget.spend_text(current.len() + word.len())?;
                let longer = [current.as_str(), word].concat();
                if fits(&longer, last_line && rest.is_empty()) {
                    current = longer;
                    continue;
                }
                if !current.is_empty() {
                    pieces.push(repr(&Value::from(current)));
                }
                current = word.to_owned();
            }
            pieces.push(repr(&Value::from(current)));
        }
        Ok(pieces)
    }

    fn next_line(&mut self, indent: usize) -> Result<(), Error> {
        self.budget.spend(indent / 128)?;
        if self.out.len().saturating_add(indent) > LONGEST {
            return Err(python::failed(
                "the template makes a text of more than 32 MiB",
            ));
        }
        self.push("\n")?;
        self.out.extend(std::iter::repeat_n(' ', indent));
        Ok(())
    }

    fn push(&mut self, text: &str) -> Result<(), Error> {
        self.budget.spend(text.len() / 128)?;
        self.out.push_str(text);
        Ok(())
    }
}

impl Place {
    /// The place of an item behind `columns`; the last is followed by what closes all.
    fn inside(self, columns: usize, last: bool, close: usize) -> Place {
        Place {
            indent: self.indent + columns,
            allowance: if last { self.allowance + close } else { 1 },
            depth: self.depth + 1,
        }
    }
}

/// The first word with the white space behind it, and the rest.
fn word(text: &str) -> (&str, &str) {
    let end = text.find(is_space).unwrap_or(text.len());
    let behind = text[end..].find(|character| !is_space(character));
    text.split_at(behind.map_or(text.len(), |length| end + length))
}

/// Python's `repr`, with sorted keys.
fn repr(value: &Value) -> String {
    let mut out = String::new();
    push_repr(&mut out, value);
    out
}

fn push_repr(out: &mut String, value: &Value) {
    if objects::write(out, value) {
        return;
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter().into_iter().flatten().collect();
            let (open, close) = match (value.is_tuple(), items.len()) {
                (false, _) => ("[", "]"),
                (true, 1) => ("(", ",)"),
                (true, _) => ("(", ")"),
            };
            python::write_items(out, [open, close], &items, push_repr);
        }
        ValueKind::Map => {
            python::write_items(out, ["{", "}"], &sorted_pairs(value), |out, (key, item)| {
                push_repr(out, key);
                out.push_str(": ");
                push_repr(out, item);
            });
        }
        _ => python::write_repr(out, value),
    }
}

fn sorted_pairs(map: &Value) -> Vec<(Value, Value)> {
    let keys = map.try_iter().into_iter().flatten();
    let pair = |key: Value| {
        let item = map.get_item(&key).unwrap_or_default();
        (key, item)
    };
    let mut pairs: Vec<(Value, Value)> = keys.map(pair).collect();
    pairs.sort_by(|(left, _), (right, _)| compared(left, right));
    pairs
}

/// Keys of one kind by what they are, others by the name that Python has for their kind.
fn compared(left: &Value, right: &Value) -> Ordering {
    let kind = |key: &Value| match key.kind() {
        ValueKind::None => 0,
        ValueKind::Bool | ValueKind::Number => 1,
        ValueKind::String => 2,
        _ => 3,
    };
    let number = |key: &Value| match key.kind() {
        ValueKind::Bool => Value::from(i64::from(key.is_true())),
        _ => key.clone(),
    };
    let by_kind = kind(left).cmp(&kind(right));
    by_kind.then_with(|| number(left).cmp(&number(right)))
}
