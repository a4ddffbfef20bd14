//! Values that Python has and the engine has not, or writes otherwise: ranges, views of
//! dictionaries, groups and namespaces. Knows no templates.
//!
//! They are as in Python but for three things that the engine decides: a range or a view is equal to a
//! list of the same, a view in a variable has items by number, and views have none of the methods of
//! sets.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{
    DynObject, Enumerator, Kwargs, Object, ObjectRepr, Rest, Value, ValueKind, ValueOrKwargs,
};
use minijinja::{Environment, Error, ErrorKind, State};

use super::as_python::at;
use super::python::{failed, write_items, write_repr};
use super::signatures::arranged;
use super::slicing::Places;

/// What stands for an assignment to an attribute.
pub(super) const ASSIGN: &str = "assign!";
/// The longest range: that of Jinja's sandbox.
const LONGEST_RANGE: i128 = 100_000;

/// The functions and filters that make such values.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_function("range", range);
    environment.add_function("namespace", namespace);
    environment.add_function(ASSIGN, assign);
    let engine = Value::from_function(minijinja::filters::groupby);
    environment.add_filter(
        "groupby",
        move |state: &mut State, given: Rest<ValueOrKwargs>| -> Result<Value, Error> {
            let given = arranged("groupby", given.into_values())?;
            let groups = engine.call(state, &given)?;
            let attribute = given
                .last()
                .and_then(|named| named.get_attr("attribute").ok());
            let attribute = attribute.unwrap_or_default();
            let group = |group| Group::of(group, &attribute);
            let groups: Vec<Value> = groups.try_iter()?.map(group).collect();
            let undefined = |group: &Value| {
                let grouper = group.get_item_by_index(0);
                grouper.is_ok_and(|grouper| grouper.is_undefined())
            };
            match groups.iter().any(undefined) {
                // Python cannot compare what is not there.
                true => Err(failed("groupby: an item has no such attribute")),
                false => Ok(Value::from(groups)),
            }
        },
    );
}

/// Writes such a value as Python's `repr` does; says whether it is one.
pub(super) fn write(out: &mut String, value: &Value) -> bool {
    if let Some(range) = value.downcast_object_ref::<Range>() {
        write!(out, "{range}").expect("invariant: a String takes all text");
    } else if let Some(view) = value.downcast_object_ref::<View>() {
        let items: Vec<Value> = view.items().collect();
        write_items(out, view.kind.brackets(), &items, write_repr);
    } else if let Some(group) = value.downcast_object_ref::<Group>() {
        let items = [group.grouper.clone(), group.list.clone()];
        write_items(out, ["(", ")"], &items, write_repr);
    } else if let Some(namespace) = value.downcast_object_ref::<Namespace>() {
        write!(out, "{namespace}").expect("invariant: a String takes all text");
    } else if let Some(engine) = value.as_object().map(|object| object.type_name()) {
        let part = |name| value.get_attr(name).unwrap_or_default();
        let written = match engine {
            "minijinja::vm::loop_object::Loop" => {
                format!("<LoopContext {}/{}>", part("index"), part("length"))
            }
            "minijinja::vm::macro_object::Macro" => format!("<Macro '{}'>", part("name")),
            _ => return false,
        };
        out.push_str(&written);
    } else {
        return false;
    }
    true
}

fn is_range_or_view(value: &Value) -> bool {
    value.downcast_object_ref::<Range>().is_some() || value.downcast_object_ref::<View>().is_some()
}

/// Refuses what Python's `json` does not know.
pub(super) fn check_json(value: &Value) -> Result<(), Error> {
    match is_range_or_view(value) {
        true => Err(failed(
            "tojson: a range or a view of a dictionary cannot be written as JSON; make a list of it",
        )),
        false => Ok(()),
    }
}

/// Refuses what Python finds no item in by its number.
pub(super) fn check_place(value: &Value) -> Result<(), Error> {
    match value.downcast_object_ref::<View>() {
        Some(_) => Err(failed(
            "a view of a dictionary has no items by number; make a list of it",
        )),
        None => Ok(()),
    }
}

