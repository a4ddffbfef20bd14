//! Results do not depend on the number of threads, to the last bit, nor on how a prompt is cut.
//! Products are compared in the crate itself; here it is attention over a long context, and a
//! feed-forward layer.

use super::library::{cpu_with, of_library};
use crate::Isa;
use fornax_backend::{
    Activation, AttentionSpec, Backend, Element, Heads, KvShape, KvType, Queries, RowSpan,
    StepCapacity, StepRows,
};
use fornax_cpu::{Cpu, CpuOptions, Kv};
use fornax_gguf::{DType, TensorView};

fn cpu(isa: Isa, threads: usize) -> Cpu {
    cpu_with(CpuOptions {
        threads: Some(threads),
        isa: Some(of_library(isa)),
        commits_kv: threads.is_multiple_of(2),
        ..CpuOptions::default()
    })
}

/// Numbers from -1 to 1 without a pattern.
fn numbers(count: usize) -> Vec<f32> {
    let number = |index: u32| index.wrapping_mul(2_654_435_761) >> 8;
    let numbers = (1..=count as u32).map(number);
    numbers
        .map(|number| number as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

/// The result of `compute` on one thread, after comparing with that of two to four.
fn check(compute: impl Fn(&mut Cpu) -> Vec<f32>) {
    for isa in super::tested() {
        let bits = |threads| -> Vec<u32> {
            let out = compute(&mut cpu(isa, threads));
            assert!(out.iter().all(|value| value.is_finite()), "{isa}");
            out.iter().map(|value| value.to_bits()).collect()
        };
        let alone = bits(1);
        for threads in 2..=4 {
            assert_eq!(bits(threads), alone, "{isa}, {threads} threads");
        }
    }
}

const DIM: usize = 32;
/// Tokens of a page, where it does not matter.
const PAGE_SIZE: usize = 64;

/// A cache for attention.
#[derive(Clone, Copy, Debug)]
struct Cache {
    element: KvType,
    page_size: usize,
    /// Heads of K and V.
    kv_heads: usize,
    /// Elements of a head.
    dim: usize,
}

impl Cache {
    fn of(element: KvType) -> Self {
        Self {
            element,
            page_size: PAGE_SIZE,
            kv_heads: 1,
            dim: DIM,
        }
    }

    /// Heads of a token's Q, K and V: two, one and one for each of K and V.
    fn heads(self) -> [Heads; 3] {
        let Self { kv_heads, dim, .. } = self;
        [(0, 2), (2, 1), (3, 1)].map(|(offset, count)| Heads {
            stride: 4 * kv_heads * dim,
            offset: offset * kv_heads * dim,
            count: count * kv_heads,
            dim,
        })
    }
}

/// Two heads over each of K and V: `stored` tokens put into the cache, then `new` ones behind them,
/// whose results these are. What a token is depends on its position alone. With a window there are
/// sinks and a soft cap as well. Places that nobody sees, and the layers on both sides, hold what would
/// show in the results. `[new, 2 * kv_heads, dim]`
fn attend(
    cpu: &mut Cpu,
    cache: Cache,
    window: Option<usize>,
    (stored, new): (usize, usize),
) -> Vec<f32> {
    let Cache {
        element,
        page_size,
        kv_heads,
        dim,
    } = cache;
    let [q, k, v] = cache.heads();
    let pages = (stored + new).div_ceil(page_size);
    let shape = KvShape {
        pages,
        page_size,
        kv_heads,
        k_dim: dim,
        v_dim: dim,
        element,
    };
    let layers = cpu.alloc_kv_layers(&shape, 3).expect("memory");
    let mut layers = <[Kv; 3]>::try_from(layers).expect("as many as were asked for");
    let capacity = StepCapacity {
        rows: 1,
        tokens: pages * page_size,
        groups: vec![(page_size, pages)],
    };
    let mut step = cpu.alloc_step(&capacity).expect("memory");
    let room = pages * page_size * q.stride;
    let mut qkv = cpu.alloc(Element::F32, room).expect("memory");
    let tokens = numbers((stored + new) * q.stride);
    let out_len = new * q.count * dim;
    let mut out = cpu.alloc(Element::F32, out_len).expect("memory");
    // Bytes know no NaN.
    let strange = match element {
        KvType::Q8_0 => 1e4,
        KvType::F32 | KvType::F16 | KvType::Bf16 => f32::NAN,
    };
    let nothing = vec![strange; room];
    for (layer, tokens, cached, len) in [
        (1, &nothing, 0, pages * page_size),
        (1, &tokens, 0, stored),
        (0, &nothing, 0, pages * page_size),
        (2, &nothing, 0, pages * page_size),
        (1, &tokens, stored, new),
    ] {
        let rows = StepRows {
            tokens: vec![0; len],
            rows: vec![RowSpan {
                start: 0,
                len,
                cached,
            }],
            tables: vec![vec![(0..pages as u32).rev().collect()]],
            ..StepRows::default()
        };
        let mut values = tokens[cached * q.stride..][..len * q.stride].to_vec();
        values.resize(room, 0.0);
        cpu.write_f32(&mut qkv, &values);
        cpu.prepare(&mut step, &rows);
        cpu.store_kv(&mut layers[layer], &qkv, k, v, 0, &step, len);
    }
    let mut bytes = Vec::new();
    let sinks: Vec<f32> = (0..q.count).map(|head| 0.5 - head as f32).collect();
    DType::F32.encode(&sinks, &mut bytes);
    let sinks = TensorView {
        name: "sinks",
        dtype: DType::F32,
        shape: &[q.count],
        data: &bytes,
    };
    let sinks = cpu.upload(&[sinks]).expect("memory");
    let spec = AttentionSpec {
        group: 0,
        queries: Queries::All,
        q,
        kv_heads,
        v_dim: dim,
        scale: 0.2,
        window,
        soft_cap: window.map(|_| 2.0),
        sinks: window.map(|_| &sinks),
    };
    cpu.attention(&mut out, &qkv, &layers[1], &step, spec, new);
    let mut values = vec![0.0; out_len];
    cpu.read_f32(&out, &mut values).expect("values");
    let is_mean = |value: &f32| value.abs() <= 1.01;
    assert!(values.iter().all(is_mean), "{cache:?}");
    values
}

#[test]
fn attention_does_not_depend_on_threads() {
    for element in [KvType::F16, KvType::Q8_0] {
        // A lone token over stretches of positions, and many tokens at once.
        for (stored, new) in [(2500, 1), (100, 70), (1100, 40)] {
            check(|cpu| attend(cpu, Cache::of(element), None, (stored, new)));
        }
    }
}

/// A thread alone takes four heads at a time, and three at last, of one stretch or of each of three;
/// four threads take one.
fn heads_in_turns(element: KvType, page_size: usize) {
    for (kv_heads, stored, new) in [(35, 90, 1), (35, 90, 4), (11, 2100, 1), (11, 2100, 3)] {
        let cache = Cache {
            page_size,
            kv_heads,
            ..Cache::of(element)
        };
        for window in [None, Some(stored * 3 / 5)] {
            check(|cpu| attend(cpu, cache, window, (stored, new)));
        }
    }
}

#[test]
fn heads_in_turns_come_to_what_they_come_to_alone() {
    heads_in_turns(KvType::F16, PAGE_SIZE);
}

#[test]
fn heads_of_bytes_in_turns_come_to_what_they_come_to_alone() {
    heads_in_turns(KvType::Q8_0, 6);
}

#[test]
fn a_token_attends_alike_in_a_prompt_and_alone() {
    for isa in super::tested() {
        for element in [KvType::F16, KvType::Bf16, KvType::Q8_0] {
            // Around the end of a stretch of positions that are joined, behind two of them, with a
            // window that begins on either side of an end, with panels of fewer keys than lanes, and
            // with a head of an odd number of elements.
            let cases = [
                (PAGE_SIZE, DIM, None, 1000, 40),
                (PAGE_SIZE, DIM, None, 2060, 20),
                (PAGE_SIZE, DIM, Some(30), 1040, 40),
                (1, DIM, Some(30), 33, 40),
                (6, DIM, None, 100, 70),
                (PAGE_SIZE, 129, Some(51), 100, 70),
            ];
            for (page_size, dim, window, stored, new) in cases {
                if !element.fits(dim) {
                    continue;
                }
                let mut cpu = cpu(isa, 2);
                let cache = Cache {
                    page_size,
                    dim,
                    ..Cache::of(element)
                };
                let prompt = attend(&mut cpu, cache, window, (stored, new));
                assert!(
                    prompt.iter().all(|value| value.is_finite()),
                    "{isa}, {cache:?}"
                );
                for index in [0, 1, new / 2, new - 1] {
                    let alone = attend(&mut cpu, cache, window, (stored + index, 1));
                    let together = &prompt[index * 2 * dim..][..2 * dim];
                    let bits = |values: &[f32]| -> Vec<u32> {
                        values.iter().map(|value| value.to_bits()).collect()
                    };
                    let position = stored + index;
                    assert_eq!(bits(&alone), bits(together), "{isa}, {cache:?}, {position}");
                }
            }
        }
    }
}

/// Whoever asks for such a cache gets the arithmetic that goes with it, whatever the processor has.
#[test]
#[cfg_attr(no_avx512_bf16, ignore = "needs a processor with AVX-512 BF16")]
fn a_cache_in_single_precision_is_multiplied_in_it() {
    let [brains, single] = ["avx512-bf16", "avx512-vnni"].map(|name| {
        let mut cpu = cpu(name.parse().expect("an instruction set"), 2);
        [KvType::F32, KvType::F16].map(|element| {
            [(1000, 40), (70, 1)].map(|span| attend(&mut cpu, Cache::of(element), None, span))
        })
    });
    assert_eq!(brains[0], single[0]);
    assert_ne!(brains[1], single[1]);
}

#[test]
fn a_feed_forward_layer_does_not_depend_on_threads() {
    let (width, hidden) = (64, 160);
    let encoded = |rows: usize, cols: usize| {
        let mut bytes = Vec::new();
        DType::Q8_0.encode(&numbers(rows * cols), &mut bytes);
        bytes
    };
    let (gate_up, down) = (encoded(hidden, width), encoded(width, hidden));
    let view = |shape, data| TensorView {
        name: "test",
        dtype: DType::Q8_0,
        shape,
        data,
    };
    let (half_shape, down_shape) = ([hidden, width], [width, hidden]);
    for n in [1, 7, 50] {
        check(|cpu| {
            let half = view(&half_shape, &gate_up);
            let both = cpu.upload(&[half, half]).expect("memory");
            let down = cpu.upload(&[view(&down_shape, &down)]).expect("memory");
            let mut buffer = |len| cpu.alloc(Element::F32, len).expect("memory");
            let (mut x, mut out) = (buffer(n * width), buffer(n * width));
            let (mut projected, mut activated) = (buffer(2 * n * hidden), buffer(n * hidden));
            cpu.write_f32(&mut x, &numbers(n * width));
            cpu.mlp(
                &mut out,
                &mut projected,
                &mut activated,
                &x,
                &both,
                &down,
                Activation::Silu,
                hidden,
                n,
            );
            let mut values = vec![0.0; n * width];
            cpu.read_f32(&out, &mut values).expect("values");
            values
        });
    }
}
