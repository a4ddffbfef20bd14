//! Checks of attention, and of the cache through it: what a query sees is what was stored.

use fornax_gguf::DType;

use super::cache::{Variant, World, any_element, pages_for};
use super::dense::product_tolerance;
use super::oracle;
use super::steps::mixed_spans;
use super::tensors::Tensor;
use super::trial::Trial;
use super::turn::{Turn, slack};
use super::{Report, Tolerance};
use crate::{Backend, KvShape, KvType, Queries, RopeStyle, StepRows};

/// Query and KV heads: ratios 1, 2, 3 and 7.
const HEADS: [(usize, usize); 7] = [(1, 1), (3, 3), (2, 1), (8, 4), (3, 1), (9, 3), (7, 1)];
/// Elements of a head.
const DIMS: [usize; 6] = [40, 64, 80, 96, 128, 256];
/// Tokens of a page.
const PAGE_SIZES: [usize; 4] = [1, 2, 16, 64];

/// Ragged batches over every head width, ratio, page size, element, window, cap and sink.
pub fn attention<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("attention", backend, tolerance);
    for case in 0..84 {
        let (q_heads, kv_heads) = HEADS[case % HEADS.len()];
        let k_dim = DIMS[case % DIMS.len()];
        let v_dim = match case % 5 {
            4 => trial.random.pick(&DIMS),
            _ => k_dim,
        };
        let shape = KvShape {
            pages: 0,
            page_size: PAGE_SIZES[(case / 2) % PAGE_SIZES.len()],
            kv_heads,
            k_dim,
            v_dim,
            element: any_element(&mut trial, [k_dim, v_dim]),
        };
        let variant = Variant {
            queries: Queries::All,
            window: trial.random.pick(&[None, None, Some(1), Some(5), Some(64)]),
            soft_cap: trial.random.pick(&[None, None, Some(2.0), Some(30.0)]),
            sinks: trial.random.once_in(3),
            slack: 0.0,
        };
        let rows = 1 + trial.random.below(5);
        let spans = mixed_spans(&mut trial.random, rows, 25);
        check_attention(&mut trial, shape, q_heads, &spans, variant);
    }
    trial.report()
}

/// Prompts that keep a device busy, whose ways to share work differ from those for a few tokens.
pub fn busy_prompts<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("busy_prompts", backend, tolerance);
    for (k_dim, element) in [(64, KvType::F16), (128, KvType::Bf16), (128, KvType::Q8_0)] {
        let shape = KvShape {
            pages: 0,
            page_size: 64,
            kv_heads: 4,
            k_dim,
            v_dim: k_dim,
            element,
        };
        check_attention(
            &mut trial,
            shape,
            32,
            &[(70, 400), (0, 129)],
            Variant::default(),
        );
    }
    trial.report()
}

/// Answers before, between and behind prompts in one step, enough of them to be shared out alike.
pub fn answers_beside_prompts<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("answers_beside_prompts", backend, tolerance);
    for (case, element) in [KvType::F16, KvType::Bf16, KvType::Q8_0]
        .into_iter()
        .enumerate()
    {
        for k_dim in [64, 128] {
            let shape = KvShape {
                pages: 0,
                page_size: 16 << case,
                kv_heads: 4,
                k_dim,
                v_dim: k_dim,
                element,
            };
            let variant = Variant {
                queries: Queries::All,
                window: [None, Some(64), None][case],
                sinks: k_dim == 64,
                ..Variant::default()
            };
            check_attention(&mut trial, shape, 8, &spans_of_both(case), variant);
        }
    }
    trial.report()
}

/// Cached and new tokens of rows: answers of many lengths, of which two stand behind the first prompt, and
/// of another size in each case, for a step is known by its shape.
fn spans_of_both(case: usize) -> Vec<(usize, usize)> {
    let answers = [0, 1, 15, 16, 17, 63, 64, 130, 200, 333];
    let mut spans = answers.map(|cached| (cached, 1)).to_vec();
    spans.extend([(40, 70), (90, 1), (0, 130 + case), (7, 1)]);
    spans
}

