//! Expressions whose operations are weighed: each that makes or goes through a value is wrapped in a
//! filter that charges the rendering's [`Budget`], or checks what it is given.
//!
//! Owns these filters and which operation gets which. Must not know statements.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, BinOpKind, CallArg, CompareOpKind, Expr, Spanned};
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error};

use super::as_python::{PERCENT, WRITTEN};
use super::budget::{BYTES_A_STEP, Budget};
use super::markup::PLUS;
use super::objects;
use super::python::failed;
use super::slicing::SLICED;

// No template can say or replace these names.
const WEIGHED: &str = "weighed!";
const SEARCHED: &str = "searched!";
pub(super) const MEASURED: &str = "measured!";
const INDEXED: &str = "indexed!";
const NUMBERED: &str = "numbered!";
pub(super) const KEPT: &str = "kept!";
const SHORT: &str = "short!";
const ITERATED: &str = "iterated!";
const SOME: &str = "some!";

/// Filters that count the characters of a text, and take the same time whatever else they are given.
const COUNTING: [&str; 2] = ["length", "count"];
/// Filters that take the same time whatever they are given, or charge it themselves.
const FREE: [&str; 6] = ["first", "last", "default", "d", "string", "tojson"];
/// Filters that do something for each item.
const FOR_EACH: [&str; 12] = [
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "sort",
    "groupby",
    "unique",
    "min",
    "max",
    "sum",
    "dictsort",
];
/// Filters that Python's `None` has no items for. Those that choose or map take it for an empty list.
const OF_ITEMS: [&str; 15] = [
    "list", "join", "sort", "unique", "first", "last", "length", "count", "sum", "min", "max",
    "batch", "slice", "reverse", "groupby",
];
/// Bytes of a text given to one of [`FOR_EACH`].
const LONGEST_FOR_EACH: usize = 4096;

/// The filters that rewritten templates call.
pub(crate) fn add_filters(environment: &mut Environment<'_>, budget: &Budget) {
    let mut add = |name, check: fn(&Budget, &Value) -> Result<(), Error>| {
        let budget = budget.clone();
        environment.add_filter(name, move |value: &Value| {
            check(&budget, value).map(|()| value.clone())
        });
    };
    add(WEIGHED, Budget::weigh);
    add(KEPT, Budget::weigh_kept);
    add(INDEXED, |budget, value| {
        objects::check_place(value)?;
        match value.as_str() {
            Some(text) => budget.spend_text(text.len()),
            None => Ok(()),
        }
    });
    add(NUMBERED, |_, value| objects::check_place(value));
    // Its characters are counted, or it is looked for among keys.
    add(MEASURED, |budget, value| match value.as_str() {
        Some(text) => budget.spend_text(text.len()),
        None => Ok(()),
    });
    add(SEARCHED, |budget, value| match value.kind() {
        ValueKind::Map => budget.spend(1),
        _ => budget.weigh(value),
    });
    add(SHORT, |_, value| match value.as_str() {
        Some(text) if text.len() > LONGEST_FOR_EACH => Err(failed(
            "a text of more than 4096 bytes cannot be given to a filter that goes over items",
        )),
        _ => Ok(()),
    });
    add(SOME, |_, value| match value.len() {
        Some(1..) => Ok(()),
        _ => Err(failed("cycle: there is nothing to go through")),
    });
    environment.add_filter(ITERATED, items_of);
}

/// What is assigned to: names, not values.
pub(super) fn target<'a>(given: &Expr<'a>) -> Expr<'a> {
    let all = |items: &[Expr<'a>]| items.iter().map(target).collect();
    match given {
        Expr::List(s) => Expr::List(spanned(
            s,
            ast::List {
                items: all(&s.items),
            },
        )),
        Expr::Tuple(s) => Expr::Tuple(spanned(
            s,
            ast::Tuple {
                items: all(&s.items),
            },
        )),
        Expr::GetAttr(s) => {
            let (expr, name) = (expression(&s.expr), s.name);
            Expr::GetAttr(spanned(s, ast::GetAttr { expr, name }))
        }
        other => expression(other),
    }
}

