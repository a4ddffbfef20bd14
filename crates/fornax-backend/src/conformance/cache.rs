//! Sequences with a paged cache on the device, and what every page ought to hold.

use fornax_gguf::DType;
use half::{bf16, f16};

use super::oracle::Query;
use super::tensors::Tensor;
use super::trial::{Input, Trial};
use crate::{
    AttentionSpec, Backend, Heads, KvShape, KvType, Queries, RowSpan, StepCapacity, StepRows,
};

/// Rows that a step of a check can have.
const MAX_ROWS: usize = 64;

/// One layer's cache and the sequences in it.
pub(super) struct World<B: Backend> {
    pub shape: KvShape,
    /// Heads of Q.
    pub q_heads: usize,
    /// Whether the columns of V are the last ones of K.
    overlap: bool,
    scores: Scores,
    /// The KV group of the cache; the others' page tables lead nowhere.
    pub group: usize,
    pub step: B::Step,
    pub kv: B::Kv,
    pub sequences: Vec<Sequence>,
    /// Pages that nobody has, in no order.
    free: Vec<u32>,
    /// What lies where: K `[kv_heads * k_dim]` and V `[kv_heads * v_dim]`. `[pages * page_size]`
    places: Vec<(Vec<f64>, Vec<f64>)>,
}

/// What scores are beside noise.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scores {
    Noise,
    /// So much more than that of the position before.
    Rising(f32),
    /// So much at position 0, which thus has most of the weight, and whose value is next to nothing: what is
    /// beside it is all that is left to see.
    Sink(f32),
}

impl Scores {
    fn at(self, position: usize) -> f32 {
        match self {
            Scores::Rising(rise) => rise * position as f32,
            Scores::Sink(score) if position == 0 => score,
            Scores::Noise | Scores::Sink(_) => 0.0,
        }
    }

    /// The largest among so many positions.
    pub fn largest(self, positions: usize) -> f32 {
        self.at(0).max(self.at(positions))
    }
}

/// One sequence's pages.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    pub table: Vec<u32>,
    pub len: usize,
}

impl<B: Backend> World<B> {
    /// Pages full of NaN, and `sequences` empty sequences. The cache's group is one of two.
    pub fn new(trial: &mut Trial<'_, B>, shape: KvShape, q_heads: usize, sequences: usize) -> Self {
        // One between two others, as a backend may lay them side by side.
        let layers = trial.backend.alloc_kv_layers(&shape, 3);
        let kv = trial.must(layers).remove(1);
        let group = trial.random.below(2);
        let mut groups = vec![(3, 1); 2];
        groups[group] = (shape.page_size, shape.pages);
        groups[1 - group] = (4, shape.pages * shape.page_size);
        let capacity = StepCapacity {
            rows: MAX_ROWS,
            tokens: shape.pages * shape.page_size,
            groups,
        };
        let step = trial.step(&capacity);
        let mut free: Vec<u32> = (0..shape.pages as u32).collect();
        trial.random.shuffle(&mut free);
        let nothing = (Vec::new(), Vec::new());
        let mut world = Self {
            shape,
            q_heads,
            overlap: false,
            scores: Scores::Noise,
            group,
            step,
            kv,
            sequences: vec![Sequence::default(); sequences],
            free,
            places: vec![nothing; shape.pages * shape.page_size],
        };
        world.poison(trial);
        world
    }

    /// As [`new`](Self::new), with V inside of K.
    pub fn overlapping(
        trial: &mut Trial<'_, B>,
        shape: KvShape,
        q_heads: usize,
        sequences: usize,
    ) -> Self {
        Self {
            overlap: true,
            ..Self::new(trial, shape, q_heads, sequences)
        }
    }

    /// As [`new`](Self::new), with such scores.
    pub fn scored(
        trial: &mut Trial<'_, B>,
        shape: KvShape,
        q_heads: usize,
        sequences: usize,
        scores: Scores,
    ) -> Self {
        Self {
            scores,
            ..Self::new(trial, shape, q_heads, sequences)
        }
    }