/// Cached and new tokens that end at, one before and one after the end of a page.
pub fn page_boundaries<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("page_boundaries", backend, tolerance);
    for page_size in PAGE_SIZES {
        let around = [2 * page_size - 1, 2 * page_size, 2 * page_size + 1];
        for variant in [None, Some(1), Some(page_size), Some(page_size + 1)] {
            let shape = KvShape {
                pages: 0,
                page_size,
                kv_heads: 1,
                k_dim: 64,
                v_dim: 64,
                element: any_element(&mut trial, [64, 64]),
            };
            let variant = Variant {
                queries: Queries::All,
                window: variant,
                ..Variant::default()
            };
            let decode = around.map(|cached| (cached, 1));
            let fresh = around.map(|len| (0, len));
            let chunk = around.map(|cached| (cached, 4 * page_size - cached));
            let over = around.map(|cached| (cached, page_size + 1));
            for spans in [decode, fresh, chunk, over] {
                check_attention(&mut trial, shape, 2, &spans, variant);
            }
        }
    }
    trial.report()
}

fn check_attention<B: Backend>(
    trial: &mut Trial<'_, B>,
    shape: KvShape,
    q_heads: usize,
    spans: &[(usize, usize)],
    variant: Variant,
) {
    let lengths = spans.iter().map(|(cached, len)| cached + len);
    let pages = pages_for(lengths, shape.page_size);
    let shape = KvShape { pages, ..shape };
    trial.case(format!(
        "{q_heads} Q heads, {shape:?}, {variant:?}, rows {spans:?}"
    ));
    let mut world = World::new(trial, shape, q_heads, spans.len());
    let cached = spans.iter().map(|(cached, _)| *cached).enumerate();
    let cached: Vec<(usize, usize)> = cached.filter(|(_, len)| *len > 0).collect();
    if !cached.is_empty() {
        world.advance(trial, &cached);
    }
    let new: Vec<(usize, usize)> = spans.iter().map(|(_, len)| *len).enumerate().collect();
    let (rows, fused) = world.advance(trial, &new);
    world.attend(trial, &rows, &fused, variant);
}

/// Sequences that share full pages and got a copy of the partly filled one, then differ: all rows
/// of one step, over several steps.
pub fn copied_pages<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("copied_pages", backend, tolerance);
    for page_size in PAGE_SIZES {
        for prefix in [
            1,
            page_size,
            page_size + 1,
            3 * page_size - 1,
            3 * page_size,
        ] {
            let element = any_element(&mut trial, [40, 40]);
            let shape = KvShape {
                pages: pages_for([prefix + 9; 4].into_iter(), page_size) + 8,
                page_size,
                kv_heads: 2,
                k_dim: 40,
                v_dim: 40,
                element,
            };
            trial.case(format!("prefix {prefix}, pages of {page_size} {element:?}"));
            let mut world = World::new(&mut trial, shape, 6, 1);
            // The source goes on behind the prefix: what is copied ends where it should.
            world.advance(&mut trial, &[(0, prefix + 1)]);
            let forks: Vec<usize> = (0..3).map(|_| world.fork(&mut trial, 0, prefix)).collect();
            for len in [1, 3, 1] {
                let mut new: Vec<(usize, usize)> = forks.iter().map(|fork| (*fork, len)).collect();
                new.push((0, 1));
                let (rows, fused) = world.advance(&mut trial, &new);
                world.attend(&mut trial, &rows, &fused, Variant::default());
            }
        }
    }
    trial.report()
}

/// The fused way from projection to attention, with and without norms.
pub fn qk_norm_rope_store<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("qk_norm_rope_store", backend, tolerance);
    for (index, dim) in DIMS.into_iter().enumerate() {
        for norms in [true, false] {
            let (q_heads, kv_heads) = HEADS[index];
            let style = match (index + usize::from(norms)) % 2 {
                0 => RopeStyle::HalfSplit,
                _ => RopeStyle::AdjacentPairs,
            };
            let spans = [(0, 5), (37, 1), (20, 6)];
            let shape = KvShape {
                pages: pages_for(spans.iter().map(|(cached, len)| cached + len), 16),
                page_size: 16,
                kv_heads,
                k_dim: dim,
                v_dim: dim,
                element: any_element(&mut trial, [dim, dim]),
            };
            trial.case(format!(
                "{q_heads} Q heads, {shape:?}, {style:?}, norms {norms}"
            ));
            let mut world = World::new(&mut trial, shape, q_heads, spans.len());
            world.advance(&mut trial, &[(1, 37), (2, 20)]);
            let rotary = trial.random.pick(&[dim, dim / 2]);
            check_fused(&mut trial, &mut world, style, rotary, norms);
        }
    }
    trial.report()
}