/// Refuses what Python adds to nothing.
pub(super) fn check_sum(value: &Value) -> Result<(), Error> {
    match is_range_or_view(value) {
        true => Err(failed(
            "+: a range or a view of a dictionary cannot be added; make a list of it",
        )),
        false => Ok(()),
    }
}

/// What a namespace keeps; `None` for any other value.
pub(super) fn kept(value: &Value) -> Option<Vec<Value>> {
    let namespace = value.downcast_object_ref::<Namespace>()?;
    let pairs = namespace.pairs();
    Some(pairs.iter().map(|(_, value)| value.clone()).collect())
}

/// `dict.keys()` and its like; `None` where the method is another.
pub(super) fn view(map: &Value, method: &str) -> Option<Value> {
    let kind = match method {
        "keys" => ViewKind::Keys,
        "values" => ViewKind::Values,
        "items" => ViewKind::Items,
        _ => return None,
    };
    let map = map.clone();
    Some(Value::from_object(View { map, kind }))
}

/// `range(start, stop, step)`.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    start: i64,
    stop: i64,
    step: i64,
    len: usize,
}

fn range(first: i64, second: Option<i64>, step: Option<i64>) -> Result<Value, Error> {
    let (start, stop) = second.map_or((0, first), |second| (first, second));
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(failed("range: the step is 0"));
    }
    let (way, stride) = (i128::from(stop) - i128::from(start), i128::from(step));
    // Rounded up: a last step may be cut short.
    let len = if (way > 0) == (step > 0) {
        (way + stride - stride.signum()) / stride
    } else {
        0
    };
    if len > LONGEST_RANGE {
        return Err(failed("range: more than 100000 numbers"));
    }
    let len = usize::try_from(len).unwrap_or(0);
    Ok(Value::from_object(Range {
        start,
        stop,
        step,
        len,
    }))
}

/// A slice of a range, which is one too; `None` where the value is another.
pub(super) fn part_of_range(value: &Value, places: Places) -> Option<Result<Value, Error>> {
    let range = value.downcast_object_ref::<Range>()?;
    let at = |place: i64| place.checked_mul(range.step)?.checked_add(range.start);
    let bounds = (
        at(places.start),
        at(places.stop),
        places.step.checked_mul(range.step),
    );
    let (Some(start), Some(stop), Some(step)) = bounds else {
        return Some(Err(failed("a slice: a number of the range is too large")));
    };
    Some(self::range(start, Some(stop), Some(step)))
}

