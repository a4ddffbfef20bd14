//! What may not stand in a source file: unfinished work, `unsafe` outside of its rooms, tests
//! that are silently skipped, paths of one machine.

use super::{
    Violation,
    source::{Source, line_of, words},
    tree::{File, Tree},
};

/// Macros that stand for code that is not there, or were left behind by debugging.
const PLACEHOLDER_MACROS: &[&str] = &["todo", "unimplemented", "dbg"];
/// Marks of unfinished work in a comment.
const PLACEHOLDER_MARKS: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];

/// Where `unsafe` may stand: the crates that talk to an instruction set or a device, the memory
/// map and the signal of one that lost its file, and a test whose allocator counts what a broken file makes the reader ask for.
const UNSAFE_ROOMS: &[&str] = &[
    "crates/fornax-cpu/",
    "crates/fornax-cuda/",
    "crates/fornax-metal/",
    "crates/fornax-gguf/src/storage.rs",
    "crates/fornax-gguf/src/storage/shrunk.rs",
    "crates/fornax-gguf/tests/mutants/mod.rs",
];

/// Folders that are there on one machine only. Put together, or this file would hold them.
const MACHINE_FOLDERS: &[&str] = &[
    concat!("/", "work/"),
    concat!("/", "root/"),
    concat!("/tmp/", "peer"),
];

/// Nothing is left for later.
pub fn placeholders(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (file, text) in tree.texts() {
        let Some(source) = source(file, text) else {
            continue;
        };
        for name in PLACEHOLDER_MACROS {
            let calls = words(&source.code, name)
                .filter(|at| source.code[at + name.len()..].starts_with('!'));
            found.extend(calls.map(|at| {
                violation(
                    file,
                    text,
                    at,
                    format!("`{name}!`: write it, or leave it out"),
                )
            }));
        }
        for mark in PLACEHOLDER_MARKS {
            found.extend(words(&source.comments, mark).map(|at| {
                violation(
                    file,
                    text,
                    at,
                    format!("{mark}: do it now, or file an issue"),
                )
            }));
        }
    }
    found
}

/// `unsafe` is confined.
pub fn unsafe_code(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let confined = |file: &File| UNSAFE_ROOMS.iter().any(|room| file.path.starts_with(room));
    for (file, text) in rust(tree).filter(|(file, _)| !confined(file)) {
        let source = Source::new(text);
        found.extend(words(&source.code, "unsafe").map(|at| {
            let what = "`unsafe` outside of the backends and the memory map: write it without";
            violation(file, text, at, what.to_owned())
        }));
    }
    found
}

/// A test that does not run says why, in its attribute or in what holds its example.
pub fn ignored_tests(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (file, text) in rust(tree) {
        let source = Source::new(text);
        let attributes = source.code.match_indices("#[").map(|(at, _)| at);
        let silent = attributes.filter_map(|at| silently_ignored(&source.code, text, at));
        let silent = silent.map(|at| (at, "write `ignore = \"why\"`"));
        let examples = source.comments.match_indices("```ignore");
        let examples = examples.map(|(at, _)| (at, "mark the example `no_run` or `text`"));
        found.extend(silent.chain(examples).map(|(at, remedy)| {
            violation(
                file,
                text,
                at,
                format!("ignored without a reason: {remedy}"),
            )
        }));
    }
    found
}

/// The repository works wherever it is cloned.
pub fn machine_paths(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (file, text) in tree.texts() {
        for folder in MACHINE_FOLDERS {
            // `framework/work/` and `../work/` are relative.
            let relative = |c: char| c.is_alphanumeric() || "._-/".contains(c);
            let absolute = text
                .match_indices(folder)
                .filter(|(at, _)| !text[..*at].ends_with(relative));
            found.extend(absolute.map(|(at, _)| {
                let what = format!("`{folder}` is a path of one machine: make it relative");
                violation(file, text, at, what)
            }));
        }
    }
    found
}