fn check_fused<B: Backend>(
    trial: &mut Trial<'_, B>,
    world: &mut World<B>,
    style: RopeStyle,
    rotary: usize,
    norms: bool,
) {
    let [q, ..] = world.heads();
    let turn = Turn::new(trial, q.dim, style, rotary, norms);
    let rows = world.extend(trial, &[(0, 5), (1, 1), (2, 6)]);
    let n = rows.tokens.len();
    let mut fused = trial.in_place(n, q.stride);
    let spec = turn.spec(world);
    trial
        .backend
        .qk_norm_rope_store(&mut fused.buffer, &mut world.kv, &world.step, spec, n);
    turn.apply(world, &rows, &mut fused.values);
    world.note(&rows, &fused.values);
    let variant = Variant {
        slack: slack(world.shape.element),
        ..Variant::default()
    };
    world.attend(trial, &rows, &fused, variant);
}

/// Prompts from product to attention in one record, for more query heads and fewer than a device turns
/// at once.
pub fn projected_rows<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("projected_rows", backend, tolerance);
    let heads = [
        (8, 4, 128),
        (2, 1, 64),
        (40, 8, 128),
        (24, 8, 64),
        (3, 3, 40),
        (6, 2, 128),
    ];
    for (case, (q_heads, kv_heads, dim)) in heads.into_iter().enumerate() {
        let dtype = [DType::BF16, DType::Q8_0, DType::Q4_0][case % 3];
        let spans = [(0, 50 + case), (13, 21), (30, 1)];
        let shape = KvShape {
            pages: pages_for(spans.iter().map(|(cached, len)| cached + len), 16),
            page_size: 16,
            kv_heads,
            k_dim: dim,
            v_dim: dim,
            element: any_element(&mut trial, [dim, dim]),
        };
        let style = [RopeStyle::HalfSplit, RopeStyle::AdjacentPairs][case / 2 % 2];
        trial.case(format!("{q_heads} Q heads, {shape:?}, {dtype}, {style:?}"));
        let mut world = World::new(&mut trial, shape, q_heads, spans.len());
        world.advance(&mut trial, &[(1, 13), (2, 30)]);
        let turn = Turn::new(&mut trial, dim, style, dim, true);
        let new: Vec<(usize, usize)> = spans.iter().map(|(_, len)| *len).enumerate().collect();
        let rows = world.extend(&mut trial, &new);
        check_projected(&mut trial, &mut world, &turn, dtype, &rows);
    }
    let kinds = [
        (KvType::F16, 128),
        (KvType::Bf16, 64),
        (KvType::Bf16, 128),
        (KvType::Q8_0, 128),
    ];
    for (case, (element, dim)) in kinds.into_iter().enumerate() {
        let spans = spans_of_both(case);
        let shape = KvShape {
            pages: pages_for(spans.iter().map(|(cached, len)| cached + len), 64),
            page_size: 64,
            kv_heads: 4,
            k_dim: dim,
            v_dim: dim,
            element,
        };
        trial.case(format!("answers beside prompts, {shape:?}"));
        let mut world = World::new(&mut trial, shape, 8, spans.len());
        let cached = spans.iter().map(|(cached, _)| *cached).enumerate();
        let cached: Vec<(usize, usize)> = cached.filter(|(_, len)| *len > 0).collect();
        world.advance(&mut trial, &cached);
        let turn = Turn::new(&mut trial, dim, RopeStyle::HalfSplit, dim, true);
        let new: Vec<(usize, usize)> = spans.iter().map(|(_, len)| *len).enumerate().collect();
        let rows = world.extend(&mut trial, &new);
        check_projected(&mut trial, &mut world, &turn, DType::BF16, &rows);
    }
    trial.report()
}

fn check_projected<B: Backend>(
    trial: &mut Trial<'_, B>,
    world: &mut World<B>,
    turn: &Turn<B>,
    dtype: DType,
    rows: &StepRows,
) {
    const WIDTH: usize = 64;
    let (n, [q, ..]) = (rows.tokens.len(), world.heads());
    let projection = Tensor::random(&mut trial.random, dtype, &[q.stride, WIDTH]);
    let weight = trial.backend.upload(&[projection.view()]);
    let weight = trial.must(weight);
    let sinks = trial
        .backend
        .upload(&[Tensor::random(&mut trial.random, DType::F32, &[q.count]).view()]);
    let sinks = trial.must(sinks);
    let x = trial.in_place(n, WIDTH);
    let mut fused = trial.output(n, q.stride);
    let mut out = trial.output(n, q.count * q.dim);
    let variant = Variant::default();
    let (qkv, attention) = (turn.spec(world), world.spec(variant, &sinks));
    let World { kv, step, .. } = &mut *world;
    let done = trial.backend.record(&rows.shape(), |backend| {
        backend.linear(&mut fused, &weight, None, &x.buffer, n);
        backend.qk_norm_rope_store(&mut fused, kv, step, qkv, n);
        backend.attention(&mut out, &fused, kv, step, attention, n);
    });
    trial.must(done);
    let mut values = oracle::linear(&x.values, &projection.values, None, WIDTH);
    turn.apply(world, rows, &mut values);
    world.note(rows, &values);
    let expected = world.expected(rows, &values, variant, &[]);
    let allowed = trial.tolerance.attention
        + 4.0 * product_tolerance(trial.tolerance, dtype)
        + slack(world.shape.element);
    trial.expect(&out, &expected, q.count * q.dim, allowed);
}

