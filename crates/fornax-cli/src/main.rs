//! The `fornax` command line.

fn main() {}
