//! Gates and ups of more tokens than `skinny.rs` takes, with their activation, on Hopper.
//!
//! Must not know when such a product is wanted.

use fornax_backend::{Activation, BackendError};

use super::{Action, Plan};
use crate::dense::Product;
use crate::device::Device;
use crate::kernels::{Module, SKINNY_ROWS};
use crate::launch::Launch;
use crate::operation::activation_numbers;
use crate::tensor_map::TensorMap;

// As in `kernels/broad.cu`.
const SLAB: usize = 64;
const HALF: usize = 128;
const LEFT: usize = 128;
const STAGES: usize = 4;
const THREADS: usize = 3 * 128;
/// Tokens of a warp.
const OF_WARP: usize = 16;
/// Bytes of shared memory: the ring, and a place for what leaves.
const SHARED: usize = STAGES * 2 * SLAB * (LEFT + 2 * HALF) + 2 * LEFT * HALF;
/// Blocks of a cluster.
const PAIR: usize = 2;
/// Of a matrix, which is read anew for each 256 tokens: as much as the device's cache has beside them.
const MOST_BYTES: usize = 32 << 20;

/// `struct Broad` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Table {
    weight: TensorMap,
    x: TensorMap,
    out: TensorMap,
    n: u32,
    rows: u32,
    slabs: u32,
    activation: u32,
    alpha: f32,
    limit: f32,
    /// Up to a multiple of 64 bytes.
    spare: [u32; 10],
}

impl Plan<'_> {
    /// What an activation makes of a product's gates and ups, in bf16 from the beginning of `product.out` on; says
    /// whether it is one that this kernel can do.
    pub(super) fn broad(
        &mut self,
        product: &Product,
        activation: Activation,
    ) -> Result<bool, BackendError> {
        let Product { n, rows, cols, .. } = *product;
        let width = rows / 2;
        let device = &self.shop.device;
        let fits = device.is_only_hopper()
            && n > SKINNY_ROWS[SKINNY_ROWS.len() - 1]
            && width.is_multiple_of(HALF)
            && cols.is_multiple_of(SLAB)
            && 2 * rows * cols <= MOST_BYTES
            && is_well_used(n, width, device.multiprocessors() as usize / PAIR);
        if !fits {
            return Ok(false);
        }
        let kernel = self.shop.kernels.kernel(Module::Broad, "broad")?;
        let launch = |pairs: usize| {
            Launch::new(kernel, [PAIR * pairs, 1, 1], THREADS)
                .cluster(PAIR)
                .shared(SHARED)
        };
        let pairs = match self.pairs {
            Some(pairs) => pairs,
            None => launch(1).most_clusters(&self.shop.device)?,
        };
        self.pairs = Some(pairs);
        if pairs == 0 {
            return Ok(false);
        }
        let pairs = pairs.min(tiles(n, width));
        let table = table(&self.shop.device, product, activation)?;
        self.actions
            .push(Action::Launch(launch(pairs).structure(&table)));
        Ok(true)
    }
}

/// Tiles of `n` tokens and so many gates, each for a pair of blocks.
fn tiles(n: usize, width: usize) -> usize {
    width / HALF * n.div_ceil(PAIR * LEFT)
}

/// Whether four fifths of what so many pairs of blocks multiply until the last is done are wanted: with 0.73 of it,
/// 1,024 and 1,536 tokens of Qwen3-0.6B on an H200, the library and a launch behind it are as fast.
fn is_well_used(n: usize, width: usize, pairs: usize) -> bool {
    let rounds = tiles(n, width).div_ceil(pairs);
    5 * n * width >= 4 * rounds * pairs * PAIR * LEFT * HALF
}

fn table(
    device: &Device,
    product: &Product,
    activation: Activation,
) -> Result<Table, BackendError> {
    let Product { n, rows, cols, .. } = *product;
    let (width, slabs) = (rows / 2, cols / SLAB);
    let (row, slab) = (2 * cols, 2 * SLAB);
    let weight = TensorMap::of_brains(
        device,
        product.weight,
        [SLAB, width, 2, slabs],
        [row, width * row, slab],
        [SLAB, HALF, 1, 1],
    )?;
    let x = TensorMap::of_brains(
        device,
        product.x,
        [SLAB, n, slabs],
        [row, slab],
        [SLAB, LEFT, 1],
    )?;
    let out = TensorMap::of_brains(
        device,
        product.out,
        [SLAB, n, width / SLAB],
        [2 * width, slab],
        [SLAB, OF_WARP, 1],
    )?;
    let (activation, alpha, limit) = activation_numbers(activation);
    Ok(Table {
        weight,
        x,
        out,
        n: n as u32,
        rows: width as u32,
        slabs: slabs as u32,
        activation,
        alpha,
        limit,
        spare: [0; 10],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_long_as_the_kernels() {
        assert_eq!(std::mem::size_of::<Table>(), 448);
        assert_eq!(std::mem::offset_of!(Table, out), 256);
    }

    #[test]
    fn it_is_used_where_hardly_any_block_waits_for_others() {
        let used = |n| is_well_used(n, 3072, 66);
        assert!([2048, 4096, 8192, 16_384].into_iter().all(used));
        assert!(![257, 512, 1024, 1300, 1536, 2100].into_iter().any(used));
        assert!(!is_well_used(257, 9728, 66));
        // Those of `tests/steps.rs`.
        assert!(is_well_used(2900, 1408, 66) && is_well_used(65_600, 128, 66));
    }
}
