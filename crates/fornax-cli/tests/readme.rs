//! The README's table of what runs is the one that the code has.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "writing it is for xtask")]
#[path = "../../../xtask/src/tables.rs"]
mod tables;

#[test]
fn the_readme_has_the_table_that_the_code_has() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let text = std::fs::read_to_string(path).unwrap();
    let stale = "README.md has another table than the code; run: cargo xtask tables";
    assert!(tables::updated(&text).unwrap() == text, "{stale}");
}