    /// Where Q, K and V lie in a fused row.
    pub fn heads(&self) -> [Heads; 3] {
        let KvShape {
            kv_heads,
            k_dim,
            v_dim,
            ..
        } = self.shape;
        let k_start = self.q_heads * k_dim;
        let v_start = match self.overlap {
            true => k_start + kv_heads * k_dim - kv_heads * v_dim,
            false => k_start + kv_heads * k_dim,
        };
        let stride = v_start + kv_heads * v_dim;
        let heads = |offset, count, dim| Heads {
            stride,
            offset,
            count,
            dim,
        };
        [
            heads(0, self.q_heads, k_dim),
            heads(k_start, kv_heads, k_dim),
            heads(v_start, kv_heads, v_dim),
        ]
    }

    fn poison(&mut self, trial: &mut Trial<'_, B>) {
        let tokens = self.places.len();
        let [_, k, v] = self.heads();
        let row = RowSpan {
            start: 0,
            len: tokens,
            cached: 0,
        };
        let everything: Vec<u32> = (0..self.shape.pages as u32).collect();
        let rows = self.rows(&[row], vec![everything]);
        trial.backend.prepare(&mut self.step, &rows);
        let x = trial.output(tokens, k.stride);
        trial
            .backend
            .store_kv(&mut self.kv, &x, k, v, self.group, &self.step, tokens);
    }

    /// A step of these rows, with page tables for the cache's group and for the other one.
    fn rows(&self, spans: &[RowSpan], tables: Vec<Vec<u32>>) -> StepRows {
        let tokens = spans.iter().map(|span| span.len).sum();
        let elsewhere = |span: &RowSpan| vec![0; (span.cached + span.len).div_ceil(4)];
        let mut all = vec![spans.iter().map(elsewhere).collect(), Vec::new()];
        all.swap(self.group, 1);
        all[self.group] = tables;
        StepRows {
            tokens: vec![0; tokens],
            rows: spans.to_vec(),
            tables: all,
            ..StepRows::default()
        }
    }

    /// Gives each `(sequence, new tokens)` pages for its new tokens and prepares their step.
    pub fn extend(&mut self, trial: &mut Trial<'_, B>, new: &[(usize, usize)]) -> StepRows {
        let mut spans = Vec::new();
        let mut start = 0;
        for &(sequence, len) in new {
            let Sequence { table, len: cached } = &mut self.sequences[sequence];
            let span = RowSpan {
                start,
                len,
                cached: *cached,
            };
            *cached += len;
            start += len;
            while table.len() * self.shape.page_size < *cached {
                table.push(self.free.pop().expect("invariant: pages for the case"));
            }
            spans.push(span);
        }
        let table = |(sequence, _): &(usize, usize)| self.sequences[*sequence].table.clone();
        let rows = self.rows(&spans, new.iter().map(table).collect());
        trial.backend.prepare(&mut self.step, &rows);
        rows
    }

    /// New tokens with random Q, K and V, these stored. Returns the step and the fused rows.
    pub fn advance(
        &mut self,
        trial: &mut Trial<'_, B>,
        new: &[(usize, usize)],
    ) -> (StepRows, Input<B>) {
        let rows = self.extend(trial, new);
        let [_, k, v] = self.heads();
        let n = rows.tokens.len();
        let mut values = trial.random.normals(n * k.stride);
        self.raise(&rows, &mut values);
        let x = trial.input_of(&values, k.stride);
        trial
            .backend
            .store_kv(&mut self.kv, &x.buffer, k, v, self.group, &self.step, n);
        self.note(&rows, &x.values);
        (rows, x)
    }

