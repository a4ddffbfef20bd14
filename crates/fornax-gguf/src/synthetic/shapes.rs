//! The shapes of published models, one row each, and of tiny ones for tests.
//!
//! Owns dimensions and their metadata keys; must not know tensors or weights.

use super::Formats;
use crate::{Error, GgufWriter};

/// The dimensions of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The name by which commands know it.
    pub name: &'static str,
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Transformer blocks.
    pub layers: usize,
    /// Values per token between blocks.
    pub width: usize,
    /// Hidden values of a dense MLP.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Rows of the embedding; `None` for as many as the vocabulary has tokens.
    pub vocabulary: Option<usize>,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Epsilon of the norms.
    pub epsilon: f32,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Whether queries and keys are normalised per head.
    pub qk_norm: bool,
    /// Tokens of context.
    pub context: usize,
    /// Mixture of experts in place of the dense MLP.
    pub experts: Option<Experts>,
    /// Standard deviation of the matrices: 0.02 as in training, and 0.1 in the tiny shapes, whose
    /// logits then differ enough to tell a wrong model.
    pub deviation: f32,
}

/// The dimensions of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many see each token.
    pub used: usize,
    /// Hidden values of each.
    pub feed_forward: usize,
}

const QWEN3_0_6B: Shape = Shape {
    name: "qwen3-0.6b",
    architecture: "qwen3",
    layers: 28,
    width: 1024,
    feed_forward: 3072,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    vocabulary: Some(151_936),
    rope_base: 1e6,
    epsilon: 1e-6,
    tied: true,
    qk_norm: true,
    context: 40_960,
    experts: None,
    deviation: 0.02,
};

const SMOLLM_135M: Shape = Shape {
    name: "smollm-135m",
    architecture: "llama",
    layers: 30,
    width: 576,
    feed_forward: 1536,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    vocabulary: Some(49_152),
    rope_base: 1e4,
    epsilon: 1e-5,
    tied: true,
    qk_norm: false,
    context: 2048,
    experts: None,
    deviation: 0.02,
};

const TINY_QWEN3: Shape = Shape {
    name: "tiny-qwen3",
    layers: 3,
    width: 256,
    feed_forward: 768,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    vocabulary: None,
    context: 4096,
    deviation: 0.1,
    ..QWEN3_0_6B
};

static SHAPES: [Shape; 8] = [
    QWEN3_0_6B,
    Shape {
        name: "qwen3-1.7b",
        width: 2048,
        feed_forward: 6144,
        ..QWEN3_0_6B
    },
    SMOLLM_135M,
    Shape {
        name: "llama-3.2-1b",
        layers: 16,
        width: 2048,
        feed_forward: 8192,
        heads: 32,
        kv_heads: 8,
        vocabulary: Some(128_256),
        rope_base: 5e5,
        context: 131_072,
        ..SMOLLM_135M
    },
    Shape {
        name: "moe-1b",
        architecture: "qwen3moe",
        layers: 24,
        feed_forward: 2048,
        experts: Some(Experts {
            count: 32,
            used: 4,
            feed_forward: 512,
        }),
        ..QWEN3_0_6B
    },
    TINY_QWEN3,
    Shape {
        name: "tiny-llama",
        architecture: "llama",
        rope_base: 1e4,
        epsilon: 1e-5,
        tied: false,
        qk_norm: false,
        ..TINY_QWEN3
    },
    Shape {
        name: "tiny-qwen3moe",
        architecture: "qwen3moe",
        tied: false,
        experts: Some(Experts {
            count: 8,
            used: 2,
            feed_forward: 256,
        }),
        ..TINY_QWEN3
    },
];

impl Shape {
    /// All shapes.
    pub fn all() -> &'static [Shape] {
        &SHAPES
    }

    /// The shape of that name.
    pub fn named(name: &str) -> Option<&'static Shape> {
        SHAPES.iter().find(|shape| shape.name == name)
    }

    /// Sets the metadata of a model of this shape with so many `layers`.
    pub(super) fn describe(
        &self,
        layers: usize,
        formats: Formats,
        writer: &mut GgufWriter,
    ) -> Result<(), Error> {
        writer.set("general.architecture", self.architecture)?;
        writer.set("general.name", format!("synthetic {}", self.name))?;
        // The version of the block formats, which the specification wants wherever they are used.
        writer.set("general.quantization_version", 2u32)?;
        if let Formats::Mix(scheme) = formats
            && let Some(number) = scheme.file_type()
        {
            writer.set("general.file_type", number)?;
        }
        let experts = self.experts.map_or([None; 3], |experts| {
            [
                Some(experts.count),
                Some(experts.used),
                Some(experts.feed_forward),
            ]
        });
        let rope_dimensions = (self.architecture == "llama").then_some(self.head_dim);
        for (key, value) in [
            ("context_length", Some(self.context)),
            ("embedding_length", Some(self.width)),
            ("block_count", Some(layers)),
            ("feed_forward_length", Some(self.feed_forward)),
            ("attention.head_count", Some(self.heads)),
            ("attention.head_count_kv", Some(self.kv_heads)),
            ("attention.key_length", Some(self.head_dim)),
            ("attention.value_length", Some(self.head_dim)),
            ("rope.dimension_count", rope_dimensions),
            ("expert_count", experts[0]),
            ("expert_used_count", experts[1]),
            ("expert_feed_forward_length", experts[2]),
        ] {
            if let Some(value) = value {
                let value = u32::try_from(value).map_err(|_| {
                    Error::Unwritable(format!("{key} {value} does not fit 32 bits"))
                })?;
                writer.set(&self.key(key), value)?;
            }
        }
        writer.set(&self.key("rope.freq_base"), self.rope_base)?;
        writer.set(&self.key("attention.layer_norm_rms_epsilon"), self.epsilon)
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }
}
