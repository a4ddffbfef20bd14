//! The Jinja environment that templates run in: the settings, filters, tests and
//! functions of `transformers` (`utils/chat_template_utils.py`), none of ours.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind};

use super::budget::Budget;
use super::clock::Clock;
use super::{
    arguments, as_python, filters, growth, loops, markup, objects, python, signatures, slicing,
    text_filters, to_json, weighed,
};

/// Instructions that one rendering may take. The longest real conversations take some
/// hundred thousand; a template that loops without end is stopped within seconds.
const FUEL: u64 = 20_000_000;

const LONGEST_FORMAT: usize = 1000;

/// An environment without templates, for one rendering of what `bounded` has rewritten.
pub(crate) fn new(clock: Clock, budget: &Budget) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    let methods = budget.clone();
    environment.set_unknown_method_callback(move |state, value, method, arguments| {
        growth::price_method(&methods, value, method, arguments)?;
        let answer = python::method(state, value, method, arguments)?;
        match value.is_safe() {
            true => markup::of_method(method, answer),
            false => Ok(answer),
        }
    });
    let written = budget.clone();
    environment.set_formatter(move |out, _, value| python::write_value(out, value, &written));
    environment.set_fuel(Some(FUEL));
    environment.set_debug(true); // Errors name the variable that is undefined.
    let dumped = budget.clone();
    environment.add_filter(
        "tojson",
        move |value: &Value, arguments: Rest<ValueOrKwargs>| {
            dumped.weigh(value)?;
            let text = tojson(value, arguments)?;
            dumped.spend_text(text.len()).map(|()| text)
        },
    );
    environment.add_filter("items", filters::items);
    environment.add_filter("wordcount", filters::wordcount);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", filters::is_sequence);
    environment.add_function("cycler", |items: Rest<Value>| {
        minijinja_contrib::globals::cycler(items.to_vec())
    });
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_function("raise_exception", raise_exception);
    environment.remove_global("debug"); // Python has none.
    set_clock(&mut environment, clock);
    objects::add(&mut environment);
    loops::add(&mut environment);
    markup::add_filters(&mut environment, budget);
    signatures::add_filters(&mut environment);
    as_python::add_filters(&mut environment, budget);
    slicing::add_filters(&mut environment, budget);
    text_filters::add_filters(&mut environment, budget);
    growth::add_filters(&mut environment, budget);
    weighed::add_filters(&mut environment, budget);
    environment
}

/// The white space around statements that `transformers` leaves out.
pub(crate) fn syntax() -> SyntaxConfig {
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    syntax
        .build()
        .expect("invariant: Jinja's own delimiters do not collide")
}

/// Makes `strftime_now` tell the time of `clock`.
fn set_clock(environment: &mut Environment<'static>, clock: Clock) {
    environment.add_function("strftime_now", move |given: Rest<ValueOrKwargs>| {
        let [format] = arguments::by_name(["format"], &given.into_values())?;
        let format = arguments::text("format", format.as_ref())?;
        let format = format.ok_or_else(|| python::failed("strftime_now: it needs a format"))?;
        if format.len() > LONGEST_FORMAT {
            return Err(python::failed(
                "strftime_now: a format of more than 1000 bytes",
            ));
        }
        clock.format(format).map_err(|problem| {
            let problem = format!("strftime_now({format:?}): {problem}");
            Error::new(ErrorKind::InvalidOperation, problem)
        })
    });
}

/// The message of `raise_exception`, if that is what ended the rendering.
pub(crate) fn refusal(error: &Error) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Refusal(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        cause = error.source();
    }
    None
}

/// A template's own words for why it does not render a conversation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let refusal = Refusal(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, refusal.0.clone()).with_source(refusal))
}

/// Python iterates over strings and Jinja's undefined, but not over None.
fn is_iterable(value: &Value) -> bool {
    value.as_str().is_some() || !value.is_none() && value.try_iter().is_ok()
}

/// `json.dumps` with the defaults of `transformers`: nothing is escaped for HTML.
fn tojson(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ensure_ascii, indent, separators, sort_keys] =
        arguments::by_name(NAMES, &arguments.into_values())?;
    let indent = indent.map(|indent| indent_text(&indent)).transpose()?;
    let mut layout = to_json::Layout {
        ensure_ascii: ensure_ascii.is_some_and(|yes| yes.is_true()),
        sort_keys: sort_keys.is_some_and(|yes| yes.is_true()),
        ..to_json::Layout::default()
    };
    if indent.is_some() {
        layout.item_separator = ",".to_owned();
    }
    if let Some(separators) = separators {
        let text = |index| {
            separators
                .get_item_by_index(index)
                .map(|text| text.to_string())
        };
        (layout.item_separator, layout.key_separator) = (text(0)?, text(1)?);
    }
    layout.indent = indent;
    to_json::dumps(value, &layout)
}

/// One level of indentation: a number of spaces or the text itself.
fn indent_text(indent: &Value) -> Result<String, Error> {
    match (indent.kind(), indent.as_str()) {
        (ValueKind::String, Some(text)) => Ok(text.to_owned()),
        (ValueKind::Bool, _) => Ok(" ".repeat(usize::from(indent.is_true()))),
        // Python takes a negative number for none; a width beyond a page is nobody's layout.
        _ => match indent.as_i64() {
            Some(width @ ..=1000) => Ok(" ".repeat(usize::try_from(width).unwrap_or(0))),
            _ => {
                let problem =
                    format!("tojson: indent is {indent}, not a number up to 1000 or a text");
                Err(Error::new(ErrorKind::InvalidOperation, problem))
            }
        },
    }
}
