//! [`ModelRunner`]: the only point where engine, model and backend meet.

#[cfg(test)]
mod golden;

use std::collections::VecDeque;

use fornax_backend::{
    Backend, BackendError, KvShape, KvType, Reading, SAMPLE_WORDS, Sample, Sketched, StepCapacity,
    StepRows, StepShape,
};
use fornax_engine::{
    KvGroup, Limits, RowOutput, Runner, RunnerError, StepBatch, StepOutput, Ticket, TokenLogprob,
    Want,
};
use fornax_gguf::Gguf;

use crate::activations::Activations;
use crate::decoder::Decoder;
use crate::{Config, LoadError, WeightStorage, step};

/// Sequences in one step: lists are made for each before any of them is there.
const MOST_ROWS: usize = 0xffff;
/// Tokens in one step, or in a page. They are multiplied with a model's sizes: far above any machine,
/// far below overflow.
const MOST_TOKENS: usize = 0xff_ffff;

/// What a runner is built for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerOptions {
    /// Tokens of the longest sequence; at most the model's own context.
    pub context: usize,
    /// Sequences in one step.
    pub max_rows: usize,
    /// New tokens in one step.
    pub max_tokens: usize,
    /// Tokens of a KV page.
    pub page_size: usize,
    /// Pages of the pool, shared by all sequences.
    pub pages: usize,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// How weights are kept.
    pub weights: WeightStorage,
}

/// Runs a model's steps on a backend.
pub struct ModelRunner<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
    activations: Activations<B>,
    /// Pages of each layer. `[layers]`
    kv: Vec<B::Kv>,
    step: B::Step,
    sampler: B::Sampler,
    limits: Limits,
    rows: StepRows,
    /// Steps that were submitted and not yet waited for, oldest first.
    submitted: VecDeque<(Ticket, Outcome)>,
    /// Which of the last step's samples each of its rows drew. `[n_rows]`
    drawn: Vec<Option<usize>>,
    next_ticket: u64,
    /// How many of the largest logits decide what is drawn for a slot; `None` where all do. `[slots]`
    largest: Vec<Option<usize>>,
    sketched: Option<Sketched>,
}

/// What came of a step.
enum Outcome {
    Known(Vec<RowOutput>),
    /// Samples on their way, and of which probabilities each row tells where it draws a token; no row
    /// wants anything else.
    Drawn(Reading, Vec<Option<Option<usize>>>),
}

impl<B: Backend> ModelRunner<B> {
    /// Loads a model.
    ///
    /// # Errors
    /// A file that holds no model that runs here, options it cannot meet, a device without room.
    pub fn load(file: &Gguf, mut backend: B, options: &RunnerOptions) -> Result<Self, LoadError> {
        // All of the file, before any of it is on the device.
        let config = Config::checked(file)?;
        check(&config, options)?;
        let mut decoder = Decoder::load(file, &mut backend, options.weights)?;
        let sketched = backend.sketch(decoder.head_mut())?;
        let RunnerOptions {
            max_rows,
            max_tokens,
            page_size,
            pages,
            kv_type: element,
            ..
        } = *options;
        let Config {
            kv_heads,
            k_dim,
            v_dim,
            ..
        } = config;
        let shape = KvShape {
            pages,
            page_size,
            kv_heads,
            k_dim,
            v_dim,
            element,
        };
        let kv = backend.alloc_kv_layers(&shape, config.layers())?;
        let table = options.context.div_ceil(page_size);
        let capacity = StepCapacity {
            rows: max_rows,
            tokens: max_tokens,
            groups: vec![(page_size, table)],
        };
        Ok(Self {
            activations: Activations::new(&mut backend, &config, max_tokens, max_rows)?,
            step: backend.alloc_step(&capacity)?,
            sampler: backend.alloc_sampler(max_rows, config.vocabulary)?,
            limits: limits(&config, options),
            backend,
            decoder,
            kv,
            rows: StepRows::default(),
            submitted: VecDeque::new(),
            drawn: Vec::new(),
            next_ticket: 0,
            largest: vec![None; max_rows],
            sketched,
        })
    }

