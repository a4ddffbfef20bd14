//! Which crate may import which: the directions of the design, as a table.
//!
//! Reads the manifests, not the sources: what is no dependency cannot be imported. What only
//! tests use (`dev-dependencies`) is free.

use toml::{Table, Value};

use super::{Violation, tree::Tree};

/// Each crate, with those of ours that it may depend on.
const ROOMS: &[(&str, &[&str])] = &[
    ("fornax-gguf", &[]),
    ("fornax-text", &["fornax-gguf"]),
    ("fornax-engine", &[]),
    ("fornax-backend", &["fornax-gguf"]),
    ("fornax-cpu", &["fornax-backend", "fornax-gguf"]),
    ("fornax-cuda", &["fornax-backend", "fornax-gguf"]),
    ("fornax-metal", &["fornax-backend", "fornax-gguf"]),
    (
        "fornax-model",
        &["fornax-backend", "fornax-engine", "fornax-gguf"],
    ),
    (
        "fornax",
        &[
            "fornax-backend",
            "fornax-cpu",
            "fornax-cuda",
            "fornax-engine",
            "fornax-gguf",
            "fornax-metal",
            "fornax-model",
            "fornax-text",
        ],
    ),
    ("fornax-server", &["fornax"]),
    ("fornax-cli", &["fornax", "fornax-server"]),
    ("xtask", &["fornax", "fornax-gguf"]),
];

/// Crates of others that only some of ours may depend on.
const CONFINED: &[(&str, &[&str])] = &[
    ("anyhow", &["fornax-cli", "xtask"]),
    ("axum", &["fornax-server"]),
    ("clap", &["fornax-cli", "xtask"]),
    ("cudarc", &["fornax-cuda"]),
    ("libloading", &["fornax-cuda"]),
    ("memmap2", &["fornax-cpu", "fornax-gguf"]),
    ("minijinja", &["fornax-text"]),
    (
        "serde_json",
        &[
            "fornax-gguf",
            "fornax-text",
            "fornax",
            "fornax-server",
            "fornax-cli",
            "xtask",
        ],
    ),
    ("tokio", &["fornax-server", "fornax-cli"]),
];

/// Imports run one way.
pub fn directions(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for manifest in manifests(tree, &mut found) {
        let name = &manifest.name;
        let Some(&(_, allowed)) = ROOMS.iter().find(|(room, _)| room == name) else {
            let what = format!("the crate {name} has no row in xtask/src/tidy/imports.rs: add it");
            found.push(manifest.violation("name", what));
            continue;
        };
        for dependency in manifest.dependencies() {
            if let Some(what) = forbidden(name, dependency, allowed) {
                found.push(manifest.violation(dependency, what));
            }
        }
    }
    found
}

/// Every crate obeys the lints of the workspace; a manifest that forgets them silences them all.
pub fn lints(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    // What cannot be read was told by `directions`.
    for manifest in manifests(tree, &mut Vec::new()) {
        let lints = manifest
            .table
            .get("lints")
            .and_then(|lints| lints.get("workspace"));
        if lints != Some(&Value::Boolean(true)) {
            let what = "has lints of its own: add `[lints]` with `workspace = true`".to_owned();
            found.push(manifest.violation("[lints]", what));
        }
    }
    found
}

/// Why `dependency` may not be one of `name`.
fn forbidden(name: &str, dependency: &str, allowed: &[&str]) -> Option<String> {
    let ours = ROOMS.iter().any(|(room, _)| *room == dependency);
    if ours && !allowed.contains(&dependency) {
        return Some(format!(
            "{name} must not know {dependency}: imports run one way, see ARCHITECTURE.md"
        ));
    }
    let (_, users) = CONFINED
        .iter()
        .find(|(confined, _)| *confined == dependency)?;
    (!users.contains(&name)).then(|| {
        format!(
            "{name} must not depend on {dependency}: only {} may",
            users.join(", ")
        )
    })
}

/// A crate's `Cargo.toml`.
struct Manifest<'a> {
    path: &'a str,
    text: &'a str,
    name: String,
    table: Table,
}

impl Manifest<'_> {
    /// Names of all dependencies but those of tests, whatever they are renamed to.
    fn dependencies(&self) -> Vec<&str> {
        let targets = self.table.get("target").and_then(Value::as_table);
        let tables = targets
            .into_iter()
            .flat_map(Table::values)
            .filter_map(Value::as_table);
        let mut names = Vec::new();
        for table in tables.chain([&self.table]) {
            for section in ["dependencies", "build-dependencies"] {
                let section = table.get(section).and_then(Value::as_table);
                for (key, value) in section.into_iter().flatten() {
                    let package = value.get("package").and_then(Value::as_str);
                    names.push(package.unwrap_or(key));
                }
            }
        }
        names
    }

    fn violation(&self, at: &str, what: String) -> Violation {
        let line = self
            .text
            .lines()
            .position(|line| line.contains(at))
            .unwrap_or(0)
            + 1;
        Violation {
            path: self.path.to_owned(),
            line,
            what,
        }
    }
}

