//! What a model is called on the command line: a file, or a synthetic shape.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use fornax::Source;
use fornax::gguf::synthetic::{Formats, Shape};

use crate::builtin;

/// Before the name of a shape.
const SYNTHETIC: &str = "synthetic:";

/// A model as the command line names it.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelName {
    /// The path of a GGUF file.
    File(PathBuf),
    /// `synthetic:SHAPE[:TYPE[:SEED]]`
    Synthetic {
        shape: &'static Shape,
        formats: Formats,
        seed: u64,
    },
}

impl ModelName {
    /// Where the model is.
    pub fn source(&self) -> Source {
        match self {
            Self::File(path) => Source::File(path.clone()),
            Self::Synthetic {
                shape,
                formats,
                seed,
            } => Source::Synthetic {
                shape,
                formats: *formats,
                seed: *seed,
                vocabulary: Box::new(builtin::source()),
            },
        }
    }

    /// What clients of a server call it: the file's name without its ending.
    pub fn served_name(&self) -> String {
        match self {
            Self::File(path) => match path.file_stem() {
                Some(stem) => stem.to_string_lossy().into_owned(),
                None => path.display().to_string(),
            },
            Self::Synthetic { shape, formats, .. } => {
                format!("{}-{}", shape.name, formats.name().to_lowercase())
            }
        }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Synthetic {
                shape,
                formats,
                seed,
            } => {
                let formats = formats.name().to_lowercase();
                write!(f, "{SYNTHETIC}{}:{formats}:{seed}", shape.name)
            }
        }
    }
}

impl FromStr for ModelName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let Some(described) = name.strip_prefix(SYNTHETIC) else {
            return Ok(Self::File(name.into()));
        };
        let mut parts = described.split(':');
        let shape = parts.next().unwrap_or_default();
        let shape = Shape::named(shape).ok_or_else(|| {
            let known: Vec<&str> = Shape::all().iter().map(|shape| shape.name).collect();
            format!(
                "there is no shape `{shape}`; known are {}",
                known.join(", ")
            )
        })?;
        let formats = parts.next().unwrap_or("q8_0");
        let formats = Formats::from_name(formats).ok_or_else(|| {
            let known = Formats::list();
            format!("there is no type `{formats}`; known are {known}")
        })?;
        let seed = parts.next().unwrap_or("1");
        let seed = seed
            .parse()
            .map_err(|_| format!("`{seed}` is no seed; give a whole number"))?;
        match parts.next() {
            None => Ok(Self::Synthetic {
                shape,
                formats,
                seed,
            }),
            Some(more) => Err(format!(
                "`:{more}` is too much; write synthetic:SHAPE:TYPE:SEED"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use fornax::gguf::DType;

    use super::*;

    #[test]
    fn a_synthetic_name_says_shape_type_and_seed() {
        let named = |name: &str| name.parse::<ModelName>();
        let Ok(ModelName::Synthetic {
            shape,
            formats,
            seed,
        }) = named("synthetic:tiny-llama:f16:7")
        else {
            panic!("a synthetic model");
        };
        assert_eq!(
            (shape.name, formats, seed),
            ("tiny-llama", Formats::Of(DType::F16), 7)
        );
        assert_eq!(named("synthetic:moe-1b"), named("synthetic:moe-1b:Q8_0:1"));
        assert_eq!(named("a:b.gguf"), Ok(ModelName::File("a:b.gguf".into())));
        for (name, part) in [
            ("synthetic:", "known are qwen3-0.6b"),
            ("synthetic:qwen3-0.6b:q9", "known are F32"),
            ("synthetic:qwen3-0.6b:q8_0:x", "no seed"),
            ("synthetic:qwen3-0.6b:q8_0:1:2", "too much"),
        ] {
            assert!(named(name).unwrap_err().contains(part), "{name}");
        }
    }

    #[test]
    fn clients_call_a_model_by_its_name_without_the_ending() {
        let served = |name: &str| name.parse::<ModelName>().unwrap().served_name();
        assert_eq!(served("models/qwen3.Q8_0.gguf"), "qwen3.Q8_0");
        assert_eq!(served("synthetic:moe-1b:q4_0"), "moe-1b-q4_0");
    }
}
