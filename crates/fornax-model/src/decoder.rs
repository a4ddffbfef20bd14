//! A decoder-only transformer: embedding, blocks, final norm, head.
//!
//! Each stage is a method of its own, so that a run can stop at a stage and a range of blocks can
//! live elsewhere. A block ends with the norm that the next stage reads, fused with the addition
//! to the residual stream.
//!
//! Behind the last block's attention no token meets another one any more: from there on a step goes
//! on with the tokens alone whose logits it is asked for, a lone one of a prompt.

use fornax_backend::{Backend, Queries, StepShape};
use fornax_gguf::Gguf;

use crate::activations::Activations;
use crate::block::{Layer, Place};
use crate::loader::{Device, Dim, Loader};
use crate::{Config, LoadError, WeightStorage};

/// Tokens that nobody asks for, from which on it pays to leave them behind: a product of fewer takes as
/// long as its weights take to read.
const WORTH_LEAVING: usize = 16;

/// Whether a step of so many tokens, of which some are outputs, goes on from the last block's attention with
/// the outputs alone. (It does not where states of all tokens are wanted.)
pub fn leaves_behind(tokens: usize, outputs: usize) -> bool {
    tokens >= outputs + WORTH_LEAVING
}

/// Which tokens of a step the activations hold, from row 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// All of them.
    All,
    /// Those of its outputs, in their order.
    Outputs,
}

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
    /// All stages up to the final norm; `normed` then holds it for the rows that it returns.
    pub fn forward(
        &self,
        backend: &mut B,
        activations: &mut Activations<B>,
        kv: &mut [B::Kv],
        step: &B::Step,
        shape: &StepShape,
    ) -> Rows {
        let n = shape.tokens;
        let is_worth_leaving = shape.pooled == 0 && leaves_behind(n, shape.outputs);
        self.embed(backend, activations, step, n);
        for (index, kv) in kv.iter_mut().enumerate() {
            if is_worth_leaving && index + 1 == self.layers.len() {
                self.attend(index, backend, activations, kv, step, n, Queries::Outputs);
                if shape.outputs > 0 {
                    self.keep_outputs(backend, activations, step, shape.outputs);
                    self.finish(index, backend, activations, shape.outputs);
                }
                return Rows::Outputs;
            }
            self.block(index, backend, activations, kv, step, n);
        }
        Rows::All
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
        self.attend(index, backend, activations, kv, step, n, Queries::All);
        self.finish(index, backend, activations, n);
    }

    /// A block up to what attention collects of other tokens, in `attended`: for all of the step's tokens,
    /// or for its outputs.
    #[allow(clippy::too_many_arguments)]
    fn attend(
        &self,
        index: usize,
        backend: &mut B,
        activations: &mut Activations<B>,
        kv: &mut B::Kv,
        step: &B::Step,
        n: usize,
        queries: Queries,
    ) {
        let block = &self.config.blocks[index];
        let place = Place {
            config: &self.config,
            block,
            frequencies: &self.frequencies[block.rope],
            step,
            n,
            queries,
        };
        self.layers[index].attend(backend, activations, kv, &place);
    }

    /// The rest of a block, for each of `n` rows by itself.
    fn finish(&self, index: usize, backend: &mut B, activations: &mut Activations<B>, n: usize) {
        let layer = &self.layers[index];
        layer.project(backend, activations, n);
        let (after, next) = (&layer.after_attention, &layer.feed_forward_norm);
        self.add_norm(backend, activations, after.as_ref(), next, n);
        layer.feed_forward(backend, activations, n);
        let (after, next) = (&layer.after_feed_forward, self.norm_before(index + 1));
        self.add_norm(backend, activations, after.as_ref(), next, n);
    }

    /// `residual` and `attended` = their rows of the step's outputs.
    fn keep_outputs(
        &self,
        backend: &mut B,
        activations: &mut Activations<B>,
        step: &B::Step,
        outputs: usize,
    ) {
        let a = activations;
        let attended = self.config.heads * self.config.v_dim;
        backend.gather(
            &mut a.outputs,
            &a.residual,
            self.config.width,
            step,
            outputs,
        );
        backend.gather(
            &mut a.attended_outputs,
            &a.attended,
            attended,
            step,
            outputs,
        );
        // Of the same sizes, and what either held before is not read again.
        std::mem::swap(&mut a.residual, &mut a.outputs);
        std::mem::swap(&mut a.attended, &mut a.attended_outputs);
    }

    /// What logits come from.
    pub fn head_mut(&mut self) -> &mut B::Weight {
        self.head.as_mut().unwrap_or(&mut self.embedding)
    }

    /// `logits` of the step's outputs, whose normed states are collected first where they stand among
    /// others; only the largest where no others are looked at.
    pub fn head(
        &self,
        backend: &mut B,
        activations: &mut Activations<B>,
        step: &B::Step,
        rows: Rows,
        shape: &StepShape,
    ) {
        let outputs = shape.outputs;
        let a = activations;
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let normed = match rows {
            Rows::Outputs => &a.normed,
            Rows::All => {
                backend.gather(&mut a.outputs, &a.normed, self.config.width, step, outputs);
                &a.outputs
            }
        };
        match shape.largest {
            Some(largest) => backend.largest(&mut a.logits, head, normed, largest, outputs),
            None => backend.linear(&mut a.logits, head, None, normed, outputs),
        }
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
