//! From a list of operations to launches: which neighbours one kernel does together, and which
//! kernel suits a size.
//!
//! What fused operations would hand to one another in a buffer is not written there. Must not know
//! how a kernel computes, nor how a launch reaches the device.

mod attention;
mod broad;
mod chain;
mod experts;
mod gemm;
mod in_turn;
mod large;
mod largest;
mod near;
mod norms;
mod products;
mod skinny;
mod turn;
mod turned;
mod vocabulary;

pub(crate) use chain::Program;
use in_turn::InTurn;
pub(crate) use in_turn::takes_turns;
pub(crate) use large::{DECODED_AT_ONCE, decode};
pub(crate) use skinny::is_skinny;

use std::collections::HashMap;
use std::sync::Arc;

use fornax_backend::BackendError;

use crate::dense::{self, Dense};
use crate::device::Device;
use crate::kernels::{Kernels, Module};
use crate::launch::Launch;
use crate::memory::Scratch;
use crate::operation::{AttendTable, HeadTable, Operation, Route, Sampling, activation_numbers};
use crate::sampler::SCANNED_PARTS;

/// What goes to the device in one piece.
pub(crate) enum Action {
    Launch(Launch),
    Product(dense::Product),
}

impl Action {
    /// What errors call it.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Launch(launch) => launch.name(),
            Action::Product(_) => "cuBLASLt",
        }
    }

    /// The large product that it is.
    pub fn product(&self) -> Option<dense::Product> {
        match self {
            Action::Launch(_) => None,
            Action::Product(product) => Some(*product),
        }
    }
}

/// What planning needs and may make.
pub(crate) struct Shop {
    pub device: Arc<Device>,
    pub kernels: Kernels,
    /// Large products, where their library is there.
    pub dense: Option<Dense>,
    /// Whether matrices without a copy in bf16 are decoded for each of them.
    pub decodes: bool,
    /// A piece of a matrix that was decoded, as large as was ever needed.
    pub decoded: Scratch,
    /// The left side of a large product in bf16, as large as was ever needed.
    pub rounded: Scratch,
    /// Two places for rows in bf16 that lack a half of their norm, so that who reads one of them may write
    /// the other, as large as was ever needed.
    pub halved: Scratch,
    /// What experts hand on, as large as was ever needed.
    pub between: Scratch,
    /// What blocks of attention leave of heads that they share: zeros between launches.
    pub pieces: Scratch,
    /// Which steps of attention which block has, and how rows are turned there.
    pub shares: Scratch,
    /// How tokens of a step turn, and where their keys and values are kept.
    pub turns: Scratch,
    /// Whether every product and attention of a single token is a launch of its own.
    pub apart: bool,
    /// Chains that were laid out.
    pub programs: Vec<Program>,
}

/// Plans a list of operations, whose rows may be told to take turns.
pub(crate) fn plan(
    shop: &mut Shop,
    operations: Vec<Operation>,
    in_turn: bool,
) -> Result<Vec<Action>, BackendError> {
    if in_turn
        && shop.device.is_only_hopper()
        && !shop.apart
        && let Some(turns) = in_turn::in_turn(&operations)
    {
        let InTurn { rows, begin, .. } = turns;
        let planned = planned(shop, turns.operations, Rows { rows, begin })?;
        // Else it would neither be faster, nor right.
        if planned.in_teams == turns.layers {
            return Ok(planned.actions);
        }
    }
    Ok(planned(shop, operations, Rows { rows: 1, begin: 0 })?.actions)
}

/// How often a list has the operations of layers, one row's behind the other's, and which is the first of these.
#[derive(Clone, Copy)]
struct Rows {
    rows: usize,
    begin: usize,
}

/// What became of a list.
struct Planned {
    actions: Vec<Action>,
    /// Layers of single tokens that launches of two teams do.
    in_teams: usize,
}

