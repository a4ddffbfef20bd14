//! Runs of products and attention for one single token, which one launch does as a whole.
//!
//! Must not know how a link computes, nor which operations it came from.

mod layers;
#[cfg(test)]
pub(super) mod tests;
mod turns;

use std::mem::size_of;

use fornax_backend::BackendError;

use super::attention::heads_a_block;
use super::products::{self, Stream, token_bytes};
use super::{Action, Plan, Shop};
use crate::kernels::Module;
use crate::kernels::formats::Formats;
use crate::launch::Launch;
use crate::memory::Memory;
use crate::operation::AttendTable;

// As in `kernels/links.cu`.
const WARPS: usize = 8;
const BATCH: usize = 8;
const MOST_SPLITS: usize = 16;
const COPIES: usize = 8;
const ATTENTION: u32 = u32::MAX;
/// What the kernel itself keeps in shared memory, at most.
const OWN_SHARED: usize = 12 << 10;
/// Query heads that one block takes at most.
const MOST_HEADS: usize = 3;
/// Fewer links than that are not worth a launch in which all blocks must be there at once.
const FEWEST: usize = 4;
/// Programs that are kept at most when a plan begins to be made.
const MOST_PROGRAMS: usize = 64;

/// `struct Link` of `kernels/links.cu`; its last part is a product's or an attention's.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Link {
    kind: u32,
    tag: u32,
    stride: u32,
    from_tag: u32,
    from_stride: u32,
    batch: u32,
    parts: u32,
    of_each: u32,
    one_more: u32,
    from_apart: u32,
    to_apart: u32,
    first: u32,
    from: u64,
    to: u64,
    pieces: u64,
    totals: u64,
    body: [u64; BODY],
}

/// Words of the larger body.
const BODY: usize = size_of::<AttendTable>() / 8;

/// `struct Source` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Source {
    weight: u64,
    rows: u32,
    pitch: u32,
    second: u32,
    tile_rows: u32,
    first: u32,
    spare: u32,
}

/// `struct Chain` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Table {
    links: u64,
    sources: u64,
    state: u64,
    told: u64,
    tokens: u64,
    rows: u64,
    link_count: u32,
    source_count: u32,
    told_count: u32,
    q_count: u32,
    kv_heads: u32,
    ring: u32,
    left: u32,
}

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
    let products = products.filter(|stream| Formats::know(stream.format));
    let products = products.map(|stream| (stream.action, Candidate::Product(stream)));
    let turning = |table: &AttendTable| table.n == 1 && table.frequencies != 0 && table.dense == 0;
    let attentions = attentions.iter().filter(|(_, table)| turning(table));
    let attentions = attentions.map(|(action, table)| (*action, Candidate::Attention(table)));
    let mut all: Vec<_> = products.chain(attentions).collect();
    all.sort_by_key(|(action, _)| *action);
    all
}

/// A chain as it will lie in the device's memory: what it counts, its links, its sources, the words that
/// links tell one another, and what blocks that share a row of attention tell.
struct Layout {
    module: Module,
    /// Their addresses are counted from the beginning of the chain's memory, where no link points.
    links: Vec<Link>,
    sources: Vec<Source>,
    /// Bytes of the words.
    words: usize,
    /// Bytes of what blocks that share a row tell: of numbers, and of totals behind them.
    pieces: usize,
    totals: usize,
    /// Bytes of shared memory.
    ring: usize,
    left: usize,
    attending: usize,
    blocks: usize,
    /// Where the step's tokens and rows are.
    step: (u64, u64),
    /// Query heads and KV heads.
    heads: (u32, u32),
}

/// The words of a buffer. Two places take turns, so that none is written again before all have read it:
/// who writes it has read what came of it.
struct Place {
    buffer: (u64, usize),
    at: usize,
    /// How often either was written.
    writes: [u32; 2],
}

/// A write to one of a place's two.
#[derive(Clone, Copy)]
struct Written {
    place: usize,
    half: usize,
    tag: u32,
}

