//! Gated feed-forward layers, of one matrix pair or of a mixture of experts.
//!
//! Owns how gate, activation and down projection run together: a piece of work computes the same
//! rows of gate and up, so that the projection never travels through memory, and makes of them the
//! columns of the down projection where that reads bytes; which tokens an expert meets is in
//! `feed_forward/experts.rs`. Must not know routing.

mod experts;

pub(crate) use experts::{Mixture, experts};

use std::ops::Range;

use fornax_backend::Activation;

use crate::{
    columns::{Columns, Filler, Rows},
    cores::Cores,
    isa::Isa,
    math,
    memory::{Growing, Line, Parts},
    panel::BLOCK,
    pool::share,
    product::{PIECE_PANELS, Pieces, multiply, precisions, product_lines},
    rows::run_rows,
    run::{Output, Run, Turn},
    simd::{Kernel, LANES, Simd},
    weight::{Matrix, Part},
};

/// Scratch of feed-forward layers. Grows to what the largest step needs and stays.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Where gate and up are one part. `[columns, 2 * hidden]`
    projected: Growing<f32>,
    /// `[columns, hidden]`
    hidden: Growing<f32>,
    /// `[columns, width]`
    down: Growing<f32>,
    /// Experts that some token chose, with the tiles of their tokens.
    chosen: Vec<(usize, Range<usize>)>,
    /// Column of each choice. `[n, used]`
    column_of: Vec<usize>,
    /// Choices by expert: `(expert, choice)`. `[n * used]`
    order: Vec<(u32, usize)>,
}

/// Gate and up of a matrix, each in a part of its own.
pub(crate) fn gate_and_up(matrix: &Matrix) -> Option<(&Part, &Part)> {
    match &matrix.parts[..] {
        [gate, up] if gate.rows == up.rows => Some((gate, up)),
        _ => None,
    }
}

/// A layer of one matrix pair, gate and up parts of their own.
pub(crate) struct Dense<'a> {
    pub gate: &'a Part,
    pub up: &'a Part,
    pub down: &'a Matrix,
    pub activation: Activation,
}

/// Where gated rows go.
#[derive(Clone, Copy)]
enum Activated<'a> {
    /// `[columns, hidden]`
    Rows(Parts<'a, f32>),
    /// To columns of another product, whose tiles are the same.
    Columns(Filler<'a>),
}

/// `out = activation(x · gateᵀ) * (x · upᵀ)` for tiles of several experts, each with its `bias`
/// `[experts, 2 * hidden]`.
fn gated(
    cores: &mut Cores,
    out: Activated<'_>,
    (gate, up): (&Part, &Part),
    bias: Option<&[f32]>,
    activation: Activation,
    columns: &Columns,
    chosen: &[(usize, Range<usize>)],
) {
    let isa = cores.isa;
    let Cores { pool, lines, .. } = cores;
    let panel_bytes = gate.panel_bytes() + up.panel_bytes();
    let pieces = |tiles: &Range<usize>| Pieces::of(isa, gate.panels, panel_bytes, columns, tiles);
    let count = chosen.iter().map(|(_, tiles)| pieces(tiles).count()).sum();
    let together = chosen.iter().map(|(_, tiles)| pieces(tiles).together());
    let together = together.min().unwrap_or(1);
    let room = Room {
        gate: Run::scratch_lines(isa, gate, PIECE_PANELS),
        up: Run::scratch_lines(isa, up, PIECE_PANELS),
        product: product_lines(isa, panel_bytes),
    };
    let threads = pool.threads();
    lines.grow(threads * room.lines());
    let scratch = Parts::new(lines);
    pool.run_together(count, together, |mut taken, thread| {
        let left = share(count, threads, thread)
            .end
            .saturating_sub(taken.start);
        for (expert, tiles) in chosen {
            let pieces = pieces(tiles);
            let Some(own) = pieces.next_of(&mut taken) else {
                continue;
            };
            let of_expert = |bias| {
                let bias: &[f32] = bias;
                bias[expert * 2 * gate.rows..][..2 * gate.rows].split_at(gate.rows)
            };
            let run = |part| pieces.run(part, *expert, own.clone(), left);
            let work = Gated {
                gate: run(gate),
                up: run(up),
                bias: bias.map(of_expert),
                columns,
                activation,
            };
            // SAFETY: each thread has its own scratch, and each piece other panels or columns.
            unsafe {
                let scratch = scratch.part(thread * room.lines(), room.lines());
                work.compute(isa, room, scratch, out);
            }
            if taken.is_empty() {
                return;
            }
        }
    });
}

/// Lines of scratch of a piece of [`gated`].
#[derive(Clone, Copy, Debug)]
struct Room {
    gate: usize,
    up: usize,
    /// For the products of a tile with either.
    product: usize,
}

impl Room {
    fn lines(self) -> usize {
        self.gate + self.up + 2 * self.product
    }
}

/// One piece of [`gated`].
struct Gated<'a> {
    gate: Run<'a>,
    up: Run<'a>,
    /// Of gate and of up. `[hidden]`
    bias: Option<(&'a [f32], &'a [f32])>,
    columns: &'a Columns,
    activation: Activation,
}

