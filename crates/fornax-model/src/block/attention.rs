//! Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) over paged keys and values.

use fornax_backend::{AttentionSpec, Backend, Heads, QkvSpec, Queries};

use super::Place;
use crate::activations::Activations;
use crate::loader::{Device, Dim, Loader};
use crate::{Config, LoadError};

/// The projections around attention.
pub(crate) struct GroupedQuery<D: Device> {
    /// Q, K and V joined. `[heads * k_dim + kv_heads * (k_dim + v_dim), width]`
    qkv: D::Weight,
    /// Behind it, where the architecture has one. `[heads * k_dim + kv_heads * (k_dim + v_dim)]`
    qkv_bias: Option<D::Weight>,
    /// `[width, heads * v_dim]`
    output: D::Weight,
    /// Behind it, where the architecture has one. `[width]`
    output_bias: Option<D::Weight>,
    /// Norms of a query and of a key head, where the architecture has them. `[k_dim]` each
    norms: Option<(D::Weight, D::Weight)>,
    /// `[heads]`
    sinks: Option<D::Weight>,
}

impl<D: Device> GroupedQuery<D> {
    /// Loads block `index`.
    pub fn load(
        loader: &mut Loader<'_, D>,
        config: &Config,
        index: usize,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("blk.{index}.attn_{part}.weight");
        let bias = |part: &str| format!("blk.{index}.attn_{part}.bias");
        let width = config.width_dim();
        let Config {
            heads,
            kv_heads,
            k_dim,
            v_dim,
            ..
        } = *config;
        const KEYS: &str = "attention.head_count_kv × attention.key_length";
        const VALUES: &str = "attention.head_count_kv × attention.value_length";
        let q = Dim::new(heads * k_dim, "attention.head_count × attention.key_length");
        let k = Dim::new(kv_heads * k_dim, KEYS);
        let v = Dim::new(kv_heads * v_dim, VALUES);
        let attended = Dim::new(
            heads * v_dim,
            "attention.head_count × attention.value_length",
        );
        let head = Dim::new(k_dim, "attention.key_length");
        Ok(Self {
            norms: match config.qk_norm {
                true => Some((
                    loader.vector(&name("q_norm"), head)?,
                    loader.vector(&name("k_norm"), head)?,
                )),
                false => None,
            },
            qkv: loader.join(&[
                (&name("q"), &[q, width]),
                (&name("k"), &[k, width]),
                (&name("v"), &[v, width]),
            ])?,
            qkv_bias: match config.qkv_bias {
                true => Some(loader.join(&[
                    (&bias("q"), &[q]),
                    (&bias("k"), &[k]),
                    (&bias("v"), &[v]),
                ])?),
                false => None,
            },
            output: loader.matrix(&name("output"), [width, attended])?,
            output_bias: match config.output_bias {
                true => Some(loader.vector(&bias("output"), width)?),
                false => None,
            },
            sinks: match config.sinks {
                true => {
                    Some(loader.vector(&name("sinks"), Dim::new(heads, "attention.head_count"))?)
                }
                false => None,
            },
        })
    }
}

impl<B: Backend> GroupedQuery<B> {
    /// `attended` for those of the step's tokens that attend; K and V of all enter the cache.
    pub fn attend(
        &self,
        backend: &mut B,
        activations: &mut Activations<B>,
        kv: &mut B::Kv,
        place: &Place<'_, B>,
    ) {
        let (a, n, config) = (activations, place.n, place.config);
        let [q, k, v] = heads(config);
        let qkv = QkvSpec {
            group: 0,
            q,
            k,
            v,
            norms: self.norms.as_ref().map(|(q, k)| (q, k)),
            eps: config.eps,
            rope: place.rope(),
        };
        let attention = AttentionSpec {
            group: 0,
            queries: place.queries,
            q,
            kv_heads: config.kv_heads,
            v_dim: config.v_dim,
            scale: config.attention_scale,
            window: place.block.window,
            soft_cap: None,
            sinks: self.sinks.as_ref(),
        };
        let bias = self.qkv_bias.as_ref();
        match place.queries {
            Queries::All => backend.linear(&mut a.qkv, &self.qkv, bias, &a.normed, n),
            Queries::Outputs => backend.project_for_outputs(
                &mut a.qkv,
                &self.qkv,
                bias,
                &a.normed,
                q.count * q.dim,
                place.step,
                n,
            ),
        }
        backend.qk_norm_rope_store(&mut a.qkv, kv, place.step, qkv, n);
        backend.attention(&mut a.attended, &a.qkv, kv, place.step, attention, n);
    }

    /// `delta` of `attended`.
    pub fn project(&self, backend: &mut B, activations: &mut Activations<B>, n: usize) {
        let (a, bias) = (activations, self.output_bias.as_ref());
        backend.linear(&mut a.delta, &self.output, bias, &a.attended, n);
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
    let side_by_side = |offset, count, dim| Heads {
        stride,
        offset,
        count,
        dim,
    };
    [
        side_by_side(0, heads, k_dim),
        side_by_side(q_width, kv_heads, k_dim),
        side_by_side(q_width + k_width, kv_heads, v_dim),
    ]
}
