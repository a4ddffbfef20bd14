//! Operations as they are asked for, before it is decided which kernels do them: addresses and
//! sizes, and nothing that borrows.
//!
//! Those that may be done together with a neighbour keep what they are; all others are launches
//! already.

use fornax_backend::{Activation, AttentionSpec, QkvSpec};

use crate::launch::Launch;
use crate::sampler::Sampler;
use crate::sketch::SketchLayout;
use crate::step::{Kv, Step, kv_number};
use crate::weight::{Layout, Weight};

/// One operation.
#[derive(Clone)]
pub(crate) enum Operation {
    /// Done as it is.
    Launch(Launch),
    Feed {
        tokens: u64,
        samples: u64,
        n: usize,
    },
    Embed {
        out: u64,
        table: Layout,
        scale: f32,
        tokens: u64,
        n: usize,
    },
    Norm(Norm),
    Linear(Linear),
    Glu {
        out: u64,
        gate_up: u64,
        activation: Activation,
        width: usize,
        n: usize,
    },
    Turn(Turn),
    Attend(Attend),
    Gather {
        out: u64,
        x: u64,
        width: usize,
        outputs: u64,
        n: usize,
    },
    Sample(Sampling),
    Route(Route),
    Experts(Experts),
}

/// `residual += x` where there is one, and its norm; else the norm of `x`.
#[derive(Clone, Copy)]
pub(crate) struct Norm {
    pub out: u64,
    pub residual: Option<u64>,
    pub x: u64,
    pub weight: u64,
    pub eps: f32,
    pub width: usize,
    pub n: usize,
}

/// `out = x · matrixᵀ + bias`
#[derive(Clone)]
pub(crate) struct Linear {
    pub out: u64,
    pub matrix: Layout,
    /// The sketch of the matrix, where only the largest product is asked for.
    pub sketch: Option<SketchLayout>,
    pub bias: Option<u64>,
    pub x: u64,
    pub n: usize,
}

/// The choice of experts.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    pub table: RouteTable,
    pub n: usize,
}

/// The kernels' parameters: `struct Route` of `kernels/route.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RouteTable {
    pub ids: u64,
    pub weights: u64,
    pub logits: u64,
    pub bias: u64,
    pub scale: f32,
    pub experts: u32,
    pub used: u32,
    pub scoring: u32,
    pub normalise: u32,
    pub groups: u32,
    pub open: u32,
    pub summed: u32,
}

impl RouteTable {
    /// Bytes of shared memory that a choice needs.
    pub fn scores(&self) -> usize {
        4 * (2 * self.experts + self.groups) as usize
    }
}

/// The weighted sum of some experts.
#[derive(Clone)]
pub(crate) struct Experts {
    pub out: u64,
    pub x: u64,
    pub ids: u64,
    pub weights: u64,
    pub gate_up: Layout,
    pub down: Layout,
    /// Of `gate_up` and of `down`.
    pub biases: Option<(u64, u64)>,
    pub used: usize,
    pub activation: Activation,
    pub n: usize,
}

/// Norm and rotation of Q and K, and both K and V to their pages; as the kernel reads it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Turn {
    pub qkv: u64,
    pub keys: u64,
    pub values: u64,
    pub q_norm: u64,
    pub k_norm: u64,
    pub frequencies: u64,
    pub tokens: u64,
    pub rows: u64,
    pub tables: u64,
    pub slots: u64,
    pub eps: f32,
    pub magnitude: f32,
    pub query_scale: f32,
    pub n: u32,
    pub stride: u32,
    pub q_offset: u32,
    pub q_count: u32,
    pub dim: u32,
    pub k_offset: u32,
    pub v_offset: u32,
    pub v_dim: u32,
    pub kv_heads: u32,
    pub kind: u32,
    pub page_size: u32,
    pub rotary: u32,
    pub style: u32,
}

