//! What Jinja calls the parameters of its filters, and the one place where arguments by name become
//! those that a filter here takes. Knows no filter's work and no templates.

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

/// How a filter here takes its arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// By position; what is left out before another is none.
    Placed,
    /// By name, all of them.
    Named,
}

use Style::{Named, Placed};

/// Filter, parameters behind the operand, how many of them must be there, style.
type Signature = (&'static str, &'static [&'static str], usize, Style);

const SIGNATURES: [Signature; 25] = [
    ("upper", &[], 0, Placed),
    ("lower", &[], 0, Placed),
    ("title", &[], 0, Placed),
    ("capitalize", &[], 0, Placed),
    ("safe", &[], 0, Placed),
    ("default", &["default_value", "boolean"], 0, Named),
    ("d", &["default_value", "boolean"], 0, Named),
    ("trim", &["chars"], 0, Placed),
    ("replace", &["old", "new", "count"], 2, Placed),
    ("batch", &["linecount", "fill_with"], 1, Placed),
    ("slice", &["slices", "fill_with"], 1, Placed),
    ("dictsort", &["case_sensitive", "by", "reverse"], 0, Named),
    ("indent", &["width", "first", "blank"], 0, Placed),
    ("int", &["default", "base"], 0, Placed),
    ("float", &["default"], 0, Placed),
    ("round", &["precision", "method"], 0, Placed),
    (
        "sort",
        &["reverse", "case_sensitive", "attribute"],
        0,
        Named,
    ),
    ("join", &["d", "attribute"], 0, Placed),
    ("center", &["width"], 0, Placed),
    (
        "groupby",
        &["attribute", "default", "case_sensitive"],
        1,
        Named,
    ),
    ("unique", &["case_sensitive", "attribute"], 0, Named),
    ("min", &["case_sensitive", "attribute"], 0, Named),
    ("max", &["case_sensitive", "attribute"], 0, Named),
    ("sum", &["attribute", "start"], 0, Named),
    ("attr", &["name"], 1, Placed),
];

/// The engine's own filters, with Jinja's parameters, and `map`.
pub(crate) fn add_filters(environment: &mut Environment<'_>) {
    use minijinja::filters as engine;
    let own: [(&'static str, Value); 11] = [
        ("attr", Value::from_function(attr)),
        ("default", Value::from_function(default)),
        ("d", Value::from_function(default)),
        ("dictsort", Value::from_function(dictsort)),
        ("int", Value::from_function(super::filters::int)),
        ("float", Value::from_function(super::filters::float)),
        ("round", Value::from_function(engine::round)),
        ("sort", Value::from_function(engine::sort)),
        ("unique", Value::from_function(engine::unique)),
        ("min", Value::from_function(engine::min)),
        ("max", Value::from_function(engine::max)),
    ];
    for (name, filter) in own {
        environment.add_filter(
            name,
            move |state: &mut State, given: Rest<ValueOrKwargs>| -> Result<Value, Error> {
                filter.call(state, &arranged(name, given.into_values())?)
            },
        );
    }
    environment.add_filter("map", map);
}

/// The operand and arguments that `filter` is given, as it takes them here.
///
/// # Errors
/// A name that it has not, one that is given twice, too many, or too few.
pub(super) fn arranged(filter: &str, mut given: Vec<Value>) -> Result<Vec<Value>, Error> {
    let signature = SIGNATURES.iter().find(|(name, ..)| *name == filter);
    let Some(&(_, names, required, style)) = signature else {
        return Ok(given);
    };
    let named = given.pop_if(|last| last.is_kwargs());
    let named = named.map(Kwargs::try_from).transpose()?;
    let placed = given.len().saturating_sub(1);
    if placed > names.len() {
        let problem = format!("{filter} takes {names:?} and no more");
        return Err(Error::new(ErrorKind::TooManyArguments, problem));
    }
    let mut found: Vec<Option<Value>> = given.drain(given.len().min(1)..).map(Some).collect();
    found.resize(names.len(), None);
    for name in named.iter().flat_map(Kwargs::args) {
        let place = names.iter().position(|known| *known == name);
        let problem = match place.and_then(|place| found.get_mut(place)) {
            None => format!("{filter} has no parameter {name}; it takes {names:?}"),
            Some(Some(_)) => format!("{filter} is given {name} twice"),
            Some(free) => {
                *free = named.as_ref().map(|named| named.get(name)).transpose()?;
                continue;
            }
        };
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    let missing = found.iter().take(required).position(Option::is_none);
    if let Some(name) = missing.and_then(|place| names.get(place)) {
        let problem = format!("{filter} needs {name}");
        return Err(Error::new(ErrorKind::MissingArgument, problem));
    }
    match style {
        Placed => {
            let length = found
                .iter()
                .rposition(Option::is_some)
                .map_or(0, |last| last + 1);
            found.truncate(length);
            given.extend(
                found
                    .into_iter()
                    .map(|value| value.unwrap_or(Value::from(()))),
            );
        }
        Named => {
            let pairs = names.iter().zip(found);
            let pairs: Vec<(&str, Value)> = pairs
                .filter_map(|(name, value)| Some((*name, value?)))
                .collect();
            if !pairs.is_empty() {
                given.push(Kwargs::from_iter(pairs).into());
            }
        }
    }
    Ok(given)
}

/// `attr(name)`: an attribute, which an item of a dictionary is not.
fn attr(value: &Value, name: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => Ok(Value::UNDEFINED),
        _ => minijinja::filters::attr(value, name),
    }
}

/// `default(default_value="", boolean=False)`.
fn default(value: &Value, named: Kwargs) -> Result<Value, Error> {
    let other = match named.has("default_value") {
        true => named.get("default_value")?,
        false => Value::from(""),
    };
    let boolean = named.has("boolean") && named.get::<Value>("boolean")?.is_true();
    let absent = value.is_undefined() || boolean && !value.is_true();
    Ok(if absent { other } else { value.clone() })
}

/// `dictsort(case_sensitive=False, by="key", reverse=False)`.
fn dictsort(value: &Value, named: Kwargs) -> Result<Value, Error> {
    match named.get::<Option<&str>>("by")? {
        None | Some("key" | "value") => minijinja::filters::dictsort(value, named),
        Some(_) => Err(super::python::failed(
            "dictsort: by is \"key\" or \"value\"",
        )),
    }
}

/// `map(attribute=…, default=…)`, or `map(filter, …)`, which hands on what else it is given.
fn map(state: &mut State, value: &Value, given: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let given = given.into_values();
    let Some((filter, arguments)) = given.split_first().filter(|(first, _)| !first.is_kwargs())
    else {
        let engine = Value::from_function(minijinja::filters::map);
        let mut all = vec![value.clone()];
        let named = given.first().cloned().map(Kwargs::try_from).transpose()?;
        if let Some(named) = named {
            let mut pairs = Vec::new();
            for name in named.args() {
                pairs.push((name, named.get::<Value>(name)?));
            }
            // To Python a default of none is no default.
            pairs.retain(|(name, value)| *name != "default" || !value.is_none());
            all.push(Kwargs::from_iter(pairs).into());
        }
        return engine.call(state, &all);
    };
    let filter = filter
        .as_str()
        .ok_or_else(|| super::python::failed("map: the name of a filter is a text"))?;
    if value.is_none() || value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    let mut mapped = Vec::new();
    for item in value.try_iter()?.checked() {
        let given = [std::slice::from_ref(&item?), arguments].concat();
        mapped.push(state.apply_filter(filter, &given)?);
    }
    Ok(Value::from(mapped))
}

#[cfg(test)]
#[path = "signatures_tests.rs"]
mod tests;