/// Where the attribute at `start` ignores a test without a reason. Looks at `text` for the reason,
/// which is blank in `code`.
fn silently_ignored(code: &str, text: &str, start: usize) -> Option<usize> {
    let mut depth = 0;
    let end = code[start..].find(|c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ']' && depth == 0
    })?;
    let end = start + end;
    let at = start + words(&code[start..end], "ignore").next()?;
    let value = text[at + "ignore".len()..end].trim_start();
    let reason = value.strip_prefix('=').map(str::trim_start);
    let given = reason.is_some_and(|reason| !reason.starts_with("\"\""));
    (!given).then_some(at)
}

/// A file's code and comments; `None` for a file that is no code.
fn source(file: &File, text: &str) -> Option<Source> {
    match file.extension() {
        "rs" | "cu" | "cuh" | "metal" => Some(Source::new(text)),
        "py" | "sh" => Some(Source {
            code: String::new(),
            comments: script_comments(text),
        }),
        _ => None,
    }
}

/// Lines that are comments as a whole; the others blank.
fn script_comments(text: &str) -> String {
    let line = |line: &str| {
        let comment = line.trim_start().starts_with('#');
        if comment {
            line.to_owned()
        } else {
            " ".repeat(line.len().saturating_sub(1)) + "\n"
        }
    };
    text.split_inclusive('\n').map(line).collect()
}

fn rust(tree: &Tree) -> impl Iterator<Item = (&File, &str)> {
    tree.texts().filter(|(file, _)| file.extension() == "rs")
}

fn violation(file: &File, text: &str, at: usize, what: String) -> Violation {
    Violation {
        path: file.path.clone(),
        line: line_of(text, at),
        what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: fn(&Tree) -> Vec<Violation>, path: &str, text: &str) -> Vec<usize> {
        let found = rule(&Tree::of(&[(path, text)]));
        found.iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn nothing_is_left_for_later() {
        let text = "fn f() {\n    todo!();\n    let todo = \"todo!()\"; // FIXME: soon\n}\n";
        assert_eq!(lines(placeholders, "a.rs", text), [2, 3]);
        assert_eq!(lines(placeholders, "a.md", text), [] as [usize; 0]);
        assert_eq!(
            lines(placeholders, "a.py", "x = 1\n  # TODO more\ny = '# TODO'\n"),
            [2]
        );
        assert_eq!(
            lines(placeholders, "a.metal", "int x; // XXX\nint TODO;"),
            [1]
        );
    }

    #[test]
    fn unsafe_code_stays_in_its_rooms() {
        let text = "//! No `unsafe` here.\n#![warn(unsafe_op_in_unsafe_fn)]\nunsafe fn f() {}\n";
        assert_eq!(lines(unsafe_code, "crates/fornax-text/src/a.rs", text), [3]);
        assert_eq!(
            lines(unsafe_code, "crates/fornax-gguf/src/value.rs", text),
            [3]
        );
        assert_eq!(
            lines(unsafe_code, "crates/fornax-cpu/src/a.rs", text),
            [] as [usize; 0]
        );
        assert_eq!(
            lines(unsafe_code, "crates/fornax-gguf/src/storage.rs", text),
            [] as [usize; 0]
        );
    }

    #[test]
    fn an_ignored_test_says_why() {
        for silent in [
            "#[ignore]\nfn f() {}",
            "#[cfg_attr(no_shared, ignore)]\nfn f() {}",
            "#[ignore = \"\"]",
            "/// ```ignore\n/// f();\n/// ```",
        ] {
            assert_eq!(lines(ignored_tests, "a.rs", silent), [1], "{silent}");
        }
        for reasoned in [
            "#[ignore = \"needs a GPU\"]\nfn f() {}",
            "#[cfg_attr(\n    no_shared,\n    ignore = \"needs ../shared: [vocabularies]\"\n)]",
            "let a = \"#[ignore]\"; // #[ignore]",
            "#[derive(Clone)] struct A { ignore: bool }",
        ] {
            assert_eq!(
                lines(ignored_tests, "a.rs", reasoned),
                [] as [usize; 0],
                "{reasoned}"
            );
        }
    }

    #[test]
    fn no_path_leads_to_one_machine() {
        let folder = MACHINE_FOLDERS[0];
        let text = format!("a\nsee `{folder}x` and x{folder}\nand ..{folder}y\n");
        assert_eq!(lines(machine_paths, "README.md", &text), [2]);
    }
}
