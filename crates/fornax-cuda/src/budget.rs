//! What a model will take of the device, told before anything is taken.
//!
//! Must not know how memory is taken.

use fornax_backend::BackendError;
use fornax_gguf::DType;

use crate::Cuda;
use crate::device::mebibytes;
use crate::options::LargeProducts;
use crate::plan;
use crate::tiles;

/// What a model needs, in bytes but for the elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Weights in the formats of their file.
    pub weights: u64,
    /// Elements of the matrices that are kept in bf16 too, for large products, where the backend
    /// keeps copies.
    pub elements: u64,
    /// Tiles of bytes beside these copies, as [`Cuda::tiles_of`] says.
    pub tiled: u64,
    /// What is kept beside them at most: a sketch of the head.
    pub sketch: u64,
    /// Pages of keys and values.
    pub pages: u64,
    /// Tokens of a page.
    pub page_tokens: u64,
    /// Keys and values of a token.
    pub kv_per_token: u64,
    /// Hidden states and logits of the largest step.
    pub activations: u64,
    /// Token counts and changed logits of every sequence.
    pub samplers: u64,
}

/// Left free where the cache takes what there is: a tenth, and at least this much, for kernels,
/// captured steps and what grows with the first large step.
const LEAST_MARGIN: u64 = 512 << 20;

impl Cuda {
    /// Bytes that keys and values can take, when all else of the demand and a margin are there.
    ///
    /// # Errors
    /// The driver does not say what is free.
    pub fn room_for_kv(&self, demand: &Demand) -> Result<u64, BackendError> {
        let (free, _) = self.free_memory()?;
        Ok(room(free as u64, &self.taking(demand)))
    }

    /// Says what a model will take and what is free. Weights that come later are measured by it.
    ///
    /// # Errors
    /// It does not fit; the message says what takes how much, and what to lower.
    pub fn budget(&mut self, demand: &Demand) -> Result<String, BackendError> {
        let (free, all) = self.free_memory()?;
        self.announce(demand.weights);
        let taking = self.taking(demand);
        let statement = format!("{}: {}", self.device_name(), taking.statement(free, all));
        match taking.total() > free as u64 {
            false => Ok(statement),
            true => Err(BackendError(format!(
                "cuda: it does not fit: {statement}. {}Lower --ctx, --kv-memory or the number of sequences for keys and values, the tokens of a step for activations, or take a smaller --kv-type or model",
                match taking.copies {
                    0 => "",
                    _ => "Leave the copy away with --no-bf16-copies. ",
                }
            ))),
        }
    }

    /// Bytes of the tiles that are kept of a matrix beside its copy in bf16, for products of a few tokens.
    #[must_use]
    pub fn tiles_of(&self, format: DType, rows: usize, cols: usize) -> u64 {
        let copied = self.large_products() == LargeProducts::Copied;
        let skinny = plan::is_skinny(self.device(), rows, cols);
        match copied && skinny && tiles::is_tileable(format, cols) {
            true => tiles::tiled_bytes(rows, cols) as u64,
            false => 0,
        }
    }

    fn taking(&self, demand: &Demand) -> Taking {
        let pieces = match demand.elements {
            0 => 0,
            _ => (2 * demand.elements).min(plan::DECODED_AT_ONCE as u64),
        };
        let (copies, pieces) = match self.large_products() {
            LargeProducts::Copied => (2 * demand.elements, 0),
            LargeProducts::Decoded => (0, pieces),
            LargeProducts::Single => (0, 0),
        };
        Taking {
            demand: *demand,
            copies,
            workspace: pieces + demand.activations,
        }
    }
}

/// A demand as the backend meets it, in bytes.
struct Taking {
    demand: Demand,
    /// Matrices in bf16 beside their own format.
    copies: u64,
    /// Activations, and pieces of matrices that are decoded one after the other.
    workspace: u64,
}

impl Taking {
    fn kv(&self) -> u64 {
        self.demand.pages * self.demand.page_tokens * self.demand.kv_per_token
    }

    /// All but keys and values.
    fn fixed(&self) -> u64 {
        self.demand.weights
            + self.demand.sketch
            + self.demand.tiled
            + self.copies
            + self.workspace
            + self.demand.samplers
    }

    fn total(&self) -> u64 {
        self.fixed() + self.kv()
    }

    fn statement(&self, free: usize, all: usize) -> String {
        // Lossless: sizes of memory.
        let size = |bytes: u64| mebibytes(bytes as usize);
        let (pages, tokens) = (self.demand.pages, self.demand.page_tokens);
        format!(
            "weights {}, their copy in bf16 {}, tiles of them for 2 to 8 rows {}, a sketch of the head {}, keys and values {} ({pages} pages × {tokens} tokens = {} tokens), workspace {}, samplers {}: {} of {} free, {} in all",
            size(self.demand.weights),
            size(self.copies),
            size(self.demand.tiled),
            size(self.demand.sketch),
            size(self.kv()),
            pages * tokens,
            size(self.workspace),
            size(self.demand.samplers),
            size(self.total()),
            mebibytes(free),
            mebibytes(all),
        )
    }
}

/// What is left of `free` bytes for keys and values.
fn room(free: u64, taking: &Taking) -> u64 {
    let margin = (free / 10).max(LEAST_MARGIN);
    free.saturating_sub(margin + taking.fixed())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEBIBYTE: u64 = 1 << 20;

    fn taking() -> Taking {
        Taking {
            demand: Demand {
                weights: MEBIBYTE,
                elements: MEBIBYTE,
                tiled: 7 * MEBIBYTE,
                sketch: 6 * MEBIBYTE,
                pages: 3,
                page_tokens: 64,
                kv_per_token: MEBIBYTE / 64,
                activations: 3 * MEBIBYTE,
                samplers: 5 * MEBIBYTE,
            },
            copies: 2 * MEBIBYTE,
            workspace: 4 * MEBIBYTE,
        }
    }

    #[test]
    fn every_part_is_told_and_counted() {
        assert_eq!(taking().total(), 28 * MEBIBYTE);
        assert_eq!(
            taking().statement(25 << 20, 30 << 20),
            "weights 1.0 MiB, their copy in bf16 2.0 MiB, tiles of them for 2 to 8 rows 7.0 MiB, a sketch of the head 6.0 MiB, keys and values 3.0 MiB (3 pages × 64 tokens = 192 tokens), workspace 4.0 MiB, samplers 5.0 MiB: 28.0 MiB of 25.0 MiB free, 30.0 MiB in all"
        );
    }

    #[test]
    fn keys_and_values_get_what_all_else_and_a_margin_leave() {
        let fixed = 25 * MEBIBYTE;
        let gibibytes = 100 << 30;
        assert_eq!(room(gibibytes, &taking()), 90 * (1 << 30) - fixed);
        assert_eq!(room(LEAST_MARGIN + 33 * MEBIBYTE, &taking()), 8 * MEBIBYTE);
        assert_eq!(room(LEAST_MARGIN, &taking()), 0);
    }
}
