//! Products of some dozens of tokens with a copy in bf16, on Hopper: shares of rows and columns for
//! blocks, and what their kernel is told.
//!
//! Must not know when such a product is wanted.

use fornax_backend::{Activation, BackendError};

use super::{Action, Plan};
use crate::dense::Product;
use crate::device::Device;
use crate::kernels::{Module, TOKENS};
use crate::launch::Launch;
use crate::operation::activation_numbers;
use crate::tensor_map::TensorMap;

// As in `kernels/skinny.cu`.
const ROWS: usize = 64;
const THREADS: usize = 160;
const SLAB: usize = 64;
const MOST_STAGES: usize = 8;
const PITCH: usize = ROWS + 4;
const STORED: u32 = 0;
const ADDED: u32 = 1;
const NARROW: u32 = 2;
const GATED: u32 = 3;
/// What the kernel itself keeps in shared memory, and what is lost before a multiple of 1,024.
const OWN_SHARED: usize = 2 << 10;
/// Blocks that share the columns at most.
const MOST_SPLITS: usize = 4;

/// `struct Skinny` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Table {
    weight: TensorMap,
    x: TensorMap,
    out: u64,
    alpha: f32,
    limit: f32,
    n: u32,
    slabs: u32,
    stages: u32,
    stride: u32,
    kind: u32,
    activation: u32,
    received: u32,
    /// Up to a multiple of 64 bytes.
    spare: [u32; 5],
}

/// How the kernel for so many tokens shares a product of so many slabs of columns among some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    stages: usize,
    /// Bytes of shared memory before what other blocks send, and all.
    received: usize,
    shared: usize,
}

/// Slabs that are asked for at once.
fn piece(tokens: usize) -> usize {
    match tokens {
        ..=64 => 4,
        65..=160 => 2,
        _ => 1,
    }
}

impl Shares {
    /// `None` where a block would have nothing to do, or too little room.
    fn new(room: usize, tokens: usize, n: usize, slabs: usize, splits: usize) -> Option<Self> {
        let pieces = slabs.div_ceil(piece(tokens));
        let each = pieces.div_ceil(splits);
        let sums = 4 * PITCH * tokens;
        let sent = (splits - 1) * 4 * PITCH * n.div_ceil(splits);
        let stage = piece(tokens) * 2 * SLAB * (ROWS + tokens);
        let stages = room.checked_sub(OWN_SHARED + sent)? / stage;
        let stages = stages.min(each).min(MOST_STAGES);
        let received = (stages * stage).max(sums);
        let shared = received + sent;
        let fits = stages >= each.min(2) && shared + OWN_SHARED <= room;
        let all_have = |shares: usize, each: usize| (splits - 1) * each < shares;
        let idle = !all_have(pieces, each) || !all_have(n, n.div_ceil(splits));
        (fits && !idle).then_some(Self {
            stages,
            received,
            shared,
        })
    }
}

impl Plan<'_> {
    /// A product by the kernel for some dozens of tokens, with gates and ups made one number where they
    /// have an activation; says whether it is one of those that this kernel can do in one wave of blocks.
    pub(super) fn skinny(
        &mut self,
        product: &Product,
        activation: Option<Activation>,
    ) -> Result<bool, BackendError> {
        let Product { n, rows, cols, .. } = *product;
        let (device, blocks) = (&self.shop.device, rows / ROWS);
        let fits = device.is_only_hopper()
            && rows.is_multiple_of(ROWS)
            && cols.is_multiple_of(SLAB)
            && blocks <= device.multiprocessors() as usize;
        let tokens = TOKENS.into_iter().find(|tokens| fits && n <= *tokens);
        let Some(tokens) = tokens else {
            return Ok(false);
        };
        let kernel = self
            .shop
            .kernels
            .kernel(Module::Skinny { tokens }, "skinny")?;
        let room = self.shop.device.shared_memory();
        let mut splits = MOST_SPLITS;
        while splits > 0 {
            if let Some(shares) = Shares::new(room, tokens, n, cols / SLAB, splits) {
                let launch = Launch::new(kernel, [splits, blocks, 1], THREADS)
                    .cluster(splits)
                    .shared(shares.shared);
                if launch.most_clusters(&self.shop.device)? >= blocks {
                    let table = table(&self.shop.device, product, activation, tokens, shares)?;
                    self.actions.push(Action::Launch(launch.structure(&table)));
                    return Ok(true);
                }
            }
            splits /= 2;
        }
        Ok(false)
    }
}

