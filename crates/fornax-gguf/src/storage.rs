//! Where the bytes of a file live: mapped, in the program, or in memory.
//!
//! Owns the memory map and what becomes of it where the file changes, the only `unsafe` of this
//! crate; must not know what the bytes mean.

#[cfg(unix)]
mod shrunk;

use std::{
    fs::{self, File},
    io,
    ops::Deref,
    path::Path,
};

use memmap2::Mmap;
#[cfg(unix)]
pub use shrunk::end_where_a_file_shrinks;

/// The bytes of one file.
pub(crate) enum Bytes {
    Mapped(Mapped),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(mapped) => &mapped.bytes,
            Bytes::Static(bytes) => bytes,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// A mapped file.
pub(crate) struct Mapped {
    bytes: Mmap,
    #[cfg(unix)]
    watched: Option<&'static shrunk::Watched>,
}

#[cfg(unix)]
impl Drop for Mapped {
    fn drop(&mut self) {
        if let Some(watched) = self.watched {
            watched.end();
        }
    }
}

/// Maps a regular file.
pub(crate) fn map(path: &Path) -> io::Result<Bytes> {
    // Asked before it is opened, for that waits where the file is a pipe without a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let file = File::open(path)?;
    let kind = file.metadata()?;
    if kind.len() == 0 {
        // A map of nothing is refused by some systems; the parser says what is wrong with an empty
        // file.
        return Ok(Bytes::Static(&[]));
    }
    // SAFETY: the map is private to this process and read-only. Its contents are only ever read as
    // bytes, for which every bit pattern is valid, and every range used was checked against its
    // length, which is fixed here. What remains is the usual condition of mapping a model: that no
    // one changes or truncates the file while it is used.
    let bytes = unsafe { Mmap::map(&file) }?;
    Ok(Bytes::Mapped(Mapped {
        #[cfg(unix)]
        watched: shrunk::watch(path, bytes.as_ptr_range()),
        bytes,
    }))
}
