//! What goes into the pages of a cache, and from page to page.
//!
//! Must not know attention.

use fornax_backend::{Heads, KvShape, KvType};

use super::Cuda;
use crate::kernels::Module;
use crate::step::{Buffer, Kv, Step, kv_number};

impl Cuda {
    /// K and V of new tokens, which are these columns of `x`, to their pages.
    pub(super) fn store(
        &mut self,
        kv: &mut Kv,
        x: &Buffer,
        [k, v]: [Heads; 2],
        group: usize,
        step: &Step,
        n: usize,
    ) {
        let KvShape {
            page_size,
            kv_heads,
            element,
            ..
        } = kv.shape;
        assert_eq!((k.count, v.count), (kv_heads, kv_heads), "store_kv: heads");
        let (keys, values, slots) = (kv.keys.pointer(), kv.values.pointer(), kv.slots());
        let x = x.floats(n * k.stride);
        let (tokens, rows, tables) = (step.tokens(), step.rows(), step.tables(group));
        let grid = [(n * kv_heads).div_ceil(4), 1, 1];
        self.launch(Module::Rows, "store_kv", grid, 128, |launch| {
            let launch = launch
                .wide(keys)
                .wide(values)
                .number(kv_number(element))
                .wide(slots)
                .number(page_size);
            let launch = launch
                .wide(x)
                .number(k.stride)
                .number(k.offset)
                .number(k.dim);
            let launch = launch.number(v.offset).number(v.dim).number(kv_heads);
            launch.wide(tokens).wide(rows).wide(tables).number(n)
        });
    }

    /// The first tokens of a page to another.
    pub(super) fn copy_page(&mut self, kv: &mut Kv, source: u32, destination: u32, tokens: usize) {
        let KvShape {
            page_size,
            kv_heads,
            k_dim,
            v_dim,
            element,
            ..
        } = kv.shape;
        let (slots, quantised) = (kv.slots(), element == KvType::Q8_0);
        for (cache, dim) in [(kv.keys.pointer(), k_dim), (kv.values.pointer(), v_dim)] {
            // Bytes of a token's head; of Q8_0 those of its scales lie elsewhere.
            let scales = (cache + slots * dim as u64, dim / 16);
            let numbers = (cache, if quantised { dim } else { element.bytes(dim) });
            for (cache, width) in [numbers, scales]
                .into_iter()
                .take(1 + usize::from(quantised))
            {
                self.launch(Module::Rows, "copy_kv", [kv_heads, 1, 1], 256, |launch| {
                    let launch = launch.wide(cache).number(width).number(page_size);
                    let launch = launch.number(kv_heads).number(source as usize);
                    launch.number(destination as usize).number(tokens)
                });
            }
        }
    }
}
