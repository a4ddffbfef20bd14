//! `cargo xtask tables`: the table of what runs, in the README, written from the code.
//!
//! Owns the markers and the table's form; what runs is asked of the library: its architectures, its
//! backends, and the formats that the conformance suite holds every one of them to, so that no cell
//! can say less than all. The test `readme` of `fornax-cli` fails where the README has another.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use fornax::{Architecture, BackendChoice, gguf::DType, gguf::Scheme};

/// The file that has the table.
pub const FILE: &str = "README.md";
const BEGIN: &str = "<!-- written by `cargo xtask tables`: begin -->";
const END: &str = "<!-- written by `cargo xtask tables`: end -->";

/// Writes the table into the README.
pub fn run(root: &Path) -> Result<()> {
    let path = root.join(FILE);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {FILE}"))?;
    let text =
        updated(&text).with_context(|| format!("{FILE} has no line {BEGIN} before {END}"))?;
    fs::write(&path, text).with_context(|| format!("cannot write {FILE}"))
}

/// The text with the table as the code has it; `None` where the markers are missing.
pub fn updated(text: &str) -> Option<String> {
    let begin = text.find(BEGIN)? + BEGIN.len();
    let end = begin + text[begin..].find(END)?;
    Some([&text[..begin], "\n\n", &table(), "\n", &text[end..]].concat())
}

/// Every architecture in every format on every backend.
fn table() -> String {
    let formats = DType::all().iter().map(|dtype| dtype.name());
    let formats: Vec<&str> = formats.collect();
    // `auto` is a choice among the others.
    let backends = BackendChoice::ALL.iter().map(|(name, _)| *name);
    let backends: Vec<&str> = backends.filter(|name| *name != "auto").collect();
    let mut table = format!(
        "| architecture | covers | {} |\n|---|---|{}\n",
        backends.join(" | "),
        "---|".repeat(backends.len())
    );
    for architecture in Architecture::ALL {
        let cells = "all formats | ".repeat(backends.len());
        let (name, covers) = (architecture.name(), architecture.covers());
        table += &format!("| `{name}` | {covers} | {}\n", cells.trim_end());
    }
    let schemes = Scheme::list();
    table += &format!(
        "\nAll formats: {}. Written by `quantize` and `convert`: {schemes}.\n",
        formats.join(", ")
    );
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let text = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = updated(&text).unwrap();
        assert!(
            new.starts_with("before\n") && new.ends_with("\nafter\n"),
            "{new}"
        );
        assert!(!new.contains("old") && new.contains("Q4_K_M"), "{new}");
        assert_eq!(updated(&new).unwrap(), new);
        assert_eq!(updated("no markers"), None);
    }
}