/// Plans operations as they are listed.
fn planned(
    shop: &mut Shop,
    mut operations: Vec<Operation>,
    Rows { rows, begin }: Rows,
) -> Result<Planned, BackendError> {
    let mut plan = Plan {
        shop,
        actions: Vec::new(),
        streams: Vec::new(),
        attentions: Vec::new(),
        deals: Vec::new(),
        found: Vec::new(),
        rounded: None,
        cuts: HashMap::new(),
        pairs: None,
    };
    // Some buffers are grown before anything points into them.
    plan.make_room(&operations)?;
    let (mut index, mut first) = (0, 0);
    while index < operations.len() {
        if index == begin {
            first = plan.actions.len();
        }
        index += plan.next(&mut operations, index)?;
    }
    plan.bring_near();
    let in_teams = match rows {
        1 => plan.chain()?,
        _ => plan.take_turns(rows, first)?,
    };
    Ok(Planned {
        actions: plan.behind_what_is_found(),
        in_teams,
    })
}

struct Plan<'a> {
    shop: &'a mut Shop,
    actions: Vec<Action>,
    /// Those of the actions that are products which stream their weights, in order.
    streams: Vec<products::Stream>,
    /// Attention of rows of single tokens: which of the actions, and with what parameters.
    attentions: Vec<(usize, AttendTable)>,
    /// Shares of attention that are dealt before all else.
    deals: Vec<attention::Deal>,
    /// How tokens turn and where they are kept, which is found before all else.
    found: Vec<turned::Found>,
    /// Which rows are there in bf16 too.
    rounded: Option<Rounded>,
    /// How products for some dozens of tokens are cut.
    cuts: HashMap<skinny::Shape, Option<skinny::Cut>>,
    /// Pairs of blocks that multiply many tokens at once, where the device was asked for it.
    pairs: Option<usize>,
}

/// Where a kernel leaves rows in bf16 too; nothing where the address is zero.
#[derive(Clone, Copy, Default)]
struct Rounding {
    at: u64,
    /// Numbers of a row, with zeros behind its own.
    padded: usize,
    /// Numbers from one to what is left of it; zero where nobody wants that.
    apart: usize,
}

/// Rows in bf16, as the next product wants them: whose they are, and where.
#[derive(Clone, Copy)]
struct Rounded {
    of: u64,
    at: u64,
    /// Rows of each: one, or two halves of which it is the sum.
    parts: usize,
    /// The norm that they lack a half of.
    halved: Option<norms::Halved>,
}

/// How a row's logits were searched before a draw.
enum Searched {
    Not,
    /// By so many blocks, whose ids are not neighbours.
    Apart(usize),
    /// In so many parts, each of neighbouring ids, with what they weigh, by the head.
    ByHead(usize, HeadTable),
}

