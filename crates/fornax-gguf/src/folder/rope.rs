//! Rotary positions in `config.json`, old and new style, as GGUF keys.
//!
//! Owns the kinds of scaling; the factors of Llama 3's are a tensor, made here too. Must not know
//! other settings.

use super::config::{Architecture, Keys, positions};
use super::document::Document;
use crate::Error;

/// How positions turn queries and keys.
pub(super) struct Rope {
    pub base: f32,
    pub scaling: Scaling,
}

/// How the positions of a longer context are brought back to those of training.
pub(super) enum Scaling {
    None,
    Linear {
        factor: f32,
    },
    Yarn {
        factor: f32,
        original: usize,
        beta_fast: Option<f32>,
        beta_slow: Option<f32>,
        /// DeepSeek's factor on the logarithm in the scale of the scores.
        scale_log: Option<f32>,
    },
    Llama3 {
        factor: f32,
        low: f32,
        high: f32,
        original: usize,
    },
}

impl Rope {
    /// From `rope_parameters`, or from `rope_theta` and `rope_scaling` before those; without a base,
    /// the one of the `transformers` class.
    ///
    /// Where a folder has both, `rope_scaling` counts and `rope_parameters` does not, except in
    /// Gemma 3, where it is laid over them: so do the `transformers` classes.
    pub fn of(config: &Document, architecture: Architecture) -> Result<Self, Error> {
        let old = config.object("rope_scaling")?.filter(|old| !old.is_empty());
        let new = config.object("rope_parameters")?;
        let parameters = match architecture {
            Architecture::Gemma3 => gemma(old, new)?,
            _ => old.or(new),
        };
        for document in parameters.iter().chain([config]) {
            let part = document.optional_number("partial_rotary_factor")?;
            if part.is_some_and(|part| part != 1.0) {
                let problem = "is not 1: to turn a part of a head is not supported";
                return Err(document.refuse("partial_rotary_factor", problem));
            }
        }
        let own = parameters
            .as_ref()
            .map(|own| own.optional_number("rope_theta"));
        let base = match own.transpose()?.flatten() {
            Some(base) => Some(base),
            None => config.optional_number("rope_theta")?,
        };
        Ok(Self {
            base: base.unwrap_or(match architecture {
                Architecture::Gemma3 => 1_000_000.0,
                Architecture::GptOss => 150_000.0,
                _ => 10_000.0,
            }),
            scaling: match (parameters, architecture) {
                (Some(parameters), _) => Scaling::of(&parameters, config, architecture)?,
                (None, Architecture::GptOss) => GPT_OSS,
                (None, _) => Scaling::None,
            },
        })
    }

