//! Products so large that a thread takes several of their pieces at a time, and what is asked of memory for
//! them.

use std::ops::Range;

use fornax_backend::{Activation, Backend, Element, ExpertsSpec};
use fornax_cpu::{Cpu, Weight};
use fornax_gguf::{DType, TensorView};

use super::{
    Random,
    library::{Matrix, buffer, cpu, read, unwritten},
    quantised,
};
use crate::{
    Isa,
    ahead::LINE,
    panel::{BLOCK, panel_bytes, with_blocks},
    simd::LANES,
};

/// Kinds of formats that go different ways.
const FORMATS: [DType; 5] = [
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_K,
    DType::BF16,
    DType::F16,
];
/// Columns that meet several pieces together, and those that meet one after the other.
const FEW: [usize; 3] = [1, 3, 8];
/// Two of the widest tiles, and some more.
const MANY: usize = 53;

/// As many, or a whole tile and some more where a crowd meets other weights than a few do.
fn many(isa: Isa) -> usize {
    match isa.has_brains_for_quants() {
        true => LANES + 5,
        false => MANY,
    }
}

fn encoded(random: &mut Random, dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
    let values: Vec<f32> = (0..rows * cols).map(|_| random.float()).collect();
    let mut bytes = Vec::new();
    dtype.encode(&values, &mut bytes);
    bytes
}

fn upload(cpu: &mut Cpu, dtype: DType, cols: usize, parts: &[Vec<u8>]) -> Weight {
    let row = cols / dtype.block_len() * dtype.block_bytes();
    let shapes: Vec<_> = parts.iter().map(|part| [part.len() / row, cols]).collect();
    let views: Vec<_> = parts
        .iter()
        .zip(&shapes)
        .map(|(data, shape)| TensorView {
            name: "test",
            dtype,
            shape,
            data,
        })
        .collect();
    cpu.upload(&views).unwrap()
}

#[test]
fn every_line_of_a_panel_is_asked_for() {
    let cols = 1024;
    for dtype in quantised() {
        let mut next = 0;
        for block in 0..cols / BLOCK {
            let (first, count) = with_blocks!(dtype, F => (F::first_asked(block), F::LINES_ASKED));
            assert!(first <= next, "{dtype}: a gap before block {block}");
            next = first + count;
        }
        let lines = panel_bytes(dtype, cols) / LINE;
        assert!(next >= lines, "{dtype}: {next} of {lines}");
    }
}

/// A part ends within what a thread takes, and the last panel of one is not whole.
#[test]
fn pieces_together_give_what_they_give_alone() {
    let (mut random, cols) = (Random(11), 512);
    for dtype in FORMATS {
        let parts = [908, 420, 200].map(|rows| encoded(&mut random, dtype, rows, cols));
        let rows = 1528;
        let x: Vec<f32> = (0..MANY * cols).map(|_| random.float()).collect();
        for isa in super::tested() {
            for threads in [1, 2] {
                let mut cpu = cpu(isa, threads);
                let weight = upload(&mut cpu, dtype, cols, &parts);
                let mut matrix = Matrix {
                    cpu,
                    weight,
                    rows,
                    cols,
                };
                let many = matrix.times(&x, many(isa));
                for n in FEW {
                    let few = matrix.times(&x, n);
                    assert!(few == many[..n * rows], "{isa} {dtype}: {n} of {threads}");
                }
            }
        }
    }
}

#[test]
fn gated_pieces_together_give_what_they_give_alone() {
    let (mut random, cols) = (Random(12), 512);
    let activation = Activation::Silu;
    // Formats whose widest tiles differ, too.
    let mixed = [
        (DType::Q4_K, DType::Q6_K),
        (DType::Q8_0, DType::Q6_K),
        (DType::Q8_0, DType::Q4_0),
        (DType::Q4_0, DType::Q8_0),
        (DType::Q4_0, DType::F16),
    ];
    for (dtype, of_down) in FORMATS.map(|dtype| (dtype, dtype)).into_iter().chain(mixed) {
        // An odd number of pairs of panels, where blocks allow.
        let block = dtype.block_len().max(of_down.block_len());
        let hidden = 736 / block * block;
        let gate_up = [(); 2].map(|()| encoded(&mut random, dtype, hidden, cols));
        let down = [encoded(&mut random, of_down, cols, hidden)];
        let x: Vec<f32> = (0..MANY * cols).map(|_| random.float()).collect();
        for isa in super::tested() {
            for threads in [1, 2] {
                let mut cpu = cpu(isa, threads);
                let gate_up = upload(&mut cpu, dtype, cols, &gate_up);
                let down = upload(&mut cpu, of_down, hidden, &down);
                let mut run = |n: usize| {
                    let x = buffer(&mut cpu, &x[..n * cols]);
                    let [mut out, mut projected, mut activated] =
                        [cols, 2 * hidden, hidden].map(|width| unwritten(&mut cpu, n * width));
                    cpu.mlp(
                        &mut out,
                        &mut projected,
                        &mut activated,
                        &x,
                        &gate_up,
                        &down,
                        activation,
                        hidden,
                        n,
                    );
                    read(&mut cpu, &out, n * cols)
                };
                let many = run(many(isa));
                for n in FEW {
                    assert!(
                        run(n) == many[..n * cols],
                        "{isa} {dtype} and {of_down}: {n} of {threads}"
                    );
                }
            }
        }
    }
}

/// A few tokens at a time, as those of a step that keeps too much are computed.
#[test]
fn experts_of_some_tokens_give_what_they_give_together() {
    let (experts, used, width, hidden, n) = (4, 2, 64, 96, 7);
    let mut random = Random(21);
    let stacks = [(2 * hidden, width), (width, hidden)].map(|(rows, cols)| {
        let data = encoded(&mut random, DType::Q8_0, experts * rows, cols);
        (data, [experts, rows, cols])
    });
    let x: Vec<f32> = (0..n * width).map(|_| random.float()).collect();
    let weights: Vec<f32> = (0..n * used).map(|_| random.float()).collect();
    let ids: Vec<u32> = (0..n as u32).flat_map(|t| [t % 4, (t + 1) % 4]).collect();
    for isa in super::tested() {
        let mut cpu = cpu(isa, 2);
        let [gate_up, down] = stacks.each_ref().map(|(data, shape)| {
            let view = TensorView {
                name: "test",
                dtype: DType::Q8_0,
                shape,
                data,
            };
            cpu.upload(&[view]).unwrap()
        });
        let mut run = |tokens: Range<usize>| {
            let of = |each: usize| tokens.start * each..tokens.end * each;
            let x = buffer(&mut cpu, &x[of(width)]);
            let weights = buffer(&mut cpu, &weights[of(used)]);
            let mut chosen = cpu.alloc(Element::U32, tokens.len() * used).unwrap();
            cpu.write_u32(&mut chosen, &ids[of(used)]);
            let mut out = unwritten(&mut cpu, tokens.len() * width);
            let spec = ExpertsSpec {
                experts,
                used,
                width,
                hidden,
                activation: Activation::Silu,
                biases: None,
            };
            let n = tokens.len();
            cpu.experts(&mut out, &x, &chosen, &weights, &gate_up, &down, spec, n);
            read(&mut cpu, &out, n * width)
        };
        let together = run(0..n);
        assert!(together.iter().all(|value| value.is_finite()), "{isa}");
        for at_once in [1, 2, 3] {
            let parts = (0..n).step_by(at_once);
            let parts = parts.flat_map(|first| run(first..n.min(first + at_once)));
            assert!(
                parts.eq(together.iter().copied()),
                "{isa}, {at_once} at a time"
            );
        }
    }
}
