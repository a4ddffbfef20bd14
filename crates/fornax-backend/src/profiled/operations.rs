//! Every operation of the trait, passed on and timed.
//!
//! Must not know where times are kept, nor what an operation costs.

use fornax_gguf::TensorView;

use super::{
    Profiled, ProfiledKv, ProfiledStep, ProfiledWeight,
    cost::{Cost, experts_touched},
    label_of, layer_of, rope_spec,
};
use crate::{
    Activation, AttentionSpec, Backend, BackendError, Element, ExpertBiases, ExpertsSpec,
    HeadLinearSpec, Heads, KvShape, KvType, QkvSpec, Queries, RopeSpec, RouteSpec, RowSpan,
    SampleParams, Sketched, StepCapacity, StepRows, StepShape,
};

impl<B: Backend> Backend for Profiled<B> {
    type Buffer = B::Buffer;
    type Weight = ProfiledWeight<B::Weight>;
    type Kv = ProfiledKv<B::Kv>;
    type Step = ProfiledStep<B::Step>;
    type Sampler = B::Sampler;

    fn name(&self) -> String {
        self.backend.name()
    }

    fn upload(&mut self, parts: &[TensorView<'_>]) -> Result<Self::Weight, BackendError> {
        let of_parts = |of: fn(&TensorView<'_>) -> usize| parts.iter().map(of).sum::<usize>();
        let outermost = |part: &TensorView<'_>| part.shape.first().copied().unwrap_or(1);
        // In a stack of experts parts are joined inside of each.
        let outer = match parts {
            [first, ..] if first.shape.len() == 3 => outermost(first),
            _ => of_parts(outermost),
        };
        let labels: Vec<&str> = parts.iter().map(|part| label_of(part.name)).collect();
        Ok(ProfiledWeight {
            label: labels.join("+").into(),
            layer: parts.first().and_then(|part| layer_of(part.name)),
            bytes: of_parts(|part| part.data.len()) as u64,
            elements: of_parts(|part| part.elements()) as u64,
            outer: outer as u64,
            sketched: None,
            weight: self.backend.upload(parts)?,
        })
    }

    fn alloc(&mut self, element: Element, len: usize) -> Result<B::Buffer, BackendError> {
        self.backend.alloc(element, len)
    }

    fn keeps(&self, element: KvType) -> bool {
        self.backend.keeps(element)
    }

    fn alloc_kv(&mut self, shape: &KvShape) -> Result<Self::Kv, BackendError> {
        let kv = self.backend.alloc_kv(shape)?;
        Ok(self.next_layer(shape, kv))
    }

    fn alloc_kv_layers(
        &mut self,
        shape: &KvShape,
        layers: usize,
    ) -> Result<Vec<Self::Kv>, BackendError> {
        let layers = self.backend.alloc_kv_layers(shape, layers)?;
        let layers = layers.into_iter();
        Ok(layers.map(|kv| self.next_layer(shape, kv)).collect())
    }

    fn sketch(&mut self, matrix: &mut Self::Weight) -> Result<Option<Sketched>, BackendError> {
        matrix.sketched = self.backend.sketch(&mut matrix.weight)?;
        Ok(matrix.sketched)
    }

    fn alloc_step(&mut self, capacity: &StepCapacity) -> Result<Self::Step, BackendError> {
        Ok(ProfiledStep {
            step: self.backend.alloc_step(capacity)?,
            rows: Vec::new(),
            attending: Vec::new(),
        })
    }

    fn alloc_sampler(
        &mut self,
        slots: usize,
        vocabulary: usize,
    ) -> Result<B::Sampler, BackendError> {
        self.backend.alloc_sampler(slots, vocabulary)
    }

    fn write_f32(&mut self, buffer: &mut B::Buffer, values: &[f32]) {
        self.backend.write_f32(buffer, values);
    }

    fn write_u32(&mut self, buffer: &mut B::Buffer, values: &[u32]) {
        self.backend.write_u32(buffer, values);
    }

    fn read_f32(&mut self, buffer: &B::Buffer, out: &mut [f32]) -> Result<(), BackendError> {
        self.backend.read_f32(buffer, out)
    }

    fn read_u32(&mut self, buffer: &B::Buffer, out: &mut [u32]) -> Result<(), BackendError> {
        self.backend.read_u32(buffer, out)
    }

    fn admit(
        &mut self,
        sampler: &mut B::Sampler,
        slot: usize,
        params: &SampleParams,
        tokens: &[u32],
        prompt: usize,
    ) {
        self.backend.admit(sampler, slot, params, tokens, prompt);
    }

    fn prepare(&mut self, step: &mut Self::Step, rows: &StepRows) {
        let seen = |row: RowSpan| (row.len, row.cached);
        step.rows.clear();
        step.rows.extend(rows.rows.iter().copied().map(seen));
        step.attending.clear();
        step.attending
            .extend(rows.attending().filter(|row| row.len > 0).map(seen));
        self.layer = None;
        self.timed("prepare", Cost::default(), |backend| {
            backend.prepare(&mut step.step, rows);
        });
    }

    fn record(
        &mut self,
        _: &StepShape,
        operations: impl FnOnce(&mut Self),
    ) -> Result<(), BackendError> {
        // Outside of the other's `record` each operation runs at once and can be waited for.
        operations(self);
        self.failure.take().map_or(Ok(()), Err)
    }

    fn copy_kv(&mut self, kv: &mut Self::Kv, source: u32, destination: u32, tokens: usize) {
        let cost = Cost {
            bytes: 2 * kv.token_bytes * tokens as u64,
            macs: 0,
        };
        self.timed_in(Some(kv.layer), "copy_kv", cost, |backend| {
            backend.copy_kv(&mut kv.kv, source, destination, tokens);
        });
    }

    fn feed(&mut self, step: &mut Self::Step, samples: &B::Buffer) {
        self.timed_in(None, "feed", Cost::default(), |backend| {
            backend.feed(&mut step.step, samples);
        });
    }

    fn embed(
        &mut self,
        out: &mut B::Buffer,
        table: &Self::Weight,
        scale: f32,
        step: &Self::Step,
        n: usize,
    ) {
        let cost = Cost {
            bytes: table.bytes / table.outer * n as u64,
            macs: 0,
        };
        self.timed_in(None, "embed", cost, |backend| {
            backend.embed(out, &table.weight, scale, &step.step, n);
        });
    }

    fn rms_norm(
        &mut self,
        out: &mut B::Buffer,
        x: &B::Buffer,
        weight: &Self::Weight,
        eps: f32,
        n: usize,
    ) {
        self.timed_in(weight.layer, "rms_norm", weight.read(), |backend| {
            backend.rms_norm(out, x, &weight.weight, eps, n);
        });
    }

    fn head_norm(
        &mut self,
        x: &mut B::Buffer,
        heads: Heads,
        weight: &Self::Weight,
        eps: f32,
        n: usize,
    ) {
        self.timed_in(weight.layer, "head_norm", weight.read(), |backend| {
            backend.head_norm(x, heads, &weight.weight, eps, n);
        });
    }

    fn linear(
        &mut self,
        out: &mut B::Buffer,
        weight: &Self::Weight,
        bias: Option<&Self::Weight>,
        x: &B::Buffer,
        n: usize,
    ) {
        self.layer = weight.layer;
        let (label, cost) = (Some(&weight.label), weight.product(n));
        self.timed_with("linear", label, cost, |backend| {
            let bias = bias.map(|bias| &bias.weight);
            backend.linear(out, &weight.weight, bias, x, n);
        });
    }

    fn project_for_outputs(
        &mut self,
        out: &mut B::Buffer,
        weight: &Self::Weight,
        bias: Option<&Self::Weight>,
        x: &B::Buffer,
        queries: usize,
        step: &Self::Step,
        n: usize,
    ) {
        self.layer = weight.layer;
        let attending = step.attending.iter().map(|(new, _)| new).sum();
        let cost = weight.projection(queries, attending, n);
        self.timed_with("linear", Some(&weight.label), cost, |backend| {
            let bias = bias.map(|bias| &bias.weight);
            let (weight, step) = (&weight.weight, &step.step);
            backend.project_for_outputs(out, weight, bias, x, queries, step, n);
        });
    }

    fn largest(
        &mut self,
        out: &mut B::Buffer,
        weight: &Self::Weight,
        x: &B::Buffer,
        largest: usize,
        n: usize,
    ) {
        self.layer = weight.layer;
        let (label, mut cost) = (Some(&weight.label), weight.product(n));
        if let Some(sketched) = weight.sketched.filter(|sketched| n <= sketched.rows) {
            cost.bytes = sketched.bytes;
        }
        self.timed_with("largest", label, cost, |backend| {
            backend.largest(out, &weight.weight, x, largest, n);
        });
    }

    fn head_linear(
        &mut self,
        out: &mut B::Buffer,
        weight: &Self::Weight,
        x: &B::Buffer,
        spec: HeadLinearSpec,
        n: usize,
    ) {
        self.layer = weight.layer;
        let (label, cost) = (Some(&weight.label), weight.product(n));
        self.timed_with("head_linear", label, cost, |backend| {
            backend.head_linear(out, &weight.weight, x, spec, n);
        });
    }

    fn rope(
        &mut self,
        x: &mut B::Buffer,
        heads: Heads,
        step: &Self::Step,
        spec: RopeSpec<'_, Self::Weight>,
        n: usize,
    ) {
        self.timed("rope", Cost::default(), |backend| {
            backend.rope(x, heads, &step.step, rope_spec(spec), n);
        });
    }

    fn store_kv(
        &mut self,
        kv: &mut Self::Kv,
        x: &B::Buffer,
        k: Heads,
        v: Heads,
        group: usize,
        step: &Self::Step,
        n: usize,
    ) {
        let cost = kv.written(n);
        self.timed_in(Some(kv.layer), "store_kv", cost, |backend| {
            backend.store_kv(&mut kv.kv, x, k, v, group, &step.step, n);
        });
    }

    fn attention(
        &mut self,
        out: &mut B::Buffer,
        q: &B::Buffer,
        kv: &Self::Kv,
        step: &Self::Step,
        spec: AttentionSpec<'_, Self::Weight>,
        n: usize,
    ) {
        let rows = match spec.queries {
            Queries::All => &step.rows,
            Queries::Outputs => &step.attending,
        };
        let cost = Cost::of_attention(rows, kv.token_bytes, &spec);
        self.timed_in(Some(kv.layer), "attention", cost, |backend| {
            let spec = AttentionSpec {
                group: spec.group,
                queries: spec.queries,
                q: spec.q,
                kv_heads: spec.kv_heads,
                v_dim: spec.v_dim,
                scale: spec.scale,
                window: spec.window,
                soft_cap: spec.soft_cap,
                sinks: spec.sinks.map(|sinks| &sinks.weight),
            };
            backend.attention(out, q, &kv.kv, &step.step, spec, n);
        });
    }

    fn glu(
        &mut self,
        out: &mut B::Buffer,
        gate_up: &B::Buffer,
        activation: Activation,
        width: usize,
        n: usize,
    ) {
        self.timed("glu", Cost::default(), |backend| {
            backend.glu(out, gate_up, activation, width, n);
        });
    }

    fn add(&mut self, out: &mut B::Buffer, x: &B::Buffer, width: usize, n: usize) {
        self.timed("add", Cost::default(), |backend| {
            backend.add(out, x, width, n);
        });
    }

    fn add_gated(
        &mut self,
        out: &mut B::Buffer,
        x: &B::Buffer,
        gate: &B::Buffer,
        width: usize,
        n: usize,
    ) {
        self.timed("add_gated", Cost::default(), |backend| {
            backend.add_gated(out, x, gate, width, n);
        });
    }

    fn route(
        &mut self,
        ids: &mut B::Buffer,
        weights: &mut B::Buffer,
        logits: &B::Buffer,
        spec: RouteSpec<'_, Self::Weight>,
        n: usize,
    ) {
        self.timed("route", Cost::default(), |backend| {
            let spec = RouteSpec {
                experts: spec.experts,
                used: spec.used,
                scoring: spec.scoring,
                selection_bias: spec.selection_bias.map(|bias| &bias.weight),
                normalise: spec.normalise,
                scale: spec.scale,
                groups: spec.groups,
            };
            backend.route(ids, weights, logits, spec, n);
        });
    }

    fn experts(
        &mut self,
        out: &mut B::Buffer,
        x: &B::Buffer,
        ids: &B::Buffer,
        weights: &B::Buffer,
        gate_up: &Self::Weight,
        down: &Self::Weight,
        spec: ExpertsSpec<'_, Self::Weight>,
        n: usize,
    ) {
        let touched = experts_touched(spec.experts, spec.used, n);
        let bytes = (gate_up.bytes + down.bytes) as f64 * touched;
        let each = (gate_up.elements + down.elements) / spec.experts as u64;
        let cost = Cost {
            bytes: bytes as u64,
            macs: each * (spec.used * n) as u64,
        };
        self.timed_in(gate_up.layer, "experts", cost, |backend| {
            let spec = ExpertsSpec {
                experts: spec.experts,
                used: spec.used,
                width: spec.width,
                hidden: spec.hidden,
                activation: spec.activation,
                biases: spec.biases.map(|biases| ExpertBiases {
                    gate_up: &biases.gate_up.weight,
                    down: &biases.down.weight,
                }),
            };
            let (gate_up, down) = (&gate_up.weight, &down.weight);
            backend.experts(out, x, ids, weights, gate_up, down, spec, n);
        });
    }

    fn gather(
        &mut self,
        out: &mut B::Buffer,
        x: &B::Buffer,
        width: usize,
        step: &Self::Step,
        n: usize,
    ) {
        self.timed_in(None, "gather", Cost::default(), |backend| {
            backend.gather(out, x, width, &step.step, n);
        });
    }

    fn pool(
        &mut self,
        out: &mut B::Buffer,
        x: &B::Buffer,
        width: usize,
        step: &Self::Step,
        n: usize,
    ) {
        self.timed_in(None, "pool", Cost::default(), |backend| {
            backend.pool(out, x, width, &step.step, n);
        });
    }

    fn sample(
        &mut self,
        samples: &mut B::Buffer,
        logits: &mut B::Buffer,
        sampler: &mut B::Sampler,
        step: &Self::Step,
        n: usize,
    ) {
        self.timed_in(None, "sample", Cost::default(), |backend| {
            backend.sample(samples, logits, sampler, &step.step, n);
        });
    }

    fn add_rms_norm(
        &mut self,
        out: &mut B::Buffer,
        residual: &mut B::Buffer,
        x: &B::Buffer,
        weight: &Self::Weight,
        eps: f32,
        width: usize,
        n: usize,
    ) {
        self.timed_in(weight.layer, "add_rms_norm", weight.read(), |backend| {
            backend.add_rms_norm(out, residual, x, &weight.weight, eps, width, n);
        });
    }

    fn qk_norm_rope_store(
        &mut self,
        qkv: &mut B::Buffer,
        kv: &mut Self::Kv,
        step: &Self::Step,
        spec: QkvSpec<'_, Self::Weight>,
        n: usize,
    ) {
        let cost = kv.written(n);
        self.timed_in(Some(kv.layer), "qk_norm_rope_store", cost, |backend| {
            let spec = QkvSpec {
                group: spec.group,
                q: spec.q,
                k: spec.k,
                v: spec.v,
                norms: spec.norms.map(|(q, k)| (&q.weight, &k.weight)),
                eps: spec.eps,
                rope: rope_spec(spec.rope),
            };
            backend.qk_norm_rope_store(qkv, &mut kv.kv, &step.step, spec, n);
        });
    }

    fn mlp(
        &mut self,
        out: &mut B::Buffer,
        projected: &mut B::Buffer,
        activated: &mut B::Buffer,
        x: &B::Buffer,
        gate_up: &Self::Weight,
        down: &Self::Weight,
        activation: Activation,
        hidden: usize,
        n: usize,
    ) {
        let cost = gate_up.product(n) + down.product(n);
        self.timed_in(gate_up.layer, "mlp", cost, |backend| {
            let (gate_up, down) = (&gate_up.weight, &down.weight);
            backend.mlp(
                out, projected, activated, x, gate_up, down, activation, hidden, n,
            );
        });
    }
}
