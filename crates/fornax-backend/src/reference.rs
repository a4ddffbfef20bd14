//! The scalar reference: every operation in plain loops. It is the executable specification.
//!
//! Owns what an operation *is*. Knows no instruction set and no thread: where it is slow, another
//! backend is fast. A token's result depends on its own sequence alone, in the same order of
//! additions, whatever else is in the step: batched = alone and chunked = whole, bit for bit.

mod attention;
mod elementwise;
mod experts;
mod kv;
mod linear;
mod memory;

use fornax_gguf::TensorView;

use crate::{
    Activation, AttentionSpec, Backend, BackendError, Element, ExpertsSpec, HeadLinearSpec, Heads,
    HostSampler, KvShape, KvType, Pooled, Pooling, RopeSpec, RouteSpec, SAMPLE_WORDS, Sample,
    SampleParams, StepCapacity, StepRows, StepShape,
};
pub use kv::Kv;
pub use memory::{Buffer, Weight};

/// The scalar reference backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// A step as [`Backend::prepare`] was given it, with the tokens that [`Backend::feed`] fills in.
#[derive(Debug)]
pub struct Step {
    capacity: StepCapacity,
    rows: StepRows,
    /// Of every new token. `[tokens]`
    positions: Vec<usize>,
}

impl Backend for Reference {
    type Buffer = Buffer;
    type Weight = Weight;
    type Kv = Kv;
    type Step = Step;
    type Sampler = HostSampler;

    fn name(&self) -> String {
        "scalar".into()
    }

