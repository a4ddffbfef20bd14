//! Products of more tokens than `skinny.rs` takes, on Hopper, which end with what is done behind them: gates and ups
//! with their activation, here; Q, K and V in `turned.rs`.
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
pub(super) const HALF: usize = 128;
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

/// `struct Broad` of the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Broad {
    weight: TensorMap,
    x: TensorMap,
    n: u32,
    across: u32,
    step: u32,
    apart: u32,
    slabs: u32,
    /// Up to a multiple of 64 bytes.
    spare: [u32; 11],
}

/// `struct Gates` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Gates {
    product: Broad,
    out: TensorMap,
    activation: u32,
    alpha: f32,
    limit: f32,
    spare: [u32; 13],
}

impl Plan<'_> {
    /// What an activation makes of a product's gates and ups, in bf16 from the beginning of `product.out` on; says
    /// whether it is one that this kernel can do.
    pub(super) fn gates(
        &mut self,
        product: &Product,
        activation: Activation,
    ) -> Result<bool, BackendError> {
        let width = product.rows / 2;
        if !width.is_multiple_of(HALF) {
            return Ok(false);
        }
        let Some(launch) = self.broad(product, Module::Gates, "gates")? else {
            return Ok(false);
        };
        let device = &self.shop.device;
        let (activation, alpha, limit) = activation_numbers(activation);
        let table = Gates {
            product: Broad::new(device, product, [HALF, width])?,
            out: TensorMap::of_brains(
                device,
                product.out,
                [SLAB, product.n, width / SLAB],
                [2 * width, 2 * SLAB],
                [SLAB, OF_WARP, 1],
            )?,
            activation,
            alpha,
            limit,
            spare: [0; 13],
        };
        self.actions.push(Action::Launch(launch.structure(&table)));
        Ok(true)
    }

    /// The launch of a kernel for a product, without what it is told, if it is one that these kernels can do.
    pub(super) fn broad(
        &mut self,
        product: &Product,
        module: Module,
        name: &'static str,
    ) -> Result<Option<Launch>, BackendError> {
        let Product { n, rows, cols, .. } = *product;
        let device = &self.shop.device;
        let fits = device.is_only_hopper()
            && n > SKINNY_ROWS[SKINNY_ROWS.len() - 1]
            && cols.is_multiple_of(SLAB)
            && 2 * rows * cols <= MOST_BYTES
            && is_well_used(n, rows, device.multiprocessors() as usize / PAIR);
        if !fits {
            return Ok(None);
        }
        let kernel = self.shop.kernels.kernel(module, name)?;
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
        Ok((pairs > 0).then(|| launch(pairs.min(tiles(n, rows)))))
    }
}

impl Broad {
    /// Of a product whose tiles begin `step` rows behind one another, and their second halves `apart` behind the first.
    pub fn new(
        device: &Device,
        product: &Product,
        [step, apart]: [usize; 2],
    ) -> Result<Self, BackendError> {
        let Product { n, rows, cols, .. } = *product;
        let slabs = cols / SLAB;
        let of_slabs = |at: u64, rows: usize, of_box: usize| {
            let strides = [2 * cols, 2 * SLAB];
            TensorMap::of_brains(device, at, [SLAB, rows, slabs], strides, [SLAB, of_box, 1])
        };
        Ok(Self {
            weight: of_slabs(product.weight, rows, HALF)?,
            x: of_slabs(product.x, n, LEFT)?,
            n: n as u32,
            across: rows.div_ceil(2 * HALF) as u32,
            step: step as u32,
            apart: apart as u32,
            slabs: slabs as u32,
            spare: [0; 11],
        })
    }
}

/// Tiles of `n` tokens and so many rows, each for a pair of blocks.
fn tiles(n: usize, rows: usize) -> usize {
    rows.div_ceil(2 * HALF) * n.div_ceil(PAIR * LEFT)
}

/// Whether four fifths of what so many pairs of blocks multiply until the last is done are wanted: with 0.73 of it,
/// gates and ups of 1,024 and 1,536 tokens of Qwen3-0.6B on an H200, the library and a launch behind it are as fast.
fn is_well_used(n: usize, rows: usize, pairs: usize) -> bool {
    let rounds = tiles(n, rows).div_ceil(pairs);
    5 * n * rows >= 4 * rounds * pairs * PAIR * LEFT * 2 * HALF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_long_as_the_kernels() {
        assert_eq!(std::mem::size_of::<Broad>(), 320);
        assert_eq!(std::mem::size_of::<Gates>(), 512);
    }

    #[test]
    fn it_is_used_where_hardly_any_block_waits_for_others() {
        let used = |n| is_well_used(n, 6144, 66);
        assert!([2048, 4096, 8192, 16_384].into_iter().all(used));
        assert!(![257, 512, 1024, 1300, 1536, 2100].into_iter().any(used));
        assert!(!is_well_used(257, 19_456, 66));
        // Those of `tests/steps.rs`.
        assert!(is_well_used(2900, 2816, 66) && is_well_used(65_600, 256, 66));
        assert!(is_well_used(1970, 1920, 66) && is_well_used(1970, 1920, 24));
    }
}
