//! A model that is ready to answer.

use std::sync::Arc;

use fornax_engine::{
    Bounds, Engine, EngineOptions, EngineThread, EventKind, EventStream, Failure, KvPolicy,
    Pooling, Request, Runner, SamplingParams, SubmitError, Task, Token,
};
use fornax_model::Config;
use fornax_text::{ChatTemplate, ControlTokens, Detokenizer, Special, StopStrings, Tokenizer};

use crate::kv_size::KvSize;
use crate::load::{PAGE_SIZE, default_context, load_with_room};
use crate::measure::Forwards;
use crate::{
    Chat, Error, Forward, GenerateOptions, Generation, Load, LoadOptions, LoadedRunner, Source,
    answers, options,
};

/// New tokens of one step: enough to make prefill worth a step, few enough to keep others' pace.
const STEP_TOKENS: usize = 512;

/// A loaded model with its engine on a thread of its own. Cheap to clone; clones share both.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    /// What the file calls itself.
    name: Option<String>,
    /// The file's path, or what it is called without one.
    source: String,
    config: Config,
    context: usize,
    sequences: usize,
    kv: KvSize,
    /// Where it computes, after a choice of `auto` was made.
    backend: String,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// What ends a turn, by the metadata and by the template.
    stop_tokens: Vec<Token>,
    sampling: SamplingParams,
    forwards: Forwards,
    engine: EngineThread,
}

impl Model {
    /// Opens a model and makes it ready.
    ///
    /// # Errors
    /// A file that holds no model that runs here, or options that it cannot meet.
    pub fn load(source: impl Into<Source>, options: &LoadOptions) -> Result<Model, Error> {
        Self::load_through(source, options, |runner| runner)
    }

