//! A decoder-only transformer: embedding, blocks, final norm, head.
//!
//! Each stage is a method of its own, so that a run can stop at a stage and a range of blocks can
//! live elsewhere. A block ends with the norm that the next stage reads, fused with the addition
//! to the residual stream.

use fornax_backend::Backend;
use fornax_gguf::Gguf;

use crate::activations::Activations;
use crate::block::{Layer, Place};
use crate::loader::{Device, Dim, Loader};
use crate::{Config, LoadError, WeightStorage};

/// A model's weights on a backend.
pub(crate) struct Decoder<D: Device> {
    pub config: Config,
    /// `[vocabulary, width]`; also the head where there is no other
    embedding: D::Weight,
    layers: Vec<Layer<D>>,
    /// `[width]`
    final_norm: D::Weight,
    /// `[vocabulary, width]`, where the file has its own
    head: Option<D::Weight>,
    /// Radians per position of each rotating pair, for each of [`Config::ropes`]. `[rotary / 2]`
    frequencies: Vec<D::Weight>,
}

impl<D: Device> Decoder<D> {
    /// Brings every weight of a file to a device.
    pub fn load(file: &Gguf, device: &mut D, storage: WeightStorage) -> Result<Self, LoadError> {
        let config = Config::from_gguf(file)?;
        let mut loader = Loader::new(file, device, config.architecture, storage);
        let width = config.width_dim();
        let table = [Dim::new(config.vocabulary, "vocab_size"), width];
        let embedding = loader.matrix("token_embd.weight", table)?;
        let layers = (0..config.layers())
            .map(|index| Layer::load(&mut loader, &config, index))
            .collect::<Result<_, _>>()?;
        let final_norm = loader.vector("output_norm.weight", width)?;
        let head = match loader.has("output.weight") {
            true => Some(loader.matrix("output.weight", table)?),
            false => None,
        };
        let frequencies = config.ropes.iter().map(|rope| {
            let pairs = rope.rotary / 2;
            let width = Dim::new(pairs, "rope.dimension_count / 2");
            let factors = loader.optional_host("rope_freqs.weight", width)?;
            loader.computed(&[pairs], || rope.frequencies(factors.as_deref()))
        });
        let frequencies = frequencies.collect::<Result<_, _>>()?;
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
}

impl<B: Backend> Decoder<B> {
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
        let scale = self.config.embedding_scale;
        backend.embed(&mut a.residual, &self.embedding, scale, step, n);
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
        let (layer, block) = (&self.layers[index], &self.config.blocks[index]);
        let place = Place {
            config: &self.config,
            block,
            frequencies: &self.frequencies[block.rope],
            step,
            n,
        };
        layer.attend(backend, activations, kv, &place);
        let (after, next) = (&layer.after_attention, &layer.feed_forward_norm);
        self.add_norm(backend, activations, after.as_ref(), next, n);
        layer.feed_forward(backend, activations, n);
        let (after, next) = (&layer.after_feed_forward, self.norm_before(index + 1));
        self.add_norm(backend, activations, after.as_ref(), next, n);
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

    /// `residual += delta`, itself normed where there is a norm `after`; `normed` = the sum under
    /// the norm of the `next` stage.
    fn add_norm(
        &self,
        backend: &mut B,
        activations: &mut Activations<B>,
        after: Option<&B::Weight>,
        next: &B::Weight,
        n: usize,
    ) {
        let (a, eps, width) = (activations, self.config.eps, self.config.width);
        let added = match after {
            None => &a.delta,
            Some(after) => {
                backend.rms_norm(&mut a.beside, &a.delta, after, eps, n);
                &a.beside
            }
        };
        backend.add_rms_norm(&mut a.normed, &mut a.residual, added, next, eps, width, n);
    }
}