impl Layout {
    /// `None` where the kernel cannot do these links, or they are too few.
    fn new(blocks: usize, shared_memory: usize, candidates: &[Candidate<'_>]) -> Option<Self> {
        let mut streams = Vec::new();
        let mut tables = Vec::new();
        for candidate in candidates {
            match candidate {
                Candidate::Product(stream) => streams.push(*stream),
                Candidate::Attention(table) => tables.push(*table),
            }
        }
        let attention = *tables.first()?;
        let shape = |table: &AttendTable| (table.dim, table.kind, table.q_count, table.kv_heads);
        let (dim, group) = (attention.dim as usize, heads_a_block(attention, MOST_HEADS));
        let parts = attention.q_count as usize / group;
        if candidates.len() < FEWEST
            || tables.iter().any(|table| shape(table) != shape(attention))
            || parts > blocks
        {
            return None;
        }
        let left = streams
            .iter()
            .map(|stream| token_bytes(stream.format, stream.padded()));
        let left = left.max()?.next_multiple_of(128);
        let attending = 4 * (group * dim + 2 * dim + 2 * WARPS + WARPS * dim);
        let room = shared_memory.checked_sub(OWN_SHARED + left + attending)?;
        let mut layout = Self {
            module: Module::Chain {
                formats: Formats::of(streams.iter().map(|stream| stream.format)),
                head: dim,
                group,
                kv: attention.kind as usize,
            },
            links: Vec::new(),
            sources: Vec::new(),
            words: 0,
            pieces: 8 * parts * group * dim * MOST_SPLITS,
            totals: 8 * 2 * parts * group * MOST_SPLITS,
            ring: room / 128 * 128,
            left,
            attending,
            blocks,
            step: (attention.tokens, attention.rows),
            heads: (attention.q_count, attention.kv_heads),
        };
        layout.lay(candidates)?;
        Some(layout)
    }

    fn lay(&mut self, candidates: &[Candidate<'_>]) -> Option<()> {
        // A block's threads meet between two links that add to the same numbers where another link is between.
        let adding = candidates.windows(2).any(|pair| {
            let [first, second] = [&pair[0], &pair[1]].map(Candidate::adds_to);
            first.is_some() && first == second
        });
        if adding {
            return None;
        }
        let products = |candidate: &&Candidate<'_>| matches!(candidate, Candidate::Product(_));
        let words_at = words_at(candidates.len(), candidates.iter().filter(products).count());
        let mut places: Vec<Place> = Vec::new();
        let (mut read, mut last): (_, Option<Written>) = (None, None);
        let mut steps = Vec::new();
        for (index, candidate) in candidates.iter().enumerate() {
            if !candidate.goes_on() {
                read = last;
                // What the last link gives is read by another launch, from where it always is.
                let is_read = candidates[index + 1..].iter().any(|next| !next.goes_on());
                last = is_read.then(|| {
                    let buffer = whole_output(&candidates[index..]);
                    let known = places.iter().position(|place| place.buffer == buffer);
                    let place = known.unwrap_or_else(|| {
                        let at = words_at + self.words;
                        self.words += 2 * COPIES * words_bytes(buffer.1);
                        places.push(Place {
                            buffer,
                            at,
                            writes: [0; 2],
                        });
                        places.len() - 1
                    });
                    let writes = &mut places[place].writes;
                    let half = usize::from(writes[0] > writes[1]);
                    writes[half] += 1;
                    let tag = writes[half];
                    Written { place, half, tag }
                });
            }
            steps.push((candidate, read, last));
        }
        // How often a launch writes each place is known now.
        let word = |written: Option<Written>| {
            written.map_or((0, 0, 0, 0), |Written { place, half, tag }| {
                let place = &places[place];
                let copy = words_bytes(place.buffer.1);
                let at = place.at + half * COPIES * copy;
                (at as u64, copy as u32 / 4, tag, place.writes[half])
            })
        };
        // Eights of rows of the product that goes on, so far.
        let mut before = 0;
        for (candidate, read, written) in steps {
            let (from, from_apart, from_tag, from_stride) = word(read);
            let (to, to_apart, tag, stride) = word(written);
            let mut link = Link {
                kind: ATTENTION,
                tag,
                stride,
                from_tag,
                from_stride,
                from_apart,
                to_apart,
                from,
                to,
                ..Link::default()
            };
            match candidate {
                Candidate::Product(stream) => {
                    let column = 4 * stream.column() as u64;
                    let moved = |at: u64| if at == 0 { 0 } else { at + column };
                    let eights = stream.eights();
                    if !candidate.goes_on() {
                        before = 0;
                    }
                    link.kind = stream.format.ggml_number();
                    link.batch = self.batch(stream)? as u32;
                    link.parts = stream.blocks as u32;
                    link.of_each = (eights / self.blocks) as u32;
                    link.one_more = (eights % self.blocks) as u32;
                    // The blocks that have fewer of what it goes on with.
                    link.first = (before % self.blocks) as u32;
                    link.to = moved(to);
                    before += eights;
                    let table = products::Table {
                        out: moved(stream.table.out),
                        residual: moved(stream.table.residual),
                        stage_pitch: stream.table.pitch,
                        ..stream.table
                    };
                    put(table, &mut link.body);
                    self.sources.push(source(stream, link.first));
                }
                Candidate::Attention(table) => {
                    link.pieces = (words_at + self.words) as u64;
                    link.totals = link.pieces + self.pieces as u64;
                    put(**table, &mut link.body);
                }
            }
            self.links.push(link);
        }
        Some(())
    }

    /// How many tiles of a product are multiplied together: all of them are in the ring at once, wherever
    /// in it the first one lies.
    fn batch(&self, stream: &Stream) -> Option<usize> {
        let tile = stream.tile_bytes().next_multiple_of(128);
        let most = (self.ring / tile).checked_sub(1)?;
        (most > 0).then_some(most.min(BATCH / stream.of_tile()))
    }

    fn words_at(&self) -> usize {
        words_at(self.links.len(), self.sources.len())
    }

    fn bytes(&self) -> usize {
        self.words_at() + self.words + self.pieces + self.totals
    }

    /// Everything up to the words, for memory that begins at `base`.
    fn program(&self, base: u64) -> Vec<u64> {
        let mut words = vec![0; self.words_at() / 8];
        let mut rest = &mut words[2..];
        for link in &self.links {
            let moved = |at: u64| if at == 0 { 0 } else { base + at };
            let link = Link {
                from: moved(link.from),
                to: moved(link.to),
                pieces: moved(link.pieces),
                totals: moved(link.totals),
                ..*link
            };
            rest = put(link, rest);
        }
        for source in &self.sources {
            rest = put(*source, rest);
        }
        words
    }

    /// The launch, whose program is brought to the device unless it is there.
    fn launch(&self, shop: &mut Shop) -> Result<Launch, BackendError> {
        let base = self.keep(shop)?;
        let links_at = base + 16;
        let words_at = base + self.words_at() as u64;
        let table = Table {
            links: links_at,
            sources: links_at + (self.links.len() * size_of::<Link>()) as u64,
            state: base,
            told: words_at + self.words as u64,
            tokens: self.step.0,
            rows: self.step.1,
            link_count: self.links.len() as u32,
            source_count: self.sources.len() as u32,
            told_count: ((self.pieces + self.totals) / 8) as u32,
            q_count: self.heads.0,
            kv_heads: self.heads.1,
            ring: self.ring as u32,
            left: self.left as u32,
        };
        let kernel = shop.kernels.kernel(self.module, "chain")?;
        let launch = Launch::new(kernel, [self.blocks, 1, 1], 32 * WARPS + 32).together();
        let shared = self.ring + self.left + self.attending;
        Ok(launch.shared(shared).structure(&table))
    }

    /// Where the program lies on the device.
    fn keep(&self, shop: &mut Shop) -> Result<u64, BackendError> {
        shop.keep(self.bytes(), |base| self.program(base))
    }
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

/// All that candidates write of what the first one begins: a product's whole rows.
fn whole_output(candidates: &[Candidate<'_>]) -> (u64, usize) {
    let more = candidates[1..].iter().take_while(|next| next.goes_on());
    candidates[more.count()].output()
}

fn source(stream: &Stream, first: u32) -> Source {
    let table = &stream.table;
    Source {
        weight: table.weight,
        rows: table.rows,
        pitch: table.pitch,
        second: table.second,
        tile_rows: table.tile_rows,
        first,
        spare: 0,
    }
}

/// Bytes of so many links and sources, behind which words lie.
fn words_at(links: usize, sources: usize) -> usize {
    let before = 16 + links * size_of::<Link>() + sources * size_of::<Source>();
    before.next_multiple_of(128)
}

fn words_bytes(numbers: usize) -> usize {
    (4 * numbers).next_multiple_of(128)
}

/// Writes plain data to the beginning of some words; returns those behind it.
fn put<T: Copy>(value: T, words: &mut [u64]) -> &mut [u64] {
    let (own, rest) = words.split_at_mut(size_of::<T>().div_ceil(8));
    // SAFETY: there is room for a `T`, which is plain data and no more than 8 bytes aligned.
    unsafe { own.as_mut_ptr().cast::<T>().write(value) };
    rest
}
