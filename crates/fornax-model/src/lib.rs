//! Architectures over a backend.