    /// As [`load`](Self::load), with something between the engine and what computes: to watch the
    /// steps, or to see what becomes of requests when one fails.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_through(
        source: impl Into<Source>,
        options: &LoadOptions,
        between: impl FnOnce(Box<dyn Runner>) -> Box<dyn Runner>,
    ) -> Result<Model, Error> {
        let file = source.into().open()?;
        let config = Config::from_gguf(&file)?;
        let tokenizer = Tokenizer::from_gguf(&file)?;
        if tokenizer.vocabulary_len() != config.vocabulary {
            let (tokens, rows) = (tokenizer.vocabulary_len(), config.vocabulary);
            return Err(Error::Options(format!(
                "{}: the tokenizer has {tokens} tokens but the embedding table {rows} rows; the file is damaged or was converted wrongly",
                file.source()
            )));
        }
        let template = match &options.template {
            Some(source) => {
                ChatTemplate::from_source("the given template", source, Some(&tokenizer))
            }
            None => ChatTemplate::from_gguf(&file, &tokenizer),
        };
        // A file without one can still complete plain text; what is wrong with one is told now.
        let template = match template {
            Err(fornax_text::Error::NoChatTemplate { .. }) => None,
            template => Some(template?),
        };
        let stop_tokens = match &template {
            Some(template) => template.stop_tokens(&tokenizer),
            None => tokenizer.stop_tokens(),
        };

        let context = options.context.unwrap_or(default_context(&config));
        config.check_context(context)?;
        let forwards = Forwards::default();
        let (loaded, kv) = load_with_room(&file, options, context, STEP_TOKENS)?;
        let LoadedRunner {
            runner, backend, ..
        } = loaded;
        let engine = engine(between(runner), options, forwards.clone())?;
        Ok(Model {
            inner: Arc::new(Inner {
                name: file
                    .metadata()
                    .optional_str("general.name")?
                    .map(str::to_owned),
                source: file.source().to_owned(),
                sampling: options::file_defaults(&file, config.vocabulary)?,
                engine,
                backend,
                kv,
                config,
                context,
                sequences: options.sequences,
                tokenizer,
                template,
                stop_tokens,
                forwards,
            }),
        })
    }

    /// What the file calls itself, else its path.
    pub fn name(&self) -> &str {
        self.inner.name.as_deref().unwrap_or(&self.inner.source)
    }

    /// The model's dimensions.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Tokens of the longest sequence, prompt and answer together.
    pub fn context(&self) -> usize {
        self.inner.context
    }

    /// Sequences that run at once; more wait for their turn.
    pub fn sequences(&self) -> usize {
        self.inner.sequences
    }

    /// The KV cache: how many pages, and how many tokens each holds.
    pub fn kv_pages(&self) -> (usize, usize) {
        (self.inner.kv.pages, PAGE_SIZE)
    }

    /// Bytes of the KV cache, over all layers.
    pub fn kv_bytes(&self) -> u64 {
        self.inner.kv.bytes
    }

    /// Where it computes, and how: never `auto`.
    pub fn backend(&self) -> &str {
        &self.inner.backend
    }

    /// How things stand in the engine: who runs, who waits, which KV pages are taken.
    pub fn engine_load(&self) -> Load {
        self.inner.engine.load()
    }

    /// Whether the engine still answers; false once a step panicked.
    pub fn is_running(&self) -> bool {
        self.inner.engine.is_running()
    }

    /// Why the engine answers no more, if it does not: a step that panicked. What it was doing was
    /// told as failed; only loading the model again helps.
    pub fn engine_failure(&self) -> Option<String> {
        self.inner.engine.failure()
    }

    /// Text to tokens and back.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    /// Answers a conversation.
    ///
    /// # Errors
    /// No template, a conversation that it refuses, a prompt longer than the context, options
    /// out of range.
    pub fn chat(&self, chat: &Chat, options: &GenerateOptions) -> Result<Generation, Error> {
        self.generate_tokens(self.chat_tokens(chat)?, options)
    }

    /// The tokens that a conversation becomes. Control tokens that a message spells out are control
    /// tokens, as in `transformers`: a template's output is one text.
    ///
    /// # Errors
    /// No template, or a conversation that it refuses.
    pub fn chat_tokens(&self, chat: &Chat) -> Result<Vec<Token>, Error> {
        let tokens = self
            .inner
            .tokenizer
            .encode(&self.render(chat)?, Special::Parse);
        // A template may write the BOS itself; the markers never double it.
        Ok(self.inner.tokenizer.with_markers(tokens))
    }

    /// The prompt that a conversation becomes.
    ///
    /// # Errors
    /// No template, or a conversation that it refuses.
    pub fn render(&self, chat: &Chat) -> Result<String, Error> {
        let mut request = chat.request();
        fornax_text::from_wire(&mut request);
        Ok(self.template()?.render(&request)?)
    }

    /// Makes sure that asking for a thought, or for none, has an effect.
    ///
    /// # Errors
    /// No template, or one that never looks at `enable_thinking`.
    pub fn require_thinking_switch(&self) -> Result<(), Error> {
        match self.template()?.uses("enable_thinking") {
            true => Ok(()),
            false => Err(Error::Options(format!(
                "{}: the chat template has no switch for thinking (`enable_thinking`); leave --think and --no-think away",
                self.inner.source
            ))),
        }
    }

    /// The chat template.
    ///
    /// # Errors
    /// The file has none and none was given.
    pub fn template(&self) -> Result<&ChatTemplate, Error> {
        let missing = || fornax_text::Error::NoChatTemplate {
            file: self.inner.source.clone(),
        };
        Ok(self.inner.template.as_ref().ok_or_else(missing)?)
    }

    /// Continues a plain text.
    ///
    /// # Errors
    /// A prompt longer than the context, options out of range.
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Generation, Error> {
        let tokens = self.inner.tokenizer.encode(prompt, Special::Plain);
        self.generate_tokens(self.inner.tokenizer.with_markers(tokens), options)
    }

    /// Continues tokens as they are, without adding any.
    ///
    /// # Errors
    /// An empty prompt or one longer than the context, options out of range.
    pub fn generate_tokens(
        &self,
        prompt: Vec<Token>,
        options: &GenerateOptions,
    ) -> Result<Generation, Error> {
        let hide = ControlTokens::Hide;
        let detokenizer = Detokenizer::behind(&self.inner.tokenizer, hide, &prompt);
        let request = self.request(prompt, options);
        Generation::new(detokenizer, &options.stop, self.submit(request)?)
    }

    /// Makes sure that [`generate_tokens`](Self::generate_tokens) takes these, where something else comes first.
    ///
    /// # Errors
    /// As there.
    pub fn check_generation(
        &self,
        prompt: Vec<Token>,
        options: &GenerateOptions,
    ) -> Result<(), Error> {
        StopStrings::new(&options.stop)?;
        Ok(self.request(prompt, options).validate(&self.bounds())?)
    }

    /// Makes sure of what does not depend on a prompt.
    ///
    /// # Errors
    /// A sampling parameter out of its range, a stop string that is empty.
    pub fn check_options(&self, options: &GenerateOptions) -> Result<(), Error> {
        let sampling = options.sampling(&self.inner.sampling);
        let drawn = sampling.validate(self.config().vocabulary);
        drawn.map_err(fornax_engine::RequestError::from)?;
        StopStrings::new(&options.stop)?;
        Ok(())
    }

    fn request(&self, prompt: Vec<Token>, options: &GenerateOptions) -> Request {
        let mut request = Request::generate(prompt, options.sampling(&self.inner.sampling));
        request.priority = options.priority;
        if let Task::Generate(generation) = &mut request.task {
            generation.max_tokens = options.max_tokens;
            generation.logprobs = options.logprobs;
            if !options.ignore_end {
                generation.stop_tokens = self.inner.stop_tokens.clone();
            }
        }
        request
    }

    /// The logits after each of these tokens that `positions` names: `[n_positions, vocabulary]`
    /// in one piece.
    ///
    /// # Errors
    /// Tokens longer than the context, positions outside them.
    pub fn logits(
        &self,
        tokens: Vec<Token>,
        positions: std::ops::Range<usize>,
    ) -> Result<Vec<f32>, Error> {
        let events = self.submit(Request::score(tokens, positions))?;
        let pieces: Result<Vec<_>, _> = logits_of(events).collect();
        Ok(pieces?.concat())
    }

    /// As [`logits`](Self::logits) for several sequences of tokens at once, which share steps
    /// where they fit. `row` is given them one by one, as they come: which sequence, and
    /// `[vocabulary]`. Together, those of a long one might not fit into memory.
    ///
    /// # Errors
    /// Tokens longer than the context, positions outside them; what `row` fails with ends it all.
    pub fn logits_of_each<E: From<Error>>(
        &self,
        sequences: &[Vec<Token>],
        positions: std::ops::Range<usize>,
        mut row: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let submit =
            |tokens: &Vec<Token>| self.submit(Request::score(tokens.clone(), positions.clone()));
        let streams: Vec<EventStream> = sequences.iter().map(submit).collect::<Result<_, _>>()?;
        let vocabulary = self.config().vocabulary;
        for (sequence, events) in streams.into_iter().enumerate() {
            for values in logits_of(events) {
                let values = values?;
                let mut rows = values.chunks_exact(vocabulary);
                rows.try_for_each(|values| row(sequence, values))?;
            }
        }
        Ok(())
    }

    /// One vector for a text, of length 1 in the Euclidean sense. `[width]`
    ///
    /// # Errors
    /// A text longer than the context.
    pub fn embed(&self, text: &str, pooling: Pooling) -> Result<Vec<f32>, Error> {
        let tokens = self.inner.tokenizer.encode(text, Special::Plain);
        let tokens = self.inner.tokenizer.with_markers(tokens);
        let mut vector = Vec::new();
        for event in self.submit(Request::embed(tokens, pooling))? {
            match event {
                EventKind::Pooled(values) => vector = values,
                EventKind::Failed(failure) => return Err(failure.into()),
                _ => {}
            }
        }
        answers::normalise(&mut vector);
        Ok(vector)
    }

    /// The forwards since they were last taken, oldest first.
    pub fn take_forwards(&self) -> Vec<Forward> {
        self.inner.forwards.take()
    }

    /// The tokens of a prompt in which control tokens are written out, as [`render`](Self::render)
    /// makes it, with BOS and EOS as the model asks.
    pub fn prompt_tokens(&self, prompt: &str) -> Vec<Token> {
        let tokens = self.inner.tokenizer.encode(prompt, Special::Parse);
        self.inner.tokenizer.with_markers(tokens)
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.inner.engine.bounds()
    }

    pub(crate) fn submit(&self, request: Request) -> Result<EventStream, Error> {
        let submitted = self.inner.engine.submit(request);
        submitted.map_err(|error| match error {
            SubmitError::Request(error) => error.into(),
            SubmitError::Stopped => {
                Failure::Stopped("a step that came before this request ended it".to_owned()).into()
            }
        })
    }
}

/// The logits of some positions after another, step by step.
fn logits_of(events: EventStream) -> impl Iterator<Item = Result<Vec<f32>, Error>> {
    events.filter_map(|event| match event {
        EventKind::Logits { values, .. } => Some(Ok(values)),
        EventKind::Failed(failure) => Some(Err(failure.into())),
        _ => None,
    })
}

fn engine(
    runner: Box<dyn Runner>,
    options: &LoadOptions,
    forwards: Forwards,
) -> Result<EngineThread, Error> {
    let policy = EngineOptions {
        kv: options.kv,
        prefix_cache: options.prefix_cache && options.kv == KvPolicy::Paged,
        prompt_pace: options.prompt_pace,
    };
    let engine = Engine::new(runner, policy)?;
    let observe = move |step, duration| forwards.push(step, duration);
    EngineThread::spawn_observed(engine, observe).map_err(|error| {
        Error::Options(format!("the system has no thread for the engine: {error}"))
    })
}
