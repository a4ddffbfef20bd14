//! `cargo xtask tidy`: the rules of the repository that the compiler does not know.
//!
//! Owns the list of rules and how they are told; a rule is a function from the files to what
//! breaks it, and knows neither git nor the disk. Each says what to do instead.

mod imports;
mod layout;
mod links;
mod source;
mod tree;
mod wording;

use std::{
    fmt,
    io::{self, Write},
    path::Path,
};

use anyhow::{Result, bail};

use tree::Tree;

/// One place where a rule is broken.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    /// Path in the repository.
    path: String,
    /// Counted from 1.
    line: usize,
    /// What is wrong, and what to do.
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.what)
    }
}

type Rule = fn(&Tree) -> Vec<Violation>;

/// Every rule.
const RULES: &[Rule] = &[
    layout::opening,
    layout::length,
    imports::directions,
    imports::lints,
    wording::placeholders,
    wording::unsafe_code,
    wording::ignored_tests,
    wording::machine_paths,
    links::targets,
];

/// Checks the repository at `root` and prints each violation.
///
/// # Errors
/// A rule is broken, or the files cannot be listed or read.
pub fn run(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let violations = violations(&tree);
    let mut stdout = io::stdout().lock();
    for violation in &violations {
        writeln!(stdout, "{violation}")?;
    }
    if !violations.is_empty() {
        bail!("{} places are not tidy", violations.len());
    }
    writeln!(stdout, "{} files are tidy", tree.len())?;
    Ok(())
}

fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found: Vec<Violation> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    found.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_reports_and_the_report_is_in_order() {
        let tree = Tree::of(&[
            ("b.md", "[gone](gone.md)"),
            (
                "crates/fornax-text/src/lib.rs",
                "fn f() {\n    todo!()\n}\n",
            ),
        ]);
        let told: Vec<String> = violations(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "b.md:1: links to gone.md, which is not in the repository: correct or remove it",
                "crates/fornax-text/src/lib.rs:1: does not open with `//!`: say what the file owns \
                 and what it must not know",
                "crates/fornax-text/src/lib.rs:2: `todo!`: write it, or leave it out",
            ]
        );
    }

    #[test]
    fn this_repository_is_read_without_its_build_folder() {
        let tree = Tree::read(crate::root()).unwrap();
        assert!(tree.file("xtask/src/tidy.rs").is_some());
        assert!(tree.files().all(|file| !file.path.starts_with("target/")));
    }
}
