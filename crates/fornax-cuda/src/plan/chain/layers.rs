//! Whole layers of a single token of each of some rows, as the launch of two teams does them (`kernels/layers.cu`):
//! which links are such layers, and how they are laid out for it.
//!
//! Must not know how a team computes.

#[cfg(test)]
mod tests;

use std::mem::size_of;

use fornax_backend::BackendError;
use fornax_gguf::DType;

use super::{Candidate, put};
use crate::kernels::Module;
use crate::launch::Launch;
use crate::matrix;
use crate::operation::AttendTable;
use crate::plan::Shop;
use crate::plan::in_turn::RECORD;
use crate::plan::products::{self, Stream};
use crate::tensor_map::TensorMap;
use crate::ways::ways;

// As in `kernels/teams.cu` and its panels.
const TEAM: usize = 8;
const WARPS: usize = 8;
const THREADS: usize = 32 * WARPS + 128;
const TILE_ROWS: usize = 16;
const PANEL: usize = 128;
const MOST_PANELS: usize = 8;
const MOST_TILES: usize = 8;
/// As many numbers as a tally counts (`kernels/tallies.cu`).
const MOST_CLUSTERS: usize = 15;
/// What a token takes in shared memory ready to be multiplied, at most, with what lies between parts.
const OPERAND: usize = MOST_PANELS * PANEL / 32 * 128 + 64;
/// Positions of a slice in `kernels/slices.cu`, and how kernels number a cache of bytes.
const SLICE: usize = 16;
const KV_Q8_0: u32 = 3;
/// The longest tiles that the ring has room for, at least: a warp waits for one of them at a time.
const FEWEST_TILES: usize = 2;
/// Where tallies begin: at the start of a line of the device's cache.
const LINE: usize = 128;
/// Slices of keys and of values that a warp has room for, at least: one of each.
const FEWEST_HALVES: usize = 2;
/// What a query is longer by in shared memory than a head, for banks.
const QUERY_MORE: usize = 8;
/// Links of a layer.
pub(super) const LINKS: usize = 5;
/// Query heads of a KV head at most.
const MOST_GROUP: usize = 4;

/// `struct Layer` of `kernels/teams.cu`.
#[derive(Clone, Copy, PartialEq)]
#[repr(C)]
struct Layer {
    qkv: u64,
    output: u64,
    gate_up: u64,
    down: u64,
    attention_norm: u64,
    feed_norm: u64,
    qkv_bias: u64,
    output_bias: u64,
    down_bias: u64,
    attend: AttendTable,
}

/// `struct Slices` of the kernel: those of one product in one layer, and their scales if they have any.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Slices {
    weights: TensorMap,
    scales: TensorMap,
}

/// `struct Layers` of the kernel.
#[derive(Clone, Copy, Default, PartialEq)]
#[repr(C)]
struct Table {
    layers: u64,
    slices: u64,
    attended: u64,
    fed: u64,
    x: u64,
    tokens: u64,
    rows: u64,
    attention_eps: f32,
    feed_eps: f32,
    alpha: f32,
    limit: f32,
    count: u32,
    hidden: u32,
    kv_heads: u32,
    feeders: u32,
    width: u32,
    second: u32,
    activation: u32,
    q_offset: u32,
    k_offset: u32,
    v_offset: u32,
    qkv_pitch: u32,
    output_pitch: u32,
    gate_up_pitch: u32,
    down_pitch: u32,
    ring: u32,
    attending: u32,
}

/// The links of a layer.
#[derive(Clone, Copy)]
struct Links<'a> {
    qkv: &'a Stream,
    attend: &'a AttendTable,
    output: &'a Stream,
    gate_up: &'a Stream,
    down: &'a Stream,
}

