//! The backend: each operation handed to the file that computes it.
//!
//! Must not know how anything is computed.

use fornax_backend::{
    Activation, AttentionSpec, Backend, BackendError, Element, ExpertsSpec, HeadLinearSpec, Heads,
    HostSampler, KvShape, KvType, QkvSpec, Queries, RopeSpec, RouteSpec, SAMPLE_WORDS,
    SampleParams, Sketched, StepCapacity, StepRows, StepShape,
};
use fornax_gguf::TensorView;

use crate::{
    attention::{self, Attention},
    cpu::Cpu,
    feed_forward::{self, Dense, Mixture},
    head_linear,
    kv::Kv,
    largest, product, projection,
    rope::{self, Turn},
    rows, select,
    sketch::Sketch,
    step::{Buffer, Step},
    store,
    weight::Weight,
};

impl Backend for Cpu {
    type Buffer = Buffer;
    type Weight = Weight;
    type Kv = Kv;
    type Step = Step;
    type Sampler = HostSampler;

    fn name(&self) -> String {
        let threads = self.cores.pool.threads();
        let s = if threads == 1 { "" } else { "s" };
        format!("cpu ({}, {threads} thread{s})", self.cores.isa)
    }

    fn upload(&mut self, parts: &[TensorView<'_>]) -> Result<Weight, BackendError> {
        Weight::upload(&mut self.cores.pool, &mut self.arena, parts)
    }

    fn sketch(&mut self, matrix: &mut Weight) -> Result<Option<Sketched>, BackendError> {
        if Sketch::pays(matrix.matrix(), self.sketched_from) {
            matrix.draw_sketch(&mut self.cores, &mut self.arena)?;
        }
        Ok(matrix.sketch().map(|sketch| Sketched {
            bytes: sketch.bytes(),
            rows: largest::rows(self.cores.isa),
        }))
    }

    fn alloc(&mut self, element: Element, len: usize) -> Result<Buffer, BackendError> {
        Buffer::new(element, len)
    }

    fn keeps(&self, _: KvType) -> bool {
        true
    }

    fn alloc_kv(&mut self, shape: &KvShape) -> Result<Kv, BackendError> {
        let mut layers = self.alloc_kv_layers(shape, 1)?;
        Ok(layers.remove(0))
    }

    fn alloc_kv_layers(&mut self, shape: &KvShape, layers: usize) -> Result<Vec<Kv>, BackendError> {
        let pool = self.commits_kv.then_some(&mut self.cores.pool);
        Kv::of_layers(shape, layers, pool)
    }

    fn alloc_step(&mut self, capacity: &StepCapacity) -> Result<Step, BackendError> {
        Ok(Step::new(capacity))
    }

    fn alloc_sampler(
        &mut self,
        slots: usize,
        vocabulary: usize,
    ) -> Result<HostSampler, BackendError> {
        Ok(HostSampler::new(slots, vocabulary))
    }

    fn write_f32(&mut self, buffer: &mut Buffer, values: &[f32]) {
        buffer.floats_mut(values.len()).copy_from_slice(values);
    }

    fn write_u32(&mut self, buffer: &mut Buffer, values: &[u32]) {
        buffer.indices_mut(values.len()).copy_from_slice(values);
    }

    fn read_f32(&mut self, buffer: &Buffer, out: &mut [f32]) -> Result<(), BackendError> {
        out.copy_from_slice(buffer.floats(out.len()));
        Ok(())
    }

    fn read_u32(&mut self, buffer: &Buffer, out: &mut [u32]) -> Result<(), BackendError> {
        out.copy_from_slice(buffer.indices(out.len()));
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
        step.write(rows);
        self.rope.start_step();
    }

    fn record(
        &mut self,
        _: &StepShape,
        operations: impl FnOnce(&mut Self),
    ) -> Result<(), BackendError> {
        operations(self);
        Ok(())
    }

    fn copy_kv(&mut self, kv: &mut Kv, source: u32, destination: u32, tokens: usize) {
        kv.copy(source as usize, destination as usize, tokens);
    }

    fn feed(&mut self, step: &mut Step, samples: &Buffer) {
        let Step {
            tokens, from_step, ..
        } = step;
        for &(index, sample) in from_step.iter() {
            let token = samples.indices((sample + 1) * SAMPLE_WORDS)[sample * SAMPLE_WORDS];
            tokens[index] = if token == u32::MAX { 0 } else { token };
        }
    }

    fn embed(&mut self, out: &mut Buffer, table: &Weight, scale: f32, step: &Step, n: usize) {
        let table = table.matrix();
        let out = out.floats_mut(n * table.cols);
        store::embed(&mut self.cores.pool, out, table, scale, &step.tokens[..n]);
    }

    fn rms_norm(&mut self, out: &mut Buffer, x: &Buffer, weight: &Weight, eps: f32, n: usize) {
        let weight = weight.vector();
        let (out, x) = (out.floats_mut(n * weight.len()), x.floats(n * weight.len()));
        rows::rms_norm(&mut self.cores, out, x, weight, eps, n);
    }

    fn head_norm(&mut self, x: &mut Buffer, heads: Heads, weight: &Weight, eps: f32, n: usize) {
        let turn = Turn {
            heads,
            norm: Some((weight.vector(), eps)),
            rotation: None,
        };
        rope::turn_heads(&mut self.cores, x.floats_mut(n * heads.stride), &[turn], n);
    }

    fn linear(
        &mut self,
        out: &mut Buffer,
        weight: &Weight,
        bias: Option<&Weight>,
        x: &Buffer,
        n: usize,
    ) {
        let matrix = weight.matrix();
        let tiles = self.fill_columns(matrix, x, n);
        product::multiply(
            &mut self.cores,
            out.floats_mut(n * matrix.rows),
            matrix,
            bias.map(Weight::vector),
            &self.columns,
            &[(0, tiles)],
        );
    }

    fn project_for_outputs(
        &mut self,
        out: &mut Buffer,
        weight: &Weight,
        bias: Option<&Weight>,
        x: &Buffer,
        queries: usize,
        step: &Step,
        n: usize,
    ) {
        let matrix = weight.matrix();
        let tiles = self.fill_columns(matrix, x, n);
        projection::project(
            &mut self.cores,
            &mut self.projection,
            out.floats_mut(n * matrix.rows),
            matrix,
            bias.map(Weight::vector),
            (&self.columns, tiles),
            (queries, &step.attending),
        );
    }

    fn largest(&mut self, out: &mut Buffer, weight: &Weight, x: &Buffer, largest: usize, n: usize) {
        let matrix = weight.matrix();
        match weight.sketch() {
            Some(sketch) if n <= largest::rows(self.cores.isa) => largest::largest(
                &mut self.cores,
                &mut self.largest,
                &mut self.columns,
                out.floats_mut(n * matrix.rows),
                (matrix, sketch),
                x.floats(n * matrix.cols),
                largest,
            ),
            _ => self.linear(out, weight, None, x, n),
        }
    }

    fn head_linear(
        &mut self,
        out: &mut Buffer,
        weight: &Weight,
        x: &Buffer,
        spec: HeadLinearSpec,
        n: usize,
    ) {
        let out = out.floats_mut(n * spec.heads * (spec.passed + spec.outputs));
        let x = x.floats(n * spec.heads * (spec.passed + spec.inputs));
        head_linear::head_linear(
            &mut self.cores,
            &mut self.head_linear,
            &mut self.columns,
            out,
            x,
            weight.matrix(),
            spec,
        );
    }

    fn rope(
        &mut self,
        x: &mut Buffer,
        heads: Heads,
        step: &Step,
        spec: RopeSpec<'_, Weight>,
        n: usize,
    ) {
        let x = x.floats_mut(n * heads.stride);
        let rotation = self
            .rope
            .rotation(&mut self.cores.pool, &spec, &step.positions);
        let turn = Turn {
            heads,
            norm: None,
            rotation: Some(rotation),
        };
        rope::turn_heads(&mut self.cores, x, &[turn], n);
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
        let x = x.floats(n * k.stride);
        store::store_kv(&mut self.cores, kv, x, (k, v), group, step);
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
        let shape = kv.shape();
        let dims = (spec.q.dim, spec.v_dim, spec.kv_heads);
        assert_eq!(
            dims,
            (shape.k_dim, shape.v_dim, shape.kv_heads),
            "attention: heads"
        );
        assert_eq!(n, step.tokens.len(), "attention: tokens of the step");
        let out = out.floats_mut(n * spec.q.count * spec.v_dim);
        let q = q.floats(n * spec.q.stride);
        let tables = &step.tables[spec.group];
        let rows = match spec.queries {
            Queries::All => &step.rows,
            Queries::Outputs => &step.attending,
        };
        let work = Attention {
            spec,
            q,
            kv,
            rows,
            tables,
        };
        attention::attention(&mut self.cores, &mut self.attention, out, &work);
    }

    fn glu(
        &mut self,
        out: &mut Buffer,
        gate_up: &Buffer,
        activation: Activation,
        width: usize,
        n: usize,
    ) {
        let (out, gate_up) = (out.floats_mut(n * width), gate_up.floats(2 * n * width));
        feed_forward::glu(&mut self.cores, out, gate_up, activation, width, n);
    }

    fn add(&mut self, out: &mut Buffer, x: &Buffer, width: usize, n: usize) {
        let (out, x) = (out.floats_mut(n * width), x.floats(n * width));
        rows::add(&mut self.cores, out, x, width, n);
    }

    fn add_gated(&mut self, out: &mut Buffer, x: &Buffer, gate: &Buffer, width: usize, n: usize) {
        let (out, x) = (out.floats_mut(n * width), x.floats(n * width));
        feed_forward::add_gated(&mut self.cores, out, x, gate.floats(n), width);
    }

    fn route(
        &mut self,
        ids: &mut Buffer,
        weights: &mut Buffer,
        logits: &Buffer,
        spec: RouteSpec<'_, Weight>,
        n: usize,
    ) {
        let logits = logits.floats(n * spec.experts);
        let (ids, weights) = (
            ids.indices_mut(n * spec.used),
            weights.floats_mut(n * spec.used),
        );
        select::route(&mut self.select, ids, weights, logits, &spec);
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
        let mixture = Mixture {
            x: x.floats(n * spec.width),
            ids: ids.indices(n * spec.used),
            weights: weights.floats(n * spec.used),
            gate_up: gate_up.matrix(),
            down: down.matrix(),
            biases: spec
                .biases
                .map(|biases| (biases.gate_up.vector(), biases.down.vector())),
            spec,
            n,
        };
        let (scratch, out) = (&mut self.feed_forward, out.floats_mut(n * spec.width));
        feed_forward::experts(&mut self.cores, scratch, &mut self.columns, out, &mixture);
    }

    fn gather(&mut self, out: &mut Buffer, x: &Buffer, width: usize, step: &Step, n: usize) {
        let (out, x) = (
            out.floats_mut(n * width),
            x.floats(step.tokens.len() * width),
        );
        select::gather(out, x, width, &step.outputs[..n]);
    }

    fn pool(&mut self, out: &mut Buffer, x: &Buffer, width: usize, step: &Step, n: usize) {
        let (out, x) = (
            out.floats_mut(n * width),
            x.floats(step.tokens.len() * width),
        );
        select::pool(out, x, width, &step.rows, &step.pooled[..n]);
    }

    fn sample(
        &mut self,
        samples: &mut Buffer,
        logits: &mut Buffer,
        sampler: &mut HostSampler,
        step: &Step,
        n: usize,
    ) {
        let logits = logits.floats_mut(n * sampler.vocabulary());
        let words = samples.indices_mut(n * SAMPLE_WORDS);
        let scratch = &mut self.select;
        let rows = &step.samples[..n];
        select::sample(&mut self.cores, scratch, words, logits, sampler, rows);
    }

    fn add_rms_norm(
        &mut self,
        out: &mut Buffer,
        residual: &mut Buffer,
        x: &Buffer,
        weight: &Weight,
        eps: f32,
        width: usize,
        n: usize,
    ) {
        let weight = weight.vector();
        assert_eq!(weight.len(), width, "add_rms_norm: width");
        let (out, residual) = (out.floats_mut(n * width), residual.floats_mut(n * width));
        let x = x.floats(n * width);
        rows::add_rms_norm(&mut self.cores, out, residual, x, weight, eps, n);
    }

    fn qk_norm_rope_store(
        &mut self,
        qkv: &mut Buffer,
        kv: &mut Kv,
        step: &Step,
        spec: QkvSpec<'_, Weight>,
        n: usize,
    ) {
        let qkv = qkv.floats_mut(n * spec.q.stride);
        let rope = &mut self.rope;
        let rotation = Some(rope.rotation(&mut self.cores.pool, &spec.rope, &step.positions));
        let norms = spec
            .norms
            .map(|(q, k)| ((q.vector(), spec.eps), (k.vector(), spec.eps)));
        let (q_norm, k_norm) = norms.unzip();
        let turns = [
            Turn {
                heads: spec.q,
                norm: q_norm,
                rotation,
            },
            Turn {
                heads: spec.k,
                norm: k_norm,
                rotation,
            },
        ];
        let heads = (spec.k, spec.v);
        store::turn_and_store(&mut self.cores, kv, qkv, &turns, heads, spec.group, step);
    }

    fn mlp(
        &mut self,
        out: &mut Buffer,
        projected: &mut Buffer,
        activated: &mut Buffer,
        x: &Buffer,
        gate_up: &Weight,
        down: &Weight,
        activation: Activation,
        hidden: usize,
        n: usize,
    ) {
        let (matrix, down_matrix) = (gate_up.matrix(), down.matrix());
        let Some((gate, up)) = feed_forward::gate_and_up(matrix) else {
            self.linear(projected, gate_up, None, x, n);
            self.glu(activated, projected, activation, hidden, n);
            self.linear(out, down, None, activated, n);
            return;
        };
        feed_forward::mlp(
            &mut self.cores,
            (&mut self.columns, &mut self.hidden_columns),
            out.floats_mut(n * down_matrix.rows),
            activated.floats_mut(n * hidden),
            x.floats(n * matrix.cols),
            &Dense {
                gate,
                up,
                down: down_matrix,
                activation,
            },
        );
    }
}
