//! The CPU backend: vector kernels chosen at run time, weights repacked for them, a thread pool.
//!
//! Owns everything between the [`Backend`](fornax_backend::Backend) trait and the processor; knows
//! no model, no engine and no other backend.
//!
//! # Where things are
//! - `cpu.rs` is the state, `backend.rs` hands each operation to the file that computes it.
//! - `isa.rs` and `simd/`: the instruction sets, behind one vector of 16 lanes. An instruction set
//!   is a thin file of intrinsics; algorithms stand once.
//! - `weight.rs`, `panel/`: weights in panels of 16 rows, and the product of a panel with a tile
//!   of activations. A block format is a few lines in `panel/formats.rs`.
//! - `columns.rs`, `run.rs`, `product.rs`: activations in tiles, panels made ready for them,
//!   products dealt out to threads.
//! - `attention/`, `kv.rs`, `rope.rs`, `feed_forward.rs`, `rows.rs`, `select.rs`, `store.rs`: the
//!   other operations.
//! - `ceilings.rs`: what the processor could do at most, for those who measure.
//! - `cores.rs`, `pool.rs`, `memory.rs`: what all of these are computed with: instructions, threads, and memory that
//!   they share.
//!
//! # What never happens
//! - A result depends on the number of threads or on which thread computed what.
//! - An allocation while steps of sizes seen before run.
//! - `unsafe` without a reason beside it, or instructions that the processor was not asked for.

mod ahead;
mod attention;
mod backend;
mod ceilings;
mod columns;
mod cores;
mod cpu;
mod feed_forward;
mod head_linear;
mod isa;
mod kv;
mod largest;
mod math;
mod memory;
mod panel;
mod pool;
mod product;
mod projection;
mod rope;
mod rows;
mod run;
mod select;
mod simd;
mod sketch;
mod step;
mod store;
#[cfg(test)]
mod tests;
mod weight;

pub use ceilings::Ceilings;
pub use cpu::{Cpu, CpuOptions};
pub use isa::Isa;
pub use kv::Kv;
pub use step::{Buffer, Step};
pub use weight::Weight;
