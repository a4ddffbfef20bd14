//! Runs of products and attention for one single token, which one launch does as a whole.
//!
//! Must not know how a link computes, nor which operations it came from.

mod layers;
mod layout;
#[cfg(test)]
pub(super) mod tests;
mod turns;

use std::mem::size_of;

use fornax_backend::BackendError;

use super::products::Stream;
use super::{Action, Plan, Shop};
use crate::memory::Memory;
use crate::operation::AttendTable;
use crate::ways::ways;

use layout::Layout;

/// Programs that are kept at most when a plan begins to be made.
const MOST_PROGRAMS: usize = 64;

/// A chain that was laid out on the device: what it was made of, and where it lies, with the words by
/// which its links tell one another what they found. Those and its count of launches belong to it alone.
pub(crate) struct Program {
    words: Vec<u64>,
    memory: Memory,
}

/// An action that may be a link.
#[derive(Clone, Copy)]
enum Candidate<'a> {
    Product(&'a Stream),
    Attention(&'a AttendTable),
}

impl Candidate<'_> {
    /// Which buffer it reads, and how many numbers.
    fn input(&self) -> (u64, usize) {
        match self {
            Candidate::Product(stream) => stream.input(),
            Candidate::Attention(table) => (table.q, table.q_stride as usize),
        }
    }

    /// Which buffer it writes, and how many numbers, with those before its own: not all of them where a product in
    /// another format goes on.
    fn output(&self) -> (u64, usize) {
        match self {
            Candidate::Product(stream) => stream.output(),
            Candidate::Attention(table) => (table.out, (table.q_count * table.v_dim) as usize),
        }
    }

    /// Where it goes on with what the one before it began: the first of its rows.
    fn goes_on_at(&self) -> usize {
        match self {
            Candidate::Product(stream) => stream.column(),
            Candidate::Attention(_) => 0,
        }
    }

    fn goes_on(&self) -> bool {
        self.goes_on_at() > 0
    }

    /// What it adds to.
    fn adds_to(&self) -> Option<u64> {
        match self {
            Candidate::Product(stream) => stream.adds_to(),
            Candidate::Attention(_) => None,
        }
    }
}

impl Plan<'_> {
    /// Makes one launch of every run of actions whose links hand a single token on; whole layers go
    /// through it in two teams where they can. Says how many layers those are.
    pub(super) fn chain(&mut self) -> Result<usize, BackendError> {
        if self.shop.apart || !self.shop.device.is_hopper() {
            return Ok(0);
        }
        let (streams, attentions) = self.for_links();
        let (mut launches, mut in_teams) = (Vec::new(), 0);
        let candidates = candidates(&streams, &attentions);
        for run in candidates.chunk_by(follows) {
            // Whose beginning is not there.
            let begun = run.iter().take_while(|(_, candidate)| candidate.goes_on());
            let mut run = &run[begun.count()..];
            while let Some(&(first, _)) = run.first() {
                let links = links_of(run);
                if let Some((launch, count)) = layers::launch(self.shop, &[&links])? {
                    in_teams += count / layers::LINKS;
                    launches.push((first, count, launch));
                    run = &run[count..];
                    continue;
                }
                let device = &self.shop.device;
                let processors = device.multiprocessors() as usize;
                if let Some(layout) = Layout::new(processors, device.shared_memory(), &links) {
                    launches.push((first, run.len(), layout.launch(self.shop)?));
                }
                break;
            }
        }
        // From the last to the first, so that places stay what they are.
        for (first, count, launch) in launches.into_iter().rev() {
            self.actions
                .splice(first..first + count, [Action::Launch(launch)]);
        }
        Ok(in_teams)
    }

    /// What may become links. Programs are forgotten here, if there are too many: not while a plan is made, which may
    /// know some of them already.
    fn for_links(&mut self) -> (Vec<Stream>, Vec<(usize, AttendTable)>) {
        if self.shop.programs.len() >= MOST_PROGRAMS {
            self.shop.programs.clear();
        }
        let streams = std::mem::take(&mut self.streams);
        (streams, std::mem::take(&mut self.attentions))
    }
}

/// Whether a candidate takes what the one before it gives, which nobody else has, or goes on with it.
fn follows((a, first): &(usize, Candidate<'_>), (b, second): &(usize, Candidate<'_>)) -> bool {
    let (to, numbers) = first.output();
    let linked = match second.goes_on() {
        true => {
            first.input() == second.input()
                && (to, numbers) == (second.output().0, second.goes_on_at())
        }
        false => (to, numbers) == second.input(),
    };
    a + 1 == *b && linked
}

fn links_of<'a>(run: &[(usize, Candidate<'a>)]) -> Vec<Candidate<'a>> {
    run.iter().map(|(_, candidate)| *candidate).collect()
}

/// Actions that may be links, each with its place among all of them.
fn candidates<'a>(
    streams: &'a [Stream],
    attentions: &'a [(usize, AttendTable)],
) -> Vec<(usize, Candidate<'a>)> {
    let products = streams.iter().filter(|stream| stream.is_of_one_token());
    let products = products.filter(|stream| ways(stream.format).chains);
    let products = products.map(|stream| (stream.action, Candidate::Product(stream)));
    let turning = |table: &AttendTable| table.n == 1 && table.frequencies != 0 && table.dense == 0;
    let attentions = attentions.iter().filter(|(_, table)| turning(table));
    let attentions = attentions.map(|(action, table)| (*action, Candidate::Attention(table)));
    let mut all: Vec<_> = products.chain(attentions).collect();
    all.sort_by_key(|(action, _)| *action);
    all
}

impl Shop {
    /// Where a program lies on the device, which is made of so many bytes where it is not there yet.
    /// `program` gives its first words, for memory that begins at a base.
    pub(super) fn keep(
        &mut self,
        bytes: usize,
        program: impl Fn(u64) -> Vec<u64>,
    ) -> Result<u64, BackendError> {
        let words = program(0);
        let same = |known: &&Program| known.words == words && known.memory.bytes() >= bytes;
        if let Some(known) = self.programs.iter().find(same) {
            return Ok(known.memory.pointer());
        }
        let memory = Memory::zeroed(&self.device, bytes, "a chain")?;
        let base = memory.pointer();
        memory.write(0, &program(base))?;
        self.programs.push(Program { words, memory });
        Ok(base)
    }
}

/// Writes plain data to the beginning of some words; returns those behind it.
fn put<T: Copy>(value: T, words: &mut [u64]) -> &mut [u64] {
    let (own, rest) = words.split_at_mut(size_of::<T>().div_ceil(8));
    // SAFETY: there is room for a `T`, which is plain data and no more than 8 bytes aligned.
    unsafe { own.as_mut_ptr().cast::<T>().write(value) };
    rest
}