    /// By how much Llama 3 divides each frequency; `None` for other kinds.
    ///
    /// Waves longer than the context of training over `low` are stretched in full, those shorter
    /// than it over `high` not at all, and those between by an interpolation.
    pub fn factors(&self, head_dim: usize) -> Option<Vec<f32>> {
        let Scaling::Llama3 {
            factor,
            low,
            high,
            original,
        } = self.scaling
        else {
            return None;
        };
        let (original, factor) = (original as f64, f64::from(factor));
        let (low, high) = (f64::from(low), f64::from(high));
        let factor_of = |index: usize| {
            let exponent = (2 * index) as f64 / head_dim as f64;
            let turns = original / (std::f64::consts::TAU * f64::from(self.base).powf(exponent));
            if turns > high {
                1.0
            } else if turns < low {
                factor
            } else {
                let smooth = (turns - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        Some(
            (0..head_dim / 2)
                .map(|index| factor_of(index) as f32)
                .collect(),
        )
    }
}

/// What gpt-oss has where nothing is said.
const GPT_OSS: Scaling = Scaling::Yarn {
    factor: 32.0,
    original: 4096,
    beta_fast: Some(32.0),
    beta_slow: Some(1.0),
    scale_log: None,
};

/// What Gemma 3 says of the layers without a window, the old settings laid over the new ones.
///
/// # Errors
/// What its class passes over silently: settings for all layers alike, and a kind by its old name.
fn gemma(old: Option<Document>, new: Option<Document>) -> Result<Option<Document>, Error> {
    let full = match &new {
        None => None,
        Some(new) => new.object("full_attention")?,
    };
    if let (Some(new), None) = (&new, &full)
        && let Some(key) = ["rope_type", "rope_theta", "factor"]
            .into_iter()
            .find(|key| new.key(key).is_some())
    {
        let problem = "of rope_parameters is not that of full_attention or sliding_attention";
        return Err(new.refuse(key, problem));
    }
    if let Some(old) = &old
        && old.key("type").is_some()
        && old.key("rope_type").is_none()
    {
        let problem = "of rope_scaling is not what Gemma 3 goes by: it is rope_type there";
        return Err(old.refuse("type", problem));
    }
    Ok(match (full, old) {
        (Some(full), Some(old)) => Some(full.overlaid(&old)),
        (full, old) => full.or(old),
    })
}

impl Scaling {
    fn of(
        scaling: &Document,
        config: &Document,
        architecture: Architecture,
    ) -> Result<Self, Error> {
        let kind = match scaling.optional_str("rope_type")? {
            Some(kind) => Some(kind),
            None => scaling.optional_str("type")?,
        };
        let need = |key: &str| {
            let number = scaling.optional_number(key)?;
            number.ok_or_else(|| scaling.refuse(key, "of the RoPE scaling is missing"))
        };
        let original = || {
            // Beside the scaling it counts before the one in it.
            for document in [config, scaling] {
                let original = document.optional_size("original_max_position_embeddings")?;
                if let Some(original) = original {
                    return Ok(original);
                }
            }
            positions(config, architecture)
        };
        Ok(match kind.unwrap_or("default") {
            "default" => Scaling::None,
            "linear" => Scaling::Linear {
                factor: need("factor")?,
            },
            "yarn" => {
                let scale_log = scale_log(scaling, architecture)?;
                let whole_pairs = scaling.optional_bool("truncate")?.unwrap_or(true);
                if whole_pairs == (architecture == Architecture::GptOss) {
                    let problem = "of the RoPE scaling is not that of the published models";
                    return Err(scaling.refuse("truncate", problem));
                }
                Scaling::Yarn {
                    scale_log,
                    factor: need("factor")?,
                    original: original()?,
                    beta_fast: scaling.optional_number("beta_fast")?,
                    beta_slow: scaling.optional_number("beta_slow")?,
                }
            }
            "llama3" => Scaling::Llama3 {
                factor: need("factor")?,
                low: need("low_freq_factor")?,
                high: need("high_freq_factor")?,
                original: original()?,
            },
            other => {
                let problem = format!("{other:?} of the RoPE scaling is not supported");
                return Err(scaling.refuse("rope_type", &problem));
            }
        })
    }
}

/// What GGUF files multiply `mscale_all_dim` by.
const LOG_MULTIPLIER: f32 = 0.1;

/// DeepSeek scales scores, and sine and cosine by the quotient of two factors, which is 1 in all
/// published models and which GGUF has no key for. Others scale neither.
fn scale_log(scaling: &Document, architecture: Architecture) -> Result<Option<f32>, Error> {
    let refuse = |key: &str| {
        let problem = "of the RoPE scaling is set, which is not supported";
        Err(scaling.refuse(key, problem))
    };
    let is_latent = matches!(
        architecture,
        Architecture::DeepSeek2 | Architecture::DeepSeek3
    );
    if scaling.key("attention_factor").is_some() {
        return refuse("attention_factor");
    }
    let [one, all] = ["mscale", "mscale_all_dim"].map(|key| scaling.optional_number(key));
    match (one?, all?) {
        (None, None) => Ok(None),
        (Some(one), Some(all)) if is_latent && one == all && all > 0.0 => Ok(Some(all)),
        _ if is_latent => {
            let problem = "of the RoPE scaling is not its mscale_all_dim";
            Err(scaling.refuse("mscale", problem))
        }
        (Some(_), _) => refuse("mscale"),
        (None, Some(_)) => refuse("mscale_all_dim"),
    }
}

/// Sets the keys.
pub(super) fn describe(
    rope: &Rope,
    architecture: Architecture,
    config: &Document,
    keys: &mut Keys<'_>,
) -> Result<(), Error> {
    keys.set("rope.freq_base", rope.base);
    if architecture == Architecture::Gemma3 {
        local_base(config)?;
        keys.set("rope.freq_base_swa", LOCAL_BASE);
    }
    match rope.scaling {
        Scaling::None => {}
        Scaling::Linear { factor } => {
            keys.set("rope.scaling.type", "linear");
            keys.set("rope.scaling.factor", factor);
        }
        Scaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            scale_log,
        } => {
            keys.set("rope.scaling.type", "yarn");
            keys.set("rope.scaling.factor", factor);
            keys.size("rope.scaling.original_context_length", original);
            for (key, beta) in [("fast", beta_fast), ("slow", beta_slow)] {
                if let Some(beta) = beta {
                    keys.set(&format!("rope.scaling.yarn_beta_{key}"), beta);
                }
            }
            if let Some(log) = scale_log {
                keys.set("rope.scaling.yarn_log_multiplier", LOG_MULTIPLIER * log);
            }
        }
        Scaling::Llama3 { .. } if !architecture.is_permuted() => {
            return Err(config.refuse("rope_type", "\"llama3\" belongs to llama only"));
        }
        Scaling::Llama3 { .. } => {}
    }
    Ok(())
}

/// The base of Gemma's layers with a window.
const LOCAL_BASE: f32 = 10_000.0;

/// Gemma's layers with a window turn by a base that GGUF readers take for granted.
fn local_base(config: &Document) -> Result<(), Error> {
    let new = config.object("rope_parameters")?;
    let local = new.map(|new| new.object("sliding_attention")).transpose()?;
    let base = match local.flatten() {
        Some(local) => {
            if local.optional_str("rope_type")?.unwrap_or("default") != "default" {
                let problem = "of layers with a window is not \"default\"";
                return Err(local.refuse("rope_type", problem));
            }
            local.optional_number("rope_theta")?
        }
        None => config.optional_number("rope_local_base_freq")?,
    };
    match base {
        Some(base) if base != LOCAL_BASE => Err(config.refuse(
            "rope_theta",
            &format!("of layers with a window is not {LOCAL_BASE}"),
        )),
        _ => Ok(()),
    }
}
