//! JSON text exactly as Python's `json.dumps` writes it. Knows no templates.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::budget::LONGEST;
use super::objects;
use super::python::{failed, float_text};

/// How the text is laid out; the default is `json.dumps(…, ensure_ascii=False)`.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Everything beyond ASCII is written as `\uXXXX`.
    pub ensure_ascii: bool,
    /// Keys in alphabetical order instead of their own.
    pub sort_keys: bool,
    /// One level of indentation; without it all stands on one line.
    pub indent: Option<String>,
    /// Between items.
    pub item_separator: String,
    /// Between a key and its value.
    pub key_separator: String,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout {
            ensure_ascii: false,
            sort_keys: false,
            indent: None,
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
        }
    }
}

/// `value` as JSON.
///
/// # Errors
/// A value that JSON cannot express (undefined, a function), or that is too long.
pub(crate) fn dumps(value: &Value, layout: &Layout) -> Result<String, Error> {
    let mut writer = Writer {
        layout,
        out: String::new(),
        depth: 0,
    };
    writer.value(value)?;
    Ok(writer.out)
}

struct Writer<'l> {
    layout: &'l Layout,
    out: String,
    /// Open brackets.
    depth: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        objects::check_json(value)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(truth(value)),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                self.bracketed(["[", "]"], &items, Writer::value)?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                if self.layout.sort_keys {
                    keys.sort_by_cached_key(Value::to_string);
                }
                self.bracketed(["{", "}"], &keys, |writer, key| {
                    writer.key(key)?;
                    writer.put(&writer.layout.key_separator)?;
                    writer.value(&value.get_item(key)?)
                })?;
            }
            kind => {
                let problem = format!("tojson: {kind} cannot be written as JSON");
                return Err(Error::new(ErrorKind::BadSerialization, problem));
            }
        }
        Ok(())
    }

    fn bracketed(
        &mut self,
        [open, close]: [&str; 2],
        items: &[Value],
        write: impl Fn(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.put(open)?;
        self.depth += 1;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.put(&self.layout.item_separator)?;
            }
            self.new_line()?;
            write(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.new_line()?;
        }
        self.put(close)
    }

    fn new_line(&mut self) -> Result<(), Error> {
        if let Some(indent) = &self.layout.indent {
            self.out.push('\n');
            for _ in 0..self.depth {
                self.put(indent)?;
            }
        }
        Ok(())
    }

    /// What stands around values: a template may have chosen it, and of any length.
    fn put(&mut self, text: &str) -> Result<(), Error> {
        self.out.push_str(text);
        match self.out.len() {
            0..=LONGEST => Ok(()),
            _ => Err(failed("tojson: the text is longer than 32 MiB")),
        }
    }

    /// JSON has only texts as keys; Python writes the others as text.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None => self.string("null"),
            ValueKind::Bool => self.string(truth(key)),
            ValueKind::Number => self.string(&number(key)),
            kind => {
                let problem = format!("tojson: {kind} cannot be a key in JSON");
                return Err(Error::new(ErrorKind::BadSerialization, problem));
            }
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{C}' => self.out.push_str("\\f"),
                '\0'..='\x1F' => self.escaped(character),
                _ if self.layout.ensure_ascii && character > '~' => {
                    self.escaped(character);
                }
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }

    /// `\uXXXX` for each UTF-16 unit.
    fn escaped(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            write!(self.out, "\\u{unit:04x}").expect("invariant: a String takes all text");
        }
    }
}

fn truth(value: &Value) -> &'static str {
    if value.is_true() { "true" } else { "false" }
}

fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => match float_text(float).as_str() {
            "nan" => "NaN".to_owned(),
            "inf" => "Infinity".to_owned(),
            "-inf" => "-Infinity".to_owned(),
            text => text.to_owned(),
        },
        _ => value.to_string(),
    }
}