impl Turn {
    pub fn new(qkv: u64, kv: &Kv, step: &Step, spec: &QkvSpec<'_, Weight>, n: usize) -> Self {
        let norms = spec
            .norms
            .map(|(q, k)| (q.vector(spec.q.dim), k.vector(spec.k.dim)));
        let (q_norm, k_norm) = norms.unwrap_or((0, 0));
        assert_eq!(spec.q.dim, spec.k.dim, "turn: heads of Q and K");
        Self {
            qkv,
            keys: kv.keys.pointer(),
            values: kv.values.pointer(),
            q_norm,
            k_norm,
            frequencies: spec.rope.frequencies.vector(spec.rope.rotary / 2),
            tokens: step.tokens(),
            rows: step.rows(),
            tables: step.tables(spec.group),
            slots: kv.slots(),
            eps: spec.eps,
            magnitude: spec.rope.magnitude,
            query_scale: 0.0,
            n: n as u32,
            stride: spec.q.stride as u32,
            q_offset: spec.q.offset as u32,
            q_count: spec.q.count as u32,
            dim: spec.q.dim as u32,
            k_offset: spec.k.offset as u32,
            v_offset: spec.v.offset as u32,
            v_dim: spec.v.dim as u32,
            kv_heads: spec.k.count as u32,
            kind: kv_number(kv.shape.element) as u32,
            page_size: kv.shape.page_size as u32,
            rotary: spec.rope.rotary as u32,
            style: style_number(spec.rope.style),
        }
    }

    /// Whether there is a kernel for heads of this size that turn as a whole.
    pub fn is_fast(&self) -> bool {
        let aligned = [self.stride, self.q_offset, self.k_offset, self.v_offset];
        [64, 128].contains(&self.dim)
            && self.dim == self.v_dim
            && self.dim == self.rotary
            && self.kind > 0
            && aligned.iter().all(|at| at.is_multiple_of(4))
    }
}

/// How kernels number the ways to pair a head's elements.
pub(crate) fn style_number(style: fornax_backend::RopeStyle) -> u32 {
    match style {
        fornax_backend::RopeStyle::HalfSplit => 0,
        fornax_backend::RopeStyle::AdjacentPairs => 1,
    }
}

/// Attention; `table` is as the kernels read it.
#[derive(Clone, Copy)]
pub(crate) struct Attend {
    pub table: AttendTable,
    /// Whether every row of the step has one new token, all of which take part.
    pub single: bool,
    /// Tiles of new tokens, at most; 0 where some tokens of the step take no part.
    pub tiles: usize,
    /// Rows of the step.
    pub rows: usize,
}

/// The kernels' parameters.
#[derive(Clone, Copy, PartialEq)]
#[repr(C)]
pub(crate) struct AttendTable {
    pub out: u64,
    pub q: u64,
    pub keys: u64,
    pub values: u64,
    pub tokens: u64,
    pub rows: u64,
    pub tables: u64,
    pub tiles: u64,
    pub sinks: u64,
    pub q_norm: u64,
    pub k_norm: u64,
    pub frequencies: u64,
    pub dense: u64,
    pub pieces: u64,
    pub before: u64,
    pub starts: u64,
    pub turns: u64,
    pub slots: u64,
    pub dense_apart: u64,
    pub scale: f32,
    pub cap: f32,
    pub eps: f32,
    pub magnitude: f32,
    pub n: u32,
    pub q_stride: u32,
    pub q_offset: u32,
    pub q_count: u32,
    pub kv_heads: u32,
    pub dim: u32,
    pub v_dim: u32,
    pub kind: u32,
    pub page_size: u32,
    pub window: u32,
    pub k_offset: u32,
    pub v_offset: u32,
    pub rotary: u32,
    pub style: u32,
    pub narrow: u32,
    pub apart: u32,
}

impl AttendTable {
    /// Whether all positions are seen as they are: without a window, a cap of scores or sinks, which few models have.
    pub fn is_plain(&self) -> bool {
        self.window == 0 && self.cap == 0.0 && self.sinks == 0
    }
}

