//! Where the engine would turn a value into text by itself, or knows an operator for numbers only:
//! each such place gets what Python has there. Knows no templates.

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};

use super::budget::{Budget, LONGEST};
use super::growth;
use super::markup;
use super::python::{self, failed};
use super::signatures::arranged;
use super::string_methods::stripped;

/// What stands for the operands of `~`.
pub(super) const WRITTEN: &str = "written!";
/// What stands for the operator `%`.
pub(super) const PERCENT: &str = "percent!";

/// The filters that take a text, what rewritten templates call, and the test that divides.
pub(crate) fn add_filters(environment: &mut Environment<'_>, budget: &Budget) {
    environment.add_test("divisibleby", divisible);
    use minijinja::filters as engine;
    let of_text: [(&'static str, Value); 6] = [
        ("upper", Value::from_function(engine::upper)),
        ("lower", Value::from_function(engine::lower)),
        ("title", Value::from_function(engine::title)),
        ("capitalize", Value::from_function(engine::capitalize)),
        ("trim", Value::from_function(trim)),
        ("safe", Value::from_function(engine::safe)),
    ];
    for (name, filter) in of_text {
        environment.add_filter(
            name,
            move |state: &mut State, given: Rest<ValueOrKwargs>| {
                let mut given = arranged(name, given.into_values())?;
                if let Some(operand) = given.first_mut() {
                    *operand = text(operand);
                }
                filter.call(state, &given)
            },
        );
    }
    let written = budget.clone();
    environment.add_filter(WRITTEN, move |value: &Value| {
        if value.as_str().is_none() {
            written.weigh(value)?;
        }
        Ok::<_, Error>(text(value))
    });
    let percent = budget.clone();
    environment.add_filter(
        PERCENT,
        move |state: &mut State, left: &Value, right: &Value| match left.as_str() {
            None => remainder(left, right),
            Some(_) => {
                let arguments: Vec<Value> = match right.is_tuple() {
                    true => right.try_iter()?.collect(),
                    false => vec![right.clone()],
                };
                growth::format(&percent, left, &arguments)?;
                format(state, left, &arguments)
            }
        },
    );
}

/// `value` as the engine is to write it: numbers, lists and dictionaries as Python does.
fn text(value: &Value) -> Value {
    use ValueKind::{Iterable, Map, Number, Seq};
    match value.kind() {
        Number | Seq | Map | Iterable => Value::from(python::string(value)),
        _ => value.clone(),
    }
}

/// `join(d="", attribute=None)`.
pub(super) fn join(
    value: &Value,
    between: Option<Value>,
    attribute: Option<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let between = between.or(named.get("d")?).unwrap_or_default();
    let attribute = attribute.or(named.get("attribute")?);
    named.assert_all_used()?;
    let between = python::string(&between);
    let mut out = String::new();
    for (index, item) in value.try_iter()?.checked().enumerate() {
        let item = match &attribute {
            Some(path) => at(item?, path)?,
            None => item?,
        };
        if index > 0 {
            out.push_str(&between);
        }
        match item.as_str() {
            Some(text) => out.push_str(text),
            None => out.push_str(&python::string(&item)),
        }
        if out.len() > LONGEST {
            return Err(failed("join: the text is longer than 32 MiB"));
        }
    }
    Ok(out)
}

/// What an item has under `path`: a place, or names with points between.
pub(super) fn at(item: Value, path: &Value) -> Result<Value, Error> {
    let Some(names) = path.as_str() else {
        return item.get_item(path);
    };
    names
        .split('.')
        .try_fold(item, |item, name| match name.parse::<usize>() {
            Ok(place) => item.get_item(&Value::from(place)),
            Err(_) => item.get_attr(name),
        })
}

/// `trim(chars=None)`.
fn trim(text: &Value, characters: Option<&str>) -> Value {
    let whole = python::string(text);
    markup::like(text, stripped(&whole, "strip", characters).to_owned())
}

/// The filter `format`, with arguments by position or all by name.
pub(super) fn format_filter(
    state: &mut State,
    text: &Value,
    mut given: Vec<Value>,
) -> Result<Value, Error> {
    let Some(named) = given.pop_if(|last| last.is_kwargs()) else {
        return format(state, text, &given);
    };
    if !given.is_empty() {
        return Err(failed(
            "format: arguments are given by position or by name, not both",
        ));
    }
    let named = Kwargs::try_from(named)?;
    let pair = |name| Ok((name, self::text(&named.get::<Value>(name)?)));
    let pairs = named.args().map(|name| match named.get::<Value>(name)? {
        number if number.kind() == ValueKind::Number => Ok((name, number)),
        _ => pair(name),
    });
    let values: Vec<(&str, Value)> = pairs.collect::<Result<_, Error>>()?;
    format(state, text, &[Value::from_pairs(values)])
}

/// `text % arguments`, and the filter `format`.
pub(super) fn format(state: &mut State, text: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let mut arguments = arguments.to_vec();
    for place in written_places(text.as_str().unwrap_or_default()) {
        if let Some(argument) = arguments.get_mut(place) {
            *argument = self::text(argument);
        }
    }
    if text.is_safe() {
        let is_number = |value: &Value| matches!(value.kind(), ValueKind::Bool | ValueKind::Number);
        for argument in arguments.iter_mut().filter(|value| !is_number(value)) {
            *argument = match argument.kind() {
                ValueKind::Map => return Err(failed("%: names in a text that is marked safe")),
                _ => Value::from_safe_string(markup::escaped(argument)),
            };
        }
    }
    let given = [std::slice::from_ref(text), arguments.as_slice()].concat();
    Value::from_function(minijinja::filters::format).call(state, &given)
}

/// Which arguments a format writes as text (`%s`).
fn written_places(format: &str) -> Vec<usize> {
    let (mut places, mut next) = (Vec::new(), 0);
    let mut rest = format.bytes();
    while rest.by_ref().any(|byte| byte == b'%') {
        for byte in rest.by_ref() {
            match byte {
                b'-' | b'+' | b' ' | b'#' | b'.' | b'0'..=b'9' | b'h' | b'l' | b'L' => continue,
                b'%' => {}
                b's' => {
                    places.push(next);
                    next += 1;
                }
                _ => next += 1,
            }
            break;
        }
    }
    places
}

/// Whether nothing is left of two numbers' division; of nothing else.
fn divisible(left: &Value, right: &Value) -> Result<bool, Error> {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    match is_number(left) && is_number(right) {
        true => Ok(!remainder(left, right)?.is_true()),
        false => Ok(false),
    }
}

/// `left % right` of numbers: as far from a multiple of `right`, with its sign.
fn remainder(left: &Value, right: &Value) -> Result<Value, Error> {
    let whole = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    };
    let number = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    };
    if let (Some(left), Some(right)) = (whole(left), whole(right)) {
        let rest = left.checked_rem(right);
        let rest = rest.ok_or_else(|| failed("%: a number cannot be divided by this one"))?;
        let turned = rest != 0 && (rest < 0) != (right < 0);
        return Ok(Value::from(if turned { rest + right } else { rest }));
    }
    match (number(left), number(right)) {
        (Some(_), Some(0.0)) => Err(failed("%: a number cannot be divided by this one")),
        (Some(left), Some(right)) => {
            let rest = left % right;
            let turned = rest != 0.0 && (rest < 0.0) != (right < 0.0);
            let rest = if turned { rest + right } else { rest };
            Ok(Value::from(if rest == 0.0 {
                0.0_f64.copysign(right)
            } else {
                rest
            }))
        }
        _ => Err(failed(
            "%: neither two numbers nor a text with what it is to contain",
        )),
    }
}
