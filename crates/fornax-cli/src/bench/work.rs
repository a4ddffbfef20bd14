//! What a step of a model costs at least: bytes read from memory and multiply-adds.
//!
//! Every weight that takes part is counted as read once a step, and the K and V of a sequence once
//! for each of its rows; activations, which stay in the caches of a processor, are not counted.

use fornax::gguf::{Gguf, Tensor};
use fornax::{Block, Config, FeedForward, KvType, Sketched, WeightStorage, leaves_behind};

/// What is counted of a model.
#[derive(Clone, Debug)]
pub struct Work {
    layers: Vec<Layer>,
    /// Weights outside of layers that every token passes.
    outside: Cost,
    /// The head, which only outputs pass.
    head: Cost,
    /// What is read of the head where only the largest logits are looked at, as here.
    pub sketched: Option<Sketched>,
    /// Bytes of one row of the embedding, where that is not the head.
    embedding_row: f64,
    /// Multiply-adds of one query token with one cached token in a layer.
    attention_macs: f64,
}

/// What is counted of a layer. Weights as one token passes them.
#[derive(Clone, Debug)]
struct Layer {
    /// What makes keys and values.
    kept: Cost,
    /// All else that each token passes.
    dense: Cost,
    /// All experts, and the share of them that one token passes.
    experts: Cost,
    used: f64,
    /// Tokens that one sees.
    window: usize,
    /// K and V of one token, in bytes.
    kv_bytes: f64,
}

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// New tokens.
    pub new: usize,
    /// Tokens before them.
    pub cached: usize,
    /// Whether logits follow the last of them.
    pub output: bool,
}

/// Bytes and multiply-adds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub bytes: f64,
    pub macs: f64,
}

impl Work {
    /// Counts a model's tensors, as they lie in memory.
    pub fn of(file: &Gguf, config: &Config, kv: KvType, weights: WeightStorage) -> Self {
        let kv_per_token = config.memory(file, kv).kv_per_token as f64;
        let layers = config.blocks.iter();
        let layers = layers.map(|block| Layer::of(block, kv_per_token / config.layers() as f64));
        let mut work = Self {
            layers: layers.collect(),
            outside: Cost::default(),
            head: Cost::default(),
            sketched: None,
            embedding_row: 0.0,
            attention_macs: (config.heads * (config.k_dim + config.v_dim)) as f64,
        };
        let is_latent = config.latent.is_some();
        let has_head = file.tensor("output.weight").is_some();
        for tensor in file.tensors() {
            let cost = Cost::of_weight(&tensor, weights);
            let (layer, name) = layer_of(tensor.name);
            let layer = layer.and_then(|layer| work.layers.get_mut(layer));
            match (layer, name) {
                (None, "token_embd.weight") if has_head => {
                    work.embedding_row = cost.bytes / config.vocabulary as f64;
                }
                (None, "token_embd.weight" | "output.weight") => work.head = cost,
                (None, _) => work.outside += cost,
                (Some(layer), name) if name.contains("_exps.") => layer.experts += cost,
                (Some(layer), name) if makes_kv(name, is_latent) => layer.kept += cost,
                (Some(layer), _) => layer.dense += cost,
            }
        }
        work
    }

    /// What one step with these rows costs.
    pub fn of_step(&self, rows: &[Row]) -> Cost {
        let tokens: usize = rows.iter().map(|row| row.new).sum();
        let outputs = rows.iter().filter(|row| row.output).count();
        let leaves = leaves_behind(tokens, outputs);
        let mut cost = self.outside.for_tokens(tokens);
        cost.bytes += self.embedding_row * tokens as f64;
        for (index, layer) in self.layers.iter().enumerate() {
            let is_last = leaves && index + 1 == self.layers.len();
            cost += layer.kept.for_tokens(tokens);
            cost += layer.weights(if is_last { outputs } else { tokens });
            for row in rows {
                let queries = match (is_last, row.output) {
                    (false, _) => row.new,
                    (true, is_output) => usize::from(is_output),
                };
                cost += layer.attention(queries, row.cached + row.new, self.attention_macs);
            }
        }
        if outputs > 0 {
            let sketched = self.sketched.filter(|sketched| outputs <= sketched.rows);
            cost += Cost {
                bytes: sketched.map_or(self.head.bytes, |sketched| sketched.bytes as f64),
                ..self.head.for_tokens(outputs)
            };
        }
        cost
    }
}

impl Layer {
    fn of(block: &Block, kv_bytes: f64) -> Self {
        Self {
            kept: Cost::default(),
            dense: Cost::default(),
            experts: Cost::default(),
            used: match block.feed_forward {
                FeedForward::Dense { .. } => 1.0,
                FeedForward::Experts(mixture) => mixture.used as f64 / mixture.experts as f64,
            },
            window: block.window.unwrap_or(usize::MAX),
            kv_bytes,
        }
    }

