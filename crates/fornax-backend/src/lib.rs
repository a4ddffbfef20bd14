//! The operations a language model needs, and their executable specification.