pub(super) fn expression<'a>(given: &Expr<'a>) -> Expr<'a> {
    match given {
        Expr::Var(s) => Expr::Var(spanned(s, ast::Var { id: s.id })),
        Expr::Const(s) => {
            let value = s.value.clone();
            Expr::Const(spanned(s, ast::Const { value }))
        }
        Expr::GetAttr(s) => {
            let (expr, name) = (expression(&s.expr), s.name);
            Expr::GetAttr(spanned(s, ast::GetAttr { expr, name }))
        }
        Expr::GetItem(s) => Expr::GetItem(item(s)),
        Expr::Slice(s) => {
            let none = || Expr::Const(spanned(s, ast::Const { value: ().into() }));
            let bound = |given: &Option<Expr<'a>>| {
                CallArg::Pos(given.as_ref().map_or_else(none, expression))
            };
            let filter = ast::Filter {
                name: SLICED,
                expr: Some(wrapped(INDEXED, expression(&s.expr))),
                args: [&s.start, &s.stop, &s.step].map(bound).into(),
            };
            wrapped(WEIGHED, Expr::Filter(spanned(s, filter)))
        }
        Expr::UnaryOp(s) => {
            let op = if matches!(s.op, ast::UnaryOpKind::Not) {
                ast::UnaryOpKind::Not
            } else {
                ast::UnaryOpKind::Neg
            };
            let expr = expression(&s.expr);
            Expr::UnaryOp(spanned(s, ast::UnaryOp { op, expr }))
        }
        Expr::BinOp(s) => binary(s),
        Expr::Compare(s) => compare(s),
        Expr::IfExpr(s) => Expr::IfExpr(spanned(
            s,
            ast::IfExpr {
                test_expr: expression(&s.test_expr),
                true_expr: expression(&s.true_expr),
                false_expr: s.false_expr.as_ref().map(expression),
            },
        )),
        Expr::Filter(s) => wrapped(WEIGHED, Expr::Filter(filter(s))),
        Expr::Test(s) => Expr::Test(test(s)),
        Expr::Call(s) => wrapped(WEIGHED, Expr::Call(call(s))),
        Expr::List(s) => {
            let items = s.items.iter().map(expression).collect();
            wrapped(WEIGHED, Expr::List(spanned(s, ast::List { items })))
        }
        Expr::Tuple(s) => {
            let items = s.items.iter().map(expression).collect();
            wrapped(WEIGHED, Expr::Tuple(spanned(s, ast::Tuple { items })))
        }
        Expr::Map(s) => {
            let keys = s.keys.iter().map(expression).collect();
            let values = s.values.iter().map(expression).collect();
            wrapped(WEIGHED, Expr::Map(spanned(s, ast::Map { keys, values })))
        }
    }
}

/// The first characters of a text are found at once; others take as long as the text is.
fn item<'a>(s: &Spanned<ast::GetItem<'a>>) -> Spanned<ast::GetItem<'a>> {
    let at_once = |place: &Value| matches!(place.as_i64(), Some(0..99));
    let expr = match &s.subscript_expr {
        Expr::Const(place) if place.value.as_str().is_some() => expression(&s.expr),
        // What a variable is undefined by, the engine tells where nothing stands around it.
        Expr::Const(place) if at_once(&place.value) => match &s.expr {
            Expr::Call(_) => wrapped(NUMBERED, expression(&s.expr)),
            _ => expression(&s.expr),
        },
        _ => wrapped(INDEXED, expression(&s.expr)),
    };
    let subscript_expr = match is_constant(&s.subscript_expr) {
        true => expression(&s.subscript_expr),
        false => wrapped(MEASURED, expression(&s.subscript_expr)),
    };
    spanned(
        s,
        ast::GetItem {
            expr,
            subscript_expr,
        },
    )
}

