//! `fornax perplexity`: how well a model predicts a text.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use fornax::Model;
use fornax::text::Special;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::input;
use crate::model::{Compute, ModelFile};
use crate::output;
use crate::output_file::OutputFile;
use crate::perplexity::chunks::{Chunks, FEWEST_TOKENS};
use crate::perplexity::logits_file::{write_header, write_row};
use crate::perplexity::score::Score;

/// The name of stdin among files.
const STDIN: &str = "-";
/// New tokens of a step; as many chunks run together as fit.
const STEP_TOKENS: usize = 512;

/// Measure how well a model predicts a text
#[derive(Args)]
#[command(after_help = "\
The protocol is llama-perplexity's: chunks of --ctx tokens, each behind a BOS where the model has
one, of which the second half is scored; what does not fill a chunk is left out. Bytes that are no
UTF-8 are read byte by byte, where llama-perplexity reads a replacement character.
--logits-out writes the file that llama-perplexity reads as --kl-divergence-base.

Examples:
  fornax perplexity --file book.txt
  fornax perplexity --model qwen3-0.6b-q8_0.gguf --file wiki.test.raw --json
  fornax perplexity --model m.gguf --file book.txt --logits-out m.logits
  llama-perplexity -m m.gguf --kl-divergence --kl-divergence-base m.logits")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelFile,
    /// The text; - reads it from stdin
    #[arg(long, short, value_name = "TEXT")]
    file: PathBuf,
    /// Tokens of a chunk
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = chunk_tokens)]
    ctx: usize,
    #[command(flatten)]
    compute: Compute,
    /// One JSON object instead of a sentence
    #[arg(long)]
    json: bool,
    /// Write the log-probabilities of every scored position here
    #[arg(long, value_name = "FILE")]
    logits_out: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let logits_out = match &arguments.logits_out {
        None => None,
        Some(path) => Some(OutputFile::new(path, &arguments.read())?),
    };
    let text = text(&arguments.file)?;
    let together = (STEP_TOKENS / arguments.ctx).max(1);
    let source = arguments.model.source();
    let model = arguments.compute.load(source, arguments.ctx, together)?;
    let tokenizer = model.tokenizer();
    let tokens = tokenizer.with_markers(tokenizer.encode_bytes(&text, Special::Plain));
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    let chunks = Chunks::new(tokens, arguments.ctx, bos)?;
    let score = score(&model, &chunks, together, logits_out)?;
    let (perplexity, error, count) = (score.perplexity(), score.error(), chunks.count());
    if arguments.json {
        return output::json(&json!({
            "model": model.name(),
            "perplexity": perplexity,
            "standard_error": error,
            "nats_per_token": score.mean(),
            "ctx": arguments.ctx,
            "chunks": count,
            "tokens_scored": score.tokens,
        }));
    }
    let line = format!(
        "Perplexity {perplexity:.4} ± {error:.4} over {} tokens in {count} chunks of {}\n",
        score.tokens, arguments.ctx
    );
    output::exact(line.as_bytes())
}

impl Arguments {
    /// The files that are read.
    fn read(&self) -> Vec<&Path> {
        let text = Some(self.file.as_path()).filter(|path| *path != Path::new(STDIN));
        text.into_iter().chain(self.model.path()).collect()
    }
}

/// Tokens of a chunk.
fn chunk_tokens(text: &str) -> Result<usize, String> {
    let tokens = text.parse().ok().filter(|tokens| *tokens >= FEWEST_TOKENS);
    tokens.ok_or_else(|| {
        format!("give a whole number from {FEWEST_TOKENS} on: the second half of a chunk is scored")
    })
}

/// The bytes of the file, or of stdin, without the line end at their end, as the other program reads
/// them.
fn text(path: &Path) -> Result<Vec<u8>> {
    let context = || format!("{}: the text cannot be read", path.display());
    let mut text = match path == Path::new(STDIN) {
        true => input::stdin_bytes()?,
        false => std::fs::read(path).with_context(context)?,
    };
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    Ok(text)
}

fn score(
    model: &Model,
    chunks: &Chunks,
    together: usize,
    logits_out: Option<OutputFile>,
) -> Result<Score> {
    let vocabulary = model.config().vocabulary;
    let unwritable = "the logits cannot be written";
    let mut out = match &logits_out {
        None => None,
        Some(file) => {
            let mut out = BufWriter::new(file.create()?);
            write_header(&mut out, chunks, vocabulary).context(unwritable)?;
            Some(out)
        }
    };
    let bar = progress(chunks.count());
    let mut score = Score::default();
    let all: Vec<usize> = (0..chunks.count()).collect();
    for indices in all.chunks(together) {
        let computed: Vec<Vec<u32>> = indices
            .iter()
            .map(|index| chunks.computed(*index))
            .collect();
        let mut expected: Vec<_> = indices
            .iter()
            .map(|index| chunks.expected(*index).iter())
            .collect();
        model.logits_of_each(&computed, chunks.scored(), |chunk, row| {
            let token = expected[chunk].next();
            score.add(row, *token.expect("invariant: a row for each position"));
            match &mut out {
                Some(out) => write_row(out, row).context(unwritable),
                None => Ok(()),
            }
        })?;
        bar.set_message(format!("perplexity {:.4}", score.perplexity()));
        bar.inc(indices.len() as u64);
    }
    bar.finish_and_clear();
    if let Some(mut out) = out {
        out.flush().context(unwritable)?;
    }
    logits_out.map_or(Ok(()), OutputFile::keep)?;
    Ok(score)
}

/// A bar on a terminal, nothing elsewhere.
fn progress(chunks: usize) -> ProgressBar {
    let bar = ProgressBar::new(chunks as u64);
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len} chunks  {msg}  {eta} left");
    bar.set_style(style.expect("invariant: the template is well formed"));
    bar
}
