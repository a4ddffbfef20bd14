//! The trait every backend implements, and the fused operations as compositions of simple ones.
//!
//! Order of a step: [`prepare`](Backend::prepare) writes everything that changes, then one
//! [`record`](Backend::record) runs the operations. Inside its closure operations read device
//! memory only — no host value, no read-back, no branch on a value — so that a backend may
//! capture the closure once per [`StepShape`] and replay it. Outside of it an operation runs at
//! once, in order with all the others.
//!
//! Matrices are row-major; `n` is always the number of leading rows that take part, and nothing
//! behind them is written. What lies behind the rows read, or in a page behind the tokens of a
//! sequence, may be NaN and must not reach a result. Each operation asserts its shapes and
//! returns nothing: a device error surfaces at [`record`](Backend::record) or at the next read,
//! with the operation's name.

use fornax_gguf::TensorView;

use crate::{
    Activation, AttentionSpec, ExpertsSpec, HeadLinearSpec, Heads, KvShape, KvType, QkvSpec,
    RopeSpec, RouteSpec, SampleParams, StepCapacity, StepRows, StepShape,
};

/// What went wrong on a device: what, where and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct BackendError(pub String);

/// What a [`Backend::Buffer`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Activations and logits, in the precision the backend computes in (`f32` to the host).
    F32,
    /// Indices.
    U32,
}

/// A read that was begun.
#[derive(Debug)]
pub enum Reading {
    /// It has ended already.
    Done(Vec<u32>),
    /// It goes on while the host does something else.
    UnderWay {
        /// Which of the backend's places it goes to.
        place: usize,
        /// How many elements it brings.
        len: usize,
    },
}

/// What [`Backend::largest`] reads of a matrix that has a sketch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sketched {
    /// Bytes of the sketch, which are read in place of the matrix, and beside it what of that can matter.
    pub bytes: u64,
    /// For so many rows at a time, at most; more read the matrix.
    pub rows: usize,
}

/// LLM-sized operations on device memory.
pub trait Backend: Send {
    /// Activations or indices on the device.
    type Buffer: Send;
    /// A matrix, a vector or a stack of experts on the device, in whatever layout suits it.
    type Weight: Send;
    /// The KV pages of one layer.
    type Kv: Send;
    /// What [`prepare`](Self::prepare) writes and operations read: tokens, positions, page tables.
    type Step: Send;
    /// Sampling parameters and token counts of every slot.
    type Sampler: Send;

    /// What `--backend` calls it, with the instruction set or device in brackets.
    fn name(&self) -> String;

    // ── Memory ──────────────────────────────────────────────────────────────────────────────