fn table(
    device: &Device,
    product: &Product,
    activation: Option<Activation>,
    tokens: usize,
    shares: Shares,
) -> Result<Table, BackendError> {
    let Product { n, rows, cols, .. } = *product;
    let (slabs, piece, half) = (cols / SLAB, piece(tokens), ROWS / 2);
    // A block's rows in halves: neighbours, or gates and their ups.
    let (of_part, parts) = match activation {
        Some(_) => (rows / 2, 2),
        None => (half, rows / half),
    };
    let (row, slab) = (2 * cols, 2 * SLAB);
    let weight = TensorMap::of_brains(
        device,
        product.weight,
        [SLAB, of_part, parts, slabs],
        [row, of_part * row, slab],
        [SLAB, half, 2, piece],
    )?;
    let x = TensorMap::of_brains(
        device,
        product.x,
        [SLAB, n, slabs],
        [row, slab],
        [SLAB, tokens, piece],
    )?;
    let kind = match (activation, product.adds, product.narrow) {
        (Some(_), ..) => GATED,
        (None, true, _) => ADDED,
        (None, false, true) => NARROW,
        (None, false, false) => STORED,
    };
    let stride = if kind == GATED {
        rows / 2
    } else {
        product.stride
    };
    let (activation, alpha, limit) = activation.map_or((0, 0.0, 0.0), activation_numbers);
    Ok(Table {
        weight,
        x,
        out: product.out,
        alpha,
        limit,
        n: n as u32,
        slabs: slabs as u32,
        stages: shares.stages as u32,
        stride: stride as u32,
        kind,
        activation,
        received: shares.received as u32,
        spare: [0; 5],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 227 << 10;

    #[test]
    fn the_table_is_as_long_as_the_kernels() {
        assert_eq!(std::mem::size_of::<Table>(), 320);
    }

    #[test]
    fn shares_fit_and_leave_no_block_without_work() {
        for tokens in TOKENS {
            for n in tokens / 2 + 1..=tokens {
                for slabs in [1, 3, 9, 16, 32, 48, 64, 224] {
                    for splits in [1, 2, 4] {
                        let Some(shares) = Shares::new(ROOM, tokens, n, slabs, splits) else {
                            assert!(splits > 1, "{n} tokens by {slabs} slabs");
                            continue;
                        };
                        assert!(shares.shared + OWN_SHARED <= ROOM);
                        assert!(shares.stages >= 1 && shares.stages <= MOST_STAGES);
                        let pieces = slabs.div_ceil(piece(tokens));
                        assert!((splits - 1) * pieces.div_ceil(splits) < pieces);
                        // Sums meet where stages were, and end before what others send.
                        assert!(4 * PITCH * tokens <= shares.received);
                        let stage = piece(tokens) * 2 * SLAB * (ROWS + tokens);
                        assert!(shares.stages * stage <= shares.received);
                    }
                }
            }
        }
    }

    #[test]
    fn columns_are_shared_where_a_share_is_more_than_nothing() {
        let stages =
            |slabs, splits| Shares::new(ROOM, 32, 32, slabs, splits).map(|shares| shares.stages);
        assert_eq!(stages(16, 4), Some(1));
        assert_eq!(stages(9, 4), None);
        assert_eq!(stages(9, 2), Some(2));
        assert_eq!(stages(48, 1), Some(4));
    }
}