impl Plan<'_> {
    /// Plans the operation at `at`, and those behind it that are done with it; says how many.
    fn next(&mut self, all: &mut [Operation], at: usize) -> Result<usize, BackendError> {
        let (head, behind) = all.split_at_mut(at + 1);
        match &mut head[at] {
            Operation::Launch(_) => {
                let placeholder = Operation::Feed {
                    tokens: 0,
                    samples: 0,
                    n: 0,
                };
                let Operation::Launch(launch) = std::mem::replace(&mut head[at], placeholder)
                else {
                    unreachable!("invariant: it was just seen to be a launch")
                };
                self.actions.push(Action::Launch(launch));
                self.rounded = None;
                Ok(1)
            }
            Operation::Feed { tokens, samples, n } => {
                if let [
                    Operation::Embed {
                        tokens: same,
                        n: all,
                        ..
                    },
                    ..,
                ] = behind
                    && same == tokens
                    && all == n
                {
                    let samples = *samples;
                    self.embed(&behind[0], samples)?;
                    return Ok(2);
                }
                let (tokens, samples, n) = (*tokens, *samples, *n);
                self.rows_kernel("feed", [n.div_ceil(256), 1, 1], 256, |launch| {
                    launch
                        .wide(tokens)
                        .wide(samples)
                        .number(fornax_backend::SAMPLE_WORDS)
                        .number(n)
                })?;
                Ok(1)
            }
            Operation::Embed { .. } => {
                self.embed(&head[at], 0)?;
                Ok(1)
            }
            Operation::Norm(norm) => {
                let norm = *norm;
                self.norm(norm, behind)
            }
            Operation::Linear(linear) => {
                let linear = linear.clone();
                self.linear(&linear, None, behind)
            }
            Operation::Glu {
                out,
                gate_up,
                activation,
                width,
                n,
            } => {
                let (out, gate_up, width, n) = (*out, *gate_up, *width, *n);
                let (kind, alpha, limit) = activation_numbers(*activation);
                let rounding = self.rounded_for(out, width, n, 1, behind)?;
                self.rows_kernel("glu", [n, 1, 1], 256, |launch| {
                    let launch = launch.wide(out).wide(gate_up).number(width);
                    let launch = launch.number(kind as usize).float(alpha).float(limit);
                    launch.wide(rounding.at).number(rounding.padded)
                })?;
                Ok(1)
            }
            Operation::Turn(turn) => {
                let turn = *turn;
                self.turn(&turn, behind)
            }
            Operation::Attend(attend) => {
                let attend = *attend;
                self.attend(attend, behind)?;
                Ok(1)
            }
            Operation::Gather {
                out,
                x,
                width,
                outputs,
                n,
            } => {
                let (out, x, width, outputs, n) = (*out, *x, *width, *outputs, *n);
                let rounding = self.rounded_for(out, width, n, 1, behind)?;
                self.rows_kernel("gather", [n, 1, 1], 256, |launch| {
                    let launch = launch.wide(out).wide(x).number(width).wide(outputs);
                    launch.wide(rounding.at).number(rounding.padded)
                })?;
                Ok(1)
            }
            Operation::Sample(sampling) => {
                let sampling = *sampling;
                self.sample(sampling, Searched::Not)?;
                Ok(1)
            }
            Operation::Route(Route { table, n }) => {
                let (table, n) = (*table, *n);
                self.rows_kernel("route", [n, 1, 1], 32, |launch| {
                    launch.shared(table.scores()).structure(&table)
                })?;
                Ok(1)
            }
            Operation::Experts(experts) => {
                self.experts(experts, None, behind)?;
                Ok(1)
            }
        }
    }

    /// Where rows go in bf16 too, in up to so many parts, because the next operation is a product of them that
    /// rounds.
    fn rounded_for(
        &mut self,
        rows: u64,
        width: usize,
        n: usize,
        most_parts: usize,
        behind: &[Operation],
    ) -> Result<Rounding, BackendError> {
        match behind {
            [Operation::Linear(linear), ..]
                if linear.x == rows
                    && linear.n == n
                    && (self.is_of_head(linear)
                        || self.is_middle(linear)
                        || self.is_large(linear))
                    && self.parts(linear) <= most_parts =>
            {
                assert_eq!(linear.matrix.cols, width, "linear: columns");
                let (at, parts) = (self.rounded_memory()?, self.parts(linear));
                self.rounded = Some(Rounded {
                    of: rows,
                    at,
                    parts,
                    halved: None,
                });
                let padded = linear.matrix.padded();
                Ok(Rounding {
                    at,
                    padded,
                    apart: if parts > 1 { n * padded } else { 0 },
                })
            }
            _ => {
                self.written(rows);
                Ok(Rounding::default())
            }
        }
    }

    /// These rows change: what was rounded of them before is not them any more, and what is there in
    /// their place is lost.
    fn written(&mut self, rows: u64) {
        self.rounded
            .take_if(|rounded| rounded.of == rows || rounded.at == rows);
    }

    /// These rows in bf16, in so many parts, if they are there.
    fn rounded_of(&self, rows: u64, parts: usize) -> Option<Rounded> {
        let same = |rounded: &Rounded| rounded.of == rows && rounded.parts == parts;
        self.rounded.filter(same)
    }

    fn rounded_memory(&mut self) -> Result<u64, BackendError> {
        self.shop.rounded.grown(&self.shop.device, 0)
    }

    fn make_room(&mut self, operations: &[Operation]) -> Result<(), BackendError> {
        let bytes = |operation: &Operation| match operation {
            Operation::Linear(linear) => 2 * self.parts(linear) * linear.n * linear.matrix.padded(),
            _ => 0,
        };
        let bytes = operations.iter().map(bytes).max().unwrap_or(0);
        self.shop.rounded.grown(&self.shop.device, bytes)?;
        let decoded = |operation: &Operation| match operation {
            Operation::Linear(linear) if self.is_large(linear) => self.decoded_bytes(linear),
            _ => 0,
        };
        let bytes = operations.iter().map(decoded).max().unwrap_or(0);
        self.shop.decoded.grown(&self.shop.device, bytes)?;
        self.make_room_for_halves(operations)?;
        self.make_room_for_turns(operations)?;
        self.make_room_for_pieces(operations)
    }

    fn embed(&mut self, embed: &Operation, samples: u64) -> Result<(), BackendError> {
        let Operation::Embed {
            out,
            table,
            scale,
            tokens,
            n,
        } = embed
        else {
            unreachable!("invariant: only embeddings are passed")
        };
        self.written(*out);
        let part = &table.parts[0];
        assert_eq!(table.parts.len(), 1, "embed: a table of one format");
        let kernel = self
            .shop
            .kernels
            .kernel(Module::Product(part.format), "embed")?;
        let launch = Launch::new(kernel, [*n, 1, 1], 128)
            .wide(*out)
            .wide(part.pointer)
            .wide(part.pitch as u64)
            .number(table.padded())
            .number(table.cols)
            .float(*scale)
            .wide(*tokens)
            .wide(samples)
            .number(fornax_backend::SAMPLE_WORDS);
        self.actions.push(Action::Launch(launch));
        Ok(())
    }

    /// Draws, after the largest logits were searched unless the product did.
    fn sample(&mut self, mut sampling: Sampling, searched: Searched) -> Result<(), BackendError> {
        let Sampling { n, .. } = sampling;
        let table = &mut sampling.table;
        let parts = match searched {
            Searched::Not => {
                let kernel = self.shop.kernels.kernel(Module::Sample, "scan_logits")?;
                let launch = Launch::new(kernel, [SCANNED_PARTS, n, 1], 256)
                    .wide(table.best)
                    .wide(table.weights)
                    .wide(table.logits)
                    .number(table.vocabulary as usize)
                    .wide(table.draws)
                    .wide(table.slots);
                self.actions.push(Action::Launch(launch));
                SCANNED_PARTS
            }
            Searched::ByHead(parts, head) => {
                table.head = head;
                parts
            }
            Searched::Apart(parts) => {
                table.weights = 0;
                parts
            }
        };
        table.parts = parts as u32;
        let kernel = self.shop.kernels.kernel(Module::Sample, "sample")?;
        let launch = Launch::new(kernel, [n, 1, 1], 1024).structure(&*table);
        self.actions.push(Action::Launch(launch));
        Ok(())
    }

    /// All actions, with what is found once for all layers before them. Attention reads its share while launches
    /// before it still run, so the first of these waits until all of that is found.
    fn behind_what_is_found(mut self) -> Vec<Action> {
        let deals = self.deals.into_iter().map(|deal| deal.launch);
        let found = deals.chain(self.found.into_iter().map(|found| found.launch));
        let mut all: Vec<_> = found.map(Action::Launch).collect();
        if let (false, Some(Action::Launch(first))) = (all.is_empty(), self.actions.first_mut()) {
            first.behind_all();
        }
        all.append(&mut self.actions);
        all
    }

    fn rows_kernel(
        &mut self,
        name: &'static str,
        grid: [usize; 3],
        threads: usize,
        arguments: impl FnOnce(Launch) -> Launch,
    ) -> Result<(), BackendError> {
        let kernel = self.shop.kernels.kernel(Module::Rows, name)?;
        let launch = arguments(Launch::new(kernel, grid, threads));
        self.actions.push(Action::Launch(launch));
        Ok(())
    }
}
