//! A fused projection whose queries only some tokens need.
//!
//! Owns what of it is left out. Must not know how products are cut up.

use std::ops::Range;

use fornax_backend::RowSpan;

use crate::{
    columns::Columns,
    cores::Cores,
    product::multiply_parts,
    weight::{Matrix, Part},
};

/// Scratch of projections. Grows to what the largest step needs and stays.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Tiles whose queries are wanted: expert 0, of which a plain matrix consists, and some that follow
    /// each other.
    wanted: Vec<(usize, Range<usize>)>,
}

/// `out = x · weightᵀ + bias`, the first `queries` outputs for tiles that attend alone. `out` is
/// `[columns, matrix.rows]`; columns are the step's tokens, in order.
pub(crate) fn project(
    cores: &mut Cores,
    Scratch { wanted }: &mut Scratch,
    out: &mut [f32],
    matrix: &Matrix,
    bias: Option<&[f32]>,
    (columns, tiles): (&Columns, Range<usize>),
    (queries, attending): (usize, &[RowSpan]),
) {
    // Where Q was joined with K or V before, all are one part, for all tokens.
    let of_queries = |part: &Part| part.first_row + part.rows <= queries;
    let (for_outputs, for_all) = matrix
        .parts
        .split_at(matrix.parts.partition_point(of_queries));
    find_attending(wanted, columns, tiles.clone(), attending);
    let all = [(0, tiles)];
    for (parts, chosen) in [(for_all, &all[..]), (for_outputs, wanted)] {
        let rows = matrix.rows;
        multiply_parts(cores, out, (parts, rows), bias, columns, chosen);
    }
}

/// Lists the tiles that have an attending token.
fn find_attending(
    wanted: &mut Vec<(usize, Range<usize>)>,
    columns: &Columns,
    tiles: Range<usize>,
    attending: &[RowSpan],
) {
    wanted.clear();
    let mut spans = attending.iter().filter(|span| span.len > 0).peekable();
    for index in tiles {
        let tile = columns.tile(index);
        while spans
            .next_if(|span| span.start + span.len <= tile.first)
            .is_some()
        {}
        if spans
            .peek()
            .is_none_or(|span| span.start >= tile.first + tile.used)
        {
            continue;
        }
        match wanted.last_mut() {
            Some((_, last)) if last.end == index => last.end += 1,
            _ => wanted.push((0, index..index + 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{columns::Precisions, isa::Isa};

    #[test]
    fn tiles_that_attend_are_found() {
        let mut columns = Columns::default();
        columns.clear(32, Precisions::default());
        let tiles = columns.push_group(Isa::detect(), 0..70);
        let width = columns.tile(0).width;
        let span = |start, len| RowSpan {
            start,
            len,
            cached: 0,
        };
        let found = |spans: &[RowSpan]| {
            let mut wanted = vec![(7, 0..1)];
            find_attending(&mut wanted, &columns, tiles.clone(), spans);
            let ends = wanted
                .into_iter()
                .map(|(_, tiles)| (tiles.start, tiles.end));
            ends.collect::<Vec<_>>()
        };
        let end = tiles.end;
        assert_eq!(found(&[span(0, 70)]), [(0, end)]);
        assert_eq!(found(&[span(9, 0), span(70, 0)]), []);
        assert_eq!(found(&[span(69, 1)]), [(end - 1, end)]);
        let two = [span(0, 1), span(5, 0), span(width, 1), span(69, 1)];
        assert_eq!(found(&two), [(0, 2), (end - 1, end)]);
        // One that ends where a tile does, and one inside of the next but one.
        let apart = [span(1, width - 1), span(2 * width + 1, width - 2)];
        assert_eq!(found(&apart), [(0, 1), (2, 3)]);
    }
}
