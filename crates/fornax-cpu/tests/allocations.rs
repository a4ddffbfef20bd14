//! Steps of sizes seen before allocate nothing, on no thread.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use fornax_backend::{
    Activation, AttentionSpec, Backend, Element, ExpertsSpec, Heads, KvShape, KvType, QkvSpec,
    Queries, RopeSpec, RopeStyle, RouteSpec, RowSpan, SAMPLE_WORDS, SampleParams, SampleRow,
    Scoring, StepCapacity, StepRows,
};
use fornax_cpu::{Buffer, Cpu, CpuOptions, Kv, Step, Weight};
use fornax_gguf::{DType, TensorView};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WIDTH: usize = 64;
const HIDDEN: usize = 96;
const VOCABULARY: usize = 500;
/// Rows of a matrix that has a sketch.
const MANY: usize = 7_000;
const DIM: usize = 32;
const TOKENS: usize = 40;
const PAGE_SIZE: usize = 16;
const PAGES: usize = 5;

/// Two queries heads, one head of K and of V side by side.
const QKV: usize = 4 * DIM;

fn heads(offset: usize, count: usize) -> Heads {
    Heads {
        stride: QKV,
        offset: offset * DIM,
        count,
        dim: DIM,
    }
}

/// One layer of everything.
struct Model {
    cpu: Cpu,
    weights: Weights,
    buffers: Vec<Buffer>,
    ids: Buffer,
    samples: Buffer,
    kv: Kv,
    step: Step,
    sampler: fornax_backend::HostSampler,
}

struct Weights {
    embedding: Weight,
    norm: Weight,
    qkv: Weight,
    frequencies: Weight,
    output: Weight,
    gate_up: Weight,
    down: Weight,
    experts_gate_up: Weight,
    experts_down: Weight,
    many: Weight,
}

fn weight(cpu: &mut Cpu, dtype: DType, shapes: &[&[usize]]) -> Weight {
    let bytes = |shape: &&[usize]| {
        let values = (0..shape.iter().product()).map(|i: usize| ((i * 37) % 101) as f32 / 1e3);
        let mut bytes = Vec::new();
        dtype.encode(&values.collect::<Vec<f32>>(), &mut bytes);
        bytes
    };
    let bytes: Vec<Vec<u8>> = shapes.iter().map(bytes).collect();
    let parts = shapes.iter().zip(&bytes);
    let views = parts.map(|(shape, data)| TensorView {
        name: "test",
        dtype,
        shape,
        data,
    });
    cpu.upload(&views.collect::<Vec<_>>()).expect("memory")
}

impl Model {
    fn new() -> Self {
        let mut cpu = Cpu::new(CpuOptions {
            threads: Some(2),
            isa: None,
            sketched_from: Some(0),
            commits_kv: true,
        })
        .expect("a CPU");
        let q8 = DType::Q8_0;
        let mut many = weight(&mut cpu, DType::F32, &[&[MANY, WIDTH]]);
        assert!(cpu.sketch(&mut many).expect("memory").is_some());
        let weights = Weights {
            many,
            embedding: weight(&mut cpu, q8, &[&[VOCABULARY, WIDTH]]),
            norm: weight(&mut cpu, DType::F32, &[&[WIDTH]]),
            qkv: weight(
                &mut cpu,
                q8,
                &[&[2 * DIM, WIDTH], &[DIM, WIDTH], &[DIM, WIDTH]],
            ),
            frequencies: weight(&mut cpu, DType::F32, &[&[DIM / 2]]),
            output: weight(&mut cpu, DType::F16, &[&[WIDTH, 2 * DIM]]),
            gate_up: weight(&mut cpu, DType::Q4_0, &[&[HIDDEN, WIDTH], &[HIDDEN, WIDTH]]),
            down: weight(&mut cpu, q8, &[&[WIDTH, HIDDEN]]),
            experts_gate_up: weight(&mut cpu, q8, &[&[4, HIDDEN, WIDTH], &[4, HIDDEN, WIDTH]]),
            experts_down: weight(&mut cpu, q8, &[&[4, WIDTH, HIDDEN]]),
        };
        let sizes = [WIDTH, WIDTH, QKV, 2 * HIDDEN, HIDDEN, VOCABULARY];
        let mut floats = |len| cpu.alloc(Element::F32, TOKENS * len).expect("memory");
        let mut buffers: Vec<Buffer> = sizes.map(&mut floats).into();
        buffers.push(cpu.alloc(Element::F32, 2 * MANY).expect("memory"));
        let shape = KvShape {
            pages: PAGES,
            page_size: PAGE_SIZE,
            kv_heads: 1,
            k_dim: DIM,
            v_dim: DIM,
            element: KvType::F16,
        };
        let groups = vec![(PAGE_SIZE, PAGES)];
        let capacity = StepCapacity {
            rows: 1,
            tokens: TOKENS,
            groups,
        };
        Self {
            weights,
            buffers,
            ids: cpu.alloc(Element::U32, 2 * TOKENS).expect("memory"),
            samples: cpu.alloc(Element::U32, SAMPLE_WORDS).expect("memory"),
            kv: cpu.alloc_kv(&shape).expect("memory"),
            step: cpu.alloc_step(&capacity).expect("memory"),
            sampler: cpu.alloc_sampler(1, VOCABULARY).expect("memory"),
            cpu,
        }
    }