impl<'a> Links<'a> {
    /// `None` where the links are no layer, or one that the teams cannot do.
    fn of(links: &[Candidate<'a>; LINKS]) -> Option<Self> {
        let [
            Candidate::Product(qkv),
            Candidate::Attention(attend),
            Candidate::Product(output),
            Candidate::Product(gate_up),
            Candidate::Product(down),
        ] = *links
        else {
            return None;
        };
        let token = qkv.table.x;
        let projects = |stream: &Stream| {
            let table = &stream.table;
            table.second == 0 && table.best == 0 && table.pick == 0
        };
        let adds = |stream: &Stream| {
            projects(stream) && stream.table.residual == token && stream.table.norm == 0
        };
        let is_layer = projects(qkv)
            && qkv.table.residual == 0
            && qkv.table.norm != 0
            && adds(output)
            && gate_up.table.second != 0
            && gate_up.table.norm != 0
            && gate_up.table.bias == 0
            && gate_up.table.pick == 0
            && gate_up.table.x == token
            && adds(down);
        let alike = |stream: &Stream| {
            let cols_are_whole = stream.table.cols == stream.table.padded;
            stream.is_whole() && cols_are_whole && stream.format == qkv.format
        };
        let all_alike = [qkv, output, gate_up, down].into_iter().all(alike);
        (is_layer && all_alike).then_some(Self {
            qkv,
            attend,
            output,
            gate_up,
            down,
        })
    }

    /// What all layers of a launch have in common.
    fn table(&self) -> Table {
        let [qkv, output, gate_up, down] =
            [self.qkv, self.output, self.gate_up, self.down].map(|stream| &stream.table);
        let attend = self.attend;
        Table {
            x: qkv.x,
            tokens: attend.tokens,
            rows: attend.rows,
            attention_eps: qkv.eps,
            feed_eps: gate_up.eps,
            alpha: gate_up.alpha,
            limit: gate_up.limit,
            hidden: qkv.cols,
            kv_heads: attend.kv_heads,
            width: gate_up.rows,
            second: gate_up.second,
            activation: gate_up.activation,
            q_offset: attend.q_offset,
            k_offset: attend.k_offset,
            v_offset: attend.v_offset,
            qkv_pitch: qkv.pitch,
            output_pitch: output.pitch,
            gate_up_pitch: gate_up.pitch,
            down_pitch: down.pitch,
            ..Table::default()
        }
    }

    /// Sizes of heads that the kernel is compiled for, and of the pages where they are kept.
    fn heads(&self) -> [u32; 5] {
        let table = self.attend;
        let AttendTable {
            dim,
            kind,
            q_count,
            kv_heads,
            page_size,
            ..
        } = *table;
        [dim, kind, q_count, kv_heads, page_size]
    }

    fn layer(&self) -> Layer {
        let tables = [self.qkv, self.output, self.gate_up, self.down].map(|stream| &stream.table);
        let [qkv, output, gate_up, down]: [&products::Table; 4] = tables;
        Layer {
            qkv: qkv.weight,
            output: output.weight,
            gate_up: gate_up.weight,
            down: down.weight,
            attention_norm: qkv.norm,
            feed_norm: gate_up.norm,
            qkv_bias: qkv.bias,
            output_bias: output.bias,
            down_bias: down.bias,
            attend: *self.attend,
        }
    }
}

/// Layers that one launch does, one like the other.
struct Teams {
    module: Module,
    table: Table,
    rows: usize,
    /// Of the first row.
    layers: Vec<Layer>,
    format: DType,
    /// Columns of a KV head's share of the attention's output.
    parts: usize,
    /// Bytes of shared memory for the ring and what attention gathers.
    shared: usize,
}

impl Teams {
    /// Of the layers that each row's links begin with; `None` where there is none, or one of another size or format
    /// than the teams can do, or where rows differ in more than their places.
    fn new(shared_memory: usize, rows: &[&[Candidate<'_>]]) -> Option<Self> {
        let (first, others) = rows.split_first()?;
        let teams = Self::of(shared_memory, first, rows.len())?;
        let alike = others.iter().zip(1..).all(|(links, row)| {
            Self::of(shared_memory, links, rows.len()).is_some_and(|other| teams.has(row, &other))
        });
        alike.then_some(teams)
    }

    /// Whether another row's layers are those of the first one in its places.
    fn has(&self, row: u64, other: &Self) -> bool {
        let placed = |layer: &Layer, of: &Layer| Layer {
            attend: AttendTable {
                out: of.attend.out,
                q: of.attend.q,
                tokens: of.attend.tokens,
                rows: of.attend.rows,
                ..layer.attend
            },
            ..*layer
        };
        let (first, table) = (&self.table, &other.table);
        let expected = Table {
            x: first.x + row * 4 * u64::from(first.hidden),
            tokens: first.tokens + row * RECORD,
            rows: first.rows + row * RECORD,
            ..*first
        };
        *table == expected
            && self.layers.len() == other.layers.len()
            && self.format == other.format
            && self
                .layers
                .iter()
                .zip(&other.layers)
                .all(|(layer, other)| placed(layer, other) == *other)
    }

    /// Of one row's links, for so many rows.
    fn of(shared_memory: usize, links: &[Candidate<'_>], rows: usize) -> Option<Self> {
        let (layers, _) = links.as_chunks::<LINKS>();
        let first = Links::of(layers.first()?)?;
        let mut table = first.table();
        let format = first.qkv.format;
        let same = |links: &Links<'_>| {
            let heads_are_same = links.heads() == first.heads();
            links.table() == table && heads_are_same && links.qkv.format == format
        };
        let layers = layers.iter().map_while(Links::of).take_while(same);
        let layers: Vec<_> = layers.map(|links| links.layer()).collect();

        let attend = first.attend;
        let (hidden, width) = (table.hidden as usize, table.width as usize);
        let (dim, kv_heads) = (attend.dim as usize, attend.kv_heads as usize);
        let group = attend.q_count as usize / kv_heads;
        let parts = group * dim;
        // Every block has a tile of the token: who tells the next row of a message has heard of all of them so.
        let fits = ways(format).panels
            && hidden >= TEAM * TILE_ROWS
            && hidden.is_multiple_of(32)
            && width.is_multiple_of(32)
            && hidden <= MOST_PANELS * PANEL
            && parts <= MOST_PANELS * PANEL
            && group <= MOST_GROUP
            && (attend.page_size as usize).is_multiple_of(SLICE)
            && kv_heads <= WARPS
            && (group + 2) * dim <= TEAM * MOST_TILES * TILE_ROWS
            && first.output.table.cols as usize == kv_heads * parts
            && first.qkv.table.rows as usize == (group + 2) * dim * kv_heads
            && first.down.table.cols as usize == width;
        if !fits {
            return None;
        }
        // `struct Attending` of `kernels/attend_team.cu`.
        let (row, scales) = match attend.kind {
            KV_Q8_0 => (dim, dim),
            _ => (2 * dim, 0),
        };
        let half = WARPS * (SLICE * row + scales);
        let floats =
            group * (dim + QUERY_MORE) + WARPS * dim + (WARPS + TEAM) * (parts + 2 * group);
        let attending = |halves: usize| {
            let bytes = halves * half + 4 * floats + 2 * row + dim / 8 + OPERAND;
            bytes.next_multiple_of(128)
        };
        // No row in the ring, nor a slice of one, is longer.
        let row = matrix::row_bytes(format, MOST_PANELS * PANEL) + 128;
        let ring = |halves: usize| {
            let taken = own_shared(format, group, dim, rows) + attending(halves);
            let left = shared_memory.checked_sub(taken)? / 128 * 128;
            (left >= FEWEST_TILES * TILE_ROWS * row).then_some(left)
        };
        // What a warp has room for is missing in the ring, where tiles wait: the longer, the fewer.
        // Rows that take turns leave no time in which tiles could come.
        let most = match format {
            DType::Q4_0 if rows == 1 => 4,
            DType::Q8_0 if rows == 1 => 3,
            _ => FEWEST_HALVES,
        };
        let fitting = |halves| Some((halves, ring(halves)?, attending(halves)));
        let (halves, ring, attending) = (FEWEST_HALVES..=most).rev().find_map(fitting)?;
        table.count = layers.len() as u32;
        table.ring = ring as u32;
        table.attending = attending as u32;
        Some(Self {
            module: Module::Layers {
                format,
                head: dim,
                group,
                kv: attend.kind as usize,
                halves,
                rows,
                plain: layers.iter().all(|layer| layer.attend.is_plain()),
            },
            table,
            rows,
            layers,
            format,
            parts,
            shared: ring + attending,
        })
    }

    /// Divides the blocks that run at once; says whether there are enough of them.
    fn divide(&mut self, clusters: usize) -> bool {
        let blocks = self.table.width as usize / 32;
        let left = clusters.saturating_sub(self.table.kv_heads as usize);
        let feeders = left.min(MOST_CLUSTERS).min(blocks);
        self.table.feeders = feeders as u32;
        // A block of 32 units is four tiles of gates and ups.
        feeders > 0
            && 4 * blocks.div_ceil(feeders).div_ceil(TEAM) <= MOST_TILES
            && 32 * blocks.div_ceil(feeders) <= MOST_PANELS * PANEL
    }

    fn clusters(&self) -> usize {
        (self.table.kv_heads + self.table.feeders) as usize
    }

    /// Where layers and the tallies of either team begin behind the slices, and all bytes.
    fn places(&self) -> [usize; 4] {
        let count = self.layers.len();
        let layers = count * size_of::<[Slices; 2]>();
        let attended = (layers + count * size_of::<Layer>()).next_multiple_of(LINE);
        let tallies = 8 * self.rows * self.table.hidden as usize;
        let fed = attended + tallies;
        [layers, attended, fed, fed + tallies]
    }

    /// Everything up to the tallies: slices of all layers' products that end in a token, which begin on 64
    /// bytes for the copy engine, then the layers. `describe` tells the copy engine of a weight, the bytes of its rows, and how
    /// many of sixteen are copied at once.
    fn program(
        &self,
        describe: impl Fn(u64, u32, usize) -> Result<TensorMap, BackendError>,
    ) -> Result<Vec<u64>, BackendError> {
        let [_, end, ..] = self.places();
        let mut words = vec![0; end / 8];
        let mut rest = &mut words[..];
        let table = &self.table;
        let units = (table.width as usize / 32).div_ceil(table.feeders as usize);
        for layer in &self.layers {
            let output = (layer.output, table.output_pitch, self.parts / 32);
            for (weight, pitch, blocks) in [output, (layer.down, table.down_pitch, units)] {
                let mut slices = Slices {
                    weights: describe(weight, pitch, slice_bytes(self.format, blocks))?,
                    scales: TensorMap::default(),
                };
                if self.format != DType::BF16 {
                    slices.scales = describe(weight, pitch, scale_bytes(blocks))?;
                }
                rest = put(slices, rest);
            }
        }
        for layer in &self.layers {
            rest = put(*layer, rest);
        }
        Ok(words)
    }
}

/// Bytes from a row to the next in the ring, so that those which a warp reads at once share no bank
/// (`apart` of the kernel's panels).
fn slice_bytes(format: DType, blocks: usize) -> usize {
    match format {
        DType::BF16 => (64 * blocks).next_multiple_of(128),
        DType::Q8_0 => (32 * blocks + 63) / 128 * 128 + 64,
        _ => (16 * blocks + 63) / 128 * 128 + 64,
    }
}

/// Whole units of 16 bytes that have the scales of so many blocks, wherever they begin.
fn scale_bytes(blocks: usize) -> usize {
    (14 + 2 * blocks).next_multiple_of(16)
}

/// What the kernel itself keeps in shared memory (`struct Shared`): a token in bf16 takes more than in bytes.
fn own_shared(format: DType, group: usize, dim: usize, rows: usize) -> usize {
    let (fixed, each) = match format {
        DType::BF16 => (31 << 10, 13 << 10),
        _ => (27 << 10, 11 << 10),
    };
    fixed + 4 * (group + 3) * dim + (rows - 1) * (each + 4 * dim)
}

/// The launch for the layers that each row's links begin with, and how many links of a row those are; `None` where they
/// are not for the teams.
pub(super) fn launch(
    shop: &mut Shop,
    rows: &[&[Candidate<'_>]],
) -> Result<Option<(Launch, usize)>, BackendError> {
    if !shop.device.is_only_hopper() {
        return Ok(None);
    }
    let Some(mut teams) = Teams::new(shop.device.shared_memory(), rows) else {
        return Ok(None);
    };
    let kernel = shop.kernels.kernel(teams.module, "layers")?;
    let shared = teams.shared;
    let launch = |clusters: usize| {
        let launch = Launch::new(kernel, [TEAM * clusters, 1, 1], THREADS);
        launch.cluster(TEAM).together().shared(shared)
    };
    let clusters = launch(1).most_clusters(&shop.device)?;
    if !teams.divide(clusters) {
        return Ok(None);
    }
    let [layers, attended, fed, bytes] = teams.places().map(|place| place as u64);
    let hidden = teams.table.hidden as usize;
    let program = teams.program(|weight, pitch, bytes| {
        let size = [pitch as usize, hidden];
        TensorMap::of_words(&shop.device, weight, size, [bytes, TILE_ROWS])
    })?;
    let base = shop.keep(bytes as usize, |_| program.clone())?;
    let table = Table {
        layers: base + layers,
        slices: base,
        attended: base + attended,
        fed: base + fed,
        ..teams.table
    };
    let count = LINKS * teams.layers.len();
    Ok(Some((launch(teams.clusters()).structure(&table), count)))
}
