//! One suite for every backend: each operation against an independent `f64` oracle.
//!
//! Owns the cases (ragged batches, odd sizes, page boundaries, every block format) and the
//! oracles, which share no code with any backend. Knows no backend by name.
//!
//! Inputs are random and seeded, outputs are filled with NaN before, rows behind the last one
//! and pages behind the last token are poisoned. A failure names the operation, the case, and
//! the error beside what was allowed. A crate with a backend writes
//!
//! ```
//! # use fornax_backend::{Reference, conformance::Tolerance};
//! fornax_backend::conformance_suite!(Reference, Tolerance::single_precision());
//! ```
//!
//! and has one test for each check. [`Replay`] wraps a backend to show where code breaks the
//! rules of [`Backend::record`](crate::Backend::record).

mod attending;
mod attention;
mod cache;
mod dense;
mod experts;
mod fused;
mod latent;
mod mixture;
mod oracle;
mod output;
mod random;
mod recording;
mod replay;
mod rotation;
mod sampled;
mod scores;
mod steps;
mod tensors;
#[cfg(test)]
mod tests;
mod trial;
mod turn;

#[cfg(test)]
pub(crate) use oracle::sampling as naive;
#[cfg(test)]
pub(crate) use random::Random;
#[cfg(test)]
pub(crate) use sampled::{any_logits, any_params};

pub use attending::attending;
pub use attention::{
    answers_beside_prompts, attention, busy_prompts, copied_pages, many_rows, page_boundaries,
    projected_rows, qk_norm_rope_store,
};
pub use dense::{
    add, add_gated, add_rms_norm, embed, glu, head_norm, largest, linear, mlp, rms_norm,
    tied_embedding,
};
pub use experts::{experts, route};
pub use fused::{fused, fused_of_few, long_rows};
pub use latent::{head_linear, latent_attention};
pub use mixture::mixture;
pub use output::{feed, gather, pool};
pub use recording::record;
pub use replay::{Handle, Replay};
pub use rotation::rope;
pub use sampled::{head, sample};
pub use scores::uneven_scores;

use crate::Backend;

/// The largest `‖out − ref‖ / ‖ref‖` allowed, by kind of operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// A value written to a buffer and read back; also `embed`, `gather`, `pool` and `add`.
    pub buffer: f64,
    /// `rms_norm`, `head_norm`, `add_rms_norm`.
    pub norm: f64,
    /// `rope`, at positions up to 10,000.
    pub rope: f64,
    /// `glu`.
    pub glu: f64,
    /// `linear` on weights of single numbers: F32, F16, BF16.
    pub linear_float: f64,
    /// `linear` on weights in blocks.
    pub linear_block: f64,
    /// `mlp` and `experts`: two products after one another.
    pub mlp: f64,
    /// `attention` and what leads to it, where scores are small.
    pub attention: f64,
    /// A score of `attention`, as a part of its size, where queries are rounded to a cache's BF16; where they
    /// are rounded to halves, which have three bits more, an eighth of it.
    pub score: f64,
    /// `route`'s weights; its ids must be equal.
    pub route: f64,
    /// Log-probabilities of `sample`, absolute.
    pub logprob: f64,
    /// How near a boundary a draw must be for another token to pass, as a part of all probability.
    pub draw: f64,
}

impl Tolerance {
    /// For a backend that computes in `f32` throughout.
    pub const fn single_precision() -> Self {
        Self {
            buffer: 1e-6,
            norm: 2e-6,
            rope: 2e-6,
            glu: 2e-6,
            linear_float: 2e-6,
            linear_block: 2e-6,
            mlp: 4e-6,
            attention: 4e-6,
            score: 0.0,
            route: 2e-6,
            logprob: 1e-5,
            draw: 1e-6,
        }
    }

    /// For a backend that rounds the inputs of a matrix product to 8 bits with a scale for each
    /// block of 32.
    pub const fn eight_bit_activations() -> Self {
        Self {
            linear_block: 1.2e-2,
            linear_float: 1.2e-2,
            mlp: 2.5e-2,
            ..Self::single_precision()
        }
    }
}

/// What a check did and how near it came to failing.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The check.
    pub operation: &'static str,
    /// Cases that passed.
    pub cases: usize,
    /// The largest error of any comparison.
    pub worst: f64,
    /// The case it came from.
    pub worst_case: String,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            operation,
            cases,
            worst,
            worst_case,
        } = self;
        write!(f, "{operation:<20} {cases:>5} cases, worst {worst:.1e}")?;
        match worst_case.is_empty() {
            true => Ok(()),
            false => write!(f, " ({worst_case})"),
        }
    }
}

/// Writes the list of all checks once: [`run`] and the tests of a suite both follow it.
macro_rules! checks {
    ($($name:ident)*) => {
        /// Runs every check, each on a backend of its own. Panics at the first failure.
        pub fn run<B: Backend>(mut make: impl FnMut() -> B, tolerance: &Tolerance) -> Vec<Report> {
            vec![$($name(&mut make(), tolerance)),*]
        }
    };
}

checks! {
    embed tied_embedding rms_norm head_norm add_rms_norm add add_gated glu linear largest mlp rope
    attention busy_prompts answers_beside_prompts uneven_scores page_boundaries copied_pages qk_norm_rope_store projected_rows many_rows attending head_linear latent_attention
    route experts mixture fused gather pool sample head feed record
}

/// One `#[test]` for each check: `conformance_suite!(make(), tolerance, #[ignore = "why"])`, where
/// the attributes are optional.
#[macro_export]
macro_rules! conformance_suite {
    ($make:expr, $tolerance:expr $(, #[$attribute:meta])*) => {
        $crate::conformance_suite! { @all [$(#[$attribute])*] [$make, $tolerance]
            embed tied_embedding rms_norm head_norm add_rms_norm add add_gated glu linear largest mlp rope
            attention busy_prompts answers_beside_prompts uneven_scores page_boundaries copied_pages qk_norm_rope_store projected_rows many_rows attending head_linear latent_attention
            route experts mixture fused gather pool sample head feed record
        }
    };
    (@all $attributes:tt $suite:tt $($name:ident)*) => {
        $($crate::conformance_suite! { @one $attributes $suite $name })*
    };
    (@one [$($attribute:tt)*] [$make:expr, $tolerance:expr] $name:ident) => {
        #[test]
        $($attribute)*
        fn $name() {
            $crate::conformance::$name(&mut $make, &$tolerance);
        }
    };
}