impl Range {
    fn at(&self, place: i64) -> Option<i64> {
        let len = self.len as i64;
        let place = if place < 0 { place + len } else { place };
        // Inside of the range, though the way there may be longer than a number holds.
        (0..len)
            .contains(&place)
            .then(|| self.start.wrapping_add(place.wrapping_mul(self.step)))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            1 => write!(f, "range({}, {})", self.start, self.stop),
            step => write!(f, "range({}, {}, {step})", self.start, self.stop),
        }
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str() {
            Some("start") => Some(Value::from(self.start)),
            Some("stop") => Some(Value::from(self.stop)),
            Some("step") => Some(Value::from(self.step)),
            Some(_) => None,
            None => self.at(key.as_i64()?).map(Value::from),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// What a view of a dictionary shows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ViewKind {
    Keys,
    Values,
    Items,
}

impl ViewKind {
    fn brackets(self) -> [&'static str; 2] {
        match self {
            ViewKind::Keys => ["dict_keys([", "])"],
            ViewKind::Values => ["dict_values([", "])"],
            ViewKind::Items => ["dict_items([", "])"],
        }
    }
}

/// The keys, the values or both of a dictionary.
#[derive(Debug)]
struct View {
    map: Value,
    kind: ViewKind,
}

impl View {
    fn items(&self) -> impl Iterator<Item = Value> + Send + Sync + use<> {
        let (map, kind) = (self.map.clone(), self.kind);
        let keys: Vec<Value> = map.try_iter().into_iter().flatten().collect();
        keys.into_iter().map(move |key| {
            let value = || map.get_item(&key).unwrap_or_default();
            match kind {
                ViewKind::Keys => key,
                ViewKind::Values => value(),
                ViewKind::Items => {
                    let value = value();
                    Value::from(minijinja::value::Tuple::from([key, value]))
                }
            }
        })
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items().collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.map.len()
    }
}

/// One of the groups of `groupby`: what its items have in common, and the items.
#[derive(Debug)]
struct Group {
    grouper: Value,
    /// A list.
    list: Value,
}

impl Group {
    /// From the engine's. A text that differs in case only is as the first item has it in Python,
    /// as the last has it in the engine.
    fn of(group: Value, attribute: &Value) -> Value {
        let part = |index| group.get_item_by_index(index).unwrap_or_default();
        let list: Vec<Value> = part(1).try_iter().into_iter().flatten().collect();
        let first = || {
            let first = list.first().filter(|_| part(0).as_str().is_some())?;
            let first = at(first.clone(), attribute).ok()?;
            first.as_str().is_some().then_some(first)
        };
        Value::from_object(Group {
            grouper: first().unwrap_or_else(|| part(0)),
            list: list.into(),
        })
    }
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_i64(), key.as_str()) {
            (Some(0 | -2), _) | (_, Some("grouper")) => Some(self.grouper.clone()),
            (Some(1 | -1), _) | (_, Some("list")) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

/// Names with values that a template may change from within a loop; in the order in which they
/// came.
#[derive(Debug, Default)]
struct Namespace {
    pairs: Mutex<Vec<(Arc<str>, Value)>>,
}

impl Namespace {
    fn pairs(&self) -> Vec<(Arc<str>, Value)> {
        let pairs = self.pairs.lock();
        pairs.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, name: &str, value: Value) {
        let pairs = self.pairs.lock();
        let mut pairs = pairs.unwrap_or_else(PoisonError::into_inner);
        match pairs.iter_mut().find(|(other, _)| **other == *name) {
            Some((_, old)) => *old = value,
            None => pairs.push((name.into(), value)),
        }
    }
}

fn namespace(given: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let namespace = Namespace::default();
    let name = |name: &Value| {
        let name = name.as_str().map(str::to_owned);
        name.ok_or_else(|| failed("namespace: a name is no text"))
    };
    for item in given.iter().flat_map(Value::try_iter).flatten() {
        match given
            .as_ref()
            .filter(|given| given.kind() == ValueKind::Map)
        {
            Some(map) => namespace.set(&name(&item)?, map.get_item(&item)?),
            None => {
                let [key, value] = [0, 1].map(|index| item.get_item_by_index(index));
                namespace.set(&name(&key?)?, value?);
            }
        }
    }
    if given.is_some_and(|given| given.try_iter().is_err()) {
        return Err(failed("namespace: neither a dictionary nor pairs"));
    }
    for key in named.args() {
        namespace.set(key, named.get(key)?);
    }
    Ok(Value::from_object(namespace))
}

fn assign(target: &Value, name: &str, value: Value) -> Result<(), Error> {
    let Some(namespace) = target.downcast_object_ref::<Namespace>() else {
        let problem = "cannot assign attribute on non-namespace object";
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    };
    namespace.set(name, value);
    Ok(())
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        write_items(
            &mut out,
            ["<Namespace {", "}>"],
            &self.pairs(),
            |out, (name, value)| {
                write_repr(out, &Value::from(&**name));
                out.push_str(": ");
                write_repr(out, value);
            },
        );
        f.write_str(&out)
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let name = key.as_str()?;
        let pairs = self.pairs.lock();
        let pairs = pairs.unwrap_or_else(PoisonError::into_inner);
        let found = pairs.iter().find(|(other, _)| **other == *name);
        found.map(|(_, value)| value.clone())
    }

    /// One is equal to itself only.
    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<std::cmp::Ordering> {
        let other = other.downcast_ref::<Namespace>()?;
        Some(std::ptr::from_ref(&**self).cmp(&std::ptr::from_ref(other)))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