    /// The model's dimensions.
    pub fn config(&self) -> &Config {
        &self.decoder.config
    }

    /// What is read of the head where only the largest logits are looked at.
    pub fn sketched(&self) -> Option<Sketched> {
        self.sketched
    }

    /// What the backend calls itself.
    pub fn backend_name(&self) -> String {
        self.backend.name()
    }

    fn run(&mut self, batch: &StepBatch) -> Result<Outcome, BackendError> {
        for admission in &batch.admissions {
            let params = step::sample_params(&admission.params);
            self.largest[admission.slot] = params.largest();
            let (slot, prompt) = (admission.slot, admission.prompt);
            self.backend
                .admit(&mut self.sampler, slot, &params, &admission.tokens, prompt);
        }
        for copy in &batch.copies {
            for kv in &mut self.kv {
                self.backend
                    .copy_kv(kv, copy.source, copy.destination, copy.tokens);
            }
        }
        let groups = self.limits.kv_groups.len();
        let shape = step::describe(batch, groups, &self.largest, &mut self.rows);
        for (_, source) in &mut self.rows.from_step {
            let sample = self.drawn[*source];
            *source = sample.expect("invariant: a token comes from a row that draws one");
        }
        step::samples(batch, &mut self.drawn);
        self.backend.prepare(&mut self.step, &self.rows);
        self.forward(&self.backend.bucket(&self.step, &shape))?;
        let mut tops = Vec::with_capacity(batch.rows().len());
        for row in batch.rows() {
            tops.push(match row.want {
                Want::Sample { logprobs } => Some(logprobs),
                Want::Nothing => None,
                Want::Logits(_) | Want::Pooled(_) => {
                    return Ok(Outcome::Known(self.answers(batch, &shape)?));
                }
            });
        }
        let words = shape.samples * SAMPLE_WORDS;
        let samples = self
            .backend
            .begin_read_u32(&self.activations.samples, words)?;
        Ok(Outcome::Drawn(samples, tops))
    }

    /// Everything inside `record` reads device memory only.
    fn forward(&mut self, shape: &StepShape) -> Result<(), BackendError> {
        let Self {
            backend,
            decoder,
            activations,
            kv,
            step,
            sampler,
            ..
        } = self;
        backend.record(shape, |backend| {
            backend.feed(step, &activations.samples);
            let rows = decoder.forward(backend, activations, kv, step, shape);
            if shape.outputs > 0 {
                decoder.head(backend, activations, step, rows, shape);
            }
            if shape.samples > 0 {
                let (samples, logits) = (&mut activations.samples, &mut activations.logits);
                backend.sample(samples, logits, sampler, step, shape.samples);
            }
            if shape.pooled > 0 {
                let width = decoder.config.width;
                backend.pool(
                    &mut activations.pooled,
                    &activations.normed,
                    width,
                    step,
                    shape.pooled,
                );
            }
        })
    }

    fn answers(
        &mut self,
        batch: &StepBatch,
        shape: &StepShape,
    ) -> Result<Vec<RowOutput>, BackendError> {
        let Config {
            vocabulary, width, ..
        } = self.decoder.config;
        let mut samples = vec![0; shape.samples * SAMPLE_WORDS];
        self.backend
            .read_u32(&self.activations.samples, &mut samples)?;
        let mut pooled = vec![0.0; shape.pooled * width];
        self.backend
            .read_f32(&self.activations.pooled, &mut pooled)?;
        // Sampled rows come first and their logits stay on the device unless others are wanted.
        let outputs = if shape.outputs > shape.samples {
            shape.outputs
        } else {
            0
        };
        let mut logits = vec![0.0; outputs * vocabulary];
        self.backend
            .read_f32(&self.activations.logits, &mut logits)?;

        let mut samples = samples.chunks_exact(SAMPLE_WORDS);
        let mut pooled = pooled.chunks_exact(width);
        let mut logits = logits.chunks_exact(vocabulary).skip(shape.samples);
        let answer = batch.rows().iter().map(|row| match &row.want {
            Want::Nothing => RowOutput::Nothing,
            Want::Sample { logprobs } => sampled(Sample::decode(taken(samples.next()), *logprobs)),
            Want::Logits(positions) => {
                let rows = logits.by_ref().take(positions.len());
                finite(rows.flatten().copied().collect(), RowOutput::Logits)
            }
            Want::Pooled(_) => finite(taken(pooled.next()).to_vec(), RowOutput::Pooled),
        });
        Ok(answer.collect())
    }
}