    fn upload(&mut self, parts: &[TensorView<'_>]) -> Result<Weight, BackendError> {
        Ok(Weight::new(parts))
    }

    fn alloc(&mut self, element: Element, len: usize) -> Result<Buffer, BackendError> {
        Buffer::new(element, len)
    }

    fn keeps(&self, _: KvType) -> bool {
        true
    }

    fn alloc_kv(&mut self, shape: &KvShape) -> Result<Kv, BackendError> {
        shape.check()?;
        Kv::new(shape)
    }

    fn alloc_step(&mut self, capacity: &StepCapacity) -> Result<Step, BackendError> {
        Ok(Step {
            capacity: capacity.clone(),
            rows: StepRows::default(),
            positions: Vec::new(),
        })
    }

    fn alloc_sampler(
        &mut self,
        slots: usize,
        vocabulary: usize,
    ) -> Result<HostSampler, BackendError> {
        Ok(HostSampler::new(slots, vocabulary))
    }

    fn write_f32(&mut self, buffer: &mut Buffer, values: &[f32]) {
        buffer.f32_mut()[..values.len()].copy_from_slice(values);
    }

    fn write_u32(&mut self, buffer: &mut Buffer, values: &[u32]) {
        buffer.u32_mut()[..values.len()].copy_from_slice(values);
    }

    fn read_f32(&mut self, buffer: &Buffer, out: &mut [f32]) -> Result<(), BackendError> {
        out.copy_from_slice(&buffer.f32()[..out.len()]);
        Ok(())
    }

    fn read_u32(&mut self, buffer: &Buffer, out: &mut [u32]) -> Result<(), BackendError> {
        out.copy_from_slice(&buffer.u32()[..out.len()]);
        Ok(())
    }

    fn admit(
        &mut self,
        sampler: &mut HostSampler,
        slot: usize,
        params: &SampleParams,
        tokens: &[u32],
        prompt: usize,
    ) {
        sampler.admit(slot, params, tokens, prompt);
    }

    fn prepare(&mut self, step: &mut Step, rows: &StepRows) {
        rows.check(&step.capacity);
        step.rows.clone_from(rows);
        step.positions.clear();
        step.positions.extend(rows.positions());
    }

    fn record(
        &mut self,
        _shape: &StepShape,
        operations: impl FnOnce(&mut Self),
    ) -> Result<(), BackendError> {
        operations(self);
        Ok(())
    }

    fn copy_kv(&mut self, kv: &mut Kv, source: u32, destination: u32, tokens: usize) {
        kv.copy(source as usize, destination as usize, tokens);
    }

    fn feed(&mut self, step: &mut Step, samples: &Buffer) {
        let (samples, _) = samples.u32().as_chunks::<SAMPLE_WORDS>();
        for &(index, sample) in &step.rows.from_step {
            step.rows.tokens[index] = match Sample::decode(&samples[sample], None) {
                Sample::Token { token, .. } => token,
                Sample::NotFinite => 0,
            };
        }
    }

    fn embed(&mut self, out: &mut Buffer, table: &Weight, scale: f32, step: &Step, n: usize) {
        let rows = rows_mut(out, table.cols(), n);
        for (row, &token) in rows.zip(&step.rows.tokens[..n]) {
            table.decode_row(0, token as usize, row);
            row.iter_mut().for_each(|x| *x *= scale);
        }
    }

    fn rms_norm(&mut self, out: &mut Buffer, x: &Buffer, weight: &Weight, eps: f32, n: usize) {
        let weight = weight.vector();
        let width = weight.len();
        for (out, x) in rows_mut(out, width, n).zip(rows(x, width, n)) {
            out.copy_from_slice(x);
            elementwise::rms_norm(out, &weight, eps);
        }
    }

    fn head_norm(&mut self, x: &mut Buffer, heads: Heads, weight: &Weight, eps: f32, n: usize) {
        let weight = weight.vector();
        for row in rows_mut(x, heads.stride, n) {
            for head in elementwise::heads_mut(row, heads) {
                elementwise::rms_norm(head, &weight, eps);
            }
        }
    }

    fn linear(
        &mut self,
        out: &mut Buffer,
        weight: &Weight,
        bias: Option<&Weight>,
        x: &Buffer,
        n: usize,
    ) {
        let bias = bias.map(Weight::vector);
        linear::linear(out.f32_mut(), weight, 0, bias.as_deref(), x.f32(), n);
    }

    fn head_linear(
        &mut self,
        out: &mut Buffer,
        weight: &Weight,
        x: &Buffer,
        spec: HeadLinearSpec,
        n: usize,
    ) {
        linear::head_linear(out.f32_mut(), weight, x.f32(), spec, n);
    }

    fn rope(
        &mut self,
        x: &mut Buffer,
        heads: Heads,
        step: &Step,
        spec: RopeSpec<'_, Weight>,
        n: usize,
    ) {
        let frequencies = spec.frequencies.vector();
        assert_eq!(frequencies.len() * 2, spec.rotary, "rope: frequencies");
        let rows = rows_mut(x, heads.stride, n);
        for (row, position) in rows.zip(&step.positions[..n]) {
            for head in elementwise::heads_mut(row, heads) {
                elementwise::rope(head, *position, &frequencies, spec.style, spec.magnitude);
            }
        }
    }

    fn store_kv(
        &mut self,
        kv: &mut Kv,
        x: &Buffer,
        k: Heads,
        v: Heads,
        group: usize,
        step: &Step,
        n: usize,
    ) {
        for (row, table) in step.rows.rows.iter().zip(&step.rows.tables[group]) {
            for token in row.start..(row.start + row.len).min(n) {
                let place = kv.place(table, step.positions[token]);
                kv.store(place, columns(x, k, token), columns(x, v, token));
            }
        }
    }

    fn attention(
        &mut self,
        out: &mut Buffer,
        q: &Buffer,
        kv: &Kv,
        step: &Step,
        spec: AttentionSpec<'_, Weight>,
        n: usize,
    ) {
        let tables = &step.rows.tables[spec.group];
        attention::attention(out.f32_mut(), q.f32(), kv, &step.rows.rows, tables, spec, n);
    }

    fn glu(
        &mut self,
        out: &mut Buffer,
        gate_up: &Buffer,
        activation: Activation,
        width: usize,
        n: usize,
    ) {
        for (out, row) in rows_mut(out, width, n).zip(rows(gate_up, 2 * width, n)) {
            elementwise::glu(out, row, activation);
        }
    }

    fn add(&mut self, out: &mut Buffer, x: &Buffer, width: usize, n: usize) {
        for (out, x) in rows_mut(out, width, n).zip(rows(x, width, n)) {
            out.iter_mut().zip(x).for_each(|(out, x)| *out += x);
        }
    }

    fn add_gated(&mut self, out: &mut Buffer, x: &Buffer, gate: &Buffer, width: usize, n: usize) {
        let gated = rows(x, width, n).zip(gate.f32());
        for (out, (x, gate)) in rows_mut(out, width, n).zip(gated) {
            let factor = elementwise::sigmoid(*gate);
            out.iter_mut()
                .zip(x)
                .for_each(|(out, x)| *out += factor * x);
        }
    }

    fn route(
        &mut self,
        ids: &mut Buffer,
        weights: &mut Buffer,
        logits: &Buffer,
        spec: RouteSpec<'_, Weight>,
        n: usize,
    ) {
        experts::route(ids.u32_mut(), weights.f32_mut(), logits.f32(), spec, n);
    }

    fn experts(
        &mut self,
        out: &mut Buffer,
        x: &Buffer,
        ids: &Buffer,
        weights: &Buffer,
        gate_up: &Weight,
        down: &Weight,
        spec: ExpertsSpec<'_, Weight>,
        n: usize,
    ) {
        let chosen = experts::Chosen {
            ids: &ids.u32()[..n * spec.used],
            weights: &weights.f32()[..n * spec.used],
        };
        experts::experts(out.f32_mut(), x.f32(), chosen, gate_up, down, spec);
    }

    fn gather(&mut self, out: &mut Buffer, x: &Buffer, width: usize, step: &Step, n: usize) {
        let rows = rows_mut(out, width, n);
        for (out, index) in rows.zip(&step.rows.outputs[..n]) {
            out.copy_from_slice(&x.f32()[index * width..(index + 1) * width]);
        }
    }

    fn pool(&mut self, out: &mut Buffer, x: &Buffer, width: usize, step: &Step, n: usize) {
        let rows = rows_mut(out, width, n);
        for (out, &Pooled { row, pooling }) in rows.zip(&step.rows.pooled[..n]) {
            let row = step.rows.rows[row];
            let tokens = match pooling {
                Pooling::Mean => row.start..row.start + row.len,
                Pooling::Last => row.start + row.len - 1..row.start + row.len,
            };
            elementwise::mean(out, &x.f32()[tokens.start * width..tokens.end * width]);
        }
    }

    fn sample(
        &mut self,
        samples: &mut Buffer,
        logits: &mut Buffer,
        sampler: &mut HostSampler,
        step: &Step,
        n: usize,
    ) {
        let rows = rows_mut(logits, sampler.vocabulary(), n);
        let answers = samples.u32_mut()[..n * SAMPLE_WORDS].chunks_exact_mut(SAMPLE_WORDS);
        for ((logits, answer), row) in rows.zip(answers).zip(&step.rows.samples[..n]) {
            sampler.sample_row(logits, *row).encode(answer);
        }
    }
}

/// The first `n` rows of a matrix.
fn rows(x: &Buffer, width: usize, n: usize) -> impl Iterator<Item = &[f32]> {
    x.f32()[..n * width].chunks_exact(width)
}

/// The first `n` rows of a matrix, to write.
fn rows_mut(x: &mut Buffer, width: usize, n: usize) -> impl Iterator<Item = &mut [f32]> {
    x.f32_mut()[..n * width].chunks_exact_mut(width)
}

/// The heads of one token.
fn columns(x: &Buffer, heads: Heads, token: usize) -> &[f32] {
    let start = token * heads.stride + heads.offset;
    &x.f32()[start..start + heads.count * heads.dim]
}
