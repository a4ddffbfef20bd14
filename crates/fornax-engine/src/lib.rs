//! Requests, sequences, KV pages and the loop plan, step, commit.
