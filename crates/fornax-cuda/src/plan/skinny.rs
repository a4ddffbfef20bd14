//! Products of up to 256 tokens with a copy in bf16 or with tiles, on Hopper: shares of rows and columns for
//! blocks, and what their kernel is told: of norms around them, and of what comes near for attention.
//!
//! Must not know when such a product is wanted.

use fornax_backend::{Activation, BackendError};
use fornax_gguf::DType;

use super::near::Near;
use super::norms::Halved;
use super::products::FEW;
use super::{Action, Plan};
use crate::dense::Product;
use crate::device::Device;
use crate::kernels::{Kernel, Module, SKINNY_ROWS};
use crate::launch::Launch;
use crate::operation::{Linear, activation_numbers};
use crate::tensor_map::TensorMap;
use crate::tiles::TILE_BYTES;
use crate::weight::Layout;

// As in `kernels/skinny.cu`.
const ROWS: usize = 64;
const THREADS: usize = 128;
const SLAB: usize = 64;
const MOST_STAGES: usize = 8;
const PITCH: usize = ROWS + 4;
const STORED: u32 = 0;
const ADDED: u32 = 1;
const NARROW: u32 = 2;
const GATED: u32 = 3;
/// What the kernel itself keeps in shared memory, and what is lost before a multiple of 1,024.
const OWN_SHARED: usize = 2 << 10;
/// Blocks that share the columns: as many as run at once. Of clusters of eight an H200 runs 15, one less than
/// a matrix of 1,024 rows has tiles.
const SPLITS: [usize; 4] = [6, 4, 2, 1];
/// Tokens whose norms two products do a half each of, at most: of 130 a launch of its own is faster.
pub(super) const MOST_HALVED: usize = 64;

/// What a product does beside multiplying: halves of norms, and bringing near what comes next.
#[derive(Clone, Copy)]
pub(super) struct Beside {
    pub before: Option<Halved>,
    pub behind: Option<Halved>,
    pub near: Near,
}

/// `struct Skinny` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Table {
    weight: TensorMap,
    x: TensorMap,
    tiled: u64,
    out: u64,
    normed: u64,
    squares: u64,
    norm: u64,
    squares_of_x: u64,
    eps: f32,
    alpha: f32,
    limit: f32,
    n: u32,
    slabs: u32,
    stages: u32,
    stride: u32,
    kind: u32,
    activation: u32,
    received: u32,
    near: Near,
    /// Up to a multiple of 64 bytes.
    spare: [u32; 8],
}

/// What a product's shape and the device leave open, apart from how many blocks share its columns.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Rows that the kernel is compiled for.
    most: usize,
    tokens: usize,
    /// Rows of each token.
    parts: usize,
    slabs: usize,
    /// Whether the matrix lies as tiles.
    tiled: bool,
}

impl Size {
    /// Slabs that are asked for at once.
    fn piece(self) -> usize {
        match self.most {
            _ if self.tiled => 2,
            ..=64 => 4,
            65..=128 => 2,
            _ => 1,
        }
    }

    /// Bytes of a stage.
    fn stage(self) -> usize {
        let weights = match self.tiled {
            true => TILE_BYTES,
            false => 2 * SLAB * ROWS,
        };
        self.piece() * (weights + 2 * SLAB * self.most)
    }

    /// Whether its kernel may do half of a norm: `HALVES` there.
    fn halves(self) -> bool {
        self.most <= MOST_HALVED
    }

    /// Threads of a block: those that multiply, a warp that asks for both sides, and one for the rest of a norm.
    fn threads(self) -> usize {
        THREADS + if self.halves() { 64 } else { 32 }
    }

    /// Bytes of what tokens are still to be multiplied by for a norm.
    fn factors(self) -> usize {
        if self.halves() { 4 * self.most } else { 0 }
    }
}

/// How some blocks share a product's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    stages: usize,
    /// Bytes of shared memory before what other blocks send and factors, and all.
    received: usize,
    shared: usize,
}

