//! The model inside the binary, for when no other is named.

use fornax::Source;

/// What the built-in model is called where a file's path would stand.
pub const NAME: &str = "built-in model";

/// What clients of a server call it.
pub const SERVED_NAME: &str = "fornax-mini";

static BYTES: &[u8] = include_bytes!("../model/fornax-mini.gguf");

/// The built-in model.
pub fn source() -> Source {
    Source::Static {
        name: NAME,
        bytes: BYTES,
    }
}
