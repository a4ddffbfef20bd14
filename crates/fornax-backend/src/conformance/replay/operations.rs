//! The backend's face: what is done at once, and what is recorded with its arguments.

use fornax_gguf::TensorView;

use super::arguments::{note, restore};
use super::{Handle, Replay, TAKEN};
use crate::{
    Activation, AttentionSpec, Backend, BackendError, Element, ExpertsSpec, HeadLinearSpec, Heads,
    KvShape, KvType, QkvSpec, RopeSpec, RouteSpec, SampleParams, StepCapacity, StepRows, StepShape,
};

impl<B: Backend + 'static> Backend for Replay<B> {
    type Buffer = Handle<B::Buffer>;
    type Weight = Handle<B::Weight>;
    type Kv = Handle<B::Kv>;
    type Step = Handle<B::Step>;
    type Sampler = Handle<B::Sampler>;

    fn name(&self) -> String {
        format!("replayed {}", self.inner.name())
    }

    fn upload(&mut self, parts: &[TensorView<'_>]) -> Result<Self::Weight, BackendError> {
        self.host_only("upload");
        self.memory.weights.push(self.inner.upload(parts)?);
        Ok(Handle::last(self.memory.weights.len()))
    }

    fn alloc(&mut self, element: Element, len: usize) -> Result<Self::Buffer, BackendError> {
        self.host_only("alloc");
        let buffer = self.inner.alloc(element, len)?;
        self.memory.buffers.push(Some(buffer));
        Ok(Handle::last(self.memory.buffers.len()))
    }

    fn keeps(&self, element: KvType) -> bool {
        self.inner.keeps(element)
    }

    fn alloc_kv(&mut self, shape: &KvShape) -> Result<Self::Kv, BackendError> {
        self.host_only("alloc_kv");
        let kv = self.inner.alloc_kv(shape)?;
        self.memory.kvs.push(Some(kv));
        Ok(Handle::last(self.memory.kvs.len()))
    }

    fn alloc_kv_layers(
        &mut self,
        shape: &KvShape,
        layers: usize,
    ) -> Result<Vec<Self::Kv>, BackendError> {
        self.host_only("alloc_kv_layers");
        let layers = self.inner.alloc_kv_layers(shape, layers)?;
        let handles = layers.into_iter().map(|kv| {
            self.memory.kvs.push(Some(kv));
            Handle::last(self.memory.kvs.len())
        });
        Ok(handles.collect())
    }

    fn alloc_step(&mut self, capacity: &StepCapacity) -> Result<Self::Step, BackendError> {
        self.host_only("alloc_step");
        let step = self.inner.alloc_step(capacity)?;
        self.memory.steps.push(Some(step));
        Ok(Handle::last(self.memory.steps.len()))
    }

    fn alloc_sampler(
        &mut self,
        slots: usize,
        vocabulary: usize,
    ) -> Result<Self::Sampler, BackendError> {
        self.host_only("alloc_sampler");
        let sampler = self.inner.alloc_sampler(slots, vocabulary)?;
        self.memory.samplers.push(Some(sampler));
        Ok(Handle::last(self.memory.samplers.len()))
    }

    fn write_f32(&mut self, buffer: &mut Self::Buffer, values: &[f32]) {
        self.host_only("write_f32");
        let inner = &mut self.inner;
        self.memory
            .with(buffer.index, |buffer, _| inner.write_f32(buffer, values));
    }

    fn write_u32(&mut self, buffer: &mut Self::Buffer, values: &[u32]) {
        self.host_only("write_u32");
        let inner = &mut self.inner;
        self.memory
            .with(buffer.index, |buffer, _| inner.write_u32(buffer, values));
    }

    fn read_f32(&mut self, buffer: &Self::Buffer, out: &mut [f32]) -> Result<(), BackendError> {
        self.host_only("read_f32");
        self.inner.read_f32(self.memory.buffer(buffer.index), out)
    }

    fn read_u32(&mut self, buffer: &Self::Buffer, out: &mut [u32]) -> Result<(), BackendError> {
        self.host_only("read_u32");
        self.inner.read_u32(self.memory.buffer(buffer.index), out)
    }

    fn admit(
        &mut self,
        sampler: &mut Self::Sampler,
        slot: usize,
        params: &SampleParams,
        tokens: &[u32],
        prompt: usize,
    ) {
        self.host_only("admit");
        let sampler = self.memory.samplers[sampler.index].as_mut().expect(TAKEN);
        self.inner.admit(sampler, slot, params, tokens, prompt);
    }

    fn prepare(&mut self, step: &mut Self::Step, rows: &StepRows) {
        self.host_only("prepare");
        let step = self.memory.steps[step.index].as_mut().expect(TAKEN);
        self.inner.prepare(step, rows);
    }

    fn record(
        &mut self,
        shape: &StepShape,
        operations: impl FnOnce(&mut Self),
    ) -> Result<(), BackendError> {
        self.host_only("record");
        if !self.recorded.contains_key(shape) {
            self.recording = Some(Vec::new());
            operations(self);
            let recorded = self.recording.take().expect("invariant: set above");
            self.recorded.insert(*shape, recorded);
        }
        let memory = &mut self.memory;
        let recorded = &self.recorded[shape];
        self.inner.record(shape, |inner| {
            recorded
                .iter()
                .for_each(|operation| operation(inner, memory));
        })
    }

    fn copy_kv(&mut self, kv: &mut Self::Kv, source: u32, destination: u32, tokens: usize) {
        self.host_only("copy_kv");
        let kv = self.memory.kvs[kv.index].as_mut().expect(TAKEN);
        self.inner.copy_kv(kv, source, destination, tokens);
    }

    fn feed(&mut self, step: &mut Self::Step, samples: &Self::Buffer) {
        let (step, samples) = (step.index, samples.index);
        self.operation(move |inner, memory| {
            let samples = memory.buffers[samples].as_ref().expect(TAKEN);
            inner.feed(memory.steps[step].as_mut().expect(TAKEN), samples);
        });
    }

    fn embed(
        &mut self,
        out: &mut Self::Buffer,
        table: &Self::Weight,
        scale: f32,
        step: &Self::Step,
        n: usize,
    ) {
        let (out, table, step) = (out.index, table.index, step.index);
        self.writing(out, move |inner, out, memory| {
            inner.embed(out, &memory.weights[table], scale, memory.step(step), n);
        });
    }

    fn rms_norm(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Weight,
        eps: f32,
        n: usize,
    ) {
        let (out, x, weight) = (out.index, x.index, weight.index);
        self.writing(out, move |inner, out, memory| {
            inner.rms_norm(out, memory.buffer(x), &memory.weights[weight], eps, n);
        });
    }

    fn head_norm(
        &mut self,
        x: &mut Self::Buffer,
        heads: Heads,
        weight: &Self::Weight,
        eps: f32,
        n: usize,
    ) {
        let (x, weight) = (x.index, weight.index);
        self.writing(x, move |inner, x, memory| {
            inner.head_norm(x, heads, &memory.weights[weight], eps, n);
        });
    }

    fn linear(
        &mut self,
        out: &mut Self::Buffer,
        weight: &Self::Weight,
        bias: Option<&Self::Weight>,
        x: &Self::Buffer,
        n: usize,
    ) {
        let (out, weight, x) = (out.index, weight.index, x.index);
        let bias = bias.map(|bias| bias.index);
        self.writing(out, move |inner, out, memory| {
            let bias = bias.map(|bias| &memory.weights[bias]);
            inner.linear(out, &memory.weights[weight], bias, memory.buffer(x), n);
        });
    }

    fn head_linear(
        &mut self,
        out: &mut Self::Buffer,
        weight: &Self::Weight,
        x: &Self::Buffer,
        spec: HeadLinearSpec,
        n: usize,
    ) {
        let (out, weight, x) = (out.index, weight.index, x.index);
        self.writing(out, move |inner, out, memory| {
            inner.head_linear(out, &memory.weights[weight], memory.buffer(x), spec, n);
        });
    }

    fn rope(
        &mut self,
        x: &mut Self::Buffer,
        heads: Heads,
        step: &Self::Step,
        spec: RopeSpec<'_, Self::Weight>,
        n: usize,
    ) {
        let (x, step, mut noted) = (x.index, step.index, Vec::new());
        let spec = spec.map(note(&mut noted));
        self.writing(x, move |inner, x, memory| {
            let spec = spec.map(restore(&noted, &memory.weights));
            inner.rope(x, heads, memory.step(step), spec, n);
        });
    }

    fn store_kv(
        &mut self,
        kv: &mut Self::Kv,
        x: &Self::Buffer,
        k: Heads,
        v: Heads,
        group: usize,
        step: &Self::Step,
        n: usize,
    ) {
        let (kv, x, step) = (kv.index, x.index, step.index);
        self.operation(move |inner, memory| {
            memory.with_kv(kv, |kv, memory| {
                inner.store_kv(kv, memory.buffer(x), k, v, group, memory.step(step), n);
            });
        });
    }

    fn attention(
        &mut self,
        out: &mut Self::Buffer,
        q: &Self::Buffer,
        kv: &Self::Kv,
        step: &Self::Step,
        spec: AttentionSpec<'_, Self::Weight>,
        n: usize,
    ) {
        let (out, x, kv, step) = (out.index, q.index, kv.index, step.index);
        let mut noted = Vec::new();
        let spec = spec.map(note(&mut noted));
        self.writing(out, move |inner, out, memory| {
            let spec = spec.map(restore(&noted, &memory.weights));
            let kv = memory.kvs[kv].as_ref().expect(TAKEN);
            inner.attention(out, memory.buffer(x), kv, memory.step(step), spec, n);
        });
    }

    fn glu(
        &mut self,
        out: &mut Self::Buffer,
        gate_up: &Self::Buffer,
        activation: Activation,
        width: usize,
        n: usize,
    ) {
        let (out, gate_up) = (out.index, gate_up.index);
        self.writing(out, move |inner, out, memory| {
            inner.glu(out, memory.buffer(gate_up), activation, width, n);
        });
    }

    fn add(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, width: usize, n: usize) {
        let (out, x) = (out.index, x.index);
        self.writing(out, move |inner, out, memory| {
            inner.add(out, memory.buffer(x), width, n)
        });
    }

    fn add_gated(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        gate: &Self::Buffer,
        width: usize,
        n: usize,
    ) {
        let (out, x, gate) = (out.index, x.index, gate.index);
        self.writing(out, move |inner, out, memory| {
            inner.add_gated(out, memory.buffer(x), memory.buffer(gate), width, n);
        });
    }

    fn route(
        &mut self,
        ids: &mut Self::Buffer,
        weights: &mut Self::Buffer,
        logits: &Self::Buffer,
        spec: RouteSpec<'_, Self::Weight>,
        n: usize,
    ) {
        let (ids, weights, logits) = (ids.index, weights.index, logits.index);
        let mut noted = Vec::new();
        let spec = spec.map(note(&mut noted));
        self.writing(ids, move |inner, ids, memory| {
            memory.with(weights, |weights, memory| {
                let spec = spec.map(restore(&noted, &memory.weights));
                inner.route(ids, weights, memory.buffer(logits), spec, n);
            });
        });
    }

    fn experts(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        ids: &Self::Buffer,
        weights: &Self::Buffer,
        gate_up: &Self::Weight,
        down: &Self::Weight,
        spec: ExpertsSpec<'_, Self::Weight>,
        n: usize,
    ) {
        let [out, x, ids, weights] = [&*out, x, ids, weights].map(|buffer| buffer.index);
        let (gate_up, down, mut noted) = (gate_up.index, down.index, Vec::new());
        let spec = spec.map(note(&mut noted));
        self.writing(out, move |inner, out, memory| {
            let spec = spec.map(restore(&noted, &memory.weights));
            let [x, ids, weights] = [x, ids, weights].map(|index| memory.buffer(index));
            let [gate_up, down] = [gate_up, down].map(|index| &memory.weights[index]);
            inner.experts(out, x, ids, weights, gate_up, down, spec, n);
        });
    }

    fn gather(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        width: usize,
        step: &Self::Step,
        n: usize,
    ) {
        let (out, x, step) = (out.index, x.index, step.index);
        self.writing(out, move |inner, out, memory| {
            inner.gather(out, memory.buffer(x), width, memory.step(step), n);
        });
    }

    fn pool(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        width: usize,
        step: &Self::Step,
        n: usize,
    ) {
        let (out, x, step) = (out.index, x.index, step.index);
        self.writing(out, move |inner, out, memory| {
            inner.pool(out, memory.buffer(x), width, memory.step(step), n);
        });
    }

    fn sample(
        &mut self,
        samples: &mut Self::Buffer,
        logits: &mut Self::Buffer,
        sampler: &mut Self::Sampler,
        step: &Self::Step,
        n: usize,
    ) {
        let (samples, logits) = (samples.index, logits.index);
        let (sampler, step) = (sampler.index, step.index);
        self.writing(samples, move |inner, samples, memory| {
            memory.with(logits, |logits, memory| {
                let step = memory.steps[step].as_ref().expect(TAKEN);
                let sampler = memory.samplers[sampler].as_mut().expect(TAKEN);
                inner.sample(samples, logits, sampler, step, n);
            });
        });
    }

    fn add_rms_norm(
        &mut self,
        out: &mut Self::Buffer,
        residual: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Weight,
        eps: f32,
        width: usize,
        n: usize,
    ) {
        let (out, residual, x, weight) = (out.index, residual.index, x.index, weight.index);
        self.writing(out, move |inner, out, memory| {
            memory.with(residual, |residual, memory| {
                let (x, weight) = (memory.buffer(x), &memory.weights[weight]);
                inner.add_rms_norm(out, residual, x, weight, eps, width, n);
            });
        });
    }

    fn qk_norm_rope_store(
        &mut self,
        qkv: &mut Self::Buffer,
        kv: &mut Self::Kv,
        step: &Self::Step,
        spec: QkvSpec<'_, Self::Weight>,
        n: usize,
    ) {
        let (qkv, kv, step) = (qkv.index, kv.index, step.index);
        let mut noted = Vec::new();
        let spec = spec.map(note(&mut noted));
        self.writing(qkv, move |inner, qkv, memory| {
            memory.with_kv(kv, |kv, memory| {
                let spec = spec.map(restore(&noted, &memory.weights));
                inner.qk_norm_rope_store(qkv, kv, memory.step(step), spec, n);
            });
        });
    }

    fn mlp(
        &mut self,
        out: &mut Self::Buffer,
        projected: &mut Self::Buffer,
        activated: &mut Self::Buffer,
        x: &Self::Buffer,
        gate_up: &Self::Weight,
        down: &Self::Weight,
        activation: Activation,
        hidden: usize,
        n: usize,
    ) {
        let [out, projected, activated] = [out, projected, activated].map(|buffer| buffer.index);
        let (x, gate_up, down) = (x.index, gate_up.index, down.index);
        self.writing(out, move |inner, out, memory| {
            memory.with(projected, |projected, memory| {
                memory.with(activated, |activated, memory| {
                    let x = memory.buffer(x);
                    let [gate_up, down] = [gate_up, down].map(|index| &memory.weights[index]);
                    inner.mlp(
                        out, projected, activated, x, gate_up, down, activation, hidden, n,
                    );
                });
            });
        });
    }
}
