//! What products bring into the device's cache for the attention behind them: while they multiply,
//! memory is idle for most of the time.

use crate::operation::{AttendTable, Operation};

use super::Plan;

/// Bytes of K and V that all products between two layers' attention bring near. With 24 to 32 MB of a cache
/// of 50 a step was fastest.
const BYTES: usize = 32 << 20;
/// Products from one attention to the next, each of which brings its part.
const PRODUCTS: usize = 4;
/// Of a page, as in `kernels/skinny.cu`.
const UNITS: usize = 16;

/// `struct Near` of the kernel; nothing where `count` is zero.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Near {
    keys: u64,
    values: u64,
    tokens: u64,
    rows: u64,
    tables: u64,
    page_size: u32,
    page_bytes: u32,
    window: u32,
    first: u32,
    count: u32,
    /// Up to a multiple of eight bytes.
    spare: u32,
}

impl Near {
    /// The part of the `ahead`-th product before an attention, the first being 0.
    fn of(attend: &AttendTable, ahead: usize) -> Self {
        let row = match attend.kind {
            3 => attend.dim,
            _ => 2 * attend.dim,
        };
        let page_bytes = attend.kv_heads * attend.page_size * row;
        let of_row = BYTES / (2 * attend.n as usize);
        let count = of_row * UNITS / page_bytes as usize / PRODUCTS;
        Self {
            keys: attend.keys,
            values: attend.values,
            tokens: attend.tokens,
            rows: attend.rows,
            tables: attend.tables,
            page_size: attend.page_size,
            page_bytes,
            window: attend.window,
            first: (ahead * count) as u32,
            count: count as u32,
            spare: 0,
        }
    }
}

impl Plan<'_> {
    /// What a product brings near, where the next attention is one of many rows and soon enough.
    pub(super) fn near(&self, behind: &[Operation]) -> Near {
        let mut products = 0;
        for operation in behind {
            match operation {
                Operation::Linear(_) => products += 1,
                Operation::Attend(attend)
                    if products < PRODUCTS
                        && attend.single
                        && self.streams(&attend.table, attend.rows) =>
                {
                    return Near::of(&attend.table, products);
                }
                Operation::Attend(_) => break,
                _ => {}
            }
        }
        Near::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_as_long_as_the_kernels() {
        assert_eq!(std::mem::size_of::<Near>(), 64);
    }
}
