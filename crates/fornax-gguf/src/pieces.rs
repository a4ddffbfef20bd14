//! Rows of a tensor made by all cores, written in order.
//!
//! Must not know what is in the rows.

use std::{io::Write, thread};

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
                let workers: Vec<_> = several
                    .iter()
                    .map(|&first| scope.spawn(move || piece(first)))
                    .collect();
                let join = |worker: thread::ScopedJoinHandle<'_, _>| {
                    worker.join().expect("invariant: rows are whole blocks")
                };
                workers.into_iter().map(join).collect()
            }),
        };
        for (first, piece) in starts.iter().zip(pieces) {
            stream.append(&piece?)?;
            written(rows.min(first + piece_rows));
        }
    }
    Ok(())
}
