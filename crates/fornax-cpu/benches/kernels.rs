//! How fast the kernels are, in the shapes of a 0.6 B model: products of one column (decode, read
//! GB/s), of many (prefill, read MACs/s as items), and attention. One thread, so that figures of
//! machines compare.

use divan::{
    Bencher,
    counter::{BytesCount, ItemsCount},
};
use fornax_backend::{
    Activation, AttentionSpec, Backend, Element, Heads, KvShape, KvType, Queries, RowSpan,
    SAMPLE_WORDS, SampleParams, SampleRow, StepCapacity, StepRows,
};
use fornax_cpu::{Cpu, CpuOptions};
use fornax_gguf::{DType, TensorView};

/// Outputs and inputs of weights: gate and up of the model, its attention's output, down.
const GATE_UP: (usize, usize) = (6144, 1024);
const OUTPUT: (usize, usize) = (1024, 2048);
const DOWN: (usize, usize) = (1024, 3072);

fn main() {
    divan::main();
}

fn cpu() -> Cpu {
    Cpu::new(CpuOptions {
        threads: Some(1),
        ..CpuOptions::default()
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

fn product(bencher: Bencher<'_, '_>, dtype: DType, (rows, cols): (usize, usize), columns: usize) {
    let mut cpu = cpu();
    let data = encoded(dtype, rows * cols);
    let view = TensorView {
        name: "bench",
        dtype,
        shape: &[rows, cols],
        data: &data,
    };
    let weight = cpu.upload(&[view]).expect("memory");
    let mut x = cpu.alloc(Element::F32, columns * cols).expect("memory");
    let mut out = cpu.alloc(Element::F32, columns * rows).expect("memory");
    cpu.write_f32(&mut x, &vec![0.5; columns * cols]);
    let bencher = bencher
        .counter(BytesCount::new(data.len()))
        .counter(ItemsCount::new(rows * cols * columns));
    bencher.bench_local(|| cpu.linear(&mut out, &weight, None, &x, columns));
}

/// One column, as in decoding: weights come from memory.
#[divan::bench(args = DType::all().iter().copied())]
fn gemv(bencher: Bencher<'_, '_>, dtype: DType) {
    product(bencher, dtype, GATE_UP, 1);
}

/// A prompt.
#[divan::bench(args = DType::all().iter().copied())]
fn gemm(bencher: Bencher<'_, '_>, dtype: DType) {
    product(bencher, dtype, GATE_UP, 512);
}

/// A prompt and rows of other lengths: two panels of 16 rows fit the nearest cache at 1024 inputs.
#[divan::bench(args = [GATE_UP, OUTPUT, DOWN])]
fn q8_0_gemm(bencher: Bencher<'_, '_>, shape: (usize, usize)) {
    product(bencher, DType::Q8_0, shape, 512);
}

/// The same with less noise to lose: activations have coarse scales on AVX-512.
#[divan::bench(args = [GATE_UP, OUTPUT, DOWN])]
fn q4_0_gemm(bencher: Bencher<'_, '_>, shape: (usize, usize)) {
    product(bencher, DType::Q4_0, shape, 512);
}

/// Some sequences that decode together, or the end of a prompt beside them.
#[divan::bench(args = [2, 4, 8, 16, 24, 64])]
fn q8_0_columns(bencher: Bencher<'_, '_>, columns: usize) {
    product(bencher, DType::Q8_0, GATE_UP, columns);
}

/// Tokens that each of some sequences has cached, and how many are new. As many layers take turns as
/// no cache holds, for a step comes back to a layer when all others have been read.
#[divan::bench(args = [(1, 0, 512), (1, 512, 1), (1, 4096, 1), (1, 4096, 64), (8, 160, 1)])]
fn attention(bencher: Bencher<'_, '_>, (sequences, cached, new): (usize, usize, usize)) {
    const LAYERS_BYTES: usize = 192 << 20;
    let mut cpu = cpu();
    let (heads, kv_heads, dim, page_size) = (16, 8, 128, 64);
    let pages_each = (new + cached).div_ceil(page_size);
    let pages = sequences * pages_each;
    let capacity = StepCapacity {
        rows: sequences,
        tokens: sequences * new.max(cached),
        groups: vec![(page_size, pages)],
    };
    let shape = KvShape {
        pages,
        page_size,
        kv_heads,
        k_dim: dim,
        v_dim: dim,
        element: KvType::F16,
    };
    let layer_bytes = 4 * pages * page_size * kv_heads * dim;
    let layers = (LAYERS_BYTES / layer_bytes).clamp(1, 28);
    let mut step = cpu.alloc_step(&capacity).expect("memory");
    let rows = |len: usize, cached: usize| {
        let row = |sequence: usize| RowSpan {
            start: sequence * len,
            len,
            cached,
        };
        let table = |sequence: usize| {
            let pages = sequence * pages_each..(sequence + 1) * pages_each;
            pages.map(|page| page as u32).collect()
        };
        StepRows {
            tokens: vec![0; sequences * len],
            rows: (0..sequences).map(row).collect(),
            tables: vec![(0..sequences).map(table).collect()],
            ..StepRows::default()
        }
    };
    let heads_at = |offset: usize, count: usize| Heads {
        stride: (heads + 2 * kv_heads) * dim,
        offset: offset * dim,
        count,
        dim,
    };
    let (q, k, v) = (
        heads_at(0, heads),
        heads_at(heads, kv_heads),
        heads_at(heads + kv_heads, kv_heads),
    );
    let mut values = vec![0.0; capacity.tokens * q.stride];
    DType::F32.decode(&encoded(DType::F32, values.len()), &mut values);
    let mut x = cpu.alloc(Element::F32, values.len()).expect("memory");
    cpu.write_f32(&mut x, &values);
    let mut layers = cpu.alloc_kv_layers(&shape, layers).expect("memory");
    for (len, before) in [(cached, 0), (new, cached)] {
        if len == 0 {
            continue;
        }
        cpu.prepare(&mut step, &rows(len, before));
        for kv in &mut layers {
            cpu.store_kv(kv, &x, k, v, 0, &step, sequences * len);
        }
    }
    let tokens = sequences * new;
    let room = tokens * heads * dim;
    let mut out = cpu.alloc(Element::F32, room).expect("memory");
    let spec = AttentionSpec {
        group: 0,
        queries: Queries::All,
        q,
        kv_heads,
        v_dim: dim,
        scale: 0.09,
        window: None,
        soft_cap: None,
        sinks: None,
    };
    let pairs = sequences * (new * cached + new * (new + 1) / 2);
    let mut turns = (0..layers.len()).cycle();
    let bencher = bencher
        .counter(ItemsCount::new(2 * pairs * heads * dim))
        .counter(BytesCount::new(
            4 * sequences * (cached + new) * kv_heads * dim,
        ));
    bencher.bench_local(|| {
        let kv = &layers[turns.next().expect("invariant: layers take turns")];
        cpu.attention(&mut out, &x, kv, &step, spec, tokens);
    });
}

/// A buffer of ones.
fn ones(cpu: &mut Cpu, len: usize) -> fornax_cpu::Buffer {
    let mut buffer = cpu.alloc(Element::F32, len).expect("memory");
    cpu.write_f32(&mut buffer, &vec![1.0; len]);
    buffer
}

fn vector(cpu: &mut Cpu, len: usize) -> fornax_cpu::Weight {
    let data = encoded(DType::F32, len);
    let view = TensorView {
        name: "bench",
        dtype: DType::F32,
        shape: &[len],
        data: &data,
    };
    cpu.upload(&[view]).expect("memory")
}

/// Rows of 1024; items are values.
#[divan::bench(args = [1, 512])]
fn add_rms_norm(bencher: Bencher<'_, '_>, rows: usize) {
    let mut cpu = cpu();
    let weight = vector(&mut cpu, GATE_UP.1);
    let x = ones(&mut cpu, rows * GATE_UP.1);
    let (mut residual, mut out) = (
        ones(&mut cpu, rows * GATE_UP.1),
        ones(&mut cpu, rows * GATE_UP.1),
    );
    bencher
        .counter(ItemsCount::new(rows * GATE_UP.1))
        .bench_local(|| {
            cpu.add_rms_norm(&mut out, &mut residual, &x, &weight, 1e-6, GATE_UP.1, rows);
        });
}

/// `silu(gate) * up`, 3072 wide; items are values that come out.
#[divan::bench(args = [1, 512])]
fn glu(bencher: Bencher<'_, '_>, rows: usize) {
    const WIDTH: usize = GATE_UP.0 / 2;
    let mut cpu = cpu();
    let gate_up = ones(&mut cpu, rows * 2 * WIDTH);
    let mut out = ones(&mut cpu, rows * WIDTH);
    bencher
        .counter(ItemsCount::new(rows * WIDTH))
        .bench_local(|| cpu.glu(&mut out, &gate_up, Activation::Silu, WIDTH, rows));
}

/// A token out of 151,936 logits, the most likely one or drawn.
#[divan::bench(args = [0.0, 0.7])]
fn sample(bencher: Bencher<'_, '_>, temperature: f32) {
    const VOCABULARY: usize = 151_936;
    let mut cpu = cpu();
    let mut sampler = cpu.alloc_sampler(1, VOCABULARY).expect("memory");
    let params = SampleParams {
        temperature,
        top_p: 0.95,
        ..SampleParams::greedy()
    };
    cpu.admit(&mut sampler, 0, &params, &[], 0);
    let capacity = StepCapacity {
        rows: 1,
        tokens: 1,
        groups: Vec::new(),
    };
    let mut step = cpu.alloc_step(&capacity).expect("memory");
    let rows = StepRows {
        tokens: vec![0],
        rows: vec![RowSpan {
            start: 0,
            len: 1,
            cached: 0,
        }],
        outputs: vec![0],
        samples: vec![SampleRow {
            slot: 0,
            position: 1,
            top: None,
            largest: None,
        }],
        ..StepRows::default()
    };
    cpu.prepare(&mut step, &rows);
    let mut logits = cpu.alloc(Element::F32, VOCABULARY).expect("memory");
    let mut values: Vec<f32> = vec![0.0; VOCABULARY];
    DType::F32.decode(&encoded(DType::F32, VOCABULARY), &mut values);
    values.iter_mut().for_each(|value| *value *= 8.0);
    let mut samples = cpu.alloc(Element::U32, SAMPLE_WORDS).expect("memory");
    bencher
        .counter(ItemsCount::new(VOCABULARY))
        .bench_local(|| {
            // Sampling may overwrite them.
            cpu.write_f32(&mut logits, &values);
            cpu.sample(&mut samples, &mut logits, &mut sampler, &step, 1);
        });
}
