//! What a step of a model costs at least: bytes read from memory and multiply-adds.
//!
//! Every weight that takes part is counted as read once a step, and the K and V of a sequence once
//! for each of its rows; activations, which stay in the caches of a processor, are not counted.

use fornax::gguf::Gguf;
use fornax::{Config, FeedForward, KvType, Sketched};

/// What is counted of a model.
#[derive(Clone, Debug)]
pub struct Work {
    /// Weights that every token passes, in bytes.
    dense_bytes: f64,
    /// Their multiply-adds for one token.
    dense_macs: f64,
    /// The same of the head, which only outputs pass.
    head_bytes: f64,
    head_macs: f64,
    /// What is read of the head where only the largest logits are looked at, as here.
    pub sketched: Option<Sketched>,
    /// All experts of all layers, in bytes.
    expert_bytes: f64,
    /// Multiply-adds of the experts that one token passes.
    expert_macs: f64,
    /// Share of the experts that one token passes.
    used: f64,
    /// Bytes of one row of the embedding.
    embedding_row: f64,
    /// K and V of one token over all layers, in bytes.
    kv_bytes: f64,
    /// Multiply-adds of one query token with one cached token over all layers.
    attention_macs: f64,
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
    /// Counts a model's tensors.
    pub fn of(file: &Gguf, config: &Config, kv: KvType) -> Self {
        let kv_per_token = config.memory(file, kv).kv_per_token;
        // Blocks of a model that have experts at all have equally many.
        let used = config.blocks.iter().map(|block| match block.feed_forward {
            FeedForward::Dense { .. } => 1.0,
            FeedForward::Experts(mixture) => mixture.used as f64 / mixture.experts as f64,
        });
        let used = used.fold(1.0, f64::min);
        let mut work = Self {
            dense_bytes: 0.0,
            dense_macs: 0.0,
            head_bytes: 0.0,
            head_macs: 0.0,
            sketched: None,
            expert_bytes: 0.0,
            expert_macs: 0.0,
            used,
            embedding_row: 0.0,
            kv_bytes: kv_per_token as f64,
            attention_macs: (config.layers() * config.heads * (config.k_dim + config.v_dim)) as f64,
        };
        let has_head = file.tensor("output.weight").is_some();
        for tensor in file.tensors() {
            let (bytes, macs) = (tensor.len_bytes() as f64, tensor.elements() as f64);
            match (tensor.name, tensor.shape.len()) {
                ("token_embd.weight", _) if has_head => {
                    work.embedding_row = bytes / config.vocabulary as f64;
                }
                ("token_embd.weight" | "output.weight", _) => {
                    work.head_bytes = bytes;
                    work.head_macs = macs;
                }
                (_, 3) => {
                    work.expert_bytes += bytes;
                    work.expert_macs += macs * used;
                }
                (_, 2) => {
                    work.dense_bytes += bytes;
                    work.dense_macs += macs;
                }
                _ => work.dense_bytes += bytes,
            }
        }
        work
    }

    /// What one step with these rows costs.
    pub fn of_step(&self, rows: &[Row]) -> Cost {
        let tokens: usize = rows.iter().map(|row| row.new).sum();
        let outputs = rows.iter().filter(|row| row.output).count();
        // Experts that at least one of the tokens passes, if each chooses freely.
        let touched = 1.0 - (1.0 - self.used).powf(tokens as f64);
        let mut cost = Cost {
            bytes: self.dense_bytes
                + self.expert_bytes * touched
                + self.embedding_row * tokens as f64,
            macs: (self.dense_macs + self.expert_macs) * tokens as f64
                + self.head_macs * outputs as f64,
        };
        if outputs > 0 {
            let sketched = self.sketched.filter(|sketched| outputs <= sketched.rows);
            cost.bytes += sketched.map_or(self.head_bytes, |sketched| sketched.bytes as f64);
        }
        for row in rows {
            let (new, cached) = (row.new as f64, row.cached as f64);
            cost.bytes += self.kv_bytes * (cached + new);
            cost.macs += self.attention_macs * (new * cached + new * (new + 1.0) / 2.0);
        }
        cost
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
    use fornax::Source;
    use fornax::gguf::DType;
    use fornax::gguf::synthetic::{Formats, Shape};

    use super::*;
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
        (Work::of(&file, &config, KvType::F16), all)
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
        let chunk = |output| Row {
            new: 8,
            cached: 0,
            output,
        };
        let without = work.of_step(&[chunk(false)]);
        let with = work.of_step(&[chunk(true)]);
        assert_eq!(with.bytes - without.bytes, work.head_bytes);
        assert_eq!(with.macs - without.macs, work.head_macs);
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
        assert_eq!(without[0] - bytes(&work, 2), work.head_bytes - 1000.0);
        assert_eq!(without[1], bytes(&work, 3));
    }

    #[test]
    fn one_token_reads_the_experts_it_uses_and_many_read_all() {
        let (work, all) = work("tiny-qwen3moe");
        let one = work.of_step(&[ONE]).bytes;
        let expected = all - work.expert_bytes * 0.75 - work.embedding_row * 0.0;
        let head_and_embedding = work.head_bytes;
        // The embedding is not tied: of it one row is read.
        assert!((one - (expected - head_and_embedding)).abs() < 0.01 * all);
        let many = work.of_step(&[Row { new: 512, ..ONE }]);
        assert!(many.bytes > work.dense_bytes + work.expert_bytes);
    }
}
