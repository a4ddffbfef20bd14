//! GGUF model files: what is in them and where, checked before use.
