//! Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, §2.1) in its absorbed form.
//!
//! A key of head `h` is `[turned part | K_h · c]` of a short vector `c` a token, and its value
//! `V_h · c`. Since `q · (K_h · c) = (K_hᵀ · q) · c`, the queries go through `K_hᵀ` and attend over
//! `[turned part | c]` itself, one KV head for all; what comes out goes through `V_h`. The turned
//! part leads here, whatever the file's order, so that [`Backend::rope`] finds it.

use fornax_backend::{AttentionSpec, Backend, HeadLinearSpec, Heads};

use super::Place;
use crate::activations::Activations;
use crate::config::Latent;
use crate::loader::{Device, Dim, Loader};
use crate::{Config, LoadError};

/// The projections around attention.
pub(crate) struct LatentAttention<D: Device> {
    queries: Queries<D>,
    /// To the turned part of the key and to `c`. `[rotary + kv_rank, width]`
    compress: D::Weight,
    /// Norm of `c`. `[kv_rank]`
    norm: D::Weight,
    /// `K_hᵀ`. `[heads, kv_rank, plain]`
    keys: D::Weight,
    /// `V_h`. `[heads, value, kv_rank]`
    values: D::Weight,
    /// `[width, heads * value]`
    output: D::Weight,
    heads: usize,
    latent: Latent,
}

/// How queries come to be, each `[turned part | plain part]`.
enum Queries<D: Device> {
    /// `[heads * (rotary + plain), width]`
    Direct(D::Weight),
    /// Through a short vector, with its norm between.
    Compressed {
        /// `[rank, width]`
        compress: D::Weight,
        /// `[rank]`
        norm: D::Weight,
        /// `[heads * (rotary + plain), rank]`
        expand: D::Weight,
    },
}

impl<D: Device> LatentAttention<D> {
    /// Loads block `index`.
    pub fn load(
        loader: &mut Loader<'_, D>,
        config: &Config,
        index: usize,
        latent: Latent,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("blk.{index}.attn_{part}.weight");
        let (width, heads) = (config.width_dim(), config.heads);
        let Latent {
            kv_rank,
            rotary,
            plain,
            value,
            ..
        } = latent;
        let dim = rotary + plain;
        let rows = Dim::new(
            heads * dim,
            "attention.head_count × attention.key_length_mla",
        );
        let queries = match latent.q_rank {
            None => Queries::Direct(loader.rotated(&name("q"), [rows, width], dim, rotary)?),
            Some(rank) => {
                let rank = Dim::new(rank, "attention.q_lora_rank");
                Queries::Compressed {
                    compress: loader.matrix(&name("q_a"), [rank, width])?,
                    norm: loader.vector(&name("q_a_norm"), rank)?,
                    expand: loader.rotated(&name("q_b"), [rows, rank], dim, rotary)?,
                }
            }
        };
        let rank = Dim::new(kv_rank, "attention.kv_lora_rank");
        let compressed = Dim::new(
            kv_rank + rotary,
            "attention.kv_lora_rank + rope.dimension_count",
        );
        let shape = [compressed, width];
        let compress = loader.rotated(&name("kv_a_mqa"), shape, compressed.size, rotary)?;
        let (keys, values) = match loader.has(&name("kv_b")) {
            true => split(loader, &name("kv_b"), heads, latent)?,
            false => {
                let heads = Dim::new(heads, "attention.head_count");
                let plain = Dim::new(plain, "attention.key_length_mla − rope.dimension_count");
                let value = Dim::new(value, "attention.value_length_mla");
                (
                    loader.join(&[(&name("k_b"), &[heads, rank, plain])])?,
                    loader.join(&[(&name("v_b"), &[heads, value, rank])])?,
                )
            }
        };
        let attended = Dim::new(
            heads * value,
            "attention.head_count × attention.value_length_mla",
        );
        Ok(Self {
            queries,
            compress,
            norm: loader.vector(&name("kv_a_norm"), rank)?,
            keys,
            values,
            output: loader.matrix(&name("output"), [width, attended])?,
            heads,
            latent,
        })
    }
}