impl<B: Backend> Runner for ModelRunner<B> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, batch: &StepBatch) -> Result<Ticket, RunnerError> {
        let outcome = self.run(batch).map_err(refused)?;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.submitted.push_back((Ticket(ticket), outcome));
        Ok(Ticket(ticket))
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), RunnerError> {
        let (oldest, outcome) = self
            .submitted
            .pop_front()
            .expect("invariant: a ticket is of a step");
        assert_eq!(
            oldest, ticket,
            "tickets are waited for in the order of their submission"
        );
        output.rows = match outcome {
            Outcome::Known(rows) => rows,
            Outcome::Drawn(reading, tops) => {
                let samples = self.backend.end_read_u32(reading).map_err(refused)?;
                let mut samples = samples.chunks_exact(SAMPLE_WORDS);
                let answer = tops.into_iter().map(|top| match top {
                    None => RowOutput::Nothing,
                    Some(logprobs) => sampled(Sample::decode(taken(samples.next()), logprobs)),
                });
                answer.collect()
            }
        };
        Ok(())
    }

    fn runs_ahead(&self) -> bool {
        self.backend.runs_behind()
    }
}

fn refused(error: BackendError) -> RunnerError {
    RunnerError(error.to_string())
}

fn check(config: &Config, options: &RunnerOptions) -> Result<(), LoadError> {
    let refuse = |problem: String| Err(LoadError::Options(problem));
    let RunnerOptions {
        context,
        max_rows,
        max_tokens,
        page_size,
        pages,
        ..
    } = *options;
    config.check_context(context)?;
    for (what, value, most) in [
        ("context", context, config.context),
        ("rows of a step", max_rows, MOST_ROWS),
        ("tokens of a step", max_tokens, MOST_TOKENS),
        ("page size", page_size, MOST_TOKENS),
        ("number of pages", pages, u32::MAX as usize),
    ] {
        if value == 0 {
            return refuse(format!("the {what} must be at least 1"));
        }
        if value > most {
            return refuse(format!("the {what} must be at most {most}, not {value}"));
        }
    }
    if pages < context.div_ceil(page_size) {
        return refuse(format!(
            "{pages} KV pages of {page_size} tokens hold {} tokens, but the context is {context}; lower the context or give the cache more memory",
            pages * page_size
        ));
    }
    Ok(())
}

fn limits(config: &Config, options: &RunnerOptions) -> Limits {
    let kv_groups = vec![KvGroup {
        page_size: options.page_size,
        pages: options.pages,
        k_width: config.kv_heads * config.k_dim,
        v_width: config.kv_heads * config.v_dim,
        window: None,
        page_bytes: config.layers() * options.page_size * config.kv_bytes(options.kv_type),
    }];
    Limits {
        max_rows: options.max_rows,
        max_tokens: options.max_tokens,
        context: options.context,
        vocabulary: config.vocabulary,
        kv_groups,
    }
}

fn sampled(sample: Sample) -> RowOutput {
    match sample {
        Sample::NotFinite => RowOutput::NotFinite,
        Sample::Token {
            token,
            logprob,
            top,
        } => RowOutput::Sampled {
            token,
            logprob,
            top: top
                .into_iter()
                .map(|(token, logprob)| TokenLogprob { token, logprob })
                .collect(),
        },
    }
}

fn finite(values: Vec<f32>, answer: impl FnOnce(Vec<f32>) -> RowOutput) -> RowOutput {
    match values.iter().any(|value| value.is_nan()) {
        true => RowOutput::NotFinite,
        false => answer(values),
    }
}

fn taken<T>(row: Option<T>) -> T {
    row.expect("invariant: one answer for each row that wants one")
}
