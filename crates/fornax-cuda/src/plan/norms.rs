//! Norms, and who does them: the product behind one where that is small, a kernel of their own else.
//!
//! Must not know how a product multiplies.

use fornax_backend::BackendError;

use super::Plan;
use crate::operation::{Linear, Norm, Operation};

/// Of a block.
const MOST_THREADS: usize = 1024;

impl Plan<'_> {
    /// A norm: done by the product behind it where that is small, and handed to it in bf16 where
    /// that is large.
    pub(super) fn norm(
        &mut self,
        norm: Norm,
        behind: &mut [Operation],
    ) -> Result<usize, BackendError> {
        self.written(norm.out);
        if norm.residual.is_none() {
            match behind {
                [Operation::Linear(linear), rest @ ..]
                    if linear.x == norm.out && linear.n == norm.n && self.is_small(linear) =>
                {
                    let linear = linear.clone();
                    let before = Before {
                        kept: reads_again(norm.out, rest),
                        norm,
                        pick: None,
                    };
                    return Ok(1 + self.linear(&linear, Some(before), rest)?);
                }
                [Operation::Linear(linear), rest @ ..]
                    if linear.x == norm.out
                        && linear.n == norm.n
                        && linear.matrix.cols.is_multiple_of(4)
                        && self.is_middle(linear)
                        && !reads_again(norm.out, rest) =>
                {
                    let linear = linear.clone();
                    let before = Before {
                        norm,
                        pick: None,
                        kept: false,
                    };
                    return Ok(1 + self.linear(&linear, Some(before), rest)?);
                }
                [
                    Operation::Gather {
                        out, x, outputs, n, ..
                    },
                    Operation::Linear(linear),
                    rest @ ..,
                ] if *x == norm.out
                    && linear.x == *out
                    && linear.n == *n
                    && self.is_small(linear)
                    && !reads_later(rest) =>
                {
                    let linear = linear.clone();
                    let before = Before {
                        norm,
                        pick: Some(*outputs),
                        kept: false,
                    };
                    return Ok(2 + self.linear(&linear, Some(before), rest)?);
                }
                _ => {}
            }
        }
        let Norm {
            out,
            residual,
            x,
            weight,
            eps,
            width,
            n,
        } = norm;
        let (dense, padded) = self.rounded_for(out, width, n, behind)?;
        // Nobody may want it in single precision.
        let only_rounded = dense != 0 && !reads_again(out, &behind[1..]);
        let kept = if only_rounded { 0 } else { out };
        let threads = padded.max(width).div_ceil(4).next_multiple_of(32);
        let (name, threads) = match width.is_multiple_of(4) && threads <= MOST_THREADS {
            true => ("rms_norm_four", threads),
            false => ("rms_norm", 256),
        };
        self.rows_kernel(name, [n, 1, 1], threads, |launch| {
            let launch = launch
                .wide(kept)
                .wide(residual.unwrap_or(0))
                .wide(x)
                .wide(weight);
            launch.float(eps).number(width).wide(dense).number(padded)
        })?;
        Ok(1)
    }
}

/// What a product does with its input before it multiplies.
#[derive(Clone, Copy)]
pub(super) struct Before {
    pub norm: Norm,
    /// The rows that are multiplied, where those are not the first ones.
    pub pick: Option<u64>,
    /// Whether the norm is written down too.
    pub kept: bool,
}

/// Whether these rows may be read by what comes, before they are written again.
fn reads_again(rows: u64, rest: &[Operation]) -> bool {
    for operation in rest {
        let (read, written) = match operation {
            // Who knows what it reads.
            Operation::Launch(_) => (true, false),
            Operation::Norm(norm) => (
                norm.x == rows || norm.residual == Some(rows),
                norm.out == rows,
            ),
            Operation::Linear(linear) => (linear.x == rows, linear.out == rows),
            Operation::Glu { out, gate_up, .. } => (*gate_up == rows, *out == rows),
            Operation::Gather { out, x, .. } => (*x == rows, *out == rows),
            Operation::Experts(experts) => (experts.x == rows, experts.out == rows),
            Operation::Turn(turn) => (turn.qkv == rows, false),
            Operation::Attend(attend) => (attend.table.q == rows, attend.table.out == rows),
            Operation::Embed { out, .. } => (false, *out == rows),
            Operation::Feed { .. } | Operation::Sample(_) => (false, false),
        };
        if read || written {
            return read;
        }
    }
    true
}

/// Whether what the final norm leaves is read again: only pooling does.
fn reads_later(rest: &[Operation]) -> bool {
    rest.iter()
        .any(|operation| matches!(operation, Operation::Launch(launch) if launch.name() == "pool"))
}

/// Whether `norm` only adds what `linear` gives to the residual stream, and norms that.
pub(super) fn adds(linear: &Linear, norm: &Norm) -> bool {
    norm.x == linear.out
        && norm.n == linear.n
        && norm.width == linear.matrix.rows
        && norm.residual.is_some()
}
