//! Slices as Python takes them: of texts, lists, tuples and ranges. The engine's own differ, and
//! fail on an empty list that is taken backwards. Knows no templates.

use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Environment, Error};

use super::budget::Budget;
use super::python::failed;
use super::{markup, objects};

/// What stands for `operand[start:stop:step]`.
pub(super) const SLICED: &str = "sliced!";

/// The filter that rewritten templates call.
pub(crate) fn add_filters(environment: &mut Environment<'_>, budget: &Budget) {
    let budget = budget.clone();
    environment.add_filter(
        SLICED,
        move |operand: &Value, start: &Value, stop: &Value, step: &Value| {
            sliced(operand, [start, stop, step], &budget)
        },
    );
}

/// Which places a slice takes: from `start` on, before `stop`, each `step`.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) start: i64,
    pub(super) stop: i64,
    pub(super) step: i64,
}

impl Places {
    /// Python's `slice.indices`.
    fn of([start, stop, step]: [Option<i64>; 3], length: usize) -> Result<Places, Error> {
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let step = step.unwrap_or(1);
        if step == 0 {
            return Err(failed("a slice: the step is 0"));
        }
        let (lower, upper) = if step > 0 {
            (0, length)
        } else {
            (-1, length - 1)
        };
        let place = |given: Option<i64>, absent: i64| match given {
            None => absent,
            Some(at @ ..0) => at.saturating_add(length).max(lower),
            Some(at) => at.min(upper),
        };
        let (first, last) = if step > 0 {
            (lower, upper)
        } else {
            (upper, lower)
        };
        Ok(Places {
            start: place(start, first),
            stop: place(stop, last),
            step,
        })
    }

    fn each(self) -> impl Iterator<Item = usize> {
        let Places { start, stop, step } = self;
        let next = move |at: &i64| at.checked_add(step);
        let inside = move |at: &i64| if step > 0 { *at < stop } else { *at > stop };
        std::iter::successors(Some(start), next)
            .take_while(inside)
            .filter_map(|at| usize::try_from(at).ok())
    }
}

fn sliced(operand: &Value, bounds: [&Value; 3], budget: &Budget) -> Result<Value, Error> {
    let [start, stop, step] = bounds.map(bound);
    let bounds = [start?, stop?, step?];
    if let Some(text) = operand.as_str() {
        let characters: Vec<char> = text.chars().collect();
        let places = Places::of(bounds, characters.len())?;
        let text: String = places.each().map(|at| characters[at]).collect();
        return Ok(markup::like(operand, text));
    }
    if !matches!(operand.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(failed(
            "only a text, a list, a tuple or a range can be sliced, not none",
        ));
    }
    let length = operand.len().unwrap_or(0);
    if let Some(range) = objects::part_of_range(operand, Places::of(bounds, length)?) {
        return range;
    }
    budget.spend(length / 64)?;
    let items: Vec<Value> = operand.try_iter()?.checked().collect::<Result<_, _>>()?;
    let places = Places::of(bounds, items.len())?;
    let taken: Vec<Value> = places.each().map(|at| items[at].clone()).collect();
    Ok(match operand.is_tuple() {
        true => Value::from(Tuple::from(taken)),
        false => Value::from(taken),
    })
}

/// A whole number, or none; one beyond all places is as good as the last.
fn bound(value: &Value) -> Result<Option<i64>, Error> {
    let problem = "a slice: start, stop and step are whole numbers or none";
    match value.kind() {
        ValueKind::None => Ok(None),
        ValueKind::Bool => Ok(Some(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => match i128::try_from(value.clone()) {
            Ok(number) => Ok(Some(number.clamp(-FURTHEST, FURTHEST) as i64)),
            Err(_) => Ok(Some(FURTHEST as i64)),
        },
        _ => Err(failed(problem)),
    }
}

/// Beyond every place of a value.
const FURTHEST: i128 = 1 << 62;

#[cfg(test)]
mod tests {
    use crate::template::trial;

    /// _compile_jinja_template(source).render(…)
    #[test]
    fn slices_are_those_of_python() {
        for (expression, expected) in [
            ("[][::-1]", "[]"),
            ("()[::-1]", "()"),
            ("''[::-1]", ""),
            ("empty[::-1]", "[]"),
            ("messages[1:][::-1]", "[]"),
            ("[1,2,3][true:]", "[2, 3]"),
            ("[1,2,3,4][-2:]", "[3, 4]"),
            ("[1,2,3,4][:-1]", "[1, 2, 3]"),
            ("[1,2,3,4][10:]", "[]"),
            ("[1,2,3,4][3:0:-2]", "[4, 2]"),
            ("[1,2,3,4][-100:100:3]", "[1, 4]"),
            ("[1,2,3,4][none:2:none]", "[1, 2]"),
            ("(1,2,3)[:1]", "(1,)"),
            ("(1,2,3)[::-1]", "(3, 2, 1)"),
            ("t[::-1]", "京東 evïan"),
            ("t[1:-1:2]", "av "),
            ("t[-2:]", "東京"),
            ("t[9999999999999999999999:]", ""),
            ("range(10)[2:8:2]", "range(2, 8, 2)"),
            ("range(10)[::-1]", "range(9, -1, -1)"),
            ("range(0)[::-1]", "range(-1, -1, -1)"),
        ] {
            assert_eq!(
                trial::expression(expression).as_deref(),
                Ok(expected),
                "{expression}"
            );
        }
    }

    /// Where Python has a TypeError, a ValueError or an UndefinedError.
    #[test]
    fn what_cannot_be_sliced_is_refused() {
        for (expression, part) in [
            ("tools[1:]", "can be sliced"),
            ("nothing[1:]", "can be sliced"),
            ("messages[0][1:]", "can be sliced"),
            ("messages[0].items()[:1]", "view of a dictionary"),
            ("messages[nothing:]", "whole numbers"),
            ("messages[1.5:]", "whole numbers"),
            ("messages[::0]", "the step is 0"),
        ] {
            let error = trial::expression(expression).unwrap_err();
            assert!(error.contains(part), "{expression}: {error}");
        }
    }
}
