//! Arguments by position or by name, as Python's functions take them. Knows no function.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};

/// What `given` has for each of `names`; `None` and what is left out are the default.
///
/// # Errors
/// There are more than `names`, or others.
pub(super) fn by_name<const N: usize>(
    names: [&str; N],
    given: &[Value],
) -> Result<[Option<Value>; N], Error> {
    let (named, placed) = match given.split_last() {
        Some((last, placed)) if last.is_kwargs() => (Kwargs::try_from(last.clone())?, placed),
        _ => (Kwargs::from_iter::<[(&str, Value); 0]>([]), given),
    };
    if placed.len() > N {
        let problem = format!("takes {names:?} and no more");
        return Err(Error::new(ErrorKind::TooManyArguments, problem));
    }
    let mut found = [const { None }; N];
    for (index, name) in names.into_iter().enumerate() {
        let argument = match placed.get(index) {
            Some(value) => Some(value.clone()),
            None => named.get(name)?,
        };
        found[index] = argument.filter(|value: &Value| !value.is_none());
    }
    named.assert_all_used()?;
    Ok(found)
}

/// The whole number that was given, if any.
///
/// # Errors
/// Another value.
pub(super) fn whole(name: &str, given: Option<&Value>) -> Result<Option<i64>, Error> {
    given.map_or(Ok(None), |value| match (value.as_i64(), value.is_true()) {
        (Some(number), _) => Ok(Some(number)),
        (None, yes) if value.kind() == minijinja::value::ValueKind::Bool => Ok(Some(yes.into())),
        _ => Err(expected(name, "a whole number", value)),
    })
}

/// The text that was given, if any.
///
/// # Errors
/// Another value.
pub(super) fn text<'v>(name: &str, given: Option<&'v Value>) -> Result<Option<&'v str>, Error> {
    given.map_or(Ok(None), |value| match value.as_str() {
        Some(text) => Ok(Some(text)),
        None => Err(expected(name, "a text", value)),
    })
}

/// Whether what was given, or the default, counts as true.
pub(super) fn truth(given: Option<&Value>, default: bool) -> bool {
    given.map_or(default, Value::is_true)
}

fn expected(name: &str, what: &str, value: &Value) -> Error {
    let problem = format!("{name} is to be {what}, not a {}", value.kind());
    Error::new(ErrorKind::InvalidOperation, problem)
}