impl Attend {
    pub fn new(
        out: u64,
        q: u64,
        kv: &Kv,
        step: &Step,
        spec: &AttentionSpec<'_, Weight>,
        n: usize,
    ) -> Self {
        let whole = n == step.shape.tokens;
        let table = AttendTable {
            out,
            q,
            keys: kv.keys.pointer(),
            values: kv.values.pointer(),
            tokens: step.tokens(),
            rows: step.rows(),
            tables: step.tables(spec.group),
            tiles: step.tile_table(),
            sinks: spec.sinks.map_or(0, |sinks| sinks.vector(spec.q.count)),
            q_norm: 0,
            k_norm: 0,
            frequencies: 0,
            dense: 0,
            pieces: 0,
            before: 0,
            starts: 0,
            turns: 0,
            slots: kv.slots(),
            dense_apart: 0,
            scale: spec.scale,
            cap: spec.soft_cap.unwrap_or(0.0),
            eps: 0.0,
            magnitude: 0.0,
            n: n as u32,
            q_stride: spec.q.stride as u32,
            q_offset: spec.q.offset as u32,
            q_count: spec.q.count as u32,
            kv_heads: spec.kv_heads as u32,
            dim: spec.q.dim as u32,
            v_dim: spec.v_dim as u32,
            kind: kv_number(kv.shape.element) as u32,
            page_size: kv.shape.page_size as u32,
            window: spec.window.unwrap_or(0) as u32,
            k_offset: 0,
            v_offset: 0,
            rotary: 0,
            style: 0,
            narrow: 0,
            apart: 0,
        };
        Self {
            table,
            single: whole && step.shape.tokens == step.shape.rows,
            tiles: if whole {
                Step::most_tiles(&step.shape)
            } else {
                0
            },
            rows: step.shape.rows,
        }
    }

    /// With what comes before it done on the way.
    pub fn turning(mut self, turn: &Turn) -> Self {
        let table = &mut self.table;
        table.q_norm = turn.q_norm;
        table.k_norm = turn.k_norm;
        table.frequencies = turn.frequencies;
        table.eps = turn.eps;
        table.magnitude = turn.magnitude;
        table.k_offset = turn.k_offset;
        table.v_offset = turn.v_offset;
        table.rotary = turn.rotary;
        table.style = turn.style;
        self
    }
}

/// The draw of tokens; as the kernel reads it, but for the number of rows.
#[derive(Clone, Copy)]
pub(crate) struct Sampling {
    pub table: SamplingTable,
    pub n: usize,
}

/// The kernel's parameters.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SamplingTable {
    pub samples: u64,
    pub logits: u64,
    pub changed: u64,
    pub slots: u64,
    pub counts: u64,
    pub draws: u64,
    pub best: u64,
    pub weights: u64,
    pub parts: u32,
    pub vocabulary: u32,
    pub head: HeadTable,
}

/// The head and the tokens that it was multiplied with, where it left logits out that its draws can do without.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct HeadTable {
    /// In bf16. `[n, cols]`
    pub x: u64,
    pub brains: u64,
    pub tiled: u64,
    pub cols: u32,
    pub rows: u32,
}

impl Sampling {
    pub fn new(samples: u64, logits: u64, sampler: &Sampler, step: &Step, n: usize) -> Self {
        let table = SamplingTable {
            samples,
            logits,
            changed: sampler.changed.pointer(),
            slots: sampler.slots.pointer(),
            counts: sampler.counts.pointer(),
            draws: step.draws(),
            best: sampler.best.pointer(),
            weights: sampler.weights.pointer(),
            parts: 0,
            vocabulary: sampler.vocabulary() as u32,
            head: HeadTable::default(),
        };
        Self { table, n }
    }
}

/// How kernels number an activation, and its two parameters.
pub(crate) fn activation_numbers(activation: Activation) -> (u32, f32, f32) {
    match activation {
        Activation::Silu => (0, 0.0, 0.0),
        Activation::GeluTanh => (1, 0.0, 0.0),
        Activation::ClampedSwiglu { alpha, limit } => (2, alpha, limit),
    }
}