impl Shares {
    /// `None` where a block would have no columns, or too little room.
    fn new(room: usize, size: Size, splits: usize) -> Option<Self> {
        let pieces = size.slabs.div_ceil(size.piece());
        let each = pieces.div_ceil(splits);
        let of_token = 4 * PITCH;
        let sums = of_token * size.most;
        let sent = (splits - 1) * of_token * size.parts * size.tokens.div_ceil(splits);
        let stage = size.stage();
        let behind = sent + size.factors();
        let stages = room.checked_sub(OWN_SHARED + behind)? / stage;
        let stages = stages.min(each).min(MOST_STAGES);
        // So two blocks of the launch behind, where that is of tiles too, have no room beside one, and go to
        // multiprocessors of their own. With less 2 rows take 4 % longer, and 3 rows 8 %.
        let least = if size.tiled { room.div_ceil(3) } else { 0 };
        let received = (stages * stage).max(sums).max(least.next_multiple_of(16));
        let shared = received + behind;
        let fits = stages >= each.min(2) && shared + OWN_SHARED <= room;
        (fits && (splits - 1) * each < pieces).then_some(Self {
            stages,
            received,
            shared,
        })
    }
}

/// A product as far as its cut depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub n: usize,
    /// Rows of each token.
    pub parts: usize,
    pub rows: usize,
    pub cols: usize,
    /// Whether the matrix lies as tiles.
    pub tiled: bool,
}

impl Shape {
    /// Of `n` tokens with a matrix, which lies as tiles for those of two parts where it has some.
    pub fn of(matrix: &Layout, n: usize, parts: usize) -> Self {
        Self {
            n,
            parts,
            rows: matrix.rows,
            cols: matrix.padded(),
            tiled: parts > 1 && matrix.tiles.is_some(),
        }
    }
}

/// A product that is done in one wave of blocks: by which kernel, and how they share its columns.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    kernel: Kernel,
    size: Size,
    splits: usize,
    shares: Shares,
}

impl Cut {
    fn launch(&self, rows: usize) -> Launch {
        Launch::new(
            self.kernel,
            [self.splits, rows / ROWS, 1],
            self.size.threads(),
        )
        .cluster(self.splits)
        .shared(self.shares.shared)
    }
}

/// Bytes of what a product hands to one that does the rest of a norm: rows in bf16 as many as there may be, of one
/// part or of two, and the squares' sums of each of their tiles.
pub(super) fn handed_bytes(width: usize) -> usize {
    MOST_HALVED * (2 * width + 4 * width.div_ceil(ROWS))
}

/// Whether a matrix has whole tiles of rows and columns, and blocks for all of its rows run at once.
pub(crate) fn is_skinny(device: &Device, rows: usize, cols: usize) -> bool {
    device.is_only_hopper()
        && rows.is_multiple_of(ROWS)
        && cols.is_multiple_of(SLAB)
        && rows / ROWS <= device.multiprocessors() as usize
}

