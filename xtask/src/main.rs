//! Chores of this repository: checks, synthetic models.

fn main() {}
