//! Rewrites assignments to attributes, by which a template changes a namespace, to calls: namespaces
//! are ours (`objects`), not the engine's.

use minijinja::machinery::ast::{self, CallArg, Expr, Spanned, Stmt};
use minijinja::value::Value;

use super::bounded::statements;
use super::objects::ASSIGN;
use super::weighed::{KEPT, expression, spanned, target, wrapped};

/// Values on their way to attributes; no template can say these names.
const PARTS: [&str; 8] = [
    "part!0", "part!1", "part!2", "part!3", "part!4", "part!5", "part!6", "part!7",
];

/// `{% set target = value %}`.
pub(super) fn set<'a>(s: &Spanned<ast::Set<'a>>) -> Vec<Stmt<'a>> {
    let expr = expression(&s.expr);
    if let Expr::GetAttr(place) = &s.target {
        let value = wrapped(KEPT, expr);
        return vec![assignment(s, expression(&place.expr), place.name, value)];
    }
    let mut parts = Parts::default();
    let target = parts.target(&s.target);
    let mut out = vec![Stmt::Set(spanned(s, ast::Set { target, expr }))];
    out.extend(parts.assignments);
    out
}

/// `{% set target %}…{% endset %}`.
pub(super) fn set_block<'a>(s: &Spanned<ast::SetBlock<'a>>) -> Vec<Stmt<'a>> {
    let mut parts = Parts::default();
    let block = ast::SetBlock {
        target: parts.target(&s.target),
        filter: s.filter.as_ref().map(expression),
        body: statements(&s.body),
    };
    let mut out = vec![Stmt::SetBlock(spanned(s, block))];
    out.extend(parts.assignments);
    out
}

/// Attributes among what is assigned to: a name takes the value of each, and gives it on.
#[derive(Default)]
struct Parts<'a> {
    assignments: Vec<Stmt<'a>>,
}

impl<'a> Parts<'a> {
    fn target(&mut self, given: &Expr<'a>) -> Expr<'a> {
        match given {
            Expr::List(s) => {
                let items = s.items.iter().map(|item| self.target(item)).collect();
                Expr::List(spanned(s, ast::List { items }))
            }
            Expr::Tuple(s) => {
                let items = s.items.iter().map(|item| self.target(item)).collect();
                Expr::Tuple(spanned(s, ast::Tuple { items }))
            }
            Expr::GetAttr(s) => {
                let Some(part) = PARTS.get(self.assignments.len()) else {
                    // The engine refuses it.
                    return target(given);
                };
                let value = wrapped(KEPT, variable(s, part));
                let place = expression(&s.expr);
                self.assignments.push(assignment(s, place, s.name, value));
                variable(s, part)
            }
            other => target(other),
        }
    }
}

fn variable<'a, A>(place: &Spanned<A>, id: &'static str) -> Expr<'a> {
    Expr::Var(spanned(place, ast::Var { id }))
}

/// A call that gives an attribute a value.
fn assignment<'a, A>(
    place: &Spanned<A>,
    object: Expr<'a>,
    name: &'a str,
    value: Expr<'a>,
) -> Stmt<'a> {
    let name = Value::from(name);
    let name = Expr::Const(spanned(place, ast::Const { value: name }));
    let call = ast::Call {
        expr: variable(place, ASSIGN),
        args: vec![
            CallArg::Pos(object),
            CallArg::Pos(name),
            CallArg::Pos(value),
        ],
    };
    let call = spanned(place, call);
    Stmt::Do(spanned(place, ast::Do { call }))
}
