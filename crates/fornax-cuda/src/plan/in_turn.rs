//! A few rows that go through each layer one after the other, where the launch of two teams makes that faster than all
//! of them at once.
//!
//! Their lists are right where all of their layers go to one such launch: it takes the first token that it is told of
//! to be the first row's, where others ask the token. Must not know how it works, nor which layers it can do.

use std::mem::size_of;

use fornax_backend::StepShape;
use fornax_gguf::DType;

use crate::operation::{Attend, AttendTable, Linear, Norm, Operation, Turn};
use crate::ways::ways;

/// Rows that take turns at most, and those of brain floats, whose weights are twice as many bytes: more are faster
/// together.
const MOST_ROWS: usize = 3;
const MOST_ROWS_OF_BRAINS: usize = 2;
/// Positions behind which two and three of them do not: only half of the multiprocessors read K and V then, where all
/// do for rows that stay together, which are as fast from about there on in Q8_0, in 16 bits some thousands later.
const MOST_SEEN: [usize; 2] = [20 << 10, 5 << 10];
/// Bytes of `struct Token` and of `struct Row` of the kernels.
pub(super) const RECORD: u64 = 16;
const FLOAT: u64 = size_of::<f32>() as u64;

/// Whether steps of a shape may take turns, the longest of whose rows has so many positions before its new ones.
pub(crate) fn takes_turns(shape: &StepShape, seen: usize) -> bool {
    (2..=MOST_ROWS).contains(&shape.rows)
        && shape.tokens == shape.rows
        && seen <= MOST_SEEN[shape.rows - 2]
}

/// A step's operations, with those of its layers once for each row.
pub(super) struct InTurn {
    pub operations: Vec<Operation>,
    pub rows: usize,
    /// Which operation is the first of the first row's.
    pub begin: usize,
    /// Layers that attend.
    pub layers: usize,
}

/// `None` where no layer attends, where rows have more than a token, or something is not done row by row.
pub(super) fn in_turn(operations: &[Operation]) -> Option<InTurn> {
    let mut norms = operations
        .iter()
        .enumerate()
        .filter_map(|(index, operation)| {
            let Operation::Norm(norm) = operation else {
                return None;
            };
            Some((index, norm.n))
        });
    let (begin, rows) = norms.next()?;
    let (last, _) = norms.next_back()?;
    let of_layers = &operations[begin..=last];
    let mut listed = operations[..begin].to_vec();
    for row in 0..rows {
        for operation in of_layers {
            listed.push(of_row(operation, rows, row as u64)?);
        }
    }
    listed.extend_from_slice(&operations[last + 1..]);
    let attends = |operation: &&Operation| matches!(operation, Operation::Attend(_));
    let layers = of_layers.iter().filter(attends).count();
    (layers > 0).then_some(InTurn {
        operations: listed,
        rows,
        begin,
        layers,
    })
}

/// An operation of so many rows for one of them.
fn of_row(operation: &Operation, rows: usize, row: u64) -> Option<Operation> {
    let floats = |width: usize| row * width as u64 * FLOAT;
    match operation {
        Operation::Norm(norm) if norm.n == rows => {
            let by = floats(norm.width);
            Some(Operation::Norm(Norm {
                out: norm.out + by,
                residual: norm.residual.map(|residual| residual + by),
                x: norm.x + by,
                n: 1,
                ..*norm
            }))
        }
        Operation::Linear(linear) if linear.n == rows && rows <= most_rows(linear) => {
            Some(Operation::Linear(Linear {
                out: linear.out + floats(linear.matrix.rows),
                x: linear.x + floats(linear.matrix.cols),
                n: 1,
                ..linear.clone()
            }))
        }
        &Operation::Glu {
            out,
            gate_up,
            activation,
            width,
            n,
        } if n == rows => Some(Operation::Glu {
            out: out + floats(width),
            gate_up: gate_up + floats(2 * width),
            activation,
            width,
            n: 1,
        }),
        Operation::Turn(turn) if turn.n as usize == rows => Some(Operation::Turn(Turn {
            qkv: turn.qkv + floats(turn.stride as usize),
            tokens: turn.tokens + row * RECORD,
            rows: turn.rows + row * RECORD,
            n: 1,
            ..*turn
        })),
        Operation::Attend(attend) if attend.single && attend.rows == rows => {
            let table = &attend.table;
            let (of_query, of_out) = (table.q_stride, table.q_count * table.v_dim);
            Some(Operation::Attend(Attend {
                table: AttendTable {
                    out: table.out + floats(of_out as usize),
                    q: table.q + floats(of_query as usize),
                    tokens: table.tokens + row * RECORD,
                    rows: table.rows + row * RECORD,
                    n: 1,
                    ..*table
                },
                rows: 1,
                ..*attend
            }))
        }
        _ => None,
    }
}

