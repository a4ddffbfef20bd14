//! Norms, and who does them: the product behind one where that is small, the products before and behind
//! it a half each where these are of up to some dozens of tokens in brain floats, experts that choose themselves,
//! a kernel of their own else.
//!
//! Must not know how a product multiplies.

use fornax_backend::BackendError;

use super::Plan;
use super::experts::Router;
use super::skinny::{MOST_HALVED, Shape, handed_bytes};
use crate::dense::Product;
use crate::operation::{Linear, Norm, Operation, Route};
use crate::weight::Layout;

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
        if let Some(residual) = norm.residual {
            self.written(residual);
        } else {
            match behind {
                [
                    Operation::Linear(router),
                    Operation::Route(route),
                    Operation::Experts(experts),
                    rest @ ..,
                ] if self.choose_themselves(&norm, router, route, experts) => {
                    let kept = reads_again(norm.out, rest);
                    let router = Router::new(&norm, router, route, kept);
                    self.experts(experts, Some(router), rest)?;
                    return Ok(4);
                }
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
                        && !self.is_of_head(linear)
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
        let rounding = self.rounded_for(out, width, n, 2, behind)?;
        // Nobody may want it in single precision.
        let only_rounded = rounding.at != 0 && !reads_again(out, &behind[1..]);
        let kept = if only_rounded { 0 } else { out };
        let threads = rounding.padded.max(width).div_ceil(4).next_multiple_of(32);
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
            let launch = launch.float(eps).number(width).wide(rounding.at);
            launch.number(rounding.padded).number(rounding.apart)
        })?;
        Ok(1)
    }

    /// Has the product in front of a norm do its sum; says where.
    pub(super) fn sum_before(&mut self, norm: &mut Norm) -> u64 {
        let residual = norm.residual.take();
        let residual = residual.expect("invariant: there is one to add to");
        norm.x = residual;
        self.written(residual);
        residual
    }

    /// The norm of what a product adds to, in halves, where the product behind it is the only one who
    /// wants it and both can do theirs.
    pub(super) fn halved(
        &mut self,
        product: &Product,
        parts: usize,
        matrix: &Layout,
        norm: &Norm,
        behind: &[Operation],
    ) -> Result<Option<Halved>, BackendError> {
        let Product { x, n, .. } = *product;
        let next = match only_reader(norm, behind) {
            Some(next) if self.parts(next) == parts && self.takes_half(norm, next) => &next.matrix,
            _ => return Ok(None),
        };
        for matrix in [matrix, next] {
            if self.cut(Shape::of(matrix, n, parts))?.is_none() {
                return Ok(None);
            }
        }
        let memory = self.shop.halved.memory();
        let memory = memory.expect("invariant: room was made for every norm that may be halved");
        let (first, half) = (memory.pointer(), memory.bytes() / 2);
        assert!(
            handed_bytes(norm.width) <= half,
            "invariant: room for a norm"
        );
        // Other blocks may still read what this product multiplies when one of its blocks writes.
        let at = if x == first {
            first + half as u64
        } else {
            first
        };
        Ok(Some(Halved {
            rows: at,
            squares: at + (2 * parts * n * norm.width) as u64,
            weight: norm.weight,
            eps: norm.eps,
        }))
    }

    /// Whether a product may do the second half of the norm before it.
    fn takes_half(&self, norm: &Norm, next: &Linear) -> bool {
        (2..=MOST_HALVED).contains(&norm.n)
            && next.matrix.dense.is_some()
            && self.is_large(next)
            && !self.is_of_head(next)
            && self.fits(next.matrix.rows, norm.width)
    }

    /// Makes what lies between halves of norms, before anything points there: at once as much as any
    /// number of tokens takes, because captured steps are lost where it grows.
    pub(super) fn make_room_for_halves(
        &mut self,
        operations: &[Operation],
    ) -> Result<(), BackendError> {
        let bytes = |pair: &[Operation]| match pair {
            [Operation::Norm(norm), Operation::Linear(next)]
                if next.x == norm.out && self.takes_half(norm, next) =>
            {
                handed_bytes(norm.width)
            }
            _ => 0,
        };
        let bytes = operations.windows(2).map(bytes).max().unwrap_or(0);
        if bytes > 0 {
            self.shop.halved.grown(&self.shop.device, 2 * bytes)?;
        }
        Ok(())
    }
}