/// The crates' manifests. The workspace's own names no crate and is left out, and so is a crate
/// with a workspace of its own: nobody can import it.
fn manifests<'a>(tree: &'a Tree, broken: &mut Vec<Violation>) -> Vec<Manifest<'a>> {
    let mut manifests = Vec::new();
    let files = tree
        .texts()
        .filter(|(file, _)| file.path.ends_with("Cargo.toml"));
    for (file, text) in files {
        let path = file.path.as_str();
        match text.parse::<Table>() {
            Ok(table) => {
                let package = table.get("package").and_then(|package| package.get("name"));
                let name = package.and_then(Value::as_str);
                if let Some(name) = name.filter(|_| !table.contains_key("workspace")) {
                    let name = name.to_owned();
                    manifests.push(Manifest {
                        path,
                        text,
                        name,
                        table,
                    });
                }
            }
            Err(error) => {
                let what = format!("is not TOML: {}", error.message());
                broken.push(Violation {
                    path: path.to_owned(),
                    line: 1,
                    what,
                });
            }
        }
    }
    manifests
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(rule: fn(&Tree) -> Vec<Violation>, name: &str, rest: &str) -> Vec<String> {
        let text = format!("[package]\nname = \"{name}\"\n{rest}");
        let tree = Tree::of(&[("Cargo.toml", &text)]);
        rule(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn imports_run_one_way() {
        let rest = "[dependencies]\nfornax-gguf.workspace = true\nfornax-model.workspace = true";
        assert_eq!(
            told(directions, "fornax-model", rest).len(),
            1,
            "not even itself"
        );
        assert_eq!(
            told(directions, "fornax-text", rest),
            [
                "Cargo.toml:5: fornax-text must not know fornax-model: imports run one way, \
              see ARCHITECTURE.md"
            ]
        );
        assert!(told(directions, "fornax", rest).is_empty());
    }

    #[test]
    fn a_renamed_a_platform_and_a_build_dependency_are_seen() {
        for rest in [
            "[dependencies]\njson = { package = \"serde_json\", version = \"1\" }",
            "[target.'cfg(unix)'.dependencies]\nserde_json = \"1\"",
            "[build-dependencies]\nserde_json = \"1\"",
        ] {
            assert_eq!(
                told(directions, "fornax-engine", rest),
                [
                    "Cargo.toml:4: fornax-engine must not depend on serde_json: only fornax-gguf, \
                  fornax-text, fornax, fornax-server, fornax-cli, xtask may"
                ],
                "{rest}"
            );
        }
    }

    #[test]
    fn what_tests_use_is_free() {
        let rest = "[dev-dependencies]\nserde_json = \"1\"\nfornax-text.workspace = true";
        assert!(told(directions, "fornax-engine", rest).is_empty());
    }

    #[test]
    fn a_crate_without_a_row_and_a_broken_manifest_are_told() {
        assert_eq!(
            told(directions, "fornax-new", ""),
            ["Cargo.toml:2: the crate fornax-new has no row in xtask/src/tidy/imports.rs: add it"]
        );
        assert!(told(directions, "xtask", "= 1")[0].starts_with("Cargo.toml:1: is not TOML"));
    }

    #[test]
    fn a_crate_obeys_the_lints_of_the_workspace() {
        assert!(told(lints, "xtask", "[lints]\nworkspace = true").is_empty());
        for rest in [
            "",
            "[lints]\nworkspace = false",
            "[lints.rust]\nmissing_docs = \"allow\"",
        ] {
            assert_eq!(told(lints, "xtask", rest).len(), 1, "{rest}");
        }
    }

    #[test]
    fn the_table_has_no_way_round() {
        for (position, (room, allowed)) in ROOMS.iter().enumerate() {
            for other in *allowed {
                let below = ROOMS.iter().position(|(name, _)| name == other);
                assert!(
                    below.is_some_and(|below| below < position),
                    "{room} imports {other}"
                );
            }
        }
    }

    #[test]
    fn a_crate_with_a_workspace_of_its_own_is_nobodys() {
        let alone = "[workspace]\n[dependencies]\nfornax-engine = \"1\"\n";
        assert_eq!(told(directions, "stranger", alone), Vec::<String>::new());
        assert_eq!(told(lints, "stranger", alone), Vec::<String>::new());
    }
}