fn binary<'a>(s: &Spanned<ast::BinOp<'a>>) -> Expr<'a> {
    use BinOpKind as Op;
    let (mut left, mut right) = (expression(&s.left), expression(&s.right));
    match s.op {
        Op::ScAnd | Op::ScOr => {}
        Op::In => (left, right) = looked_for(left, right),
        Op::Eq | Op::Ne | Op::Lt | Op::Lte | Op::Gt | Op::Gte => left = compared(left, &right),
        Op::Concat => (left, right) = (written(left), written(right)),
        Op::Add | Op::Rem => {
            let name = match s.op {
                Op::Add => PLUS,
                _ => PERCENT,
            };
            let filter = ast::Filter {
                name,
                expr: Some(left),
                args: vec![CallArg::Pos(right)],
            };
            return wrapped(WEIGHED, Expr::Filter(spanned(s, filter)));
        }
        // The engine computes what is constant when it reads a template, where nothing counts.
        _ => left = wrapped(INDEXED, left),
    }
    let made = Expr::BinOp(spanned(
        s,
        ast::BinOp {
            op: s.op,
            left,
            right,
        },
    ));
    match s.op {
        Op::Mul | Op::Concat => wrapped(WEIGHED, made),
        _ => made,
    }
}

fn compare<'a>(s: &Spanned<ast::Compare<'a>>) -> Expr<'a> {
    let mut expr = expression(&s.expr);
    let mut ops = Vec::with_capacity(s.ops.len());
    for (index, part) in s.ops.iter().enumerate() {
        let mut right = expression(&part.expr);
        match (part.op, index) {
            (CompareOpKind::In | CompareOpKind::NotIn, 0) => {
                (expr, right) = looked_for(expr, right);
            }
            (CompareOpKind::In | CompareOpKind::NotIn, _) => {
                right = wrapped(SEARCHED, iterated(right));
            }
            (_, 0) => expr = compared(expr, &right),
            (_, _) if is_constant(&right) => {}
            _ => right = wrapped(WEIGHED, right),
        }
        ops.push(ast::CompareOp {
            op: part.op,
            expr: right,
        });
    }
    Expr::Compare(spanned(s, ast::Compare { expr, ops }))
}

/// An operand of `~`, which makes text of anything.
fn written<'a>(operand: Expr<'a>) -> Expr<'a> {
    match &operand {
        Expr::Const(given) if given.value.as_str().is_some() => operand,
        _ => wrapped(WRITTEN, operand),
    }
}

/// Operands of `in`: the engine writes the first as text where it looks into one.
fn looked_for<'a>(left: Expr<'a>, right: Expr<'a>) -> (Expr<'a>, Expr<'a>) {
    let left = match is_constant(&left) {
        true => left,
        false => wrapped(WEIGHED, left),
    };
    (left, wrapped(SEARCHED, iterated(right)))
}

/// What is looped over or looked into.
pub(super) fn iterated(expr: Expr<'_>) -> Expr<'_> {
    wrapped(ITERATED, expr)
}

/// The engine goes over `None` as over an empty list, and has filters that refuse what is undefined;
/// Python does it the other way round.
fn items_of(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::None => Err(failed(
            "None has no items: the template should ask first, as in {% if tools %}",
        )),
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        _ => Ok(value.clone()),
    }
}

/// Two values are compared as far as the smaller one goes.
fn compared<'a>(left: Expr<'a>, right: &Expr<'a>) -> Expr<'a> {
    match is_constant(&left) || is_constant(right) {
        true => left,
        false => wrapped(WEIGHED, left),
    }
}

/// What takes the same time to compare or to look for each time, and little.
fn is_constant(expression: &Expr<'_>) -> bool {
    let is_short = |text: &str| text.len() <= BYTES_A_STEP;
    matches!(expression, Expr::Const(given) if given.value.as_str().is_none_or(is_short))
}

