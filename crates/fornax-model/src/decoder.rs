//! A decoder-only transformer: embedding, blocks, final norm, head.
//!
//! Each stage is a method of its own, so that a run can stop at a stage and a range of blocks can
//! live elsewhere. A block ends with the norm that the next stage reads, fused with the addition
//! to the residual stream.

use fornax_backend::Backend;
use fornax_gguf::Gguf;

use crate::activations::Activations;
use crate::block::Layer;
use crate::loader::Loader;
use crate::{Config, LoadError, WeightStorage};

/// A model's weights on a backend.
pub(crate) struct Decoder<B: Backend> {
    pub config: Config,
    /// `[vocabulary, width]`; also the head where there is no other
    embedding: B::Weight,
    layers: Vec<Layer<B>>,
    /// `[width]`
    final_norm: B::Weight,
    /// `[vocabulary, width]`, where the file has its own
    head: Option<B::Weight>,
    /// Radians per position of each rotating pair. `[rotary / 2]`
    frequencies: B::Weight,
}

impl<B: Backend> Decoder<B> {
    /// Brings every weight of a file to a backend.
    pub fn load(file: &Gguf, backend: &mut B, storage: WeightStorage) -> Result<Self, LoadError> {
        let config = Config::from_gguf(file)?;
        let mut loader = Loader::new(file, backend, config.architecture, storage);
        let table = [config.vocabulary, config.width];
        let embedding = loader.matrix("token_embd.weight", table)?;
        let layers = (0..config.layers)
            .map(|index| config.architecture.layer(&mut loader, &config, index))
            .collect::<Result<_, _>>()?;
        let final_norm = loader.vector("output_norm.weight", config.width)?;
        let head = match loader.has("output.weight") {
            true => Some(loader.matrix("output.weight", table)?),
            false => None,
        };
        let factors = loader.optional_host("rope_freqs.weight", config.rope.rotary / 2)?;
        let frequencies = loader.computed(&frequencies(&config, factors.as_deref()))?;
        loader.finish()?;
        Ok(Self {
            config,
            embedding,
            layers,
            final_norm,
            head,
            frequencies,
        })
    }

    /// All stages up to the final norm; `normed` then holds it for each of the `n` new tokens.
    pub fn forward(
        &self,
        backend: &mut B,
        activations: &mut Activations<B>,
        kv: &mut [B::Kv],
        step: &B::Step,
        n: usize,
    ) {
        self.embed(backend, activations, step, n);
        for (index, kv) in kv.iter_mut().enumerate() {
            self.block(index, backend, activations, kv, step, n);
        }
    }

    /// `residual` = the embeddings, `normed` = what the first block reads.
    pub fn embed(
        &self,
        backend: &mut B,
        activations: &mut Activations<B>,
        step: &B::Step,
        n: usize,
    ) {
        let a = activations;
        backend.embed(&mut a.residual, &self.embedding, 1.0, step, n);
        backend.rms_norm(
            &mut a.normed,
            &a.residual,
            self.norm_before(0),
            self.config.eps,
            n,
        );
    }

    /// `residual` = the block's output, `normed` = what the next stage reads.
    pub fn block(
        &self,
        index: usize,
        backend: &mut B,
        activations: &mut Activations<B>,
        kv: &mut B::Kv,
        step: &B::Step,
        n: usize,
    ) {
        let layer = &self.layers[index];
        layer.attention.forward(
            backend,
            &self.config,
            &self.frequencies,
            activations,
            kv,
            step,
            n,
        );
        self.add_norm(backend, activations, &layer.feed_forward_norm, n);
        layer
            .feed_forward
            .forward(backend, &self.config, activations, n);
        self.add_norm(backend, activations, self.norm_before(index + 1), n);
    }

    /// `logits` of the step's outputs, whose normed states are collected first.
    pub fn head(
        &self,
        backend: &mut B,
        activations: &mut Activations<B>,
        step: &B::Step,
        outputs: usize,
    ) {
        let a = activations;
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        backend.gather(&mut a.outputs, &a.normed, self.config.width, step, outputs);
        backend.linear(&mut a.logits, head, None, &a.outputs, outputs);
    }

    /// The norm whose output block `index` reads; after the last block the final one.
    fn norm_before(&self, index: usize) -> &B::Weight {
        self.layers
            .get(index)
            .map_or(&self.final_norm, |layer| &layer.attention_norm)
    }

    fn add_norm(
        &self,
        backend: &mut B,
        activations: &mut Activations<B>,
        norm: &B::Weight,
        n: usize,
    ) {
        let a = activations;
        let Config { eps, width, .. } = self.config;
        backend.add_rms_norm(
            &mut a.normed,
            &mut a.residual,
            &a.delta,
            norm,
            eps,
            width,
            n,
        );
    }
}

/// `base^(-2i / rotary)` for each pair, divided by the file's factors (Llama 3.1's long-context
/// scaling, worked out by the converter). Powers in `f64`: an error grows with the position.
fn frequencies(config: &Config, factors: Option<&[f32]>) -> Vec<f32> {
    let rotary = config.rope.rotary;
    (0..rotary / 2)
        .map(|pair| {
            let exponent = -2.0 * pair as f64 / rotary as f64;
            let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
            (f64::from(config.rope.base).powf(exponent) / factor) as f32
        })
        .collect()
}