impl Gated<'_> {
    /// # Safety
    /// Nobody else has the outputs of these panels and columns.
    unsafe fn compute(self, isa: Isa, room: Room, scratch: &mut [Line], out: Activated<'_>) {
        let part = self.gate.part;
        let rows = part.rows_of(&self.gate.panels);
        let (gate_scratch, scratch) = scratch.split_at_mut(room.gate);
        let (up_scratch, products) = scratch.split_at_mut(room.up);
        let (gate, up) = products.split_at_mut(room.product);
        let (gate, up) = (Line::of(gate), Line::of(up));
        self.gate.prepare(isa, gate_scratch);
        self.up.prepare(isa, up_scratch);
        let (gate_bias, up_bias) = self.bias.unzip();
        for tiles in self.gate.turns(isa) {
            let tile = self.columns.joined(tiles.clone());
            let turn = |to, bias| Turn {
                columns: self.columns,
                tiles: tiles.clone(),
                bias,
                output: Output {
                    to: Parts::new(to),
                    stride: rows.len(),
                    offset: 0,
                    first_row: rows.start,
                    first_column: tile.first,
                },
            };
            // SAFETY: the scratch is this thread's, and was prepared for tiles of this width.
            unsafe {
                let (run, to) = (&self.gate, &mut *gate);
                run.multiply(isa, gate_scratch, turn(to, gate_bias));
                let (run, to) = (&self.up, &mut *up);
                run.multiply(isa, up_scratch, turn(to, up_bias));
            }
            if let Activated::Columns(filler) = out {
                filler.ask(isa, tiles.start, rows.start / BLOCK..rows.end / BLOCK);
            }
            let count = tile.used * rows.len();
            isa.run(GluInPlace {
                gate: &mut gate[..count],
                up: &up[..count],
                activation: self.activation,
            });
            // SAFETY: the caller's.
            unsafe { self.hand_over(isa, &gate[..count], &rows, tiles, out) };
        }
    }

    /// Passes gated rows of the part on, of all columns of some tiles.
    ///
    /// # Safety
    /// Nobody else has the outputs of these rows and tiles.
    unsafe fn hand_over(
        &self,
        isa: Isa,
        values: &[f32],
        rows: &Range<usize>,
        tiles: Range<usize>,
        out: Activated<'_>,
    ) {
        let first = self.columns.tile(tiles.start).first;
        match out {
            Activated::Rows(out) => {
                for (column, values) in (first..).zip(values.chunks_exact(rows.len())) {
                    let start = column * self.gate.part.rows + rows.start;
                    // SAFETY: the caller's.
                    unsafe { out.part(start, rows.len()) }.copy_from_slice(values);
                }
            }
            Activated::Columns(filler) => {
                let blocks = rows.start / BLOCK..rows.end / BLOCK;
                let rows = Rows {
                    values,
                    stride: rows.len(),
                    first_row: first,
                    first_block: blocks.start,
                };
                for tile in tiles.clone() {
                    assert!(
                        filler.shares_tile(self.columns, tile),
                        "tiles of gated rows"
                    );
                    if tile + 1 < tiles.end {
                        filler.ask(isa, tile + 1, blocks.clone());
                    }
                    // SAFETY: the caller's.
                    unsafe { filler.fill(isa, tile, blocks.clone(), rows) };
                }
            }
        }
    }
}

/// `gate = activation(gate) * up`
struct GluInPlace<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
    activation: Activation,
}

impl Kernel for GluInPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let whole = self.gate.len() / LANES * LANES;
        let (gate, rest) = self.gate.split_at_mut(whole);
        let (up, up_rest) = self.up.split_at(whole);
        for (gate, up) in gate.chunks_exact_mut(LANES).zip(up.chunks_exact(LANES)) {
            s.write(
                gate,
                math::glu(s, self.activation, s.read(gate), s.read(up)),
            );
        }
        if !rest.is_empty() {
            let (gate, up) = (s.read_up_to(rest, 0.0), s.read_up_to(up_rest, 0.0));
            s.write_up_to(rest, math::glu(s, self.activation, gate, up));
        }
    }
}

/// `out = activation(gate) * up`
pub(crate) struct Glu<'a> {
    pub out: &'a mut [f32],
    pub gate: &'a [f32],
    pub up: &'a [f32],
    pub activation: Activation,
}

