//! How a file begins and how long it may be.

use super::{
    Violation,
    source::Source,
    tree::{File, Tree},
};

/// Lines of code in a file at most: blank lines and lines of comment do not count.
const LONGEST: usize = 500;

/// A source file opens with what it owns and what it must not know.
pub fn opening(tree: &Tree) -> Vec<Violation> {
    let opens = |file: &File, text: &str| match file.extension() {
        "rs" | "cu" | "cuh" | "metal" => after_attributes(text).starts_with("//!"),
        "py" => after_comments(text).starts_with("\"\"\""),
        _ => true,
    };
    let closed = tree.texts().filter(|(file, text)| !opens(file, text));
    closed
        .map(|(file, _)| {
            let mark = if file.extension() == "py" {
                "a docstring"
            } else {
                "`//!`"
            };
            let what = format!(
                "does not open with {mark}: say what the file owns and what it must not know"
            );
            Violation {
                path: file.path.clone(),
                line: 1,
                what,
            }
        })
        .collect()
}

/// A file can be read at one sitting.
pub fn length(tree: &Tree) -> Vec<Violation> {
    let lengths = tree
        .texts()
        .filter_map(|(file, text)| Some((file, lines_of_code(file, text)?)));
    let long = lengths.filter(|(_, lines)| *lines > LONGEST);
    long.map(|(file, lines)| Violation {
        path: file.path.clone(),
        line: 1,
        what: format!("has {lines} lines of code, {LONGEST} at most: divide it by what it owns"),
    })
    .collect()
}

/// `None` for a file that is no code.
fn lines_of_code(file: &File, text: &str) -> Option<usize> {
    let full = |line: &&str| !line.trim().is_empty();
    match file.extension() {
        "rs" | "cu" | "cuh" | "metal" => Some(Source::new(text).code.lines().filter(full).count()),
        "py" | "sh" => {
            let code = |line: &&str| !line.trim_start().starts_with('#');
            Some(text.lines().filter(full).filter(code).count())
        }
        _ => None,
    }
}

/// Skips a shebang, and attributes such as `#![allow(…)]` that apply to the whole file.
fn after_attributes(text: &str) -> &str {
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if rest.starts_with("#![") {
            let Some((_, after)) = rest.split_once("]\n") else {
                return rest;
            };
            rest = after;
        } else if rest.starts_with("#!") {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
        } else {
            return rest;
        }
    }
}

/// Skips a shebang and licence lines of a script.
fn after_comments(text: &str) -> &str {
    let mut rest = text.trim_start();
    while rest.starts_with('#') {
        rest = rest
            .split_once('\n')
            .map_or("", |(_, after)| after)
            .trim_start();
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(violations: &[Violation]) -> Vec<&str> {
        violations
            .iter()
            .map(|violation| violation.path.as_str())
            .collect()
    }

    #[test]
    fn a_file_opens_with_what_it_owns() {
        let tree = Tree::of(&[
            ("a.rs", "//! Owns a.\n"),
            (
                "b.rs",
                "#!/usr/bin/env run\n#![cfg(\n    unix\n)]\n\n//! Owns b.\n",
            ),
            ("c.rs", "use std::fs; //! late\n"),
            ("d.metal", "// Owns d.\n"),
            ("e.cu", "//! Owns e.\n"),
            ("f.py", "#!/usr/bin/env python3\n\"\"\"Owns f.\"\"\"\n"),
            ("g.py", "import os\n"),
            ("h.py", "# a comment only"),
            ("i.rs", ""),
            ("j.txt", ""),
        ]);
        assert_eq!(
            paths(&opening(&tree)),
            ["c.rs", "d.metal", "g.py", "h.py", "i.rs"]
        );
    }

    #[test]
    fn only_code_counts_towards_the_length() {
        let code = "f();\n".repeat(500);
        let long = format!("{code}g();\n");
        let documented = format!(
            "{}\n{}{code}",
            "\n".repeat(90),
            "/// What f does.\n".repeat(90)
        );
        let script = format!("{}{}", "# why\n".repeat(90), "f()\n".repeat(501));
        let tree = Tree::of(&[
            ("documented.rs", &documented),
            ("long.rs", &long),
            ("script.py", &script),
            ("table.json", &long),
        ]);
        let found = length(&tree);
        assert_eq!(paths(&found), ["long.rs", "script.py"]);
        assert_eq!(
            found[0].what,
            "has 501 lines of code, 500 at most: divide it by what it owns"
        );
    }
}