    /// Adds to each query a pattern of ones with either sign, and to each key as much of it as its score is to
    /// be.
    fn raise(&self, rows: &StepRows, fused: &mut [f32]) {
        if matches!(self.scores, Scores::Noise) {
            return;
        }
        let [q, k, v] = self.heads();
        for row in &rows.rows {
            let tokens = fused[row.start * k.stride..].chunks_mut(k.stride);
            for (position, token) in (row.cached..row.cached + row.len).zip(tokens) {
                let of_key = self.scores.at(position) / (k.dim as f32).sqrt();
                for (heads, size) in [(q, 1.0), (k, of_key)] {
                    let elements = &mut token[heads.offset..][..heads.count * heads.dim];
                    for (index, element) in elements.iter_mut().enumerate() {
                        *element += [size, -size][index % heads.dim % 2];
                    }
                }
                if matches!(self.scores, Scores::Sink(_)) && position == 0 {
                    let values = &mut token[v.offset..][..v.count * v.dim];
                    values.iter_mut().for_each(|value| *value /= 4096.0);
                }
            }
        }
    }

    /// Notes what fused rows put into the pages.
    pub fn note(&mut self, rows: &StepRows, fused: &[f64]) {
        let [_, k, v] = self.heads();
        for (row, table) in rows.rows.iter().zip(&rows.tables[self.group]) {
            for i in 0..row.len {
                let token = &fused[(row.start + i) * k.stride..][..k.stride];
                let columns = |heads: Heads| &token[heads.offset..][..heads.count * heads.dim];
                let place = self.place(table, row.cached + i);
                let both = (
                    keep(columns(k), self.shape.element),
                    keep(columns(v), self.shape.element),
                );
                self.places[place] = both;
            }
        }
    }

    fn place(&self, table: &[u32], position: usize) -> usize {
        let size = self.shape.page_size;
        table[position / size] as usize * size + position % size
    }

    /// A new sequence with the first `len` tokens of another: full pages are shared, the partly
    /// filled one is copied.
    pub fn fork(&mut self, trial: &mut Trial<'_, B>, of: usize, len: usize) -> usize {
        let size = self.shape.page_size;
        let mut table = self.sequences[of].table[..len / size].to_vec();
        if !len.is_multiple_of(size) {
            let source = self.sequences[of].table[len / size];
            let destination = self.free.pop().expect("invariant: pages for the case");
            trial
                .backend
                .copy_kv(&mut self.kv, source, destination, len % size);
            for i in 0..len % size {
                let from = self.places[source as usize * size + i].clone();
                self.places[destination as usize * size + i] = from;
            }
            table.push(destination);
        }
        self.sequences.push(Sequence { table, len });
        self.sequences.len() - 1
    }
}

/// What the attention of a check varies in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Variant {
    pub window: Option<usize>,
    pub soft_cap: Option<f32>,
    pub sinks: bool,
    /// Who attends.
    pub queries: Queries,
    /// Error allowed beyond the tolerance, where K was rounded after it was computed.
    pub slack: f64,
}

impl<B: Backend> World<B> {
    /// Attends with the Q of fused rows and compares every output. Page table entries that no
    /// query sees lead nowhere.
    pub fn attend(
        &mut self,
        trial: &mut Trial<'_, B>,
        rows: &StepRows,
        fused: &Input<B>,
        variant: Variant,
    ) {
        let (n, width) = (rows.tokens.len(), self.q_heads * self.shape.v_dim);
        let sinks = Tensor::random(&mut trial.random, fornax_gguf::DType::F32, &[self.q_heads]);
        let uploaded = trial.backend.upload(&[sinks.view()]);
        let uploaded = trial.must(uploaded);
        let spec = self.spec(variant, &uploaded);
        let blinded = self.blinded(rows, variant);
        trial.backend.prepare(&mut self.step, &blinded);
        let mut out = trial.output(n, width);
        trial
            .backend
            .attention(&mut out, &fused.buffer, &self.kv, &self.step, spec, n);
        let expected = self.expected(rows, &fused.values, variant, &sinks.values);
        let allowed = trial.tolerance.attention + variant.slack;
        trial.expect(&out, &expected, width, allowed);
    }

