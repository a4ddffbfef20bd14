//! DeepSeek-V2, V3 and R1: multi-head latent attention, dense blocks first and then experts beside
//! shared ones, chosen by a softmax (V2) or by sigmoids with a bias (V3), where there are groups
//! from some of them. Sources: DeepSeek-V2 (arXiv:2405.04434), DeepSeek-V3 (arXiv:2412.19437).

use fornax_backend::{ExpertGroups, RopeStyle, Scoring};

use crate::keys::Keys;
use crate::{
    Architecture, Block, Config, FeedForward, Latent, LoadError, Mixture, Rope, Scaling,
    SharedExpert,
};

/// What the converter multiplies `mscale_all_dim` by.
const LOG_MULTIPLIER: f32 = 0.1;

pub(super) fn config(keys: &Keys<'_>) -> Result<Config, LoadError> {
    keys.no_window()?;
    let latent = latent(keys)?;
    let style = RopeStyle::AdjacentPairs;
    let dense = FeedForward::dense(keys)?;
    let config = Config::grouped_query(keys, Architecture::DeepSeek2, style, dense)?;
    let rope = rope(keys, style, &latent)?;
    let plain_scale = ((latent.rotary + latent.plain) as f32).sqrt().recip();
    let attention_scale = match rope.scaling {
        Scaling::Yarn(yarn) => plain_scale * yarn.attention_scale(),
        Scaling::None | Scaling::Linear { .. } => plain_scale,
    };
    let leading = keys.count("leading_dense_block_count")?;
    let experts = FeedForward::Experts(mixture(keys)?);
    let block = |layer: usize| Block {
        window: None,
        rope: 0,
        feed_forward: if layer < leading { dense } else { experts },
    };
    Ok(Config {
        kv_heads: 1,
        k_dim: latent.rotary + latent.kv_rank,
        v_dim: latent.kv_rank,
        attention_scale,
        blocks: (0..config.layers()).map(block).collect(),
        latent: Some(latent),
        ropes: vec![rope],
        ..config
    })
}

fn latent(keys: &Keys<'_>) -> Result<Latent, LoadError> {
    // Newer files name the lengths of the cache's one head, and those of a head expanded apart.
    let expanded = match keys.count("attention.key_length_mla")? {
        0 => ["attention.key_length", "attention.value_length"],
        _ => ["attention.key_length_mla", "attention.value_length_mla"],
    };
    let [key, value] = [keys.size(expanded[0])?, keys.size(expanded[1])?];
    let rotary = keys.size("rope.dimension_count")?;
    if rotary >= key || !rotary.is_multiple_of(2) {
        let problem = format!("it must be even and below the key length {key}");
        return Err(keys.refuse(&keys.full("rope.dimension_count"), rotary, &problem));
    }
    let q_rank = keys.count("attention.q_lora_rank")?;
    Ok(Latent {
        q_rank: (q_rank > 0).then_some(q_rank),
        kv_rank: keys.size("attention.kv_lora_rank")?,
        rotary,
        plain: key - rotary,
        value,
    })
}

/// YaRN here scales the scores, and sine and cosine not at all.
fn rope(keys: &Keys<'_>, style: RopeStyle, latent: &Latent) -> Result<Rope, LoadError> {
    let mut rope = Rope::read(keys, style, latent.rotary + latent.plain)?;
    if let Scaling::Yarn(yarn) = &mut rope.scaling {
        let log = keys.optional_factor("rope.scaling.yarn_log_multiplier")?;
        yarn.scale_log = log.map_or(0.0, |log| log / LOG_MULTIPLIER);
        if log.is_some() {
            yarn.magnitude = 1.0;
        }
    }
    Ok(rope)
}

fn mixture(keys: &Keys<'_>) -> Result<Mixture, LoadError> {
    let hidden = keys.size("expert_feed_forward_length")?;
    let plain = Mixture::softmax(keys, hidden)?;
    let is_bias = |name: &str| name.ends_with(".exp_probs_b.bias");
    let shared = keys.count("expert_shared_count")? * hidden;
    // Files from before there was a choice are of V2.
    let scoring = match keys.count("expert_gating_func")? {
        0 | 1 => Scoring::Softmax,
        2 => Scoring::Sigmoid,
        other => {
            let key = keys.full("expert_gating_func");
            let problem = "this router is not supported (supported: 1 softmax, 2 sigmoid)";
            return Err(keys.refuse(&key, other, problem));
        }
    };
    Ok(Mixture {
        scoring,
        selection_bias: keys.file.tensors().any(|tensor| is_bias(tensor.name)),
        normalise: keys.flag("expert_weights_norm")?,
        groups: groups(keys, &plain, scoring)?,
        shared: (shared > 0).then_some(SharedExpert {
            hidden: shared,
            gated: false,
        }),
        ..plain
    })
}

fn groups(
    keys: &Keys<'_>,
    mixture: &Mixture,
    scoring: Scoring,
) -> Result<Option<ExpertGroups>, LoadError> {
    let count = keys.count("expert_group_count")?;
    if count <= 1 {
        return Ok(None);
    }
    let open = keys.size("expert_group_used_count")?;
    let refuse =
        |key: &str, value: usize, problem: &str| Err(keys.refuse(&keys.full(key), value, problem));
    let size = mixture.experts / count;
    // V2 ranks a group by its best expert, V3 by the best two.
    let summed = match scoring {
        Scoring::Softmax => 1,
        Scoring::Sigmoid => 2,
    };
    if !mixture.experts.is_multiple_of(count) || size < summed {
        let problem = format!("{} experts do not make such groups", mixture.experts);
        return refuse("expert_group_count", count, &problem);
    }
    if open > count || open * size < mixture.used {
        let problem = format!(
            "of {count} groups with {size} experts each, {} experts are to be chosen",
            mixture.used
        );
        return refuse("expert_group_used_count", open, &problem);
    }
    Ok(Some(ExpertGroups {
        count,
        open,
        summed,
    }))
}
