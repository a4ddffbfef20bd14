//! Each operation of the trait, put on the list with its addresses and sizes.
//!
//! Must not know how anything is computed, nor what is done together.

use fornax_backend::{
    Activation, AttentionSpec, Backend, BackendError, Element, ExpertsSpec, HeadLinearSpec, Heads,
    KvShape, KvType, QkvSpec, Reading, RopeSpec, RouteSpec, SAMPLE_WORDS, SampleParams, Sketched,
    StepCapacity, StepRows, StepShape,
};
use fornax_gguf::TensorView;

use super::{Cuda, graphs::Kind};
use crate::head::Head;
use crate::operation::{Attend, Experts, Linear, Norm, Operation, Sampling, Turn, style_number};
use crate::options::LargeProducts;
use crate::plan::{self, Shop};
use crate::step::{Buffer, Kv, Step};
use crate::{kernels::Module, launch::Launch, sampler::Sampler, sketch::Sketch, weight::Weight};

impl Backend for Cuda {
    type Buffer = Buffer;
    type Weight = Weight;
    type Kv = Kv;
    type Step = Step;
    type Sampler = Sampler;

    fn name(&self) -> String {
        let device = self.device();
        format!("cuda ({}, {})", device.name(), device.architecture())
    }

    fn upload(&mut self, parts: &[TensorView<'_>]) -> Result<Weight, BackendError> {
        self.bring(parts)
    }

    fn sketch(&mut self, matrix: &mut Weight) -> Result<Option<Sketched>, BackendError> {
        // What is sketched is the head, which many tokens meet in a kernel of its own.
        let copies = self.large_products() == LargeProducts::Copied;
        let Shop {
            device, kernels, ..
        } = &mut self.shop;
        if copies && let Some((head, tiles)) = Head::of(device, kernels, matrix.matrix())? {
            matrix.keep_head(head, tiles);
        }
        let Some(sketch) = Sketch::of(device, kernels, matrix.matrix())? else {
            return Ok(None);
        };
        let bytes = sketch.bytes() as u64;
        matrix.keep_sketch(sketch);
        Ok(Some(Sketched { bytes, rows: 1 }))
    }

    fn alloc(&mut self, element: Element, len: usize) -> Result<Buffer, BackendError> {
        Buffer::new(self.device(), element, len)
    }

    fn keeps(&self, _element: KvType) -> bool {
        true
    }

    fn alloc_kv(&mut self, shape: &KvShape) -> Result<Kv, BackendError> {
        Kv::new(self.device(), shape)
    }

    fn alloc_step(&mut self, capacity: &StepCapacity) -> Result<Step, BackendError> {
        Step::new(self.device(), capacity)
    }

    fn alloc_sampler(&mut self, slots: usize, vocabulary: usize) -> Result<Sampler, BackendError> {
        Sampler::new(self.device(), slots, vocabulary)
    }

    fn write_f32(&mut self, buffer: &mut Buffer, values: &[f32]) {
        buffer.floats(values.len());
        let done = self.carry(Vec::new());
        let done = done.and_then(|()| buffer.memory.write(0, values));
        self.note(done);
    }

    fn write_u32(&mut self, buffer: &mut Buffer, values: &[u32]) {
        buffer.indices(values.len());
        let done = self.carry(Vec::new());
        let done = done.and_then(|()| buffer.memory.write(0, values));
        self.note(done);
    }

    fn read_f32(&mut self, buffer: &Buffer, out: &mut [f32]) -> Result<(), BackendError> {
        self.told()?;
        buffer.floats(out.len());
        buffer.memory.read(out)
    }

    fn read_u32(&mut self, buffer: &Buffer, out: &mut [u32]) -> Result<(), BackendError> {
        self.told()?;
        buffer.indices(out.len());
        buffer.memory.read(out)
    }

    fn runs_behind(&self) -> bool {
        true
    }

    fn begin_read_u32(&mut self, buffer: &Buffer, len: usize) -> Result<Reading, BackendError> {
        self.told()?;
        let place = self.next_readback;
        self.next_readback = (place + 1) % self.readbacks.len();
        let from = buffer.indices(len);
        // The one before it, which no step came behind.
        self.carry(Vec::new())?;
        self.readbacks[place].ask(from, len)?;
        Ok(Reading::UnderWay { place, len })
    }

    fn end_read_u32(&mut self, reading: Reading) -> Result<Vec<u32>, BackendError> {
        match reading {
            Reading::Done(values) => Ok(values),
            Reading::UnderWay { place, len } => {
                if self.readbacks[place].asked().is_some() {
                    self.carry(Vec::new())?;
                }
                self.readbacks[place].end(len)
            }
        }
    }

    fn admit(
        &mut self,
        sampler: &mut Sampler,
        slot: usize,
        params: &SampleParams,
        tokens: &[u32],
        prompt: usize,
    ) {
        let Shop {
            device, kernels, ..
        } = &mut self.shop;
        let done = sampler.admit(device, kernels, slot, params, tokens, prompt);
        self.note(done);
    }

    fn prepare(&mut self, step: &mut Step, rows: &StepRows) {
        let done = self.carry(step.write(rows));
        self.note(done);
        let cached = rows.rows.iter().map(|row| row.cached);
        self.seen = cached.max().unwrap_or(0);
    }

    fn bucket(&self, step: &Step, shape: &StepShape) -> StepShape {
        step.bucket(shape)
    }

    fn record(
        &mut self,
        shape: &StepShape,
        operations: impl FnOnce(&mut Self),
    ) -> Result<(), BackendError> {
        self.told()?;
        self.carry(Vec::new())?;
        // All weights have come.
        self.loading.upload = None;
        self.settle()?;
        self.device().bind();
        let kind = Kind {
            shape: *shape,
            in_turn: plan::takes_turns(shape, self.seen),
        };
        if self.graphs.replay(&self.shop, kind)? {
            return Ok(());
        }
        self.recording = Some(Vec::new());
        operations(self);
        let listed = self
            .recording
            .take()
            .expect("invariant: nothing ends a record but this");
        self.told()?;
        let actions = plan::plan(&mut self.shop, listed, kind.in_turn)?;
        self.graphs.capture(&mut self.shop, kind, actions)
    }

    fn copy_kv(&mut self, kv: &mut Kv, source: u32, destination: u32, tokens: usize) {
        self.copy_page(kv, source, destination, tokens);
    }

    fn feed(&mut self, step: &mut Step, samples: &Buffer) {
        let (tokens, samples, n) = (step.tokens(), samples.indices(0), step.shape.tokens);
        self.push(Operation::Feed { tokens, samples, n });
    }

    fn embed(&mut self, out: &mut Buffer, table: &Weight, scale: f32, step: &Step, n: usize) {
        let table = table.matrix().clone();
        let out = out.floats(n * table.cols);
        self.push(Operation::Embed {
            out,
            table,
            scale,
            tokens: step.tokens(),
            n,
        });
    }

    fn rms_norm(&mut self, out: &mut Buffer, x: &Buffer, weight: &Weight, eps: f32, n: usize) {
        let width = weight.len();
        let norm = Norm {
            out: out.floats(n * width),
            residual: None,
            x: x.floats(n * width),
            weight: weight.vector(width),
            eps,
            width,
            n,
        };
        self.push(Operation::Norm(norm));
    }

    fn head_norm(&mut self, x: &mut Buffer, heads: Heads, weight: &Weight, eps: f32, n: usize) {
        let x = x.floats(n * heads.stride);
        let weight = weight.vector(heads.dim);
        let grid = [(n * heads.count).div_ceil(4), 1, 1];
        self.launch(Module::Rows, "head_norm", grid, 128, |launch| {
            heads_of(launch.wide(x), heads)
                .wide(weight)
                .float(eps)
                .number(n)
        });
    }

    fn linear(
        &mut self,
        out: &mut Buffer,
        weight: &Weight,
        bias: Option<&Weight>,
        x: &Buffer,
        n: usize,
    ) {
        let matrix = weight.matrix().clone();
        let linear = Linear {
            out: out.floats(n * matrix.rows),
            bias: bias.map(|bias| bias.vector(matrix.rows)),
            x: x.floats(n * matrix.cols),
            matrix,
            sketch: None,
            n,
        };
        self.push(Operation::Linear(linear));
    }

    fn largest(&mut self, out: &mut Buffer, weight: &Weight, x: &Buffer, largest: usize, n: usize) {
        let matrix = weight.matrix().clone();
        let sketch = weight.sketch().filter(|_| largest == 1);
        let linear = Linear {
            out: out.floats(n * matrix.rows),
            bias: None,
            x: x.floats(n * matrix.cols),
            matrix,
            sketch: sketch.map(|sketch| sketch.layout().clone()),
            n,
        };
        self.push(Operation::Linear(linear));
    }

    fn head_linear(
        &mut self,
        out: &mut Buffer,
        weight: &Weight,
        x: &Buffer,
        spec: HeadLinearSpec,
        n: usize,
    ) {
        let HeadLinearSpec {
            heads,
            passed,
            inputs,
            outputs,
        } = spec;
        let matrix = weight.matrix();
        let shape = (matrix.rows, matrix.cols, matrix.parts.len());
        assert_eq!(shape, (outputs, inputs, 1), "head_linear: weight");
        let part = matrix.parts[0].clone();
        let padded = matrix.padded();
        let out = out.floats(n * heads * (passed + outputs));
        let x = x.floats(n * heads * (passed + inputs));
        let grid = [outputs.div_ceil(8), n * heads, 1];
        self.launch(
            Module::Product(part.format),
            "head_linear",
            grid,
            256,
            |launch| {
                let launch = launch
                    .wide(out)
                    .wide(part.pointer)
                    .wide((part.rows * part.pitch) as u64);
                let launch = launch.wide(part.pitch as u64).number(padded).wide(x);
                launch
                    .number(heads)
                    .number(passed)
                    .number(inputs)
                    .number(outputs)
            },
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
        let x = x.floats(n * heads.stride);
        let frequencies = spec.frequencies.vector(spec.rotary / 2);
        let tokens = step.tokens();
        let grid = [(n * heads.count).div_ceil(4), 1, 1];
        self.launch(Module::Rows, "rope", grid, 128, |launch| {
            let launch = heads_of(launch.wide(x), heads)
                .wide(frequencies)
                .number(spec.rotary);
            let launch = launch
                .number(style_number(spec.style) as usize)
                .float(spec.magnitude);
            launch.wide(tokens).number(n)
        });
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
        self.store(kv, x, [k, v], group, step, n);
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
        let dims = (spec.q.dim, spec.v_dim, spec.kv_heads);
        let shape = (kv.shape.k_dim, kv.shape.v_dim, kv.shape.kv_heads);
        assert_eq!(dims, shape, "attention: heads");
        assert_eq!(
            kv.shape.page_size,
            step.page_size(spec.group),
            "attention: pages"
        );
        assert!(
            spec.q.dim.max(spec.v_dim) <= 640,
            "attention: heads of up to 640 elements"
        );
        let out = out.floats(n * spec.q.count * spec.v_dim);
        let q = q.floats(n * spec.q.stride);
        self.push(Operation::Attend(Attend::new(out, q, kv, step, &spec, n)));
    }

    fn glu(
        &mut self,
        out: &mut Buffer,
        gate_up: &Buffer,
        activation: Activation,
        width: usize,
        n: usize,
    ) {
        let (out, gate_up) = (out.floats(n * width), gate_up.floats(2 * n * width));
        self.push(Operation::Glu {
            out,
            gate_up,
            activation,
            width,
            n,
        });
    }

    fn add(&mut self, out: &mut Buffer, x: &Buffer, width: usize, n: usize) {
        let (out, x, count) = (out.floats(n * width), x.floats(n * width), n * width);
        let grid = [count.div_ceil(256).min(4096), 1, 1];
        self.launch(Module::Rows, "add", grid, 256, |launch| {
            launch.wide(out).wide(x).wide(count as u64)
        });
    }

    fn add_gated(&mut self, out: &mut Buffer, x: &Buffer, gate: &Buffer, width: usize, n: usize) {
        let (out, x, gate) = (out.floats(n * width), x.floats(n * width), gate.floats(n));
        self.launch(Module::Rows, "add_gated", [n, 1, 1], 256, |launch| {
            launch.wide(out).wide(x).wide(gate).number(width)
        });
    }

    fn route(
        &mut self,
        ids: &mut Buffer,
        weights: &mut Buffer,
        logits: &Buffer,
        spec: RouteSpec<'_, Weight>,
        n: usize,
    ) {
        self.choose(ids, weights, logits, &spec, n);
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
        let ExpertsSpec {
            experts,
            used,
            width,
            hidden,
            activation,
            biases,
        } = spec;
        let (gate_up, down) = (gate_up.matrix().clone(), down.matrix().clone());
        assert_eq!(
            (gate_up.rows, gate_up.cols),
            (2 * hidden, width),
            "experts: gate_up"
        );
        assert_eq!((down.rows, down.cols), (width, hidden), "experts: down");
        let of_experts = |bias: &Weight, rows: usize| bias.vector(experts * rows);
        let operation = Experts {
            out: out.floats(n * width),
            x: x.floats(n * width),
            ids: ids.indices(n * used),
            weights: weights.floats(n * used),
            gate_up,
            down,
            biases: biases.map(|biases| {
                (
                    of_experts(biases.gate_up, 2 * hidden),
                    of_experts(biases.down, width),
                )
            }),
            used,
            activation,
            n,
        };
        self.push(Operation::Experts(operation));
    }

    fn gather(&mut self, out: &mut Buffer, x: &Buffer, width: usize, step: &Step, n: usize) {
        let (out, x) = (out.floats(n * width), x.floats(0));
        self.push(Operation::Gather {
            out,
            x,
            width,
            outputs: step.outputs(),
            n,
        });
    }

    fn pool(&mut self, out: &mut Buffer, x: &Buffer, width: usize, step: &Step, n: usize) {
        let (out, x) = (out.floats(n * width), x.floats(step.shape.tokens * width));
        let (rows, pooled) = (step.rows(), step.pooled());
        self.launch(Module::Rows, "pool", [n, 1, 1], 256, |launch| {
            launch
                .wide(out)
                .wide(x)
                .number(width)
                .wide(rows)
                .wide(pooled)
        });
    }

    fn sample(
        &mut self,
        samples: &mut Buffer,
        logits: &mut Buffer,
        sampler: &mut Sampler,
        step: &Step,
        n: usize,
    ) {
        let samples = samples.indices(n * SAMPLE_WORDS);
        let logits = logits.floats(n * sampler.vocabulary());
        self.push(Operation::Sample(Sampling::new(
            samples, logits, sampler, step, n,
        )));
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
        let norm = Norm {
            out: out.floats(n * width),
            residual: Some(residual.floats(n * width)),
            x: x.floats(n * width),
            weight: weight.vector(width),
            eps,
            width,
            n,
        };
        self.push(Operation::Norm(norm));
    }

    fn qk_norm_rope_store(
        &mut self,
        qkv: &mut Buffer,
        kv: &mut Kv,
        step: &Step,
        spec: QkvSpec<'_, Weight>,
        n: usize,
    ) {
        let qkv = qkv.floats(n * spec.q.stride);
        self.push(Operation::Turn(Turn::new(qkv, kv, step, &spec, n)));
    }
}

/// Which columns heads are, as kernels take them.
fn heads_of(launch: Launch, heads: Heads) -> Launch {
    launch
        .number(heads.stride)
        .number(heads.offset)
        .number(heads.count)
        .number(heads.dim)
}
