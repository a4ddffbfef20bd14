//! Products of many rows, in bf16: what is rounded before them, and what is decoded for them where no
//! copy is kept. The library does them, but for those of `skinny.rs`, `broad.rs` and `turned.rs`.
//!
//! Must not know when a product is large.

use std::ops::Range;

use fornax_backend::BackendError;

use super::norms::adds;
use super::skinny::Beside;
use super::{Action, Plan, Rounded};
use crate::dense::Product;
use crate::kernels::{Kernels, Module};
use crate::launch::Launch;
use crate::operation::{Linear, Operation, activation_numbers};
use crate::weight::{Layout, Part};

/// Bytes of a matrix that are decoded to bf16 at once where no copy is kept.
pub(crate) const DECODED_AT_ONCE: usize = 64 << 20;

impl Plan<'_> {
    /// A product in bf16, with what may be done before and behind it; says how many operations that
    /// were.
    pub(super) fn large(
        &mut self,
        linear: &Linear,
        behind: &mut [Operation],
    ) -> Result<usize, BackendError> {
        let Linear {
            out,
            ref matrix,
            bias,
            x,
            n,
            ..
        } = *linear;
        let (padded, width) = (matrix.padded(), matrix.cols);
        let parts = self.parts(linear);
        let rounded = match self.rounded_of(x, parts) {
            Some(rounded) => rounded,
            None => self.round(x, n, width, parts)?,
        };
        let mut beside = Beside {
            before: rounded.halved,
            behind: None,
            near: self.near(behind),
        };
        let mut product = Product {
            out,
            stride: matrix.rows,
            narrow: false,
            adds: false,
            weight: matrix.dense.unwrap_or(0),
            x: rounded.at,
            n,
            rows: matrix.rows,
            cols: padded,
        };
        match behind {
            [Operation::Norm(norm), rest @ ..] if adds(linear, norm) => {
                (product.out, product.adds) = (self.sum_before(norm), true);
                if bias.is_none()
                    && matrix.dense.is_some()
                    && let Some(halved) = self.halved(&product, parts, matrix, norm, rest)?
                {
                    beside.behind = Some(halved);
                    self.product(product, parts, matrix, beside)?;
                    self.written(norm.out);
                    self.rounded = Some(Rounded {
                        of: norm.out,
                        at: halved.rows,
                        parts,
                        halved: Some(halved),
                    });
                    return Ok(2);
                }
            }
            [
                Operation::Glu {
                    out: activated,
                    gate_up,
                    activation,
                    width,
                    n: all,
                },
                Operation::Linear(next),
                ..,
            ] if *gate_up == out
                && *all == n
                && 2 * *width == matrix.rows
                && bias.is_none()
                && next.x == *activated
                && next.n == n
                && self.parts(next) == parts
                && (parts == 1 || next.out != out)
                && width.is_multiple_of(32)
                && self.is_large(next) =>
            {
                let (activated, width) = (*activated, *width);
                product.narrow = true;
                // Numbers lie where gates and ups would, and stay until they are multiplied.
                if matrix.dense.is_some()
                    && next.out != out
                    && (self.skinny(&product, matrix, parts, Some(*activation), beside)?
                        || parts == 1
                            && beside.before.is_none()
                            && self.gates(&product, *activation)?)
                {
                    self.rounded = Some(Rounded {
                        of: activated,
                        at: out,
                        parts,
                        halved: None,
                    });
                    return Ok(2);
                }
                self.product(product, parts, matrix, beside)?;
                let (kind, alpha, limit) = activation_numbers(*activation);
                let at = self.rounded_memory()?;
                self.rows_kernel(
                    "glu_dense",
                    [n, (width / 8).div_ceil(128), 1],
                    128,
                    |launch| {
                        let launch = launch.wide(at).wide(out).number(width);
                        launch.number(kind as usize).float(alpha).float(limit)
                    },
                )?;
                self.rounded = Some(Rounded {
                    of: activated,
                    at,
                    parts,
                    halved: None,
                });
                return Ok(2);
            }
            [Operation::Turn(turn), rest @ ..]
                if turn.qkv == out
                    && turn.n as usize == n
                    && turn.stride as usize == matrix.rows
                    && bias.is_none()
                    && parts == 1
                    && turn.is_fast()
                    && !self.is_turned_by(turn, rest) =>
            {
                let turn = self.narrowed(turn, rest);
                if matrix.dense.is_some()
                    && beside.before.is_none()
                    && self.turned(&product, &turn)?
                {
                    return Ok(2);
                }
                // Half as wide, each row from where the next kernel leaves its queries.
                product.narrow = true;
                product.stride = 2 * matrix.rows;
                self.product(product, parts, matrix, beside)?;
                self.turn_by("turn_brains", &turn)?;
                return Ok(2);
            }
            _ => {}
        }
        self.product(product, parts, matrix, beside)?;
        if let Some(bias) = bias {
            let (to, rows) = (product.out, matrix.rows);
            self.rows_kernel("add_bias", [n, 1, 1], 256, |launch| {
                launch
                    .wide(to)
                    .number(rows)
                    .number(0)
                    .wide(bias)
                    .number(rows)
            })?;
        }
        Ok(1)
    }

    /// A product, piece by piece where the matrix is still to be decoded.
    fn product(
        &mut self,
        product: Product,
        parts: usize,
        matrix: &Layout,
        beside: Beside,
    ) -> Result<(), BackendError> {
        if matrix.dense.is_some() && self.skinny(&product, matrix, parts, None, beside)? {
            return Ok(());
        }
        assert!(
            parts == 1 && beside.before.is_none() && beside.behind.is_none(),
            "invariant: what is split or halved was seen to fit"
        );
        if matrix.dense.is_some() {
            return self.prepared(product);
        }
        let decoded = self.shop.decoded.grown(&self.shop.device, 0)?;
        let (at_once, padded) = (rows_at_once(matrix), matrix.padded());
        let bytes = if product.narrow { 2 } else { 4 };
        let mut column = 0;
        for part in &matrix.parts {
            for first in (0..part.rows).step_by(at_once) {
                let rows = first..part.rows.min(first + at_once);
                let piece = Product {
                    out: product.out + (bytes * (column + first)) as u64,
                    weight: decoded,
                    rows: rows.len(),
                    ..product
                };
                let launch = decode(&mut self.shop.kernels, part, rows, padded, decoded)?;
                self.actions.push(Action::Launch(launch));
                self.prepared(piece)?;
            }
            column += part.rows;
        }
        Ok(())
    }

    fn prepared(&mut self, product: Product) -> Result<(), BackendError> {
        let dense = self.shop.dense.as_mut();
        dense
            .expect("invariant: it was seen to be there")
            .prepare(&product)?;
        self.actions.push(Action::Product(product));
        Ok(())
    }

    /// Bytes of the largest piece that a product decodes.
    pub(super) fn decoded_bytes(&self, linear: &Linear) -> usize {
        let matrix = &linear.matrix;
        let rows = match matrix.dense {
            Some(_) => 0,
            None => rows_at_once(matrix).min(matrix.rows),
        };
        2 * rows * matrix.padded()
    }
}

/// Decodes rows of a part to bf16, `padded` numbers each, at `to`.
pub(crate) fn decode(
    kernels: &mut Kernels,
    part: &Part,
    rows: Range<usize>,
    padded: usize,
    to: u64,
) -> Result<Launch, BackendError> {
    let kernel = kernels.kernel(Module::Product(part.format), "to_bf16")?;
    let launch = Launch::new(kernel, [rows.len().min(2048), 1, 1], 128);
    Ok(launch
        .wide(to)
        .wide(part.pointer + (rows.start * part.pitch) as u64)
        .wide(part.pitch as u64)
        .number(padded)
        .number(rows.len()))
}

/// Rows of a piece: as many as its bytes hold, and such that each piece begins where the library
/// likes it.
fn rows_at_once(matrix: &Layout) -> usize {
    (DECODED_AT_ONCE / (2 * matrix.padded()) / 64 * 64).max(64)
}
