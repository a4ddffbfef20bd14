//! Texts that are marked safe, Python's `Markup`: what is added to one or put into one is escaped.
//! Knows no templates.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::budget::Budget;
use super::{objects, python};

/// What stands for the operator `+`.
pub(super) const PLUS: &str = "plus!";

/// The filters that escape, and the one that rewritten templates call.
pub(crate) fn add_filters(environment: &mut Environment<'_>, budget: &Budget) {
    for name in ["escape", "e"] {
        environment.add_filter(name, |value: &Value| {
            Value::from_safe_string(escaped(value))
        });
    }
    environment.add_filter("forceescape", |value: &Value| {
        Value::from_safe_string(escaped_text(&python::string(value)))
    });
    let budget = budget.clone();
    environment.add_filter(
        PLUS,
        move |state: &mut State, left: &Value, right: &Value| plus(state, left, right, &budget),
    );
}

/// `value` as a text with Python's entities; what is marked safe stays as it is.
pub(super) fn escaped(value: &Value) -> String {
    let text = python::string(value);
    if value.is_safe() {
        text
    } else {
        escaped_text(&text)
    }
}

fn escaped_text(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            other => out.push(other),
        }
    }
    out
}

/// `text`, which is made of `of` and is marked safe where that is.
pub(super) fn like(of: &Value, text: String) -> Value {
    match of.is_safe() {
        true => Value::from_safe_string(text),
        false => Value::from(text),
    }
}

/// What a method of a text that is marked safe answers: a text of the same kind.
///
/// # Errors
/// A method that would escape what it is given, or make several such texts.
pub(super) fn of_method(method: &str, answer: Value) -> Result<Value, Error> {
    match (answer.kind(), method) {
        (ValueKind::Bool | ValueKind::Number, _) => Ok(answer),
        (
            ValueKind::String,
            "strip" | "lstrip" | "rstrip" | "upper" | "lower" | "title" | "capitalize" | "swapcase"
            | "casefold" | "expandtabs" | "zfill" | "removeprefix" | "removesuffix",
        ) => Ok(Value::from_safe_string(python::string(&answer))),
        _ => {
            let problem = format!("{method} of a text that is marked safe is not supported");
            Err(Error::new(ErrorKind::InvalidOperation, problem))
        }
    }
}

fn plus(state: &State, left: &Value, right: &Value, budget: &Budget) -> Result<Value, Error> {
    objects::check_sum(left)?;
    objects::check_sum(right)?;
    if let (Some(first), Some(second)) = (left.as_str(), right.as_str()) {
        if !left.is_safe() && !right.is_safe() {
            budget.spend_text(first.len() + second.len())?;
            return Ok(Value::from([first, second].concat()));
        }
        // A character becomes five at most.
        budget.spend_text((first.len() + second.len()).saturating_mul(5))?;
        let both = [escaped(left), escaped(right)].concat();
        return Ok(Value::from_safe_string(both));
    }
    if left.is_undefined() || right.is_undefined() {
        return Err(Error::new(
            ErrorKind::UndefinedError,
            "+: an operand is undefined",
        ));
    }
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if is_number(left) != is_number(right) {
        let kinds = [left.kind(), right.kind()];
        let problem = format!("+: a {} and a {} cannot be added", kinds[0], kinds[1]);
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    // The engine's own operator, which it has under no other name.
    let named = Kwargs::from_iter::<[(&str, Value); 0]>([]);
    let right = Value::from(vec![right.clone()]);
    minijinja::filters::sum(state, right, None, Some(left.clone()), named)
}

#[cfg(test)]
#[path = "markup_tests.rs"]
mod tests;
