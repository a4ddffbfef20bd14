//! Quantising keeps the model and gives each tensor the format of the scheme.

use std::io::{self, Write};

use fornax_gguf::{
    DType, Error, Gguf, GgufWriter, Scheme,
    quantize::{From, quantize},
    synthetic::{Formats, Options, Shape, write},
};

fn model(formats: Formats) -> Result<Gguf, Error> {
    let mut vocabulary = GgufWriter::new();
    let tokens: Vec<String> = (0..8).map(|index| format!("t{index}")).collect();
    vocabulary.set("tokenizer.ggml.tokens", tokens)?;
    let vocabulary = Gguf::from_bytes("vocabulary", vocabulary.start(Vec::new())?.finish()?)?;
    let shape = Shape {
        feed_forward: 256,
        ..Shape::named("tiny-llama").expect("a known shape").clone()
    };
    let options = Options {
        formats,
        seed: 1,
        deviation: None,
        layers: Some(3),
        vocabulary: &vocabulary,
    };
    Gguf::from_bytes("model", write(&shape, &options, Vec::new())?)
}

#[test]
fn every_scheme_writes_what_a_generator_makes_at_once() -> Result<(), Error> {
    let exact = model(Formats::Of(DType::F32))?;
    for scheme in [Scheme::Q4KM, Scheme::Q5KM, Scheme::Uniform(DType::Q8_0)] {
        let direct = model(Formats::Mix(scheme))?;
        let mut done = 0;
        let written = quantize(&exact, scheme, From::Exact, Vec::new(), |progress| {
            assert!(progress.done >= done && progress.done <= progress.total);
            done = progress.done;
        })?;
        let written = Gguf::from_bytes("quantised", written)?;
        assert_eq!(
            done,
            exact
                .tensors()
                .map(|tensor| tensor.elements() as u64)
                .sum::<u64>()
        );
        for (ours, theirs) in written.tensors().zip(direct.tensors()) {
            assert_eq!((ours.name, ours.dtype), (theirs.name, theirs.dtype));
            assert!(
                ours.data() == theirs.data(),
                "{} in {}",
                ours.name,
                scheme.name()
            );
        }
        let of = |key| written.metadata().u32(key);
        assert_eq!(
            of("general.file_type")?,
            direct.metadata().u32("general.file_type")?
        );
        assert_eq!(of("llama.block_count")?, 3);
    }
    Ok(())
}

#[test]
fn what_is_quantised_already_is_refused_unless_allowed() -> Result<(), Error> {
    let model = model(Formats::Of(DType::Q8_0))?;
    let to = |from| quantize(&model, Scheme::Q4KM, from, Vec::new(), |_| ());
    let message = to(From::Exact).expect_err("it is Q8_0").to_string();
    assert!(
        message.contains("Q8_0 already") && message.contains("token_embd"),
        "{message}"
    );
    assert!(Gguf::from_bytes("again", to(From::Anything)?).is_ok());
    Ok(())
}

#[test]
fn single_precision_loses_nothing_and_needs_no_leave() -> Result<(), Error> {
    let model = model(Formats::Of(DType::Q4_0))?;
    let single = Scheme::Uniform(DType::F32);
    let file = quantize(&model, single, From::Exact, Vec::new(), |_| ())?;
    let single = Gguf::from_bytes("single", file)?;
    for tensor in model.tensors() {
        let found = single.tensor(tensor.name).expect("the same tensors");
        assert_eq!((found.dtype, found.decode()), (DType::F32, tensor.decode()));
    }
    Ok(())
}

/// A disk that is full after so many bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.0 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_told_once() -> Result<(), Error> {
    let model = model(Formats::Of(DType::Q4_0))?;
    let error = quantize(&model, Scheme::Keep, From::Exact, Full(1 << 14), |_| ());
    let error = error.err().expect("the disk is full");
    let told = io::Error::from(io::ErrorKind::StorageFull).to_string();
    assert_eq!(error.to_string(), format!("cannot write GGUF: {told}"));
    assert!(
        std::error::Error::source(&error).is_none(),
        "it would be told again"
    );
    Ok(())
}

#[test]
fn weights_that_are_no_numbers_are_refused() -> Result<(), Error> {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "llama")?;
    writer.declare("blk.0.attn_q.weight", DType::F32, &[2, 32])?;
    let mut stream = writer.start(Vec::new())?;
    let mut values = [0.5f32; 64];
    values[33] = f32::NAN;
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    stream.append(&bytes)?;
    let model = Gguf::from_bytes("model", stream.finish()?)?;
    let scheme = Scheme::Uniform(DType::Q8_0);
    let error = quantize(&model, scheme, From::Exact, Vec::new(), |_| ());
    let message = error.expect_err("a NaN").to_string();
    assert!(
        message.contains("attn_q") && message.contains("value 1 of row 1"),
        "{message}"
    );
    Ok(())
}
