//! Products so large that a thread takes several of their pieces at a time, and what is asked of memory for
//! them.

use fornax_backend::Activation;
use fornax_gguf::{DType, TensorView};

use super::{Random, product, quantised};
use crate::{
    Isa,
    ahead::LINE,
    columns::Columns,
    cores::Cores,
    feed_forward::{Dense, gate_and_up, mlp},
    memory::Arena,
    panel::{BLOCK, panel_bytes, with_blocks},
    pool::Pool,
    simd::LANES,
    weight::Weight,
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

fn upload(pool: &mut Pool, dtype: DType, cols: usize, parts: &[Vec<u8>]) -> Weight {
    let row = cols / dtype.block_len() * dtype.block_bytes();
    let shapes: Vec<_> = parts.iter().map(|part| [part.len() / row, cols]).collect();
    let views: Vec<_> = parts.iter().zip(&shapes).collect();
    let views: Vec<_> = views
        .iter()
        .map(|(data, shape)| TensorView {
            name: "test",
            dtype,
            shape: *shape,
            data,
        })
        .collect();
    Weight::upload(pool, &mut Arena::default(), &views).unwrap()
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
                let cores = &mut Cores::new(isa, threads).unwrap();
                let weight = upload(&mut cores.pool, dtype, cols, &parts);
                let many = product(cores, &weight, &x[..many(isa) * cols], many(isa));
                for n in FEW {
                    let few = product(cores, &weight, &x, n);
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
        let hidden = 800 / block * block;
        let gate_up = [(); 2].map(|()| encoded(&mut random, dtype, hidden, cols));
        let down = [encoded(&mut random, of_down, cols, hidden)];
        let x: Vec<f32> = (0..MANY * cols).map(|_| random.float()).collect();
        for isa in super::tested() {
            for threads in [1, 2] {
                let cores = &mut Cores::new(isa, threads).unwrap();
                let gate_up = upload(&mut cores.pool, dtype, cols, &gate_up);
                let down = upload(&mut cores.pool, of_down, hidden, &down);
                let (gate, up) = gate_and_up(gate_up.matrix()).unwrap();
                let mut run = |n: usize| {
                    let mut out = vec![f32::NAN; n * cols];
                    mlp(
                        cores,
                        (&mut Columns::default(), &mut Columns::default()),
                        &mut out,
                        &mut vec![f32::NAN; n * hidden],
                        &x[..n * cols],
                        &Dense {
                            gate,
                            up,
                            down: down.matrix(),
                            activation,
                        },
                    );
                    out
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
