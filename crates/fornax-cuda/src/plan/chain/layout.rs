//! How the links of a chain lie in the device's memory, and who of its blocks has what of them.
//!
//! Must not know which actions became links.

use std::mem::size_of;

use fornax_backend::BackendError;

use super::{Candidate, put};
use crate::kernels::Module;
use crate::kernels::formats::Formats;
use crate::launch::Launch;
use crate::operation::AttendTable;
use crate::plan::Shop;
use crate::plan::attention::heads_a_block;
use crate::plan::products::{self, Stream, token_bytes};

// As in `kernels/links.cu`.
const WARPS: usize = 8;
const BATCH: usize = 8;
const MOST_SPLITS: usize = 16;
pub(super) const COPIES: usize = 8;
pub(super) const ATTENTION: u32 = u32::MAX;
/// What the kernel itself keeps in shared memory, at most.
const OWN_SHARED: usize = 12 << 10;
/// Query heads that one block takes at most.
const MOST_HEADS: usize = 3;
/// Fewer links than that are not worth a launch in which all blocks must be there at once.
const FEWEST: usize = 4;
/// `struct Link` of `kernels/links.cu`; its last part is a product's or an attention's.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Link {
    pub(super) kind: u32,
    pub(super) tag: u32,
    pub(super) stride: u32,
    pub(super) from_tag: u32,
    pub(super) from_stride: u32,
    pub(super) batch: u32,
    pub(super) parts: u32,
    pub(super) of_each: u32,
    pub(super) one_more: u32,
    pub(super) from_apart: u32,
    pub(super) to_apart: u32,
    pub(super) first: u32,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) pieces: u64,
    pub(super) totals: u64,
    pub(super) body: [u64; BODY],
}

/// Words of the larger body.
const BODY: usize = size_of::<AttendTable>() / 8;

/// `struct Source` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Source {
    pub(super) weight: u64,
    pub(super) rows: u32,
    pub(super) pitch: u32,
    pub(super) second: u32,
    pub(super) tile_rows: u32,
    pub(super) first_block: u32,
    pub(super) spare: u32,
}

/// `struct Chain` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Table {
    pub(super) links: u64,
    pub(super) sources: u64,
    pub(super) state: u64,
    pub(super) told: u64,
    pub(super) tokens: u64,
    pub(super) rows: u64,
    pub(super) link_count: u32,
    pub(super) source_count: u32,
    pub(super) told_count: u32,
    pub(super) q_count: u32,
    pub(super) kv_heads: u32,
    pub(super) ring: u32,
    pub(super) left: u32,
}

/// A chain as it will lie in the device's memory: what it counts, its links, its sources, the words that
/// links tell one another, and what blocks that share a row of attention tell.
pub(super) struct Layout {
    pub(super) module: Module,
    /// Their addresses are counted from the beginning of the chain's memory, where no link points.
    pub(super) links: Vec<Link>,
    pub(super) sources: Vec<Source>,
    /// Bytes of the words.
    pub(super) words: usize,
    /// Bytes of what blocks that share a row tell: of numbers, and of totals behind them.
    pub(super) pieces: usize,
    pub(super) totals: usize,
    /// Bytes of shared memory.
    pub(super) ring: usize,
    pub(super) left: usize,
    pub(super) attending: usize,
    pub(super) blocks: usize,
    /// Where the step's tokens and rows are.
    pub(super) step: (u64, u64),
    /// Query heads and KV heads.
    pub(super) heads: (u32, u32),
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
    pub(super) fn new(
        blocks: usize,
        shared_memory: usize,
        candidates: &[Candidate<'_>],
    ) -> Option<Self> {
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

    pub(super) fn words_at(&self) -> usize {
        words_at(self.links.len(), self.sources.len())
    }

    pub(super) fn bytes(&self) -> usize {
        self.words_at() + self.words + self.pieces + self.totals
    }

    /// Everything up to the words, for memory that begins at `base`.
    pub(super) fn program(&self, base: u64) -> Vec<u64> {
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
    pub(super) fn launch(&self, shop: &mut Shop) -> Result<Launch, BackendError> {
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

/// All that candidates write of what the first one begins: a product's whole rows.
fn whole_output(candidates: &[Candidate<'_>]) -> (u64, usize) {
    let more = candidates[1..].iter().take_while(|next| next.goes_on());
    candidates[more.count()].output()
}

fn source(stream: &Stream, first_block: u32) -> Source {
    let table = &stream.table;
    Source {
        weight: table.weight,
        rows: table.rows,
        pitch: table.pitch,
        second: table.second,
        tile_rows: table.tile_rows,
        first_block,
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
