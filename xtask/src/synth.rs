//! `cargo xtask synth`: a model of random weights in the shape of a published one, as a file.
//!
//! Owns the arguments; shapes and weights are `fornax_gguf::synthetic`.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, bail};
use clap::{Args, builder::PossibleValuesParser};
use fornax_gguf::{
    Gguf,
    synthetic::{self, Formats, Options, Shape},
};

/// The built-in model, relative to the workspace.
const BUILT_IN: &str = "crates/fornax-cli/model/fornax-mini.gguf";

/// Write a GGUF of synthetic weights in the shape of a published model.
///
/// Speed does not depend on what the weights are, so the file stands in for the published one in
/// benchmarks, and in comparisons between engines that read the same file.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    cargo xtask synth qwen3-0.6b qwen3-0.6b-q8_0.gguf\n  \
    cargo xtask synth smollm-135m smollm.gguf --type q4_0\n  \
    cargo xtask synth qwen3-0.6b qwen3-0.6b-q4_k_m.gguf --type q4_k_m\n  \
    cargo xtask synth tiny-llama tiny.gguf --type f32 --vocab other.gguf")]
pub struct Arguments {
    /// Which model's shape.
    #[arg(value_parser = PossibleValuesParser::new(Shape::all().iter().map(|shape| shape.name)))]
    shape: String,
    /// Where to write; replaced where it exists.
    out: PathBuf,
    /// Type of the matrices, or a mix such as q4_k_m; beside q4_0 the embedding and the head are q8_0.
    #[arg(long = "type", default_value = "q8_0", value_parser = formats)]
    formats: Formats,
    /// GGUF whose vocabulary to borrow; without it the built-in model's.
    #[arg(long)]
    vocab: Option<PathBuf>,
    /// The same seed gives the same weights.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Standard deviation of the matrices [default: 0.02, and 0.1 for the tiny shapes].
    #[arg(long = "std")]
    deviation: Option<f32>,
    /// Transformer blocks, where not as many as the shape has.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    layers: Option<u16>,
}

/// Writes the file and says what it is.
pub fn run(arguments: &Arguments) -> Result<()> {
    let started = Instant::now();
    let out = arguments.out.display();
    let shape = Shape::named(&arguments.shape).expect("invariant: clap knows the shapes");
    let vocabulary = vocabulary(arguments.vocab.as_deref())?;
    let options = Options {
        formats: arguments.formats,
        seed: arguments.seed,
        deviation: arguments.deviation,
        layers: arguments.layers.map(usize::from),
        vocabulary: &vocabulary,
    };
    let file = File::create(&arguments.out).with_context(|| format!("cannot write {out}"))?;
    if let Err(error) = synthetic::write(shape, &options, BufWriter::new(file)) {
        // Half a model is of no use to anyone; that it cannot be removed matters less than why.
        let _ = fs::remove_file(&arguments.out);
        return Err(error).with_context(|| format!("{out} was not written"));
    }
    // Opening it checks it whole.
    let model = Gguf::open(&arguments.out)?;
    let parameters: usize = model.tensors().map(|tensor| tensor.elements()).sum();
    writeln!(
        io::stdout(),
        "{out}: {} {}, {:.1} M parameters, {:.1} MB, {:.1} s",
        shape.name,
        arguments.formats.name(),
        parameters as f64 / 1e6,
        model.len_bytes() as f64 / 1e6,
        started.elapsed().as_secs_f64()
    )?;
    Ok(())
}

fn vocabulary(path: Option<&Path>) -> Result<Gguf> {
    if let Some(path) = path {
        return Ok(Gguf::open(path)?);
    }
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(BUILT_IN);
    if !built_in.exists() {
        bail!(
            "the built-in model {} is missing; name a GGUF with a vocabulary: --vocab FILE",
            built_in.display()
        );
    }
    Ok(Gguf::open(built_in)?)
}

fn formats(name: &str) -> Result<Formats, String> {
    Formats::from_name(name).ok_or_else(|| format!("known types are {}", Formats::list()))
}
