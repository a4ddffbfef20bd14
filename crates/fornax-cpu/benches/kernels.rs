//! How fast the kernels are, in the shapes of a 0.6 B model: products of one column (decode, read
//! GB/s), of many (prefill, read MACs/s as items), and attention. One thread, so that figures of
//! machines compare.

use divan::{
    Bencher,
    counter::{BytesCount, ItemsCount},
};
use fornax_backend::{
    AttentionSpec, Backend, Element, Heads, KvShape, KvType, RowSpan, StepCapacity, StepRows,
};
use fornax_cpu::{Cpu, CpuOptions};
use fornax_gguf::{DType, TensorView};

/// Outputs and inputs of the weight: gate and up of the model.
const ROWS: usize = 6144;
const COLS: usize = 1024;

fn main() {
    divan::main();
}

fn cpu() -> Cpu {
    Cpu::new(CpuOptions {
        threads: Some(1),
        isa: None,
    })
    .expect("one thread")
}

/// Values of about 1 in blocks of any format.
fn encoded(dtype: DType, values: usize) -> Vec<u8> {
    let value =
        |index: u32| (index.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    let values: Vec<f32> = (0..values as u32).map(value).collect();
    let mut bytes = Vec::new();
    dtype.encode(&values, &mut bytes);
    bytes
}

fn product(bencher: Bencher<'_, '_>, dtype: DType, columns: usize) {
    let mut cpu = cpu();
    let data = encoded(dtype, ROWS * COLS);
    let view = TensorView {
        name: "bench",
        dtype,
        shape: &[ROWS, COLS],
        data: &data,
    };
    let weight = cpu.upload(&[view]).expect("memory");
    let mut x = cpu.alloc(Element::F32, columns * COLS).expect("memory");
    let mut out = cpu.alloc(Element::F32, columns * ROWS).expect("memory");
    cpu.write_f32(&mut x, &vec![0.5; columns * COLS]);
    let bencher = bencher
        .counter(BytesCount::new(data.len()))
        .counter(ItemsCount::new(ROWS * COLS * columns));
    bencher.bench_local(|| cpu.linear(&mut out, &weight, None, &x, columns));
}

#[divan::bench(args = [1, 2, 8, 16, 512])]
fn q8_0(bencher: Bencher<'_, '_>, columns: usize) {
    product(bencher, DType::Q8_0, columns);
}

#[divan::bench(args = [1, 2, 8, 16, 512])]
fn q4_0(bencher: Bencher<'_, '_>, columns: usize) {
    product(bencher, DType::Q4_0, columns);
}

#[divan::bench(args = [1, 8, 128])]
fn bf16(bencher: Bencher<'_, '_>, columns: usize) {
    product(bencher, DType::BF16, columns);
}

#[divan::bench(args = [1, 8, 128])]
fn f16(bencher: Bencher<'_, '_>, columns: usize) {
    product(bencher, DType::F16, columns);
}

/// 16 query heads over 8 KV heads of 128, `new` tokens behind `cached` ones.
#[divan::bench(args = [(512, 0), (1, 512), (1, 4096)])]
fn attention(bencher: Bencher<'_, '_>, (new, cached): (usize, usize)) {
    let mut cpu = cpu();
    let (heads, kv_heads, dim, page_size) = (16, 8, 128, 64);
    let pages = (new + cached).div_ceil(page_size);
    let shape = KvShape {
        pages,
        page_size,
        kv_heads,
        k_dim: dim,
        v_dim: dim,
        element: KvType::F16,
    };
    let kv = cpu.alloc_kv(&shape).expect("memory");
    let capacity = StepCapacity {
        rows: 1,
        tokens: new,
        groups: vec![(page_size, pages)],
    };
    let mut step = cpu.alloc_step(&capacity).expect("memory");
    let rows = StepRows {
        tokens: vec![0; new],
        rows: vec![RowSpan {
            start: 0,
            len: new,
            cached,
        }],
        tables: vec![vec![(0..pages as u32).collect()]],
        ..StepRows::default()
    };
    cpu.prepare(&mut step, &rows);
    let q = cpu.alloc(Element::F32, new * heads * dim).expect("memory");
    let mut out = cpu.alloc(Element::F32, new * heads * dim).expect("memory");
    let spec = AttentionSpec {
        group: 0,
        q: Heads {
            stride: heads * dim,
            offset: 0,
            count: heads,
            dim,
        },
        kv_heads,
        v_dim: dim,
        scale: 0.09,
        window: None,
        soft_cap: None,
        sinks: None,
    };
    let pairs = new * cached + new * (new + 1) / 2;
    let bencher = bencher.counter(ItemsCount::new(2 * pairs * heads * dim));
    bencher.bench_local(|| {
        let spec = AttentionSpec { ..spec };
        cpu.attention(&mut out, &q, &kv, &step, spec, new);
    });
}
