//! Checks of attention, and of the cache through it: what a query sees is what was stored.

use super::cache::{Variant, World, any_element, pages_for};
use super::oracle;
use super::steps::mixed_spans;
use super::tensors::Tensor;
use super::trial::Trial;
use super::{Report, Tolerance};
use crate::{Backend, KvShape, KvType, QkvSpec, RopeSpec, RopeStyle};

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
    let [q, k, v] = world.heads();
    let random = &mut trial.random;
    let [q_norm, k_norm] = [q.dim, k.dim].map(|dim| Tensor::norm(random, dim));
    let frequencies: Vec<f32> = (0..rotary / 2)
        .map(|pair| 0.8_f32.powi(pair as i32))
        .collect();
    let turn = Tensor::of(fornax_gguf::DType::F32, &[rotary / 2], &frequencies);
    let uploaded = [&q_norm, &k_norm, &turn].map(|tensor| trial.backend.upload(&[tensor.view()]));
    let [q_weight, k_weight, turn] = uploaded.map(|uploaded| trial.must(uploaded));
    let rows = world.extend(trial, &[(0, 5), (1, 1), (2, 6)]);
    let n = rows.tokens.len();
    let mut fused = trial.in_place(n, q.stride);
    let spec = QkvSpec {
        group: world.group,
        q,
        k,
        v,
        norms: norms.then_some((&q_weight, &k_weight)),
        eps: 1e-6,
        rope: RopeSpec {
            style,
            rotary,
            frequencies: &turn,
            magnitude: 1.0,
        },
    };
    trial
        .backend
        .qk_norm_rope_store(&mut fused.buffer, &mut world.kv, &world.step, spec, n);
    let positions = rows.positions();
    for (row, position) in fused.values.chunks_mut(q.stride).zip(positions) {
        for (heads, weight) in [(q, &q_norm), (k, &k_norm)] {
            let columns = heads.offset..heads.offset + heads.count * heads.dim;
            for head in row[columns].chunks_mut(heads.dim) {
                if norms {
                    let eps = f64::from(1e-6_f32);
                    head.copy_from_slice(&oracle::rms_norm(head, &weight.values, eps));
                }
                head.copy_from_slice(&oracle::rope(head, position, &frequencies, style, 1.0));
            }
        }
    }
    world.note(&rows, &fused.values);
    // A K in the middle between two halves may be rounded the other way.
    let slack = match world.shape.element {
        KvType::F32 => 0.0,
        KvType::F16 | KvType::Bf16 => 1e-4,
        // Between two steps of 127.
        KvType::Q8_0 => 2e-2,
    };
    let variant = Variant {
        slack,
        ..Variant::default()
    };
    world.attend(trial, &rows, &fused, variant);
}