    /// Attention with the Q of fused rows.
    pub fn spec<'w>(&self, variant: Variant, sinks: &'w B::Weight) -> AttentionSpec<'w, B::Weight> {
        let [q, k, v] = self.heads();
        AttentionSpec {
            group: self.group,
            queries: variant.queries,
            q,
            kv_heads: k.count,
            v_dim: v.dim,
            scale: 1.0 / (q.dim as f32).sqrt(),
            window: variant.window,
            soft_cap: variant.soft_cap,
            sinks: variant.sinks.then_some(sinks),
        }
    }

    /// What it gives.
    pub fn expected(
        &self,
        rows: &StepRows,
        fused: &[f64],
        variant: Variant,
        sinks: &[f64],
    ) -> Vec<f64> {
        let [q, ..] = self.heads();
        let scale = 1.0 / (q.dim as f32).sqrt();
        let mut expected = Vec::new();
        for (row, table) in rows.rows.iter().zip(&rows.tables[self.group]) {
            for i in 0..row.len {
                let token = &fused[(row.start + i) * q.stride..][..q.stride];
                for head in 0..q.count {
                    let query = Query {
                        q: &token[q.offset + head * q.dim..][..q.dim],
                        scale: f64::from(scale),
                        soft_cap: variant.soft_cap.map(f64::from),
                        sink: variant.sinks.then(|| sinks[head]),
                    };
                    let seen = self.seen(table, row.cached + i, head, variant.window);
                    expected.extend(query.attend(&seen));
                }
            }
        }
        expected
    }

    /// K and V of every position that a query sees.
    fn seen(
        &self,
        table: &[u32],
        position: usize,
        head: usize,
        window: Option<usize>,
    ) -> Vec<(&[f64], &[f64])> {
        let KvShape {
            kv_heads,
            k_dim,
            v_dim,
            ..
        } = self.shape;
        let kv_head = head / (self.q_heads / kv_heads);
        let sees = |p: &usize| window.is_none_or(|window| p + window > position);
        let both = |p: usize| {
            let (k, v) = &self.places[self.place(table, p)];
            (
                &k[kv_head * k_dim..][..k_dim],
                &v[kv_head * v_dim..][..v_dim],
            )
        };
        (0..=position).filter(sees).map(both).collect()
    }

    /// The step with page table entries replaced that are wholly behind every query's window.
    pub fn blinded(&self, rows: &StepRows, variant: Variant) -> StepRows {
        let mut rows = rows.clone();
        let Some(window) = variant.window else {
            return rows;
        };
        for (row, table) in rows.rows.iter().zip(&mut rows.tables[self.group]) {
            let first_seen = (row.cached + 1).saturating_sub(window);
            table[..first_seen / self.shape.page_size].fill(u32::MAX);
        }
        rows
    }
}

/// Heads as the cache keeps them.
fn keep(heads: &[f64], element: KvType) -> Vec<f64> {
    let each = |keep: fn(f64) -> f64| heads.iter().map(|x| keep(*x)).collect();
    match element {
        KvType::F32 => heads.to_vec(),
        KvType::F16 => each(|x| f16::from_f32(x as f32).to_f64()),
        KvType::Bf16 => each(|x| bf16::from_f32(x as f32).to_f64()),
        KvType::Q8_0 => {
            let values: Vec<f32> = heads.iter().map(|x| *x as f32).collect();
            let (mut blocks, mut kept) = (Vec::new(), vec![0.0; values.len()]);
            DType::Q8_0.encode(&values, &mut blocks);
            DType::Q8_0.decode(&blocks, &mut kept);
            kept.into_iter().map(f64::from).collect()
        }
    }
}

/// Pages for sequences of these lengths, and some more that stay poisoned.
pub(super) fn pages_for(lengths: impl Iterator<Item = usize>, page_size: usize) -> usize {
    lengths.map(|len| len.div_ceil(page_size)).sum::<usize>() + 3
}

/// Any way in which the backend keeps a cache of heads of these sizes.
pub(super) fn any_element<B: Backend>(trial: &mut Trial<'_, B>, dims: [usize; 2]) -> KvType {
    let all = [KvType::F32, KvType::F16, KvType::Bf16, KvType::Q8_0];
    let possible = |element: &KvType| {
        trial.backend.keeps(*element) && dims.iter().all(|dim| element.fits(*dim))
    };
    let possible: Vec<KvType> = all.into_iter().filter(possible).collect();
    trial.random.pick(&possible)
}
