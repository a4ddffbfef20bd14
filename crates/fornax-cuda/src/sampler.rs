//! Sampling parameters and token counts of every slot, on the device.
//!
//! Must not know the chain that reads them.

use std::sync::Arc;

use fornax_backend::{BackendError, SampleParams};

use crate::device::Device;
use crate::kernels::{Kernels, Module};
use crate::launch::Launch;
use crate::memory::Memory;

/// Sampler state of some slots.
pub struct Sampler {
    vocabulary: usize,
    /// `[slots]`
    pub(crate) slots: Memory,
    /// 1 + how often the answer has a token, 0 where the sequence has it not. `u32 [slots, vocabulary]`
    pub(crate) counts: Memory,
    /// Logits with biases and penalties. `[slots, vocabulary]`
    pub(crate) changed: Memory,
    /// Parts of the search for the largest logit. `[slots, parts, 4]`, as many as any search has
    pub(crate) best: Memory,
    /// What parts of neighbouring ids weigh under the slot's temperature. `[slots, parts]`
    pub(crate) weights: Memory,
    /// Each slot's biases, where it has some.
    biases: Vec<Option<Memory>>,
    /// The tokens that are being counted.
    list: Option<Memory>,
}

/// Blocks that may search a row of logits, where they do not do so by tiles.
pub(crate) const MOST_PARTS: usize = 512;
/// Blocks that do so where no product did on the way: `PARTS` of `kernels/sample.cu`.
pub(crate) const SCANNED_PARTS: usize = 32;

/// Tiles of 64 rows that a product with the head searches one by one.
pub(crate) fn tiles(vocabulary: usize) -> usize {
    vocabulary.div_ceil(64)
}

/// A slot as the kernel reads it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Slot {
    temperature: f32,
    typical: f32,
    top_p: f32,
    min_p: f32,
    repetition: f32,
    presence: f32,
    frequency: f32,
    top_k: u32,
    seed_low: u32,
    seed_high: u32,
    penalised: u32,
    biases: u32,
    bias: u64,
}

impl Sampler {
    pub(crate) fn new(
        device: &Arc<Device>,
        slots: usize,
        vocabulary: usize,
    ) -> Result<Self, BackendError> {
        let size = std::mem::size_of::<Slot>();
        let dense = 4 * slots * vocabulary;
        let parts = slots * MOST_PARTS.max(tiles(vocabulary));
        let what = "sampler state";
        Ok(Self {
            vocabulary,
            slots: Memory::zeroed(device, slots * size, what)?,
            counts: Memory::zeroed(device, dense, what)?,
            changed: Memory::new(device, dense, what)?,
            best: Memory::zeroed(device, 16 * parts, what)?,
            weights: Memory::zeroed(device, 4 * parts, what)?,
            biases: (0..slots).map(|_| None).collect(),
            list: None,
        })
    }

    pub(crate) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// A sequence takes a slot.
    pub(crate) fn admit(
        &mut self,
        device: &Arc<Device>,
        kernels: &mut Kernels,
        slot: usize,
        params: &SampleParams,
        tokens: &[u32],
        prompt: usize,
    ) -> Result<(), BackendError> {
        let known = |token: &u32| (*token as usize) < self.vocabulary;
        assert!(
            tokens.iter().all(known) && params.logit_bias.iter().all(|(token, _)| known(token)),
            "admit: a token is outside the vocabulary of {}",
            self.vocabulary
        );
        let biases = merged(&params.logit_bias);
        // A longer list than before needs other memory; graphs read its address from the slot.
        let words: Vec<u32> = biases
            .iter()
            .flat_map(|(token, bias)| [*token, bias.to_bits()])
            .collect();
        let room = self.biases[slot].as_ref().map_or(0, Memory::bytes);
        if 4 * words.len() > room {
            self.biases[slot] = Some(Memory::new(device, 8 * words.len(), "logit biases")?);
        }
        if let Some(memory) = &self.biases[slot] {
            memory.start_write(0, &words)?;
        }
        let packed = Slot {
            temperature: divisible(params.temperature),
            typical: params.typical_p,
            top_p: params.top_p,
            min_p: params.min_p,
            repetition: params.repetition_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            top_k: u32::try_from(params.top_k).unwrap_or(u32::MAX),
            seed_low: params.seed as u32,
            seed_high: (params.seed >> 32) as u32,
            penalised: u32::from(params.has_penalties()),
            biases: biases.len() as u32,
            bias: self.biases[slot].as_ref().map_or(0, Memory::pointer),
        };
        self.slots
            .start_write(slot * std::mem::size_of::<Slot>(), &[packed])?;
        if params.has_penalties() {
            self.count(device, kernels, slot, tokens, prompt)?;
        }
        Ok(())
    }

    fn count(
        &mut self,
        device: &Arc<Device>,
        kernels: &mut Kernels,
        slot: usize,
        tokens: &[u32],
        prompt: usize,
    ) -> Result<(), BackendError> {
        let row = 4 * self.vocabulary;
        self.counts.clear(slot * row, row)?;
        if 4 * tokens.len() > self.list.as_ref().map_or(0, Memory::bytes) {
            self.list = Some(Memory::new(device, 8 * tokens.len(), "tokens to count")?);
        }
        let Some(list) = &self.list else {
            return Ok(());
        };
        list.start_write(0, tokens)?;
        let kernel = kernels.kernel(Module::Sample, "count_tokens")?;
        Launch::new(kernel, [1, 1, 1], 1024)
            .wide(self.counts.pointer() + (slot * row) as u64)
            .wide(list.pointer())
            .number(tokens.len())
            .number(prompt)
            .start(device)
    }
}

/// A temperature that one can be divided by, and as good as zero where it was not.
fn divisible(temperature: f32) -> f32 {
    match temperature > 0.0 {
        true => temperature.max(1e-30),
        false => temperature,
    }
}

/// Each token once, with the sum of its biases.
fn merged(biases: &[(u32, f32)]) -> Vec<(u32, f32)> {
    let mut merged: Vec<(u32, f32)> = Vec::new();
    for &(token, bias) in biases {
        match merged.iter_mut().find(|(known, _)| *known == token) {
            Some((_, sum)) => *sum += bias,
            None => merged.push((token, bias)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_temperature_is_infinite_as_a_factor() {
        let inverse = |temperature| 1.0 / super::divisible(temperature);
        let all = [1e-45, 1e-39, 1e-8, 1.0].map(inverse);
        assert!(all.iter().all(|factor| factor.is_finite()));
        assert_eq!([0.0, 0.7].map(super::divisible), [0.0, 0.7]);
    }

    #[test]
    fn biases_of_one_token_add_up() {
        let merged = super::merged(&[(3, 1.0), (1, 2.0), (3, -0.5)]);
        assert_eq!(merged, [(3, 0.5), (1, 2.0)]);
    }
}