/// None where the launch has no panels of a format.
fn most_rows(linear: &Linear) -> usize {
    let most = |format| match format {
        DType::BF16 => MOST_ROWS_OF_BRAINS,
        format if ways(format).panels => MOST_ROWS,
        _ => 0,
    };
    let parts = &linear.matrix.parts;
    parts
        .iter()
        .map(|part| most(part.format))
        .min()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use fornax_backend::Activation;

    use super::*;
    use crate::plan::chain::tests::ATTENTION_TABLE;
    use crate::weight::{Layout, Part};

    const ROWS: usize = 2;
    const WIDTH: usize = 64;
    const HIDDEN: usize = 96;

    fn norm(n: usize, residual: Option<u64>) -> Operation {
        Operation::Norm(Norm {
            out: 1000,
            residual,
            x: 2000,
            weight: 9,
            eps: 1e-6,
            width: WIDTH,
            n,
        })
    }

    fn linear(format: DType) -> Operation {
        let part = Part {
            format,
            rows: 2 * HIDDEN,
            pointer: 5,
            pitch: 68,
        };
        Operation::Linear(Linear {
            out: 10_000,
            matrix: Layout {
                rows: part.rows,
                parts: vec![part],
                cols: WIDTH,
                experts: 1,
                dense: None,
                tiles: None,
                head: None,
            },
            sketch: None,
            bias: None,
            x: 1000,
            n: ROWS,
        })
    }

    fn glu() -> Operation {
        Operation::Glu {
            out: 20_000,
            gate_up: 10_000,
            activation: Activation::Silu,
            width: HIDDEN,
            n: ROWS,
        }
    }

    fn attend(rows: usize, single: bool) -> Operation {
        let table = AttendTable {
            n: rows as u32,
            ..ATTENTION_TABLE
        };
        Operation::Attend(Attend {
            table,
            single,
            tiles: 0,
            rows,
        })
    }

    const TURN: Turn = Turn {
        qkv: 900,
        keys: 3,
        values: 4,
        q_norm: 0,
        k_norm: 0,
        frequencies: 9,
        tokens: 77,
        rows: 78,
        tables: 7,
        slots: 5,
        eps: 0.0,
        magnitude: 1.0,
        query_scale: 0.0,
        n: 2,
        stride: 960,
        q_offset: 0,
        q_count: 9,
        dim: 64,
        k_offset: 576,
        v_offset: 768,
        v_dim: 64,
        kv_heads: 3,
        kind: 1,
        page_size: 64,
        rotary: 64,
        style: 0,
    };

    fn draws() -> Operation {
        Operation::Feed {
            tokens: 1,
            samples: 2,
            n: ROWS,
        }
    }

    #[test]
    fn what_is_between_the_first_norm_and_the_last_is_done_for_each_row() {
        let step = [
            draws(),
            norm(ROWS, None),
            linear(DType::Q8_0),
            glu(),
            Operation::Turn(TURN),
            attend(ROWS, true),
            norm(ROWS, Some(3000)),
            draws(),
        ];
        let turns = in_turn(&step).unwrap();
        assert_eq!((turns.rows, turns.begin, turns.layers), (ROWS, 1, 1));
        let [
            Operation::Feed { .. },
            Operation::Norm(_),
            Operation::Linear(_),
            Operation::Glu { .. },
            Operation::Turn(turned),
            Operation::Attend(first),
            Operation::Norm(_),
            Operation::Norm(norm),
            Operation::Linear(linear),
            Operation::Glu {
                out, gate_up, n, ..
            },
            Operation::Turn(turn),
            Operation::Attend(second),
            Operation::Norm(last),
            Operation::Feed { .. },
        ] = &turns.operations[..]
        else {
            panic!("{} operations", turns.operations.len());
        };
        assert_eq!((norm.out, norm.x, norm.n), (1256, 2256, 1));
        assert_eq!(norm.residual, None);
        assert_eq!((linear.out, linear.x, linear.n), (10_768, 1256, 1));
        assert_eq!((*out, *gate_up, *n), (20_384, 10_768, 1));
        assert_eq!(last.residual, Some(3256));
        assert_eq!((turned.qkv, turned.n), (TURN.qkv, 1));
        assert_eq!((turn.qkv, turn.n), (TURN.qkv + 4 * 960, 1));
        assert_eq!(turn.tokens, TURN.tokens + 16);
        assert_eq!(turn.rows, TURN.rows + 16);
        assert_eq!((first.rows, second.rows), (1, 1));
        let [first, second] = [&first.table, &second.table];
        assert_eq!([first.n, second.n], [1, 1]);
        assert_eq!(second.q - first.q, 4 * 960);
        assert_eq!(second.out - first.out, 4 * 9 * 64);
        assert_eq!(second.tokens - first.tokens, 16);
        assert_eq!(second.rows - first.rows, 16);
    }

    #[test]
    fn other_rows_and_what_is_not_done_row_by_row_stay_together() {
        let is_in_turn = |between| {
            let ends = || norm(ROWS, None);
            in_turn(&[ends(), attend(ROWS, true), between, ends()]).is_some()
        };
        assert!(is_in_turn(linear(DType::Q4_0)));
        assert!(is_in_turn(linear(DType::BF16)));
        let three = |format| {
            let Operation::Linear(linear) = linear(format) else {
                unreachable!("invariant: a product was made")
            };
            of_row(&Operation::Linear(Linear { n: 3, ..linear }), 3, 2).is_some()
        };
        assert!(three(DType::Q8_0) && !three(DType::BF16));
        assert!(!is_in_turn(linear(DType::Q6_K)));
        assert!(!is_in_turn(attend(ROWS, false)));
        assert!(!is_in_turn(attend(3, true)));
        assert!(!is_in_turn(norm(3, None)));
        assert!(!is_in_turn(draws()));
        // Nothing attends, or nothing is normed.
        assert!(in_turn(&[norm(ROWS, None), glu(), norm(ROWS, None)]).is_none());
        assert!(in_turn(&[attend(ROWS, true)]).is_none());
    }

    #[test]
    fn rows_behind_many_positions_and_prompts_stay_together() {
        let of = |rows, tokens, seen| {
            let shape = StepShape {
                rows,
                tokens,
                ..StepShape::default()
            };
            takes_turns(&shape, seen)
        };
        assert!(of(2, 2, 0) && of(2, 2, 20 << 10) && of(3, 3, 5 << 10));
        assert!(!of(2, 2, 21_000) && !of(3, 3, 6000));
        assert!(!of(2, 7, 0) && !of(1, 1, 0) && !of(4, 4, 0));
    }
}