    /// Weights but those of keys and values, for so many tokens.
    fn weights(&self, tokens: usize) -> Cost {
        // Experts that at least one of the tokens passes, if each chooses freely.
        let touched = 1.0 - (1.0 - self.used).powf(tokens as f64);
        let mut cost = self.dense.for_tokens(tokens);
        cost += Cost {
            bytes: self.experts.bytes * touched,
            macs: self.experts.macs * self.used * tokens as f64,
        };
        cost
    }

    /// Attention of the last so many of a sequence's tokens, so far.
    fn attention(&self, queries: usize, tokens: usize, macs: f64) -> Cost {
        if queries == 0 {
            return Cost::default();
        }
        let read = tokens.min(self.window.saturating_add(queries - 1));
        let pairs = (tokens - queries + 1..=tokens).map(|seen| seen.min(self.window) as f64);
        Cost {
            bytes: self.kv_bytes * read as f64,
            macs: macs * pairs.sum::<f64>(),
        }
    }
}

/// The number of a tensor's layer, and its name there.
fn layer_of(name: &str) -> (Option<usize>, &str) {
    let of_layer = name
        .strip_prefix("blk.")
        .and_then(|name| name.split_once('.'));
    match of_layer {
        Some((layer, name)) => (layer.parse().ok(), name),
        None => (None, name),
    }
}

/// Whether all of a step's tokens pass a tensor of the last layer: what makes keys and values, and in latent
/// attention queries too, which are not left out there.
fn makes_kv(name: &str, is_latent: bool) -> bool {
    let begins_with = |names: &[&str]| names.iter().any(|prefix| name.starts_with(prefix));
    match is_latent {
        true => begins_with(&["attn_"]) && !begins_with(&["attn_output.", "attn_v_b."]),
        false => begins_with(&["attn_norm.", "attn_k", "attn_v", "attn_qkv."]),
    }
}

impl Cost {
    /// A weight, as one token passes it.
    fn of_weight(tensor: &Tensor<'_>, weights: WeightStorage) -> Self {
        let elements = tensor.elements() as f64;
        Self {
            bytes: match weights {
                WeightStorage::Native => tensor.len_bytes() as f64,
                WeightStorage::F32 => elements * size_of::<f32>() as f64,
            },
            macs: match tensor.shape.len() > 1 && tensor.name.ends_with(".weight") {
                true => elements,
                // Added, not multiplied.
                false => 0.0,
            },
        }
    }

    /// Weights that so many tokens pass, read once.
    fn for_tokens(self, tokens: usize) -> Self {
        Self {
            bytes: if tokens > 0 { self.bytes } else { 0.0 },
            macs: self.macs * tokens as f64,
        }
    }
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.macs += other.macs;
    }
}

#[cfg(test)]
mod tests {
    use fornax::gguf::DType;
    use fornax::gguf::synthetic::{Formats, Shape};

    use fornax::{KvPolicy, LoadOptions, Source, Spent, StepSizes, load_profiled_runner};

    use super::*;
    use crate::bench::driver::{Driver, Test};
    use crate::builtin;

    fn work(shape: &str) -> (Work, f64) {
        let source = Source::Synthetic {
            shape: Shape::named(shape).unwrap(),
            formats: Formats::Of(DType::Q8_0),
            seed: 1,
            vocabulary: Box::new(builtin::source()),
        };
        let file = source.open().unwrap();
        let config = Config::from_gguf(&file).unwrap();
        let all = file.tensors().map(|tensor| tensor.len_bytes() as f64).sum();
        (
            Work::of(&file, &config, KvType::F16, WeightStorage::Native),
            all,
        )
    }

    const ONE: Row = Row {
        new: 1,
        cached: 0,
        output: true,
    };

    #[test]
    fn a_token_of_a_dense_model_reads_every_weight_and_what_it_has_seen() {
        let (work, all) = work("tiny-qwen3");
        // 3 layers, 2 KV heads of 64, K and V in 2 bytes.
        let kv = (3 * 2 * 64 * 2 * 2) as f64;
        assert_eq!(work.of_step(&[ONE]).bytes, all + kv);
        let later = Row { cached: 99, ..ONE };
        assert_eq!(work.of_step(&[later]).bytes, all + 100.0 * kv);
        // 4 query heads of 64, each with K and then with V.
        let attention = (3 * 4 * 128 * 99) as f64;
        let macs = work.of_step(&[later]).macs - work.of_step(&[ONE]).macs;
        assert_eq!(macs, attention);
    }