impl Plan<'_> {
    /// Rows in bf16 of each token of a product: two for a few tokens, where the matrix is in bf16 already
    /// and the result is to be that of single precision.
    pub(super) fn parts(&self, linear: &Linear) -> usize {
        const { assert!(2 * FEW <= SKINNY_ROWS[0], "the smallest kernel has room") };
        const { assert!(SKINNY_ROWS[0] <= MOST_HALVED, "so has half a norm") };
        let matrix = &linear.matrix;
        let brains = matrix.parts.iter().all(|part| part.format == DType::BF16);
        let exact = brains || matrix.tiles.is_some();
        let splits = (2..=FEW).contains(&linear.n)
            && self.shop.dense.is_some()
            && matrix.experts == 1
            && matrix.dense.is_some()
            && exact
            && self.fits(matrix.rows, matrix.cols);
        if splits { 2 } else { 1 }
    }

    /// Whether a matrix is one of those.
    pub(super) fn fits(&self, rows: usize, cols: usize) -> bool {
        is_skinny(&self.shop.device, rows, cols)
    }

    /// A product by the kernel for up to 256 tokens, with gates and ups made one number where they
    /// have an activation; says whether it is one of those that this kernel can do in one wave of blocks.
    pub(super) fn skinny(
        &mut self,
        product: &Product,
        matrix: &Layout,
        parts: usize,
        activation: Option<Activation>,
        beside: Beside,
    ) -> Result<bool, BackendError> {
        let shape = Shape::of(matrix, product.n, parts);
        let Some(cut) = self.cut(shape)? else {
            return Ok(false);
        };
        let mut table = table(&self.shop.device, product, activation, beside, &cut)?;
        // In place of the copy, which has rounded them.
        table.tiled = matrix.tiles.filter(|_| shape.tiled).unwrap_or(0);
        let launch = cut.launch(product.rows).structure(&table);
        self.actions.push(Action::Launch(launch));
        Ok(true)
    }

    /// How a product is cut, if it is one of those. A plan asks for each of its few shapes again and again.
    pub(super) fn cut(&mut self, shape: Shape) -> Result<Option<Cut>, BackendError> {
        if let Some(cut) = self.cuts.get(&shape) {
            return Ok(*cut);
        }
        let cut = self.new_cut(shape)?;
        self.cuts.insert(shape, cut);
        Ok(cut)
    }

    fn new_cut(&mut self, shape: Shape) -> Result<Option<Cut>, BackendError> {
        let Shape {
            n,
            parts,
            rows,
            cols,
            tiled,
        } = shape;
        let most = SKINNY_ROWS.into_iter().find(|most| parts * n <= *most);
        let (Some(most), true) = (most, self.fits(rows, cols)) else {
            return Ok(None);
        };
        let size = Size {
            most,
            tokens: n,
            parts,
            slabs: cols / SLAB,
            tiled,
        };
        let module = Module::Skinny {
            rows: most,
            parts,
            tiled,
        };
        let kernel = self.shop.kernels.kernel(module, "skinny")?;
        let device = &self.shop.device;
        for splits in SPLITS {
            if let Some(shares) = Shares::new(device.shared_memory(), size, splits) {
                let cut = Cut {
                    kernel,
                    size,
                    splits,
                    shares,
                };
                if cut.launch(rows).most_clusters(device)? >= rows / ROWS {
                    return Ok(Some(cut));
                }
            }
        }
        Ok(None)
    }
}