    fn step(&mut self, rows: &StepRows) {
        let n = rows.tokens.len();
        let Self {
            cpu,
            weights,
            buffers,
            ids,
            samples,
            kv,
            step,
            sampler,
        } = self;
        let [residual, x, qkv, projected, activated, logits, products] = &mut buffers[..] else {
            unreachable!("seven buffers")
        };
        cpu.prepare(step, rows);
        cpu.embed(residual, &weights.embedding, 1.0, step, n);
        cpu.rms_norm(x, residual, &weights.norm, 1e-6, n);
        cpu.linear(qkv, &weights.qkv, None, x, n);
        cpu.project_for_outputs(qkv, &weights.qkv, None, x, 2 * DIM, step, n);
        let rope = RopeSpec {
            style: RopeStyle::HalfSplit,
            rotary: DIM,
            frequencies: &weights.frequencies,
            magnitude: 1.0,
        };
        let (q, k, v) = (heads(0, 2), heads(2, 1), heads(3, 1));
        let spec = QkvSpec {
            group: 0,
            q,
            k,
            v,
            norms: None,
            eps: 1e-6,
            rope,
        };
        cpu.qk_norm_rope_store(qkv, kv, step, spec, n);
        let spec = AttentionSpec {
            group: 0,
            queries: Queries::All,
            q,
            kv_heads: 1,
            v_dim: DIM,
            scale: 0.2,
            window: None,
            soft_cap: None,
            sinks: None,
        };
        cpu.attention(activated, qkv, kv, step, spec, n);
        cpu.linear(x, &weights.output, None, activated, n);
        cpu.add_rms_norm(qkv, residual, x, &weights.norm, 1e-6, WIDTH, n);
        let (gate_up, down) = (&weights.gate_up, &weights.down);
        cpu.mlp(
            x,
            projected,
            activated,
            qkv,
            gate_up,
            down,
            Activation::Silu,
            HIDDEN,
            n,
        );
        let spec = RouteSpec {
            experts: 4,
            used: 2,
            scoring: Scoring::Softmax,
            selection_bias: None,
            normalise: true,
            scale: 1.0,
            groups: None,
        };
        cpu.route(ids, activated, x, spec, n);
        let spec = ExpertsSpec {
            experts: 4,
            used: 2,
            width: WIDTH,
            hidden: HIDDEN,
            activation: Activation::Silu,
            biases: None,
        };
        let (gate_up, down) = (&weights.experts_gate_up, &weights.experts_down);
        cpu.experts(qkv, x, ids, activated, gate_up, down, spec, n);
        cpu.gather(x, qkv, WIDTH, step, 1);
        cpu.linear(logits, &weights.embedding, None, x, 1);
        cpu.sample(samples, logits, sampler, step, 1);
        for (largest, n) in [(1, n.min(2)), (10, 1), (3, n.min(2))] {
            cpu.largest(products, &weights.many, residual, largest, n);
        }
    }
}

/// `new` tokens behind `cached` ones, the last of which is sampled from.
fn rows(new: usize, cached: usize) -> StepRows {
    StepRows {
        tokens: vec![7; new],
        rows: vec![RowSpan {
            start: 0,
            len: new,
            cached,
        }],
        tables: vec![vec![(0..PAGES as u32).collect()]],
        outputs: vec![new - 1],
        samples: vec![SampleRow {
            slot: 0,
            position: cached + new,
            top: None,
            largest: None,
        }],
        ..StepRows::default()
    }
}

#[test]
fn steps_of_sizes_seen_before_allocate_nothing() {
    let mut model = Model::new();
    let params = SampleParams {
        temperature: 0.8,
        top_k: 10,
        ..SampleParams::greedy()
    };
    model.cpu.admit(&mut model.sampler, 0, &params, &[], 0);
    model.step(&rows(TOKENS, 0));
    model.step(&rows(1, TOKENS));
    let (prefill, decode) = (rows(TOKENS, 3), [rows(1, TOKENS + 1), rows(1, TOKENS + 2)]);
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    model.step(&prefill);
    decode.iter().for_each(|rows| model.step(rows));
    assert_eq!(
        ALLOCATIONS.load(Ordering::SeqCst) - before,
        0,
        "allocations"
    );
}