    #[test]
    fn only_outputs_pass_the_head_and_many_rows_read_weights_once() {
        let (work, _) = work("tiny-llama");
        let chunk = |new, output| Row {
            new,
            cached: 0,
            output,
        };
        let without = work.of_step(&[chunk(8, false)]);
        let with = work.of_step(&[chunk(8, true)]);
        assert_eq!(with.bytes - without.bytes, work.head.bytes);
        assert_eq!(with.macs - without.macs, work.head.macs);
        // From so many on the last layer goes on with the outputs.
        let last = work.layers.last().unwrap();
        let (dense, attention) = (last.dense, last.attention(1, 64, work.attention_macs));
        let without = work.of_step(&[chunk(64, false)]);
        let with = work.of_step(&[chunk(64, true)]);
        let of_output = work.head.macs + dense.macs + attention.macs;
        assert_eq!(with.macs - without.macs, of_output);
        let rows = work.of_step(&[ONE; 8]);
        assert!(rows.bytes < 1.1 * work.of_step(&[ONE]).bytes);
        assert_eq!(rows.macs, 8.0 * work.of_step(&[ONE]).macs);
    }

    #[test]
    fn few_outputs_read_the_sketch_of_the_head_and_more_read_the_head() {
        let (mut work, _) = work("tiny-llama");
        let bytes = |work: &Work, rows: usize| work.of_step(&vec![ONE; rows]).bytes;
        let without = [bytes(&work, 2), bytes(&work, 3)];
        work.sketched = Some(Sketched {
            bytes: 1000,
            rows: 2,
        });
        assert_eq!(without[0] - bytes(&work, 2), work.head.bytes - 1000.0);
        assert_eq!(without[1], bytes(&work, 3));
    }

    #[test]
    fn one_token_reads_the_experts_it_uses_and_many_read_all() {
        let (work, all) = work("tiny-qwen3moe");
        let one = work.of_step(&[ONE]).bytes;
        let sum = |of: fn(&Layer) -> f64| work.layers.iter().map(of).sum::<f64>();
        let experts = sum(|layer| layer.experts.bytes);
        // The embedding is not tied: of it one row is read.
        let expected = all - experts * 0.75 - work.head.bytes;
        assert!((one - expected).abs() < 0.01 * all);
        let many = work.of_step(&[Row { new: 15, ..ONE }; 8]);
        assert!(many.bytes > sum(|layer| layer.dense.bytes) + 0.7 * experts);
    }

    /// Windows, experts, latent attention, heads of their own: what is counted here of a whole test, and there of
    /// each operation.
    #[test]
    fn all_is_counted_as_a_profile_counts_it() {
        for (name, weights) in [
            ("tiny-qwen3", WeightStorage::Native),
            ("tiny-qwen3", WeightStorage::F32),
            ("tiny-gemma3", WeightStorage::Native),
            ("tiny-mistral", WeightStorage::Native),
            ("tiny-gpt-oss", WeightStorage::Native),
            ("tiny-deepseek3", WeightStorage::Native),
        ] {
            let path = format!("../fornax-model/tests/golden/{name}.gguf");
            let file = Source::from(path.as_str()).open().unwrap();
            let config = Config::from_gguf(&file).unwrap();
            let options = LoadOptions {
                context: Some(256),
                sequences: 1,
                weights,
                ..LoadOptions::default()
            };
            let sizes = StepSizes {
                tokens: 64,
                kv_tokens: None,
            };
            let loaded = load_profiled_runner(&file, &options, sizes).unwrap();
            let work = Work::of(&file, &config, options.kv_type, weights);
            let kv = KvPolicy::Paged;
            let mut driver = Driver::new(loaded.runner, work, kv, loaded.profile);
            for (prompt, generate) in [(64, 0), (0, 12)] {
                let run = driver
                    .run(&Test {
                        prompt,
                        generate,
                        depth: 100,
                        parallel: 1,
                        batch: 64,
                    })
                    .unwrap();
                // What is written, and rows of an embedding that is the head as well, are counted there alone.
                let counted = |name: &str| !name.contains("store") && name != "embed";
                let spent = run.spent.iter().filter(|(of, _)| counted(of.name));
                let spent = |of: fn(&Spent) -> u64| {
                    spent.clone().map(|(_, spent)| of(spent)).sum::<u64>() as f64
                };
                let (bytes, macs) = (spent(|spent| spent.bytes), spent(|spent| spent.macs));
                let what = format!("{name}, {weights:?}, {prompt} and {generate} tokens");
                let ratio = run.cost.macs / macs;
                assert!(
                    (0.97..1.03).contains(&ratio),
                    "{what}: {ratio} of the products"
                );
                let ratio = run.cost.bytes / bytes;
                assert!((0.9..1.1).contains(&ratio), "{what}: {ratio} of the bytes");
            }
        }
    }
}
