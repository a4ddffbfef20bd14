//! What a model will take of the device, told before anything is taken.
//!
//! Must not know how memory is taken.

use fornax_backend::BackendError;

use crate::Cuda;
use crate::device::mebibytes;

/// What a model needs, in bytes but for the elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Weights in the formats of their file.
    pub weights: u64,
    /// Elements of the matrices that are kept in bf16 too, for large products.
    pub elements: u64,
    /// Keys and values.
    pub kv: u64,
    /// Hidden states and logits of the largest step.
    pub activations: u64,
    /// Token counts and changed logits of every sequence.
    pub samplers: u64,
}

impl Cuda {
    /// Says what a model will take and what is free.
    ///
    /// # Errors
    /// It does not fit; the message says what takes how much, and what to lower.
    pub fn budget(&self, demand: &Demand) -> Result<String, BackendError> {
        let (free, all) = self.free_memory()?;
        let demand = match self.keeps_dense() {
            true => *demand,
            false => Demand {
                elements: 0,
                ..*demand
            },
        };
        let statement = format!("{}: {}", self.device_name(), statement(&demand, free, all));
        match total(&demand) > free as u64 {
            false => Ok(statement),
            true => Err(BackendError(format!(
                "cuda: it does not fit: {statement}. Lower --ctx, --kv-memory or the number of sequences for keys and values, the tokens of a step for activations, or take a smaller --kv-type or model"
            ))),
        }
    }
}

fn total(demand: &Demand) -> u64 {
    let Demand {
        weights,
        elements,
        kv,
        activations,
        samplers,
    } = *demand;
    weights + 2 * elements + kv + activations + samplers
}

fn statement(demand: &Demand, free: usize, all: usize) -> String {
    // Lossless: sizes of memory.
    let size = |bytes: u64| mebibytes(bytes as usize);
    format!(
        "weights {}, their copy in bf16 {}, keys and values {}, activations {}, samplers {}: {} of {} free, {} in all",
        size(demand.weights),
        size(2 * demand.elements),
        size(demand.kv),
        size(demand.activations),
        size(demand.samplers),
        size(total(demand)),
        mebibytes(free),
        mebibytes(all),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_told_and_counted() {
        let mebibyte = 1 << 20;
        let demand = Demand {
            weights: mebibyte,
            elements: mebibyte,
            kv: 3 * mebibyte,
            activations: 4 * mebibyte,
            samplers: 5 * mebibyte,
        };
        assert_eq!(total(&demand), 15 * mebibyte);
        assert_eq!(
            statement(&demand, 20 << 20, 30 << 20),
            "weights 1.0 MiB, their copy in bf16 2.0 MiB, keys and values 3.0 MiB, activations 4.0 MiB, samplers 5.0 MiB: 15.0 MiB of 20.0 MiB free, 30.0 MiB in all"
        );
    }
}
