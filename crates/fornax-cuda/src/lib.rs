//! The CUDA backend: kernels in CUDA C++, compiled for the device at first use, and one graph for
//! each shape of a step.
//!
//! Owns the device, its memory and its kernels. Knows no model, no engine and no other backend.
//! Nothing of CUDA is needed to build it: driver, compiler and cuBLASLt are found at run time, and
//! [`Cuda::new`] says what is missing and where it was looked for.
//!
//! Operations are not launched one by one. Those of a [`record`](fornax_backend::Backend::record)
//! are listed, fused where a kernel does several of them, launched in order and captured as
//! a graph that later steps of the same shape replay.

mod budget;
mod compiler;
mod cuda;
mod dense;
mod device;
mod event;
mod ferry;
mod head;
mod kernels;
mod launch;
mod library;
mod matrix;
mod memory;
mod operation;
mod options;
mod plan;
mod readback;
mod sampler;
mod sketch;
mod step;
mod tensor_map;
mod tiles;
mod upload;
mod ways;
mod weight;

pub use budget::Demand;
pub use cuda::Cuda;
pub use kernels::all::compile_kernels;
pub use options::{CudaOptions, LargeProducts, Progress};
pub use sampler::Sampler;
pub use step::{Buffer, Kv, Step};
pub use weight::Weight;
