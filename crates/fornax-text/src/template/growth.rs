//! Filters and methods that answer with more than they are given: what they will write is charged to
//! the rendering's [`Budget`] before they begin. Knows no templates.

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};

use super::budget::Budget;
use super::python::{self, failed};
use super::{as_python, filters, markup, signatures};

/// What a filter will cost, by its operand and its arguments.
type Price = fn(&Budget, &Value, &[Value]) -> Result<(), Error>;

/// Puts a price on the filters of `environment` that need one.
pub(crate) fn add_filters(environment: &mut Environment<'_>, budget: &Budget) {
    let priced: [(&'static str, Price, Value); 8] = [
        ("replace", replace, Value::from_function(filters::replace)),
        ("indent", indent, Value::from_function(filters::indent)),
        ("center", each, Value::from_function(filters::center)),
        ("join", join, Value::from_function(as_python::join)),
        (
            "format",
            format,
            Value::from_function(
                |state: &mut State, text: &Value, given: Rest<ValueOrKwargs>| {
                    as_python::format_filter(state, text, given.into_values())
                },
            ),
        ),
        (
            "batch",
            portions,
            Value::from_function(minijinja::filters::batch),
        ),
        (
            "slice",
            portions,
            Value::from_function(minijinja::filters::slice),
        ),
        ("sum", sum, Value::from_function(minijinja::filters::sum)),
    ];
    for (name, price, filter) in priced {
        let budget = budget.clone();
        let priced = move |state: &mut State, given: Rest<ValueOrKwargs>| {
            let given = signatures::arranged(name, given.into_values())?;
            if let Some((operand, arguments)) = given.split_first() {
                price(&budget, operand, arguments)?;
            }
            filter.call(state, &given)
        };
        environment.add_filter(name, priced);
    }
    let string = budget.clone();
    environment.add_filter("string", move |value: &Value| {
        string.weigh(value)?;
        Ok::<_, Error>(markup::like(value, python::string(value)))
    });
    let contained = budget.clone();
    environment.add_test("in", move |state: &State, value: &Value, place: &Value| {
        contained.weigh(place)?;
        minijinja::tests::is_in(state, value, place)
    });
}

/// Charges what `method` of `value` will cost.
///
/// # Errors
/// More than is left.
pub(crate) fn price_method(
    budget: &Budget,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<(), Error> {
    match (value.kind(), method) {
        (ValueKind::String, "replace") => replace(budget, value, arguments),
        (ValueKind::String, "format") => format(budget, value, arguments),
        // The text stands between the items of its argument.
        (ValueKind::String, "join") => match arguments {
            [items] => join(budget, items, std::slice::from_ref(value)),
            _ => Ok(()),
        },
        (ValueKind::String, "expandtabs") => expandtabs(budget, value, arguments),
        (ValueKind::String, "translate") => translate(budget, value, arguments),
        (ValueKind::String, "split" | "rsplit" | "splitlines") => pieces(budget, value, arguments),
        (ValueKind::Map, _) => {
            budget.spend(value.len().unwrap_or(0))?;
            arguments.iter().try_for_each(|given| budget.weigh(given))
        }
        _ => each(budget, value, arguments),
    }
}

fn each(budget: &Budget, operand: &Value, arguments: &[Value]) -> Result<(), Error> {
    budget.weigh(operand)?;
    arguments.iter().try_for_each(|given| budget.weigh(given))
}

fn replace(budget: &Budget, operand: &Value, arguments: &[Value]) -> Result<(), Error> {
    budget.weigh(operand)?;
    let text = python::string(operand);
    let [Some(old), Some(new)] = [0, 1].map(|index| arguments.get(index).and_then(Value::as_str))
    else {
        return Ok(());
    };
    let longer = new.len().saturating_sub(old.len());
    let found = text.matches(old).count();
    budget.spend_text(text.len().saturating_add(longer.saturating_mul(found)))
}

fn indent(budget: &Budget, operand: &Value, arguments: &[Value]) -> Result<(), Error> {
    let text = operand.as_str().unwrap_or_default();
    let margin = longest_text(arguments).max(largest_number(arguments).min(filters::WIDEST));
    let lines = 1 + text
        .chars()
        .filter(|character| character.is_control())
        .count();
    budget.spend_text(
        text.len()
            .saturating_add(lines.saturating_mul(margin.max(4))),
    )
}

/// Each tab becomes as many spaces as a column has.
fn expandtabs(budget: &Budget, operand: &Value, arguments: &[Value]) -> Result<(), Error> {
    each(budget, operand, arguments)?;
    let text = operand.as_str().unwrap_or_default();
    let size = largest_number(arguments).max(8);
    let tabs = text.matches('\t').count();
    budget.spend_text(text.len().saturating_add(tabs.saturating_mul(size)))
}

/// Each character may become the longest text of the table.
fn translate(budget: &Budget, operand: &Value, arguments: &[Value]) -> Result<(), Error> {
    each(budget, operand, arguments)?;
    let characters = operand.as_str().map_or(0, |text| text.chars().count());
    let table = arguments
        .first()
        .filter(|table| table.kind() == ValueKind::Map);
    let texts = table.into_iter().flat_map(|table| {
        let keys = table.try_iter().into_iter().flatten();
        keys.filter_map(|key| Some(table.get_item(&key).ok()?.as_str()?.len()))
    });
    let longest = texts.max().unwrap_or(0).max(4);
    budget.spend_text(characters.saturating_mul(longest))
}

/// A text is cut where white space is, or a part, or where lines end: at most at so many places.
fn pieces(budget: &Budget, operand: &Value, arguments: &[Value]) -> Result<(), Error> {
    each(budget, operand, arguments)?;
    let text = operand.as_str().unwrap_or_default();
    let part = flat(arguments).find_map(|given| given.as_str().map(str::to_owned));
    budget.spend(match part.filter(|part| !part.is_empty()) {
        Some(part) => text.matches(&*part).count(),
        None => text
            .chars()
            .filter(|at| at.is_whitespace() || at.is_control())
            .count(),
    })
}

/// What stands between items may be anything, and is written as text.
fn join(budget: &Budget, operand: &Value, arguments: &[Value]) -> Result<(), Error> {
    each(budget, operand, arguments)?;
    let written = flat(arguments).map(|given| python::string(&given).len());
    let between = written.max().unwrap_or(0);
    let items = operand.try_iter().map_or(0, Iterator::count);
    budget.spend_text(between.saturating_mul(items))
}

/// `count`, for each item; what fills a line is any value.
fn portions(budget: &Budget, _: &Value, arguments: &[Value]) -> Result<(), Error> {
    budget.spend(largest_number(arguments.get(..1).unwrap_or_default()))
}

/// Python adds no texts either. Each list that is added has the engine go through those before.
fn sum(budget: &Budget, operand: &Value, arguments: &[Value]) -> Result<(), Error> {
    let named = arguments.last().filter(|last| last.is_kwargs());
    let named = |name| named.and_then(|named| named.get_attr(name).ok());
    let start = named("start").filter(|start| !start.is_undefined());
    let attribute = named("attribute").filter(|path| !path.is_undefined() && !path.is_none());
    if start.as_ref().is_some_and(|start| start.as_str().is_some()) {
        return Err(failed("sum: texts cannot be added; use join"));
    }
    let length = |value: &Value| 1 + value.len().unwrap_or(0);
    let mut gone_through = start.as_ref().map_or(0, length);
    let mut steps = 0usize;
    for item in operand.try_iter().into_iter().flatten() {
        let added = match &attribute {
            Some(path) => as_python::at(item, path).map_or(1, |added| length(&added)),
            None => length(&item),
        };
        gone_through = gone_through.saturating_add(added);
        steps = steps.saturating_add(gone_through);
    }
    budget.spend(steps / 32)
}

/// Widths in the text itself, or among the arguments where the text says so; and each place may name
/// the longest argument.
pub(super) fn format(budget: &Budget, operand: &Value, arguments: &[Value]) -> Result<(), Error> {
    each(budget, operand, arguments)?;
    let text = operand.as_str().unwrap_or_default();
    let digits = text.split(|character: char| !character.is_ascii_digit());
    let widths = digits.filter(|digits| !digits.is_empty());
    let widths = widths.map(|digits| digits.parse().unwrap_or(usize::MAX));
    let widths = widths.fold(0, usize::saturating_add);
    let places = text.matches(['%', '{']).count();
    let asks_for_width = text.contains('*') || text.contains("{:") && text.contains(":{");
    let width = if asks_for_width {
        largest_number(arguments)
    } else {
        0
    };
    let argument = written_length(arguments).max(width);
    let places = places.saturating_mul(argument.saturating_add(64));
    budget.spend_text(text.len().saturating_add(widths).saturating_add(places))
}

fn written_length(arguments: &[Value]) -> usize {
    let lengths = arguments.iter().map(|given| match given.as_str() {
        Some(text) => text.len(),
        None if given.kind() == ValueKind::Number => 0,
        None => python::string(given).len(),
    });
    lengths.max().unwrap_or(0)
}

fn longest_text(arguments: &[Value]) -> usize {
    let lengths = flat(arguments).filter_map(|given| given.as_str().map(str::len));
    lengths.max().unwrap_or(0)
}

fn largest_number(arguments: &[Value]) -> usize {
    let magnitude = |given: Value| match given.as_i64() {
        Some(number) => usize::try_from(number.unsigned_abs()).ok(),
        None if given.is_integer() => Some(usize::MAX), // of more bits
        None => None,
    };
    flat(arguments).filter_map(magnitude).max().unwrap_or(0)
}

/// Arguments by position and by name.
fn flat(arguments: &[Value]) -> impl Iterator<Item = Value> {
    let named = |given: &Value| -> Vec<Value> {
        let names = given.try_iter().into_iter().flatten();
        names
            .filter_map(|name| given.get_item(&name).ok())
            .collect()
    };
    let values = move |given: &Value| match given.is_kwargs() {
        true => named(given),
        false => vec![given.clone()],
    };
    arguments.iter().flat_map(values)
}