/// Rows of one new token each, enough to fill a device, from projection to attention in one record:
/// ragged lengths, one of them long.
pub fn many_rows<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    /// Query and KV heads: ratios 1, 2, 3, 7, 8 and 12.
    const HEADS: [(usize, usize); 6] = [(8, 8), (16, 8), (24, 8), (56, 8), (64, 8), (96, 8)];
    let mut trial = Trial::new("many_rows", backend, tolerance);
    for (case, (q_heads, kv_heads)) in HEADS.into_iter().enumerate() {
        let dim = [128, 64][case % 2];
        // No other case has this shape.
        let count = 34 + case;
        let mut cached: Vec<usize> = (0..count).map(|_| trial.random.below(16)).collect();
        let long = trial.random.below(count);
        cached[long] = 200 + trial.random.below(100);
        cached[(long + 1) % count] = 63;
        cached[(long + 2) % count] = 64;
        let page_size = [64, 16][usize::from(q_heads > 16)];
        let shape = KvShape {
            pages: pages_for(cached.iter().map(|cached| cached + 1), page_size),
            page_size,
            kv_heads,
            k_dim: dim,
            v_dim: dim,
            element: any_element(&mut trial, [dim, dim]),
        };
        let variant = Variant {
            queries: Queries::All,
            window: trial.random.pick(&[None, None, Some(1), Some(70)]),
            soft_cap: trial.random.pick(&[None, None, Some(2.0)]),
            sinks: trial.random.once_in(3),
            slack: slack(shape.element),
        };
        trial.case(format!(
            "{q_heads} Q heads, {shape:?}, {variant:?}, cached {cached:?}"
        ));
        let mut world = World::new(&mut trial, shape, q_heads, count);
        let filled = cached.iter().copied().enumerate();
        let filled: Vec<(usize, usize)> = filled.filter(|(_, len)| *len > 0).collect();
        world.advance(&mut trial, &filled);
        let style = trial
            .random
            .pick(&[RopeStyle::HalfSplit, RopeStyle::AdjacentPairs]);
        let rotary = trial.random.pick(&[dim, dim / 2]);
        let norms = trial.random.once_in(2);
        let turn = Turn::new(&mut trial, dim, style, rotary, norms);
        check_many(&mut trial, &mut world, &turn, variant, count);
    }
    trial.report()
}

fn check_many<B: Backend>(
    trial: &mut Trial<'_, B>,
    world: &mut World<B>,
    turn: &Turn<B>,
    variant: Variant,
    count: usize,
) {
    let new: Vec<(usize, usize)> = (0..count).map(|row| (row, 1)).collect();
    let rows = world.extend(trial, &new);
    let ([q, ..], width) = (world.heads(), world.q_heads * world.shape.v_dim);
    let mut fused = trial.in_place(count, q.stride);
    let sinks = Tensor::random(&mut trial.random, DType::F32, &[q.count]);
    let uploaded = trial.backend.upload(&[sinks.view()]);
    let uploaded = trial.must(uploaded);
    let (qkv, attention) = (turn.spec(world), world.spec(variant, &uploaded));
    let blinded = world.blinded(&rows, variant);
    trial.backend.prepare(&mut world.step, &blinded);
    let mut out = trial.output(count, width);
    let World { kv, step, .. } = &mut *world;
    let done = trial.backend.record(&rows.shape(), |backend| {
        backend.qk_norm_rope_store(&mut fused.buffer, kv, step, qkv, count);
        backend.attention(&mut out, &fused.buffer, kv, step, attention, count);
    });
    trial.must(done);
    turn.apply(world, &rows, &mut fused.values);
    world.note(&rows, &fused.values);
    let expected = world.expected(&rows, &fused.values, variant, &sinks.values);
    let allowed = trial.tolerance.attention + variant.slack;
    trial.expect(&out, &expected, width, allowed);
}
