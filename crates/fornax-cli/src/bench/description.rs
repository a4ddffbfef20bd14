//! What a model is called in a table, as `llama-bench` calls it: architecture, size, type.

use std::collections::HashMap;

use fornax::Config;
use fornax::gguf::{DType, Gguf};

/// A model in a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// `qwen3 0.6B Q8_0`
    pub name: String,
    /// Of all tensors.
    pub bytes: u64,
    /// Numbers in them.
    pub parameters: u64,
}

impl Description {
    /// Describes a file.
    pub fn of(file: &Gguf, config: &Config) -> Self {
        let bytes = file.tensors().map(|tensor| tensor.len_bytes() as u64).sum();
        let parameters = file.tensors().map(|tensor| tensor.elements() as u64).sum();
        let architecture = config.architecture.name();
        let size = short(parameters);
        let name = match main_type(file) {
            Some(dtype) => format!("{architecture} {size} {dtype}"),
            None => format!("{architecture} {size}"),
        };
        Self {
            name,
            bytes,
            parameters,
        }
    }

    /// `604.15 MiB`
    pub fn size(&self) -> String {
        let mebi = self.bytes as f64 / f64::from(1 << 20);
        match mebi < 1024.0 {
            true => format!("{mebi:.2} MiB"),
            false => format!("{:.2} GiB", mebi / 1024.0),
        }
    }

    /// `596.05 M`
    pub fn parameters(&self) -> String {
        let millions = self.parameters as f64 / 1e6;
        match millions < 1000.0 {
            true => format!("{millions:.2} M"),
            false => format!("{:.2} B", millions / 1000.0),
        }
    }
}

/// The type that most of the matrices' elements have.
fn main_type(file: &Gguf) -> Option<DType> {
    let mut elements: HashMap<DType, usize> = HashMap::new();
    for tensor in file.tensors().filter(|tensor| tensor.shape.len() > 1) {
        *elements.entry(tensor.dtype).or_default() += tensor.elements();
    }
    let most = elements
        .into_iter()
        .max_by_key(|(dtype, elements)| (*elements, dtype.ggml_number()));
    most.map(|(dtype, _)| dtype)
}

fn short(parameters: u64) -> String {
    let parameters = parameters as f64;
    match parameters {
        ..1e6 => format!("{:.0}K", parameters / 1e3),
        ..5e8 => format!("{:.0}M", parameters / 1e6),
        _ => format!("{:.1}B", parameters / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_in_llama_bench() {
        let described = |parameters, bytes| {
            let description = Description {
                name: short(parameters),
                bytes,
                parameters,
            };
            let (size, count) = (description.size(), description.parameters());
            [description.name, size, count]
        };
        assert_eq!(
            described(596_049_920, 633_495_552),
            ["0.6B", "604.15 MiB", "596.05 M"]
        );
        assert_eq!(
            described(1_235_814_400, 1_313_251_456),
            ["1.2B", "1.22 GiB", "1.24 B"]
        );
        assert_eq!(described(134_515_008, 0)[0], "135M");
        assert_eq!(described(234_000, 0)[0], "234K");
    }
}
