//! Which tensors a shape has, by the names that GGUF files give them.
//!
//! Must not know what is in them.

use super::Formats;
use super::shapes::{Experts, Shape};
use crate::{
    DType,
    scheme::{Facts, assign},
};

/// A tensor to be filled.
pub(super) struct Tensor {
    pub name: String,
    pub dtype: DType,
    /// Outermost first.
    pub shape: Vec<usize>,
    pub content: Content,
}

/// What kind of numbers a tensor holds.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// Around 0.
    Matrix,
    /// Around 1.
    Norm,
}

impl Tensor {
    pub fn cols_and_rows(&self) -> (usize, usize) {
        let (&cols, outer) = self
            .shape
            .split_last()
            .expect("invariant: made with a shape");
        (cols, outer.iter().product())
    }
}

/// All tensors of a model, in file order.
pub(super) fn of(shape: &Shape, layers: usize, vocabulary: usize, formats: Formats) -> Vec<Tensor> {
    match formats {
        Formats::Of(dtype) => uniform(shape, layers, vocabulary, dtype),
        Formats::Mix(scheme) => {
            let facts = Facts {
                layers,
                tied: shape.tied,
                experts: shape.experts.map_or(0, |experts| experts.count),
                is_70b: false,
            };
            let mut tensors = uniform(shape, layers, vocabulary, DType::F32);
            for tensor in &mut tensors {
                let Tensor { name, shape, .. } = &*tensor;
                tensor.dtype = assign(scheme, &facts, name, DType::F32, shape);
            }
            tensors
        }
    }
}

fn uniform(shape: &Shape, layers: usize, vocabulary: usize, dtype: DType) -> Vec<Tensor> {
    // The embedding and the head are read by rows that matter: 4 bits are kept from them.
    let outer = if dtype == DType::Q4_0 {
        DType::Q8_0
    } else {
        dtype
    };
    let mut tensors = vec![matrix(
        "token_embd.weight".to_owned(),
        outer,
        &[vocabulary, shape.width],
    )];
    for layer in 0..layers {
        attention(shape, layer, dtype, &mut tensors);
        match shape.experts {
            Some(experts) => mixture(shape, experts, layer, dtype, &mut tensors),
            None => mlp(shape, layer, dtype, &mut tensors),
        }
    }
    tensors.push(norm("output_norm.weight".to_owned(), shape.width));
    if !shape.tied {
        tensors.push(matrix(
            "output.weight".to_owned(),
            outer,
            &[vocabulary, shape.width],
        ));
    }
    tensors
}

fn attention(shape: &Shape, layer: usize, dtype: DType, tensors: &mut Vec<Tensor>) {
    let name = |part: &str| format!("blk.{layer}.attn_{part}.weight");
    let (queries, keys) = (
        shape.heads * shape.head_dim,
        shape.kv_heads * shape.head_dim,
    );
    tensors.push(norm(name("norm"), shape.width));
    tensors.push(matrix(name("q"), dtype, &[queries, shape.width]));
    tensors.push(matrix(name("k"), dtype, &[keys, shape.width]));
    tensors.push(matrix(name("v"), dtype, &[keys, shape.width]));
    tensors.push(matrix(name("output"), dtype, &[shape.width, queries]));
    if shape.qk_norm {
        tensors.push(norm(name("q_norm"), shape.head_dim));
        tensors.push(norm(name("k_norm"), shape.head_dim));
    }
}

fn mlp(shape: &Shape, layer: usize, dtype: DType, tensors: &mut Vec<Tensor>) {
    let name = |part: &str| format!("blk.{layer}.ffn_{part}.weight");
    let (width, hidden) = (shape.width, shape.feed_forward);
    tensors.push(norm(name("norm"), width));
    tensors.push(matrix(name("gate"), dtype, &[hidden, width]));
    tensors.push(matrix(name("up"), dtype, &[hidden, width]));
    tensors.push(matrix(name("down"), dtype, &[width, hidden]));
}

fn mixture(shape: &Shape, experts: Experts, layer: usize, dtype: DType, tensors: &mut Vec<Tensor>) {
    let name = |part: &str| format!("blk.{layer}.ffn_{part}.weight");
    let (width, hidden, count) = (shape.width, experts.feed_forward, experts.count);
    tensors.push(norm(name("norm"), width));
    tensors.push(matrix(name("gate_inp"), DType::F32, &[count, width]));
    tensors.push(matrix(name("gate_exps"), dtype, &[count, hidden, width]));
    tensors.push(matrix(name("up_exps"), dtype, &[count, hidden, width]));
    tensors.push(matrix(name("down_exps"), dtype, &[count, width, hidden]));
}

fn matrix(name: String, dtype: DType, shape: &[usize]) -> Tensor {
    Tensor {
        name,
        dtype,
        shape: shape.to_vec(),
        content: Content::Matrix,
    }
}

fn norm(name: String, length: usize) -> Tensor {
    Tensor {
        name,
        dtype: DType::F32,
        shape: vec![length],
        content: Content::Norm,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_as_many_parameters_as_the_published_models() {
        for (name, published) in [
            ("qwen3-0.6b", 596_049_920),
            ("qwen3-1.7b", 1_720_574_976),
            ("smollm-135m", 134_515_008),
            ("llama-3.2-1b", 1_235_814_400),
        ] {
            let shape = Shape::named(name).unwrap();
            let tensors = of(
                shape,
                shape.layers,
                shape.vocabulary.unwrap(),
                Formats::Of(DType::Q8_0),
            );
            let elements = |tensor: &Tensor| tensor.shape.iter().product::<usize>();
            assert_eq!(
                tensors.iter().map(elements).sum::<usize>(),
                published,
                "{name}"
            );
        }
    }
}
