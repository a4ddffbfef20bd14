//! Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) over paged keys and values.

use fornax_backend::{AttentionSpec, Backend, Heads, QkvSpec, RopeSpec};

use crate::activations::Activations;
use crate::loader::Loader;
use crate::{Config, LoadError};

/// The projections around attention.
pub(crate) struct Attention<B: Backend> {
    /// Q, K and V joined. `[heads * k_dim + kv_heads * (k_dim + v_dim), width]`
    qkv: B::Weight,
    /// `[width, heads * v_dim]`
    output: B::Weight,
    /// Norms of a query and of a key head, where the architecture has them. `[k_dim]` each
    norms: Option<(B::Weight, B::Weight)>,
}

impl<B: Backend> Attention<B> {
    /// Loads block `index`.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        index: usize,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("blk.{index}.attn_{part}.weight");
        let Config {
            width,
            heads,
            kv_heads,
            k_dim,
            v_dim,
            ..
        } = *config;
        let norms = match config.qk_norm {
            true => Some((
                loader.vector(&name("q_norm"), k_dim)?,
                loader.vector(&name("k_norm"), k_dim)?,
            )),
            false => None,
        };
        Ok(Self {
            qkv: loader.join(&[
                (&name("q"), &[heads * k_dim, width]),
                (&name("k"), &[kv_heads * k_dim, width]),
                (&name("v"), &[kv_heads * v_dim, width]),
            ])?,
            output: loader.matrix(&name("output"), [width, heads * v_dim])?,
            norms,
        })
    }

    /// `delta = attention(normed)` for `n` tokens, whose K and V enter the cache.
    #[allow(clippy::too_many_arguments)]
    pub fn forward(
        &self,
        backend: &mut B,
        config: &Config,
        frequencies: &B::Weight,
        activations: &mut Activations<B>,
        kv: &mut B::Kv,
        step: &B::Step,
        n: usize,
    ) {
        let a = activations;
        let [q, k, v] = heads(config);
        let rope = RopeSpec {
            style: config.rope.style,
            rotary: config.rope.rotary,
            frequencies,
            magnitude: 1.0,
        };
        let norms = self.norms.as_ref().map(|(q, k)| (q, k));
        let qkv = QkvSpec {
            group: 0,
            q,
            k,
            v,
            norms,
            eps: config.eps,
            rope,
        };
        let attention = AttentionSpec {
            group: 0,
            q,
            kv_heads: config.kv_heads,
            v_dim: config.v_dim,
            scale: (config.k_dim as f32).sqrt().recip(),
            window: None,
            soft_cap: None,
            sinks: None,
        };
        backend.linear(&mut a.qkv, &self.qkv, None, &a.normed, n);
        backend.qk_norm_rope_store(&mut a.qkv, kv, step, qkv, n);
        backend.attention(&mut a.attended, &a.qkv, kv, step, attention, n);
        backend.linear(&mut a.delta, &self.output, None, &a.attended, n);
    }
}

/// Where Q, K and V lie in the fused projection's rows.
fn heads(config: &Config) -> [Heads; 3] {
    let Config {
        heads,
        kv_heads,
        k_dim,
        v_dim,
        ..
    } = *config;
    let (q_width, k_width) = (heads * k_dim, kv_heads * k_dim);
    let stride = q_width + k_width + kv_heads * v_dim;
    [
        Heads {
            stride,
            offset: 0,
            count: heads,
            dim: k_dim,
        },
        Heads {
            stride,
            offset: q_width,
            count: kv_heads,
            dim: k_dim,
        },
        Heads {
            stride,
            offset: q_width + k_width,
            count: kv_heads,
            dim: v_dim,
        },
    ]
}