impl Kernel for Glu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let whole = self.out.len() / LANES * LANES;
        let (out, rest) = self.out.split_at_mut(whole);
        let (gate, gate_rest) = self.gate.split_at(whole);
        let (up, up_rest) = self.up.split_at(whole);
        let inputs = gate.chunks_exact(LANES).zip(up.chunks_exact(LANES));
        for (out, (gate, up)) in out.chunks_exact_mut(LANES).zip(inputs) {
            s.write(out, math::glu(s, self.activation, s.read(gate), s.read(up)));
        }
        if !rest.is_empty() {
            let (gate, up) = (s.read_up_to(gate_rest, 0.0), s.read_up_to(up_rest, 0.0));
            s.write_up_to(rest, math::glu(s, self.activation, gate, up));
        }
    }
}

/// `activated = glu(x · gate_upᵀ)`, `out = activated · downᵀ`.
pub(crate) fn mlp(
    cores: &mut Cores,
    (columns, hidden): (&mut Columns, &mut Columns),
    out: &mut [f32],
    activated: &mut [f32],
    x: &[f32],
    layer: &Dense<'_>,
) {
    let Dense {
        gate,
        up,
        down,
        activation,
    } = *layer;
    let (isa, n) = (cores.isa, x.len() / gate.cols);
    let (mut of_x, mut wanted) = (
        precisions(isa, [gate.dtype, up.dtype]),
        down.precisions(isa),
    );
    // Gated rows have the tiles of `x`, which coarse scales make wider: both or neither have these.
    let coarse = of_x.coarse && wanted.coarse;
    (of_x.coarse, wanted.coarse) = (coarse, coarse);
    columns.clear(gate.cols, of_x);
    hidden.clear(down.cols, wanted);
    let tiles = columns.push_group(isa, 0..n);
    columns.fill(cores, x);
    let chosen = [(0, hidden.push_group(isa, 0..n))];
    let panel_bytes = gate.panel_bytes() + up.panel_bytes();
    let pieces = Pieces::of(isa, gate.panels, panel_bytes, columns, &tiles);
    let at_once = wanted.are_quants_alone() && pieces.have_whole_blocks();
    let gated_rows = match at_once {
        true => Activated::Columns(hidden.filler()),
        false => Activated::Rows(Parts::new(activated)),
    };
    gated(
        cores,
        gated_rows,
        (gate, up),
        None,
        activation,
        columns,
        &[(0, tiles)],
    );
    if !at_once {
        hidden.fill(cores, activated);
    }
    multiply(cores, out, down, None, hidden, &chosen);
}

/// `out = activation(gate) * up` for rows `[n, 2 * width]`, gate first.
pub(crate) fn glu(
    cores: &mut Cores,
    out: &mut [f32],
    gate_up: &[f32],
    activation: Activation,
    width: usize,
    n: usize,
) {
    let (isa, pool) = cores.parts();
    let out = Parts::new(out);
    run_rows(pool, n, 2 * width, |row| {
        let (gate, up) = gate_up[row * 2 * width..(row + 1) * 2 * width].split_at(width);
        // SAFETY: each row is another place.
        let out = unsafe { out.part(row * width, width) };
        isa.run(Glu {
            out,
            gate,
            up,
            activation,
        });
    });
}

/// `out[t] += sigmoid(gate[t]) * x[t]`. `out` and `x` are `[n, width]`, `gate` `[n]`.
pub(crate) fn add_gated(cores: &mut Cores, out: &mut [f32], x: &[f32], gate: &[f32], width: usize) {
    let (isa, pool) = cores.parts();
    let out = Parts::new(out);
    run_rows(pool, gate.len(), width, |row| {
        // SAFETY: each row is another place.
        let out = unsafe { out.part(row * width, width) };
        let x = &x[row * width..(row + 1) * width];
        let scale = 1.0 / (1.0 + (-gate[row]).exp());
        isa.run(AddScaled { out, x, scale });
    });
}

/// `out += scale * x`
struct AddScaled<'a> {
    out: &'a mut [f32],
    x: &'a [f32],
    scale: f32,
}

impl Kernel for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = s.splat(self.scale);
        let whole = self.out.len() / LANES * LANES;
        let (out, rest) = self.out.split_at_mut(whole);
        let (x, x_rest) = self.x.split_at(whole);
        for (out, x) in out.chunks_exact_mut(LANES).zip(x.chunks_exact(LANES)) {
            s.write(out, s.mul_add(s.read(x), scale, s.read(out)));
        }
        for (out, x) in rest.iter_mut().zip(x_rest) {
            *out += self.scale * x;
        }
    }
}