fn table(
    device: &Device,
    product: &Product,
    activation: Option<Activation>,
    Beside {
        before,
        behind,
        near,
    }: Beside,
    &Cut { size, shares, .. }: &Cut,
) -> Result<Table, BackendError> {
    let Product { n, rows, cols, .. } = *product;
    let (slabs, piece, half) = (size.slabs, size.piece(), ROWS / 2);
    // A block's rows in halves: neighbours, or gates and their ups.
    let (of_side, sides) = match activation {
        Some(_) => (rows / 2, 2),
        None => (half, rows / half),
    };
    let (row, slab) = (2 * cols, 2 * SLAB);
    let weight = match size.tiled {
        true => TensorMap::default(),
        false => TensorMap::of_brains(
            device,
            product.weight,
            [SLAB, of_side, sides, slabs],
            [row, of_side * row, slab],
            [SLAB, half, 2, piece],
        )?,
    };
    let x = TensorMap::of_brains(
        device,
        product.x,
        [SLAB, size.parts * n, slabs],
        [row, slab],
        [SLAB, size.most, piece],
    )?;
    let kind = match (activation, product.adds, product.narrow) {
        (Some(_), ..) => GATED,
        (None, true, _) => ADDED,
        (None, false, true) => NARROW,
        (None, false, false) => STORED,
    };
    assert!(
        behind.is_none() || kind == ADDED && product.stride == rows,
        "invariant: beside are of sums, and of all of their rows"
    );
    let stride = if kind == GATED {
        rows / 2
    } else {
        product.stride
    };
    let (activation, alpha, limit) = activation.map_or((0, 0.0, 0.0), activation_numbers);
    Ok(Table {
        weight,
        x,
        tiled: 0,
        out: product.out,
        normed: behind.map_or(0, |norm| norm.rows),
        squares: behind.map_or(0, |norm| norm.squares),
        norm: behind.map_or(0, |norm| norm.weight),
        squares_of_x: before.map_or(0, |norm| norm.squares),
        eps: before.map_or(0.0, |norm| norm.eps),
        alpha,
        limit,
        n: n as u32,
        slabs: slabs as u32,
        stages: shares.stages as u32,
        stride: stride as u32,
        kind,
        activation,
        received: shares.received as u32,
        near,
        spare: [0; 8],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 227 << 10;

    #[test]
    fn the_table_is_as_long_as_the_kernels() {
        assert_eq!(std::mem::size_of::<Table>(), 448);
        assert_eq!(std::mem::offset_of!(Table, squares_of_x), 296);
        assert_eq!(std::mem::offset_of!(Table, received), 340);
        assert_eq!(std::mem::offset_of!(Table, near), 344);
    }

    #[test]
    fn what_is_handed_on_lies_as_rows_and_squares_behind_them() {
        for width in [64, 576, 1024, 8448] {
            let squares = MOST_HALVED * width / ROWS;
            assert_eq!(handed_bytes(width), 2 * MOST_HALVED * width + 4 * squares);
            // Two of them lie one behind the other, and tensors begin at multiples of 16 bytes.
            assert!(handed_bytes(width).is_multiple_of(128));
        }
    }

    #[test]
    fn shares_fit_and_leave_no_block_without_columns() {
        let sizes = SKINNY_ROWS.into_iter().flat_map(|most| {
            let tokens = (most / 2 + 1..=most).map(move |tokens| (most, tokens, 1, false));
            let split = |tiled| (2..=FEW).map(move |tokens| (SKINNY_ROWS[0], tokens, 2, tiled));
            let few = (2..=FEW).map(|tokens| (SKINNY_ROWS[0], tokens, 1, false));
            tokens.chain(few).chain(split(false)).chain(split(true))
        });
        for (most, tokens, parts, tiled) in sizes {
            for slabs in [1, 3, 9, 16, 32, 48, 64, 224] {
                let size = Size {
                    most,
                    tokens,
                    parts,
                    slabs,
                    tiled,
                };
                for splits in SPLITS {
                    let Some(shares) = Shares::new(ROOM, size, splits) else {
                        assert!(splits > 1, "{size:?}");
                        continue;
                    };
                    assert!(shares.shared + OWN_SHARED <= ROOM);
                    assert!(shares.stages >= 1 && shares.stages <= MOST_STAGES);
                    let pieces = slabs.div_ceil(size.piece());
                    assert!((splits - 1) * pieces.div_ceil(splits) < pieces);
                    // Sums meet where stages were, and end before what others send.
                    assert!(4 * PITCH * most <= shares.received);
                    assert!(shares.stages * size.stage() <= shares.received);
                    // Copies of what is sent begin at multiples of 16 bytes.
                    assert!(shares.received.is_multiple_of(16));
                    // What two blocks of tiles leave is too little for a third.
                    assert!(!tiled || 3 * (shares.shared + 1024) > ROOM + 1024);
                }
            }
        }
    }

    #[test]
    fn columns_are_shared_where_a_share_is_more_than_nothing() {
        let stages = |slabs, splits| {
            let size = Size {
                most: 32,
                tokens: 32,
                parts: 1,
                slabs,
                tiled: false,
            };
            Shares::new(ROOM, size, splits).map(|shares| shares.stages)
        };
        assert_eq!(stages(16, 4), Some(1));
        assert_eq!(stages(9, 4), None);
        assert_eq!(stages(9, 2), Some(2));
        assert_eq!(stages(48, 1), Some(4));
    }
}