    /// Brings a weight to the device. Several parts are joined along their output dimension
    /// (Q, K and V; gate and up; in a stack of experts each expert by itself) and must agree in
    /// every other one; their block formats may differ. Shapes: `[out, in]`, `[width]` or
    /// `[experts, out, in]`.
    ///
    /// # Errors
    /// Memory ran out, or a block format that the backend cannot multiply.
    fn upload(&mut self, parts: &[TensorView<'_>]) -> Result<Self::Weight, BackendError>;

    /// Lets the backend keep beside a matrix what [`largest`](Self::largest) then reads in place of most
    /// of it, and says what that is; `None` where it goes on to read the matrix.
    ///
    /// # Errors
    /// Memory ran out.
    fn sketch(&mut self, _matrix: &mut Self::Weight) -> Result<Option<Sketched>, BackendError> {
        Ok(None)
    }

    /// Makes a buffer of `len` elements; what it holds at first is undefined.
    ///
    /// # Errors
    /// Memory ran out.
    fn alloc(&mut self, element: Element, len: usize) -> Result<Self::Buffer, BackendError>;

    /// Whether the cache can be kept in this type.
    fn keeps(&self, element: KvType) -> bool {
        element != KvType::Q8_0
    }

    /// Makes one layer's pages.
    ///
    /// # Errors
    /// Memory ran out, or a type that the backend does not keep or that does not fit the heads.
    fn alloc_kv(&mut self, shape: &KvShape) -> Result<Self::Kv, BackendError>;

    /// Makes the pages of layers that fill up together: a page of one holds the same tokens as that of
    /// all others, so a backend may lay them side by side.
    ///
    /// # Errors
    /// As [`alloc_kv`](Self::alloc_kv).
    fn alloc_kv_layers(
        &mut self,
        shape: &KvShape,
        layers: usize,
    ) -> Result<Vec<Self::Kv>, BackendError> {
        (0..layers).map(|_| self.alloc_kv(shape)).collect()
    }

    /// Makes room for steps up to `capacity`.
    ///
    /// # Errors
    /// Memory ran out.
    fn alloc_step(&mut self, capacity: &StepCapacity) -> Result<Self::Step, BackendError>;

    /// Makes sampler state for `slots` sequences over `vocabulary` tokens.
    ///
    /// # Errors
    /// Memory ran out.
    fn alloc_sampler(
        &mut self,
        slots: usize,
        vocabulary: usize,
    ) -> Result<Self::Sampler, BackendError>;

    /// Writes the first elements of an [`Element::F32`] buffer from the host.
    fn write_f32(&mut self, buffer: &mut Self::Buffer, values: &[f32]);

    /// Writes the first elements of an [`Element::U32`] buffer from the host.
    fn write_u32(&mut self, buffer: &mut Self::Buffer, values: &[u32]);

    /// Reads the first elements of an [`Element::F32`] buffer, after all that was recorded.
    ///
    /// # Errors
    /// An operation before it failed on the device.
    fn read_f32(&mut self, buffer: &Self::Buffer, out: &mut [f32]) -> Result<(), BackendError>;

    /// Reads the first elements of an [`Element::U32`] buffer, after all that was recorded.
    ///
    /// # Errors
    /// An operation before it failed on the device.
    fn read_u32(&mut self, buffer: &Self::Buffer, out: &mut [u32]) -> Result<(), BackendError>;

    /// Whether steps run while the host prepares the next: [`begin_read_u32`](Self::begin_read_u32)
    /// does not wait for them. Two at most are under way at once.
    fn runs_behind(&self) -> bool {
        false
    }

    /// Begins to read the first `len` elements of an [`Element::U32`] buffer as all that was
    /// recorded so far leaves them, whatever is recorded behind. The buffer must be there until the
    /// read has ended.
    ///
    /// # Errors
    /// An operation before it failed on the device.
    fn begin_read_u32(
        &mut self,
        buffer: &Self::Buffer,
        len: usize,
    ) -> Result<Reading, BackendError> {
        let mut values = vec![0; len];
        self.read_u32(buffer, &mut values)?;
        Ok(Reading::Done(values))
    }

    /// Waits for a read; those under way are waited for in the order in which they began.
    ///
    /// # Errors
    /// An operation before it failed on the device.
    fn end_read_u32(&mut self, reading: Reading) -> Result<Vec<u32>, BackendError> {
        match reading {
            Reading::Done(values) => Ok(values),
            Reading::UnderWay { .. } => panic!("a read of another backend"),
        }
    }

    // ── One step ────────────────────────────────────────────────────────────────────────────

    /// A sequence takes a slot: its parameters, and `tokens` so far of which `prompt` are prompt.
    /// Afterwards every sampled token counts itself.
    fn admit(
        &mut self,
        sampler: &mut Self::Sampler,
        slot: usize,
        params: &SampleParams,
        tokens: &[u32],
        prompt: usize,
    );

    /// Writes all that the step's operations read. Panics where the rows do not fit the step
    /// ([`StepRows::check`]).
    fn prepare(&mut self, step: &mut Self::Step, rows: &StepRows);

    /// The shape that a prepared step is recorded with: `shape` itself, or a larger one that serves
    /// several, whose rows behind those of `shape` compute nothing that counts.
    fn bucket(&self, _step: &Self::Step, shape: &StepShape) -> StepShape {
        *shape
    }

    /// Runs the operations of a step, or replays those recorded for the same shape: equal shapes
    /// mean equal operations on the same buffers. Allocating, uploading, writing, reading,
    /// [`admit`](Self::admit), [`prepare`](Self::prepare) and [`copy_kv`](Self::copy_kv) stay
    /// outside of the closure. A backend may do operations together: what one of them hands to the
    /// next in a buffer is undefined afterwards.
    ///
    /// # Errors
    /// An operation could not be started.
    fn record(
        &mut self,
        shape: &StepShape,
        operations: impl FnOnce(&mut Self),
    ) -> Result<(), BackendError>;

    // ── Operations ──────────────────────────────────────────────────────────────────────────

    /// Copies the first `tokens` tokens of page `source` to page `destination`. Comes before
    /// [`record`](Self::record), for its pages change from step to step.
    fn copy_kv(&mut self, kv: &mut Self::Kv, source: u32, destination: u32, tokens: usize);

    /// Puts the tokens that only the device knows into the step: those of
    /// [`StepRows::from_step`], out of `samples` `[samples, SAMPLE_WORDS]` of the step before.
    /// Where that step had nothing to draw from, token 0 stands in and the row's results are
    /// worthless.
    fn feed(&mut self, step: &mut Self::Step, samples: &Self::Buffer);

    /// `out[t] = scale * table[token t]`. `table` is `[vocabulary, width]`, `out` `[n, width]`.
    fn embed(
        &mut self,
        out: &mut Self::Buffer,
        table: &Self::Weight,
        scale: f32,
        step: &Self::Step,
        n: usize,
    );

    /// `out = x / sqrt(mean(x²) + eps) * weight` for each row (Zhang & Sennrich 2019,
    /// arXiv:1910.07467). `x` and `out` are `[n, width]`, `weight` `[width]`.
    fn rms_norm(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Weight,
        eps: f32,
        n: usize,
    );

    /// RMS norm of every head by itself, in place. `weight` is `[heads.dim]`.
    fn head_norm(
        &mut self,
        x: &mut Self::Buffer,
        heads: Heads,
        weight: &Self::Weight,
        eps: f32,
        n: usize,
    );

    /// `out = x · weightᵀ + bias`. `weight` is `[out, in]`, `x` `[n, in]`, `out` `[n, out]`.
    fn linear(
        &mut self,
        out: &mut Self::Buffer,
        weight: &Self::Weight,
        bias: Option<&Self::Weight>,
        x: &Self::Buffer,
        n: usize,
    );

    /// As [`linear`](Self::linear), of a fused projection whose first `queries` outputs nobody needs but of
    /// the tokens of [`StepRows::outputs`]: of all others these are undefined.
    #[allow(clippy::too_many_arguments)]
    fn project_for_outputs(
        &mut self,
        out: &mut Self::Buffer,
        weight: &Self::Weight,
        bias: Option<&Self::Weight>,
        x: &Self::Buffer,
        _queries: usize,
        _step: &Self::Step,
        n: usize,
    ) {
        self.linear(out, weight, bias, x, n);
    }

    /// The `largest` largest outputs of each row of `x · weightᵀ`, exactly as [`linear`](Self::linear)
    /// computes them, at their places in `out`. All others are finite and less than these, if these are
    /// finite, and otherwise undefined. Shapes are those of `linear`.
    fn largest(
        &mut self,
        out: &mut Self::Buffer,
        weight: &Self::Weight,
        x: &Self::Buffer,
        _largest: usize,
        n: usize,
    ) {
        self.linear(out, weight, None, x, n);
    }

    /// `out[h] = [x[h][..passed], weight[h] · x[h][passed..]]` for each head `h`. `weight` is
    /// `[heads, outputs, inputs]`, `x` `[n, heads * (passed + inputs)]` and `out`
    /// `[n, heads * (passed + outputs)]`.
    fn head_linear(
        &mut self,
        out: &mut Self::Buffer,
        weight: &Self::Weight,
        x: &Self::Buffer,
        spec: HeadLinearSpec,
        n: usize,
    );

    /// Turns the heads of each token by its position, in place: by `position * frequency` radians,
    /// a product rounded to `f32` as models are trained with.
    fn rope(
        &mut self,
        x: &mut Self::Buffer,
        heads: Heads,
        step: &Self::Step,
        spec: RopeSpec<'_, Self::Weight>,
        n: usize,
    );

    /// Writes K and V of the new tokens to their places in the pages of `group`. Columns of K and
    /// V may overlap: multi-head latent attention has its V inside of its K.
    #[allow(clippy::too_many_arguments)]
    fn store_kv(
        &mut self,
        kv: &mut Self::Kv,
        x: &Self::Buffer,
        k: Heads,
        v: Heads,
        group: usize,
        step: &Self::Step,
        n: usize,
    );

    /// Each new token's query, or those that `spec` names, over the keys and values its sequence has up to
    /// it.
    /// `out` is `[n, spec.q.count * spec.v_dim]`.
    fn attention(
        &mut self,
        out: &mut Self::Buffer,
        q: &Self::Buffer,
        kv: &Self::Kv,
        step: &Self::Step,
        spec: AttentionSpec<'_, Self::Weight>,
        n: usize,
    );

    /// `out = activation(gate) * up`. `gate_up` is `[n, 2 * width]`, gate first; `out` `[n, width]`.
    fn glu(
        &mut self,
        out: &mut Self::Buffer,
        gate_up: &Self::Buffer,
        activation: Activation,
        width: usize,
        n: usize,
    );

    /// `out += x`, both `[n, width]`.
    fn add(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, width: usize, n: usize);

    /// `out[t] += sigmoid(gate[t]) * x[t]`. `x` and `out` are `[n, width]`, `gate` `[n]`.
    fn add_gated(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        gate: &Self::Buffer,
        width: usize,
        n: usize,
    );

    /// Chooses experts by `logits` `[n, experts]`: their ids to `ids` and their weights to
    /// `weights`, both `[n, used]`, highest (biased) score first, ties by lower id. Experts of a
    /// closed group are never chosen.
    fn route(
        &mut self,
        ids: &mut Self::Buffer,
        weights: &mut Self::Buffer,
        logits: &Self::Buffer,
        spec: RouteSpec<'_, Self::Weight>,
        n: usize,
    );

    /// Each token's weighted sum over its experts of `down(glu(gate_up(x)))`, with biases where
    /// the spec has them. `gate_up` is `[experts, 2 * hidden, width]`, `down` `[experts, width, hidden]`;
    /// `x` and `out` are `[n, width]`, `ids` and `weights` `[n, used]`.
    #[allow(clippy::too_many_arguments)]
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
    );

    /// Collects the rows of `x` that [`StepRows::outputs`] names. `x` is `[tokens, width]`,
    /// `out` `[n, width]` with `n` outputs.
    fn gather(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        width: usize,
        step: &Self::Step,
        n: usize,
    );

    /// One vector for each of [`StepRows::pooled`]. `x` is `[tokens, width]`, `out` `[n, width]`.
    fn pool(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        width: usize,
        step: &Self::Step,
        n: usize,
    );

    /// Draws a token from each of the first `n` rows of `logits` `[n, vocabulary]` by the chain of
    /// [`SampleParams`]; answers go to `samples` `[n, SAMPLE_WORDS]` as [`Sample`](crate::Sample)
    /// encodes them, and each token counts in its slot. May overwrite the logits.
    fn sample(
        &mut self,
        samples: &mut Self::Buffer,
        logits: &mut Self::Buffer,
        sampler: &mut Self::Sampler,
        step: &Self::Step,
        n: usize,
    );

    // ── Fused operations: override for speed ────────────────────────────────────────────────

    /// `residual += x`, then `out = rms_norm(residual)`; all `[n, width]`.
    #[allow(clippy::too_many_arguments)]
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
        self.add(residual, x, width, n);
        self.rms_norm(out, residual, weight, eps, n);
    }

    /// From a fused projection to attention: norms of Q and K where the model has them, rotation
    /// of both in place, K and V to their pages.
    fn qk_norm_rope_store(
        &mut self,
        qkv: &mut Self::Buffer,
        kv: &mut Self::Kv,
        step: &Self::Step,
        spec: QkvSpec<'_, Self::Weight>,
        n: usize,
    ) {
        if let Some((q_norm, k_norm)) = spec.norms {
            self.head_norm(qkv, spec.q, q_norm, spec.eps, n);
            self.head_norm(qkv, spec.k, k_norm, spec.eps, n);
        }
        self.rope(qkv, spec.q, step, spec.rope, n);
        self.rope(qkv, spec.k, step, spec.rope, n);
        self.store_kv(kv, qkv, spec.k, spec.v, spec.group, step, n);
    }

    /// `out = down(glu(gate_up(x)))`. `gate_up` is `[2 * hidden, width]` and `down`
    /// `[width, hidden]`; scratch: `projected` `[n, 2 * hidden]`, `activated` `[n, hidden]`.
    #[allow(clippy::too_many_arguments)]
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
        self.linear(projected, gate_up, None, x, n);
        self.glu(activated, projected, activation, hidden, n);
        self.linear(out, down, None, activated, n);
    }
}