/// A norm that two products do a half of each: the first multiplies the sums that it leaves with the
/// norm's weights, the second divides what it makes of them.
#[derive(Clone, Copy)]
pub(super) struct Halved {
    /// Bf16 `[parts, n, width]`
    pub rows: u64,
    /// Of each token's sums in tiles. `[width / 64, n]`
    pub squares: u64,
    /// `[width]`
    pub weight: u64,
    pub eps: f32,
}

/// The product that comes next, where it is the only one who reads the norm.
fn only_reader<'a>(norm: &Norm, behind: &'a [Operation]) -> Option<&'a Linear> {
    match behind {
        [Operation::Linear(next), rest @ ..]
            if norm.residual.is_none()
                && next.x == norm.out
                && next.n == norm.n
                && next.matrix.cols == norm.width
                && !reads_again(norm.out, rest) =>
        {
            Some(next)
        }
        _ => None,
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
            Operation::Route(Route { table, .. }) => (
                table.logits == rows,
                [table.ids, table.weights].contains(&rows),
            ),
            Operation::Experts(experts) => (
                [experts.x, experts.ids, experts.weights].contains(&rows),
                experts.out == rows,
            ),
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
    adds_rows(linear.out, [linear.n, linear.matrix.rows], norm)
}

/// The same of any rows, so many of so many numbers.
pub(super) fn adds_rows(rows: u64, size: [usize; 2], norm: &Norm) -> bool {
    norm.x == rows && [norm.n, norm.width] == size && norm.residual.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Kernel;
    use crate::launch::Launch;

    const NORMED: u64 = 1;
    const SUM: u64 = 2;
    const OTHER: u64 = 3;

    fn norm(out: u64, residual: Option<u64>, x: u64) -> Norm {
        Norm {
            out,
            residual,
            x,
            weight: 9,
            eps: 1e-6,
            width: 64,
            n: 16,
        }
    }

    fn linear(out: u64, x: u64) -> Linear {
        Linear {
            out,
            matrix: Layout {
                parts: Vec::new(),
                rows: 64,
                cols: 64,
                experts: 1,
                dense: Some(8),
                tiles: None,
                head: None,
            },
            sketch: None,
            bias: None,
            x,
            n: 16,
        }
    }

    fn product(out: u64, x: u64) -> Operation {
        Operation::Linear(linear(out, x))
    }

    /// What writes the rows of a norm anew.
    fn anew() -> Operation {
        Operation::Norm(norm(NORMED, Some(SUM), OTHER))
    }

    #[test]
    fn a_norm_is_halved_for_a_product_that_alone_reads_it() {
        let halved = |norm: &Norm, behind: &[Operation]| only_reader(norm, behind).is_some();
        let own = norm(NORMED, None, SUM);
        assert!(halved(&own, &[product(OTHER, NORMED), anew()]));
        let between = [product(OTHER, NORMED), product(SUM, OTHER), anew()];
        assert!(halved(&own, &between));
        // Nobody says who reads it behind the last operation, nor what a launch reads.
        assert!(!halved(&own, &[product(OTHER, NORMED)]));
        let kernel = Kernel {
            function: std::ptr::null_mut(),
            name: "add_gated",
        };
        let launch = Operation::Launch(Launch::new(kernel, [1, 1, 1], 1));
        assert!(!halved(&own, &[product(OTHER, NORMED), launch, anew()]));
        // Two products of it, as those of a router and of its experts.
        let two = [product(OTHER, NORMED), product(SUM, NORMED), anew()];
        assert!(!halved(&own, &two));
        // Another norm, or another product, comes next.
        assert!(!halved(&own, &[anew(), product(OTHER, NORMED)]));
        assert!(!halved(&own, &[product(NORMED, SUM), anew()]));
        assert!(!halved(&own, &[]));
    }

    #[test]
    fn a_norm_of_other_rows_is_not_halved() {
        let behind = [product(OTHER, NORMED), anew()];
        let own = norm(NORMED, None, SUM);
        assert!(only_reader(&own, &behind).is_some());
        for other in [
            norm(NORMED, Some(SUM), OTHER),
            Norm { n: 15, ..own },
            Norm { width: 32, ..own },
        ] {
            assert!(only_reader(&other, &behind).is_none());
        }
    }

    #[test]
    fn a_product_adds_only_to_what_is_normed_with_it() {
        let branch = linear(OTHER, NORMED);
        assert!(adds(&branch, &norm(NORMED, Some(SUM), OTHER)));
        // A norm of the product itself, as Gemma 3 has it before the sum.
        assert!(!adds(&branch, &norm(NORMED, None, OTHER)));
        assert!(!adds(&branch, &norm(NORMED, Some(OTHER), SUM)));
    }
}
