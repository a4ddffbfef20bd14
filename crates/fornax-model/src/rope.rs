//! Rotary position embedding as metadata describes it, and the frequencies that follow.
//!
//! Owns the ways to stretch a context: linear, YaRN, and the divisors that converters work out for
//! Llama 3. Must not know how heads are turned.

use std::f64::consts::TAU;

use fornax_backend::RopeStyle;

use crate::LoadError;
use crate::keys::Keys;

/// Rotary position embedding of some blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Which elements of a head pair up.
    pub style: RopeStyle,
    /// Base of the geometric series of frequencies.
    pub base: f32,
    /// Leading elements of a head that turn; even.
    pub rotary: usize,
    /// How the trained context was stretched.
    pub scaling: Scaling,
}

/// How positions beyond those first trained on are turned by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// As they are.
    None,
    /// All frequencies are divided.
    Linear {
        /// By this.
        factor: f32,
    },
    /// Low frequencies are divided, high ones are not, those between partly.
    Yarn(Yarn),
}

/// YaRN (Peng et al. 2023, arXiv:2309.00071).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// What low frequencies are divided by.
    pub factor: f32,
    /// Tokens of the context before.
    pub original: usize,
    /// Turns over that context from which on a frequency stays.
    pub beta_fast: f32,
    /// Turns up to which it is divided in full.
    pub beta_slow: f32,
    /// How much of the undivided frequency counts where it does.
    pub extrapolation: f32,
    /// Whether the ramp between begins and ends at whole pairs.
    pub whole_pairs: bool,
    /// Factor on sine and cosine.
    pub magnitude: f32,
    /// Factor on the logarithm in the attention scale, where the model scales it (DeepSeek); else 0.
    pub scale_log: f32,
}

impl Rope {
    /// Reads the embedding of a model whose query and key heads have `k_dim` elements.
    pub(crate) fn read(keys: &Keys<'_>, style: RopeStyle, k_dim: usize) -> Result<Rope, LoadError> {
        let rotary = keys.size_or("rope.dimension_count", k_dim)?;
        if rotary > k_dim || !rotary.is_multiple_of(2) {
            let problem = format!("it must be even and at most the key length {k_dim}");
            return Err(keys.refuse(&keys.full("rope.dimension_count"), rotary, &problem));
        }
        Ok(Rope {
            style,
            base: keys.factor("rope.freq_base")?,
            rotary,
            scaling: Scaling::read(keys)?,
        })
    }

    /// Factor on sine and cosine.
    pub fn magnitude(&self) -> f32 {
        match self.scaling {
            Scaling::Yarn(yarn) => yarn.magnitude,
            Scaling::None | Scaling::Linear { .. } => 1.0,
        }
    }

    /// Radians per position of each pair: `base^(-2i / rotary)`, divided by the file's `factors`
    /// (Llama 3.1's long-context scaling, worked out by the converter) and stretched. Powers in
    /// `f64`: an error grows with the position.
    pub(crate) fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f32> {
        let plain = |pair: usize| {
            let exponent = -2.0 * pair as f64 / self.rotary as f64;
            let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
            f64::from(self.base).powf(exponent) / factor
        };
        let stretched = |pair: usize| match self.scaling {
            Scaling::None => plain(pair),
            Scaling::Linear { factor } => plain(pair) / f64::from(factor),
            Scaling::Yarn(yarn) => {
                let kept = yarn.kept(pair, self);
                plain(pair) * (kept + (1.0 - kept) / f64::from(yarn.factor))
            }
        };
        (0..self.rotary / 2)
            .map(|pair| stretched(pair) as f32)
            .collect()
    }
}

impl Yarn {
    /// The part of a pair's frequency that is not divided.
    fn kept(&self, pair: usize, rope: &Rope) -> f64 {
        // The pair whose frequency turns so often over the original context.
        let pair_of = |turns: f32| {
            let ratio = self.original as f64 / (f64::from(turns) * TAU);
            rope.rotary as f64 * ratio.ln() / (2.0 * f64::from(rope.base).ln())
        };
        let (mut low, mut high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        if self.whole_pairs {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(rope.rotary as f64 - 1.0));
        let ramp = (pair as f64 - low) / (high - low).max(1e-3);
        f64::from(self.extrapolation) * (1.0 - ramp.clamp(0.0, 1.0))
    }

    /// Factor on the attention scale.
    pub(crate) fn attention_scale(&self) -> f32 {
        let mscale = mscale(self.factor, self.scale_log);
        mscale * mscale
    }
}

impl Scaling {
    fn read(keys: &Keys<'_>) -> Result<Scaling, LoadError> {
        // Files from before the scaling had a type name the factor otherwise.
        let factor = match keys.optional_factor("rope.scaling.factor")? {
            None => keys.optional_factor("rope.scale_linear")?,
            factor => factor,
        };
        match (keys.optional_text("rope.scaling.type")?, factor) {
            (Some("none"), _) | (None, None) => Ok(Scaling::None),
            (Some("linear"), None) => Ok(Scaling::None),
            (None | Some("linear"), Some(factor)) => Ok(Scaling::Linear { factor }),
            (Some("yarn"), _) => Ok(Scaling::Yarn(yarn(keys)?)),
            (Some(other), _) => Err(keys.refuse(
                &keys.full("rope.scaling.type"),
                format!("`{other}`"),
                "this is not supported (supported: none, linear, yarn)",
            )),
        }
    }
}

fn yarn(keys: &Keys<'_>) -> Result<Yarn, LoadError> {
    let factor = keys.factor("rope.scaling.factor")?;
    let magnitude = match keys.optional_factor("rope.scaling.yarn_attn_factor")? {
        Some(given) => given,
        None => mscale(factor, 1.0),
    };
    let magnitude = magnitude * keys.factor_or("rope.scaling.attn_factor", 1.0)?;
    Ok(Yarn {
        factor,
        original: keys.size("rope.scaling.original_context_length")?,
        // What the paper found for Llama, and every reader takes where a file says nothing.
        beta_fast: keys.factor_or("rope.scaling.yarn_beta_fast", 32.0)?,
        beta_slow: keys.factor_or("rope.scaling.yarn_beta_slow", 1.0)?,
        extrapolation: keys.factor_or("rope.scaling.yarn_ext_factor", 1.0)?,
        whole_pairs: true,
        magnitude,
        scale_log: 0.0,
    })
}

/// The paper's factor on the scores of a context stretched by `factor`, its logarithm times `log`.
pub(crate) fn mscale(factor: f32, log: f32) -> f32 {
    match factor > 1.0 {
        true => 1.0 + 0.1 * log * factor.ln(),
        false => 1.0,
    }
}
