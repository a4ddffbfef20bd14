//! Rewrites a template so that whatever it builds is weighed: around each operation that makes or
//! goes through a value stands a filter that charges the rendering's budget. Changes nothing of what
//! a template prints, but for two operators, slices and the statements of `assigned` and `loops`.
//!
//! Owns statements; the filters and the expressions that they stand in are in `weighed`.

use minijinja::Error;
use minijinja::machinery::ast::{self, Expr, Spanned, Stmt};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;

use super::loops::Place;
use super::weighed::{call, expression, spanned, target};
use super::{assigned, loops};

/// The template with its operations weighed.
///
/// # Errors
/// What the engine cannot read. It must not be `nesting::too_deep`.
pub(crate) fn read<'a>(
    source: &'a str,
    name: &'a str,
    syntax: SyntaxConfig,
) -> Result<Stmt<'a>, Error> {
    Ok(statement(&parse(source, name, syntax)?))
}

/// The statements of a body, which may become more.
pub(super) fn statements<'a>(body: &[Stmt<'a>]) -> Vec<Stmt<'a>> {
    let several = |given: &Stmt<'a>| match given {
        Stmt::ForLoop(s) => loops::for_loop(s),
        Stmt::Set(s) => assigned::set(s),
        Stmt::SetBlock(s) => assigned::set_block(s),
        other => vec![statement(other)],
    };
    body.iter().flat_map(several).collect()
}

/// The line of a jump that leads nowhere, and what is wrong with it.
///
/// # Errors
/// What the engine cannot read.
pub(crate) fn astray(
    source: &str,
    name: &str,
    syntax: SyntaxConfig,
) -> Result<Option<(usize, String)>, Error> {
    let template = parse(source, name, syntax)?;
    Ok(loops::astray(
        std::slice::from_ref(&template),
        Place::Outside,
    ))
}

fn statement<'a>(given: &Stmt<'a>) -> Stmt<'a> {
    match given {
        Stmt::Template(s) => Stmt::Template(spanned(
            s,
            ast::Template {
                children: statements(&s.children),
            },
        )),
        // A call writes into the prompt itself, where it is counted.
        Stmt::EmitExpr(s) => {
            let expr = match &s.expr {
                Expr::Call(made) => Expr::Call(call(made)),
                other => expression(other),
            };
            Stmt::EmitExpr(spanned(s, ast::EmitExpr { expr }))
        }
        Stmt::EmitRaw(s) => {
            let value = Value::from(s.raw);
            let expr = Expr::Const(spanned(s, ast::Const { value }));
            Stmt::EmitExpr(spanned(s, ast::EmitExpr { expr }))
        }
        Stmt::IfCond(s) => Stmt::IfCond(spanned(
            s,
            ast::IfCond {
                expr: expression(&s.expr),
                true_body: statements(&s.true_body),
                false_body: statements(&s.false_body),
            },
        )),
        Stmt::WithBlock(s) => {
            let assignments = s.assignments.iter();
            let assignments = assignments.map(|(to, from)| (target(to), expression(from)));
            Stmt::WithBlock(spanned(
                s,
                ast::WithBlock {
                    assignments: assignments.collect(),
                    body: statements(&s.body),
                },
            ))
        }
        Stmt::AutoEscape(s) => Stmt::AutoEscape(spanned(
            s,
            ast::AutoEscape {
                enabled: expression(&s.enabled),
                body: statements(&s.body),
            },
        )),
        Stmt::FilterBlock(s) => Stmt::FilterBlock(spanned(
            s,
            ast::FilterBlock {
                filter: expression(&s.filter),
                body: statements(&s.body),
            },
        )),
        other => larger_statement(other),
    }
}

/// Macros, blocks and what would come from other templates.
fn larger_statement<'a>(given: &Stmt<'a>) -> Stmt<'a> {
    match given {
        Stmt::Block(s) => Stmt::Block(spanned(
            s,
            ast::Block {
                name: s.name,
                required: s.required,
                body: statements(&s.body),
            },
        )),
        Stmt::Import(s) => {
            let (expr, name) = (expression(&s.expr), target(&s.name));
            Stmt::Import(spanned(s, ast::Import { expr, name }))
        }
        Stmt::FromImport(s) => {
            let names = s.names.iter();
            let names = names.map(|(name, alias)| (target(name), alias.as_ref().map(target)));
            let (expr, names) = (expression(&s.expr), names.collect());
            Stmt::FromImport(spanned(s, ast::FromImport { expr, names }))
        }
        Stmt::Extends(s) => {
            let name = expression(&s.name);
            Stmt::Extends(spanned(s, ast::Extends { name }))
        }
        Stmt::Include(s) => {
            let (name, ignore_missing) = (expression(&s.name), s.ignore_missing);
            Stmt::Include(spanned(
                s,
                ast::Include {
                    name,
                    ignore_missing,
                },
            ))
        }
        Stmt::Macro(s) => Stmt::Macro(macro_of(s)),
        Stmt::CallBlock(s) => {
            let (call, macro_decl) = (call(&s.call), macro_of(&s.macro_decl));
            Stmt::CallBlock(spanned(s, ast::CallBlock { call, macro_decl }))
        }
        Stmt::Continue(s) => Stmt::Continue(spanned(s, ast::Continue)),
        Stmt::Break(s) => Stmt::Break(spanned(s, ast::Break)),
        Stmt::Do(s) => {
            let call = call(&s.call);
            Stmt::Do(spanned(s, ast::Do { call }))
        }
        _ => unreachable!("invariant: every smaller statement is rewritten before"),
    }
}

fn macro_of<'a>(s: &Spanned<ast::Macro<'a>>) -> Spanned<ast::Macro<'a>> {
    spanned(
        s,
        ast::Macro {
            name: s.name,
            args: s.args.iter().map(target).collect(),
            defaults: s.defaults.iter().map(expression).collect(),
            body: statements(&s.body),
        },
    )
}
