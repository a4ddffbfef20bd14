//! Rotary position embedding, alone and fused with the norms of heads and the store of K and V.
//!
//! Owns the sines and cosines of a step, computed once and read by every layer. Must not know
//! how pages lie (`kv.rs`) or what attention does.

use fornax_backend::{Heads, RopeSpec, RopeStyle};

use crate::{
    cores::Cores,
    memory::{Growing, Parts},
    pool::Pool,
    rows::{norm_in_place, run_rows},
    simd::{Kernel, LANES, Simd},
    weight::Weight,
};

/// Sines and cosines of the tokens of one step, for each set of frequencies that a model has.
#[derive(Debug, Default)]
pub(crate) struct RopeTables {
    tables: Vec<Table>,
}

/// Rotations of every token of a step.
#[derive(Debug, Default)]
struct Table {
    /// Whether it is of the current step.
    current: bool,
    /// Radians per position of each pair. `[rotary / 2]`
    frequencies: Vec<f32>,
    magnitude: f32,
    /// Cosines of a token's pairs, then its sines. `[tokens][2][rotary / 2]`
    rotations: Growing<f32>,
}

impl RopeTables {
    /// Forgets the step before.
    pub fn start_step(&mut self) {
        self.tables
            .iter_mut()
            .for_each(|table| table.current = false);
    }

    /// The rotations that `spec` asks for.
    pub fn rotation(
        &mut self,
        pool: &mut Pool,
        spec: &RopeSpec<'_, Weight>,
        positions: &[u32],
    ) -> Rotation<'_> {
        let frequencies = &spec.frequencies.vector()[..spec.rotary / 2];
        let same =
            |table: &Table| table.magnitude == spec.magnitude && table.frequencies == frequencies;
        let index = self.tables.iter().position(same).unwrap_or_else(|| {
            let (frequencies, magnitude) = (frequencies.to_vec(), spec.magnitude);
            self.tables.push(Table {
                frequencies,
                magnitude,
                ..Table::default()
            });
            self.tables.len() - 1
        });
        let table = &mut self.tables[index];
        if !table.current {
            table.compute(pool, positions);
            table.current = true;
        }
        Rotation {
            style: spec.style,
            rotary: spec.rotary,
            rotations: &table.rotations,
        }
    }
}

impl Table {
    fn compute(&mut self, pool: &mut Pool, positions: &[u32]) {
        let pairs = self.frequencies.len();
        self.rotations.grow(positions.len() * 2 * pairs);
        let rotations = Parts::new(&mut self.rotations);
        // A sine costs about as much as 16 of the elements that `run_rows` counts.
        run_rows(pool, positions.len(), 32 * pairs, |token| {
            // SAFETY: each token is another place.
            let rotations = unsafe { rotations.part(token * 2 * pairs, 2 * pairs) };
            let (cosines, sines) = rotations.split_at_mut(pairs);
            let position = positions[token] as f32;
            for (pair, frequency) in self.frequencies.iter().enumerate() {
                let (sine, cosine) = (position * frequency).sin_cos();
                cosines[pair] = cosine * self.magnitude;
                sines[pair] = sine * self.magnitude;
            }
        });
    }
}

/// What happens to some heads of every token.
pub(crate) struct Turn<'a> {
    pub heads: Heads,
    /// RMS norm weights and epsilon. `[heads.dim]`
    pub norm: Option<(&'a [f32], f32)>,
    pub rotation: Option<Rotation<'a>>,
}

/// Rotations of every token.
#[derive(Clone, Copy)]
pub(crate) struct Rotation<'a> {
    pub style: RopeStyle,
    pub rotary: usize,
    /// `[tokens][2][rotary / 2]`
    pub rotations: &'a [f32],
}

/// Applies turns to the heads of `n` rows, in place.
pub(crate) fn turn_heads(cores: &mut Cores, x: &mut [f32], turns: &[Turn<'_>], n: usize) {
    let (isa, pool) = cores.parts();
    let stride = turns[0].heads.stride;
    let x = Parts::new(x);
    run_rows(pool, n, stride, |token| {
        // SAFETY: each token is another row.
        let row = unsafe { x.part(token * stride, stride) };
        turns.iter().for_each(|turn| {
            isa.run(TurnRow {
                turn,
                row: &mut *row,
                token,
            })
        });
    });
}

/// A [`Turn`] of one token.
pub(crate) struct TurnRow<'a> {
    pub turn: &'a Turn<'a>,
    /// `[heads.stride]`
    pub row: &'a mut [f32],
    pub token: usize,
}

impl Kernel for TurnRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Turn {
            heads,
            norm,
            rotation,
        } = self.turn;
        let all = &mut self.row[heads.offset..heads.offset + heads.count * heads.dim];
        for head in all.chunks_exact_mut(heads.dim) {
            if let Some((weight, eps)) = norm {
                norm_in_place(s, head, weight, *eps);
            }
            if let Some(rotation) = rotation {
                let pairs = rotation.rotary / 2;
                let token =
                    &rotation.rotations[self.token * 2 * pairs..(self.token + 1) * 2 * pairs];
                let (cosines, sines) = token.split_at(pairs);
                match rotation.style {
                    RopeStyle::HalfSplit => rotate_halves(s, head, cosines, sines),
                    RopeStyle::AdjacentPairs => rotate_pairs(head, cosines, sines),
                }
            }
        }
    }
}

#[inline(always)]
fn rotate_halves<S: Simd>(s: S, head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let pairs = cosines.len();
    let (first, second) = head[..2 * pairs].split_at_mut(pairs);
    let whole = pairs / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        let (a, b) = (s.read(&first[start..]), s.read(&second[start..]));
        let (cosine, sine) = (s.read(&cosines[start..]), s.read(&sines[start..]));
        s.write(&mut first[start..], s.sub(s.mul(a, cosine), s.mul(b, sine)));
        s.write(
            &mut second[start..],
            s.add(s.mul(b, cosine), s.mul(a, sine)),
        );
    }
    for pair in whole..pairs {
        let (a, b) = (first[pair], second[pair]);
        first[pair] = a * cosines[pair] - b * sines[pair];
        second[pair] = b * cosines[pair] + a * sines[pair];
    }
}

#[inline(always)]
fn rotate_pairs(head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let pairs = head.as_chunks_mut::<2>().0.iter_mut();
    for ([a, b], (cosine, sine)) in pairs.zip(cosines.iter().zip(sines)) {
        (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
    }
}