impl<B: Backend> LatentAttention<B> {
    /// `attended` for those of the step's tokens that attend; K and V of all enter the cache.
    pub fn attend(
        &self,
        backend: &mut B,
        activations: &mut Activations<B>,
        kv: &mut B::Kv,
        place: &Place<'_, B>,
    ) {
        let (a, n, config) = (activations, place.n, place.config);
        let Latent {
            kv_rank,
            rotary,
            plain,
            ..
        } = self.latent;
        self.query(backend, a, place);
        self.store(backend, a, kv, place);
        let absorb = HeadLinearSpec {
            heads: self.heads,
            passed: rotary,
            inputs: plain,
            outputs: kv_rank,
        };
        backend.head_linear(&mut a.absorbed, &self.keys, &a.qkv, absorb, n);
        let attention = AttentionSpec {
            group: 0,
            queries: place.queries,
            q: side_by_side(self.heads, config.k_dim),
            kv_heads: 1,
            v_dim: kv_rank,
            scale: config.attention_scale,
            window: place.block.window,
            soft_cap: None,
            sinks: None,
        };
        backend.attention(&mut a.attended, &a.absorbed, kv, place.step, attention, n);
    }

    /// `delta` of `attended`.
    pub fn project(&self, backend: &mut B, activations: &mut Activations<B>, n: usize) {
        let a = activations;
        let expand = HeadLinearSpec {
            heads: self.heads,
            passed: 0,
            inputs: self.latent.kv_rank,
            outputs: self.latent.value,
        };
        backend.head_linear(&mut a.values, &self.values, &a.attended, expand, n);
        backend.linear(&mut a.delta, &self.output, None, &a.values, n);
    }

    /// `qkv` = the queries with their leading part turned.
    fn query(&self, backend: &mut B, a: &mut Activations<B>, place: &Place<'_, B>) {
        let n = place.n;
        match &self.queries {
            Queries::Direct(queries) => backend.linear(&mut a.qkv, queries, None, &a.normed, n),
            Queries::Compressed {
                compress,
                norm,
                expand,
            } => {
                backend.linear(&mut a.short, compress, None, &a.normed, n);
                let eps = place.config.eps;
                backend.rms_norm(&mut a.short_normed, &a.short, norm, eps, n);
                backend.linear(&mut a.qkv, expand, None, &a.short_normed, n);
            }
        }
        let dim = self.latent.rotary + self.latent.plain;
        let heads = side_by_side(self.heads, dim);
        backend.rope(&mut a.qkv, heads, place.step, place.rope(), n);
    }

    /// The turned part of the key and `c`, normed, to the cache.
    fn store(&self, backend: &mut B, a: &mut Activations<B>, kv: &mut B::Kv, place: &Place<'_, B>) {
        let (n, step, eps) = (place.n, place.step, place.config.eps);
        let key = side_by_side(1, place.config.k_dim);
        // The values are the end of the key.
        let compressed = Heads {
            offset: self.latent.rotary,
            dim: self.latent.kv_rank,
            ..key
        };
        backend.linear(&mut a.compressed, &self.compress, None, &a.normed, n);
        backend.head_norm(&mut a.compressed, compressed, &self.norm, eps, n);
        backend.rope(&mut a.compressed, key, step, place.rope(), n);
        backend.store_kv(kv, &a.compressed, key, compressed, 0, step, n);
    }
}

/// Heads that fill a row.
fn side_by_side(count: usize, dim: usize) -> Heads {
    Heads {
        stride: count * dim,
        offset: 0,
        count,
        dim,
    }
}

/// Older files have `K_h` and `V_h` by turns in one tensor, `K_h` the other way round.
fn split<D: Device>(
    loader: &mut Loader<'_, D>,
    name: &str,
    heads: usize,
    latent: Latent,
) -> Result<(D::Weight, D::Weight), LoadError> {
    let Latent {
        kv_rank,
        plain,
        value,
        ..
    } = latent;
    let rows = Dim::new(
        heads * (plain + value),
        "attention.head_count × ( attention.key_length_mla − rope.dimension_count + \
         attention.value_length_mla )",
    );
    let rank = Dim::new(kv_rank, "attention.kv_lora_rank");
    let both = loader.host(name, &[rows, rank])?;
    let heads_of = |both: &[f32], part: &dyn Fn(&[f32], &mut Vec<f32>)| {
        let mut out = Vec::new();
        for head in both.chunks_exact((plain + value) * kv_rank) {
            part(head, &mut out);
        }
        out
    };
    let keys = || {
        heads_of(&both.decode(), &|head, out| {
            for column in 0..kv_rank {
                out.extend(head[column..plain * kv_rank].iter().step_by(kv_rank));
            }
        })
    };
    let values = || {
        heads_of(&both.decode(), &|head, out| {
            out.extend_from_slice(&head[plain * kv_rank..]);
        })
    };
    Ok((
        loader.computed(&[heads, kv_rank, plain], keys)?,
        loader.computed(&[heads, value, kv_rank], values)?,
    ))
}
