//! Loops that the engine would run otherwise than Python: those with an `else` that are left or cut
//! short, and jumps that the engine loses its way by, which are refused. Knows no values.
//!
//! Python's Jinja runs the `else` of a loop where no round of it came to its end, be it that there
//! was none or that `continue` or `break` ended each; the engine only where there was none. So the
//! rewritten loop says when it begins and when a round has ended, and asks at its end.

use std::sync::{Arc, Mutex, PoisonError};

use minijinja::Environment;
use minijinja::machinery::ast::{self, Expr, Spanned, Stmt};
use minijinja::value::Value;

use super::bounded::statements;
use super::weighed::{MEASURED, expression, iterated, spanned, target, wrapped};

// No template can say or replace these names.
const BEGUN: &str = "begun!";
const ENDED: &str = "ended!";
const NONE_ENDED: &str = "none_ended!";

/// Of each loop that is under way, the innermost last: whether a round of it has ended.
type Loops = Mutex<Vec<bool>>;

/// What rewritten loops call.
pub(super) fn add(environment: &mut Environment<'_>) {
    let loops: Arc<Loops> = Arc::default();
    let mut add = |name, told: fn(&mut Vec<bool>) -> bool| {
        let loops = loops.clone();
        environment.add_function(name, move || {
            let mut loops = loops.lock().unwrap_or_else(PoisonError::into_inner);
            Value::from(told(&mut loops))
        });
    };
    add(BEGUN, |loops| {
        loops.push(false);
        false
    });
    add(ENDED, |loops| {
        let innermost = loops.last_mut();
        innermost.is_some_and(|ended| !std::mem::replace(ended, true))
    });
    add(NONE_ENDED, |loops| loops.pop() == Some(false));
}

/// A loop, as one statement or as several.
pub(super) fn for_loop<'a>(s: &Spanned<ast::ForLoop<'a>>) -> Vec<Stmt<'a>> {
    let (mut body, else_body) = (statements(&s.body), statements(&s.else_body));
    let jumps = !else_body.is_empty() && jumps(&s.body);
    if jumps {
        body.push(told(s, ENDED));
    }
    let rewritten = |else_body| {
        Stmt::ForLoop(spanned(
            s,
            ast::ForLoop {
                target: target(&s.target),
                iter: wrapped(MEASURED, iterated(expression(&s.iter))),
                filter_expr: s.filter_expr.as_ref().map(expression),
                recursive: s.recursive,
                body,
                else_body,
            },
        ))
    };
    if !jumps {
        return vec![rewritten(else_body)];
    }
    let otherwise = ast::IfCond {
        expr: Expr::Call(call(s, NONE_ENDED)),
        true_body: else_body,
        false_body: Vec::new(),
    };
    vec![
        told(s, BEGUN),
        rewritten(Vec::new()),
        Stmt::IfCond(spanned(s, otherwise)),
    ]
}

fn told<'a, A>(place: &Spanned<A>, name: &'static str) -> Stmt<'a> {
    let call = call(place, name);
    Stmt::Do(spanned(place, ast::Do { call }))
}

fn call<'a, A>(place: &Spanned<A>, id: &'static str) -> Spanned<ast::Call<'a>> {
    let expr = Expr::Var(spanned(place, ast::Var { id }));
    let args = Vec::new();
    spanned(place, ast::Call { expr, args })
}

/// Whether `continue` or `break` stands in the body of a loop and means it.
fn jumps(body: &[Stmt<'_>]) -> bool {
    body.iter().any(|statement| match statement {
        Stmt::Continue(_) | Stmt::Break(_) => true,
        // Those in its body mean the inner loop.
        Stmt::ForLoop(s) => jumps(&s.else_body),
        Stmt::IfCond(s) => jumps(&s.true_body) || jumps(&s.false_body),
        _ => false,
    })
}

/// Where a statement stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In no loop, where there is nothing to continue or to leave.
    Outside,
    /// In a loop.
    Loop,
    /// In a block inside a loop, by which the engine would leave what the block has begun.
    Block,
}

/// The line of a `continue` or `break` that cannot be where it is, or over which the engine would not
/// get, and what is wrong with it.
pub(super) fn astray(body: &[Stmt<'_>], place: Place) -> Option<(usize, String)> {
    let within = match place {
        Place::Outside => Place::Outside,
        Place::Loop | Place::Block => Place::Block,
    };
    body.iter().find_map(|statement| match statement {
        Stmt::Continue(s) => jump_astray("continue", s, place),
        Stmt::Break(s) => jump_astray("break", s, place),
        Stmt::Template(s) => astray(&s.children, place),
        Stmt::ForLoop(s) if s.recursive && !s.else_body.is_empty() && jumps(&s.body) => {
            let problem = "a recursive loop with an else cannot have continue or break here";
            Some(at(s, problem.to_owned()))
        }
        Stmt::ForLoop(s) => astray(&s.body, Place::Loop).or_else(|| astray(&s.else_body, place)),
        Stmt::IfCond(s) => astray(&s.true_body, place).or_else(|| astray(&s.false_body, place)),
        Stmt::WithBlock(s) => astray(&s.body, within),
        Stmt::AutoEscape(s) => match &s.enabled {
            Expr::Const(given) if !given.value.is_true() => astray(&s.body, within),
            _ => {
                let problem = "autoescape is not supported: a prompt is not HTML; use the filter e";
                Some(at(s, problem.to_owned()))
            }
        },
        Stmt::FilterBlock(s) => astray(&s.body, within),
        Stmt::SetBlock(s) => astray(&s.body, within),
        Stmt::Block(s) => astray(&s.body, Place::Outside),
        Stmt::Macro(s) => astray(&s.body, Place::Outside),
        Stmt::CallBlock(s) => astray(&s.macro_decl.body, Place::Outside),
        _ => None,
    })
}

fn jump_astray<A>(name: &str, s: &Spanned<A>, place: Place) -> Option<(usize, String)> {
    match place {
        Place::Loop => None,
        Place::Outside => Some(at(s, format!("{name} stands outside of a loop"))),
        Place::Block => {
            let problem = format!(
                "{name} cannot leave a with, set, filter or autoescape block here; end the block \
                 before it"
            );
            Some(at(s, problem))
        }
    }
}

fn at<A>(s: &Spanned<A>, problem: String) -> (usize, String) {
    (usize::from(s.span().start_line), problem)
}
