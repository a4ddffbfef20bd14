//! Rows of a tensor made by all cores, written in order.
//!
//! Must not know what is in the rows.

use std::{
    io::Write,
    panic::resume_unwind,
    thread::{self, Builder, ScopedJoinHandle},
};

use crate::{Error, TensorWriter};

/// About how many bytes a thread makes before they are written.
const PIECE_BYTES: usize = 1 << 20;

/// Writes `rows` rows of `row_bytes` bytes, which `make` appends one by one; `written` hears how
/// many are done.
///
/// # Errors
/// Where making or writing a row fails.
pub(crate) fn write<W: Write>(
    stream: &mut TensorWriter<W>,
    rows: usize,
    row_bytes: usize,
    make: impl Fn(usize, &mut Vec<u8>) -> Result<(), Error> + Sync,
    mut written: impl FnMut(usize),
) -> Result<(), Error> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let piece_rows = (PIECE_BYTES / row_bytes).max(1);
    let piece = |first: usize| {
        let last = rows.min(first + piece_rows);
        let mut bytes = Vec::with_capacity((last - first) * row_bytes);
        (first..last).try_for_each(|row| make(row, &mut bytes))?;
        Ok(bytes)
    };
    let piece = &piece;
    let starts: Vec<usize> = (0..rows).step_by(piece_rows).collect();
    for starts in starts.chunks(threads) {
        let pieces: Vec<Result<Vec<u8>, Error>> = match starts {
            &[only] => vec![piece(only)],
            several => thread::scope(|scope| {
                let begin = |&first| {
                    let worker = Builder::new().spawn_scoped(scope, move || piece(first));
                    worker.map_err(|_| first)
                };
                let workers: Vec<_> = several.iter().map(begin).collect();
                let end = |worker: Result<ScopedJoinHandle<'_, _>, usize>| match worker {
                    Ok(worker) => worker.join().unwrap_or_else(|panic| resume_unwind(panic)),
                    // The system has no more threads.
                    Err(first) => piece(first),
                };
                workers.into_iter().map(end).collect()
            }),
        };
        for (first, piece) in starts.iter().zip(pieces) {
            stream.append(&piece?)?;
            written(rows.min(first + piece_rows));
        }
    }
    Ok(())
}