fn filter<'a>(s: &Spanned<ast::Filter<'a>>) -> Spanned<ast::Filter<'a>> {
    let each = FOR_EACH.contains(&s.name);
    let mut expr = s.expr.as_ref().map(expression);
    if OF_ITEMS.contains(&s.name) {
        expr = expr.map(iterated);
    }
    let filter = ast::Filter {
        name: s.name,
        expr: match s.name {
            name if FREE.contains(&name) => expr,
            name if COUNTING.contains(&name) => expr.map(|expr| wrapped(MEASURED, expr)),
            _ => expr.map(|expr| wrapped(WEIGHED, expr)),
        },
        args: arguments(
            &s.args,
            match s.name {
                "attr" => Some(MEASURED),
                _ => each.then_some(SHORT),
            },
        ),
    };
    spanned(s, filter)
}

fn test<'a>(s: &Spanned<ast::Test<'a>>) -> Spanned<ast::Test<'a>> {
    let reads = !s.args.is_empty() || matches!(s.name, "lower" | "upper");
    let expr = expression(&s.expr);
    let test = ast::Test {
        name: s.name,
        expr: match reads {
            true => wrapped(WEIGHED, expr),
            false => expr,
        },
        args: arguments(&s.args, reads.then_some(SEARCHED)),
    };
    spanned(s, test)
}

pub(super) fn call<'a>(s: &Spanned<ast::Call<'a>>) -> Spanned<ast::Call<'a>> {
    let call = ast::Call {
        // The name of a function or a method; what a method costs is charged where it is called.
        expr: match &s.expr {
            Expr::Var(_) | Expr::GetAttr(_) => target(&s.expr),
            other => expression(other),
        },
        args: match &s.expr {
            // A loop that is called goes through what it is given.
            Expr::Var(_) => arguments(&s.args, Some(MEASURED)),
            Expr::GetAttr(method) if method.name == "cycle" => cycled(s),
            // One that is asked compares it with what it was asked about before.
            Expr::GetAttr(method) if method.name == "changed" => arguments(&s.args, Some(WEIGHED)),
            _ => arguments(&s.args, None),
        },
    };
    spanned(s, call)
}

/// What `loop.cycle` goes through: the engine divides by how many there are.
fn cycled<'a>(s: &Spanned<ast::Call<'a>>) -> Vec<CallArg<'a>> {
    let is_one = |given: &CallArg<'_>| matches!(given, CallArg::Pos(_) | CallArg::Kwarg(..));
    if s.args.iter().any(is_one) {
        return arguments(&s.args, None);
    }
    let is_list = |given: &CallArg<'_>| matches!(given, CallArg::PosSplat(_));
    if s.args.iter().any(is_list) {
        let one = |given| match is_list(given) {
            true => arguments(std::slice::from_ref(given), Some(SOME)),
            false => arguments(std::slice::from_ref(given), None),
        };
        return s.args.iter().flat_map(one).collect();
    }
    let items = Vec::new();
    let nothing = Expr::List(spanned(s, ast::List { items }));
    vec![CallArg::PosSplat(wrapped(SOME, nothing))]
}

fn arguments<'a>(given: &[CallArg<'a>], filter: Option<&'static str>) -> Vec<CallArg<'a>> {
    let value = |given: &Expr<'a>| match filter {
        Some(name) if !is_constant(given) => wrapped(name, expression(given)),
        _ => expression(given),
    };
    let argument = |given: &CallArg<'a>| match given {
        CallArg::Pos(given) => CallArg::Pos(value(given)),
        CallArg::Kwarg(name, given) => CallArg::Kwarg(name, value(given)),
        CallArg::PosSplat(given) => CallArg::PosSplat(value(given)),
        CallArg::KwargSplat(given) => CallArg::KwargSplat(value(given)),
    };
    given.iter().map(argument).collect()
}

pub(super) fn wrapped<'a>(name: &'static str, expr: Expr<'a>) -> Expr<'a> {
    let span: Span = expr.span();
    let filter = ast::Filter {
        name,
        expr: Some(expr),
        args: Vec::new(),
    };
    Expr::Filter(Spanned::new(filter, span))
}

pub(super) fn spanned<A, B>(place: &Spanned<A>, node: B) -> Spanned<B> {
    Spanned::new(node, place.span())
}
