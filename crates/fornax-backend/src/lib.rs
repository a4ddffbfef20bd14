//! The operations a language model needs, what they must compute, and the proof that a backend does.
//!
//! Owns the [`Backend`] trait, its parameter structs, the host-side sampling chain, the scalar
//! reference (the executable specification) and the conformance suite. Knows no model, no
//! engine and no other backend.

mod backend;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod profiled;
pub mod reference;
mod sampling;
mod sketch;
mod spec;
mod step;

pub use backend::{Backend, BackendError, Element, Reading, Sketched};
pub use profiled::{Operation, Profile, Profiled, Spent};
pub use reference::Reference;
pub use sampling::{HostSampler, Summary, uniform};
pub use sketch::{SKETCH_BLOCK, SKETCH_BYTES, SKETCH_DEVIATIONS, loudness, sketch_row};
pub use spec::{
    Activation, AttentionSpec, ExpertBiases, ExpertGroups, ExpertsSpec, HeadLinearSpec, Heads,
    KvShape, KvType, QkvSpec, Queries, RopeSpec, RopeStyle, RouteSpec, Scoring,
};
pub use step::{
    MAX_TOP, Pooled, Pooling, RowSpan, SAMPLE_WORDS, Sample, SampleParams, SampleRow, StepCapacity,
    StepRows, StepShape,
};
