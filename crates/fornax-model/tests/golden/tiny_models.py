"""The tiny models: their shapes, seeded weights, tokens and greedy continuations.

Owns what a tiny model is, as a Hugging Face `transformers` model. Knows nothing of GGUF's names or
of Fornax.
"""

import copy
import itertools
from dataclasses import dataclass

import gguf
import numpy as np
import torch
import transformers

from tiny_vocabulary import VOCABULARY_LENGTH, TinyVocabulary

GOLDEN_TOKENS = 47
PROMPT_TOKENS = 12
GREEDY_TOKENS = 64
LEAST_MARGIN = 0.05
LEAST_ROUTER_MARGIN = 0.005
LEAST_DISTINCT = 24

# Every model: GQA with two query heads to a KV head. `rms_norm_eps` is far from any published
# value, so that a reader which does not take it from the metadata shows.
COMMON = dict(
    vocab_size=VOCABULARY_LENGTH,
    hidden_size=32,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    rms_norm_eps=1e-3,
    attention_bias=False,
)


# The rest is smaller, and runs past windows of 16 and contexts of 16 that were stretched.
SMALL = {**COMMON, "num_hidden_layers": 2, "intermediate_size": 64}
WINDOW = 16
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
LATENT = dict(
    num_key_value_heads=4,
    kv_lora_rank=24,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=32,
    first_k_dense_replace=1,
    tie_word_embeddings=False,
)


@dataclass
class Tiny:
    """One tiny model: its file name, GGUF architecture, vocabulary and transformers classes."""

    name: str
    architecture: str
    pre: str
    config: transformers.PretrainedConfig
    causal_lm: type
    # Whether its greedy text is kept too, for which a seed must be looked for.
    has_text: bool = True


@dataclass
class Chosen:
    """A seeded model, the tokens of its activations, and a prompt with its greedy text."""

    seed: int
    model: torch.nn.Module
    tokens: list[int]
    prompt: list[int]
    greedy: list[int]
    greedy_margin: float


def tiny_models() -> list[Tiny]:
    rope = lambda theta, **more: {"rope_type": "default", "rope_theta": theta, **more}
    llama3_scaling = dict(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    )
    return [
        Tiny("tiny-llama", "llama", "llama-bpe", transformers.LlamaConfig(
            **COMMON, tie_word_embeddings=False, rope_parameters=rope(1e4),
        ), transformers.LlamaForCausalLM),
        Tiny("tiny-llama3", "llama", "llama-bpe", transformers.LlamaConfig(
            **COMMON, head_dim=16, tie_word_embeddings=True,
            rope_parameters=rope(5e5, **llama3_scaling),
        ), transformers.LlamaForCausalLM),
        Tiny("tiny-qwen3", "qwen3", "qwen2", transformers.Qwen3Config(
            **COMMON, head_dim=16, tie_word_embeddings=True, rope_parameters=rope(1e6),
        ), transformers.Qwen3ForCausalLM),
        Tiny("tiny-qwen3moe", "qwen3moe", "qwen2", transformers.Qwen3MoeConfig(
            **{**COMMON, "num_hidden_layers": 2}, head_dim=16, tie_word_embeddings=False,
            rope_parameters=rope(1e6), num_experts=6, num_experts_per_tok=3,
            moe_intermediate_size=32, norm_topk_prob=True,
        ), transformers.Qwen3MoeForCausalLM),
        *without_text(rope),
    ]


def without_text(rope) -> list[Tiny]:
    """The architectures and variants whose activations alone are kept."""
    local_and_global = {
        "sliding_attention": rope(1e4),
        "full_attention": rope(1e6, rope_type="linear", factor=8.0),
    }
    made = [
        Tiny("tiny-llama-linear", "llama", "llama-bpe", transformers.LlamaConfig(
            **SMALL, tie_word_embeddings=True,
            rope_parameters=rope(1e4, rope_type="linear", factor=4.0),
        ), transformers.LlamaForCausalLM),
        Tiny("tiny-llama-yarn", "llama", "llama-bpe", transformers.LlamaConfig(
            **SMALL, head_dim=16, tie_word_embeddings=True,
            rope_parameters=rope(1e4, **YARN, beta_fast=2.0, beta_slow=0.1),
        ), transformers.LlamaForCausalLM),
        Tiny("tiny-mistral", "llama", "llama-bpe", transformers.MistralConfig(
            **SMALL, head_dim=8, tie_word_embeddings=True, rope_parameters=rope(1e4),
            sliding_window=WINDOW,
        ), transformers.MistralForCausalLM),
        Tiny("tiny-qwen2", "qwen2", "qwen2", transformers.Qwen2Config(
            **SMALL, tie_word_embeddings=True, rope_parameters=rope(1e6),
        ), transformers.Qwen2ForCausalLM),
        Tiny("tiny-qwen2moe", "qwen2moe", "qwen2", transformers.Qwen2MoeConfig(
            **SMALL, tie_word_embeddings=False, rope_parameters=rope(1e6), num_experts=6,
            num_experts_per_tok=3, moe_intermediate_size=32,
            shared_expert_intermediate_size=64, norm_topk_prob=False,
        ), transformers.Qwen2MoeForCausalLM),
        Tiny("tiny-gemma3", "gemma3", "llama-bpe", transformers.Gemma3TextConfig(
            **{**SMALL, "num_hidden_layers": 7, "rms_norm_eps": 1e-2}, head_dim=16,
            tie_word_embeddings=True, rope_parameters=local_and_global, query_pre_attn_scalar=16, sliding_window=WINDOW,
        ), transformers.Gemma3ForCausalLM),
        Tiny("tiny-gpt-oss", "gpt-oss", "llama-bpe", transformers.GptOssConfig(
            **{**SMALL, "attention_bias": True, "intermediate_size": 32}, head_dim=16,
            tie_word_embeddings=False, num_local_experts=4, num_experts_per_tok=2,
            sliding_window=WINDOW,
            rope_parameters=rope(1.5e5, **YARN, beta_fast=2.0, beta_slow=0.02, truncate=False),
        ), transformers.GptOssForCausalLM),
        Tiny("tiny-deepseek2", "deepseek2", "qwen2", transformers.DeepseekV2Config(
            **{**SMALL, **LATENT}, q_lora_rank=None, n_shared_experts=2, n_group=4, topk_group=2,
            topk_method="group_limited_greedy", routed_scaling_factor=1.5,
            rope_parameters=rope(1e4, **YARN, mscale=0.707, mscale_all_dim=0.707),
        ), transformers.DeepseekV2ForCausalLM),
        Tiny("tiny-deepseek3", "deepseek2", "qwen2", transformers.DeepseekV3Config(
            **{**SMALL, **LATENT, "num_hidden_layers": 3}, q_lora_rank=24, n_shared_experts=1,
            n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5,
            rope_parameters=rope(1e4, **YARN, mscale=1.0, mscale_all_dim=1.0),
        ), transformers.DeepseekV3ForCausalLM),
    ]
    for tiny in made:
        tiny.has_text = False
    return made


def first_usable_seed(tiny: Tiny, vocabulary: TinyVocabulary) -> Chosen:
    """The first seed whose greedy text is decided clearly, varied, and free of control tokens.

    A near-tie would make greedy equality a matter of rounding; a control token would end the
    text in an engine that obeys it.
    """
    for seed in itertools.count(1):
        model = seeded_model(tiny, seed)
        tokens = seeded_tokens(vocabulary, seed)
        if not tiny.has_text:
            print(f"{tiny.name}: seed {seed}")
            return Chosen(seed, model, tokens, [], [], 0.0)
        made, margin = greedy(model, tokens[:PROMPT_TOKENS], GREEDY_TOKENS)
        router = router_margin(model, tokens[:PROMPT_TOKENS] + made, tokens)
        if (
            margin >= LEAST_MARGIN
            and router >= LEAST_ROUTER_MARGIN
            and len(set(made)) >= LEAST_DISTINCT
            and max(made) < vocabulary.first_control_id
        ):
            print(
                f"{tiny.name}: seed {seed}, least margin of the best logit {margin:.3f}, "
                f"{len(set(made))} distinct of {len(made)} tokens, router margin {router:.3f}"
            )
            return Chosen(seed, model, tokens, tokens[:PROMPT_TOKENS], made, margin)


def seeded_model(tiny: Tiny, seed: int) -> torch.nn.Module:
    """Weights from NumPy, whose stream is stable over versions, in the order of their names."""
    tiny.config._attn_implementation = "eager"
    tiny.config._experts_implementation = "eager"
    model = unseeded_model(tiny).to(torch.float32)
    random = np.random.default_rng(seed)
    for name, weight in sorted(model.named_parameters()):
        noise = random.standard_normal(tuple(weight.shape), dtype=np.float32)
        if "bias" in name or name.endswith("sinks"):
            values = 0.5 * noise
        elif weight.dim() == 1:
            # Gemma's own weights are what is added to 1.
            values = (0 if tiny.architecture == "gemma3" else 1) + 0.3 * noise
        elif "embed_tokens" in name or "lm_head" in name:
            values = 0.5 * noise
        else:
            values = 1.5 / np.sqrt(weight.shape[-1], dtype=np.float32) * noise
        if tiny.architecture == "gpt-oss" and name.endswith(("gate_up_proj", "down_proj")):
            values = in_blocks(values)
        weight.copy_(torch.from_numpy(values.astype(np.float32)))
    for name, buffer in sorted(model.named_buffers()):
        if "e_score_correction_bias" in name:
            noise = random.standard_normal(tuple(buffer.shape), dtype=np.float32)
            buffer.copy_(torch.from_numpy(0.2 * noise))
    return model


def unseeded_model(tiny: Tiny) -> torch.nn.Module:
    """With one epsilon, as files have it: DeepSeek's inner norms have one of their own."""
    model = tiny.causal_lm(copy.deepcopy(tiny.config)).eval()
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = tiny.config.rms_norm_eps
    return model


def in_blocks(values: np.ndarray) -> np.ndarray:
    """Rounded to what MXFP4 can hold, so that a file with these blocks has the same weights.

    A block lies along the inputs of an expert, which are the rows of these matrices.
    """
    kind, rows = gguf.GGMLQuantizationType.MXFP4, np.ascontiguousarray(values.swapaxes(1, 2))
    return gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind).swapaxes(1, 2)


def seeded_tokens(vocabulary: TinyVocabulary, seed: int) -> list[int]:
    random = np.random.default_rng([seed, 1])
    first = vocabulary.begins_with
    rest = random.integers(0, vocabulary.first_control_id, GOLDEN_TOKENS - len(first))
    return first + rest.tolist()


def greedy(model: torch.nn.Module, prompt: list[int], count: int) -> tuple[list[int], float]:
    """The greedy continuation without a cache, and the least lead of a chosen logit."""
    tokens, margin = list(prompt), float("inf")
    for _ in range(count):
        best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        tokens.append(best.indices[0].item())
    return tokens[len(prompt) :], margin


def router_margin(model: torch.nn.Module, *texts: list[int]) -> float:
    """The least lead, in router logits, of the last chosen expert; infinite without experts."""
    margins, used = [float("inf")], getattr(model.config, "num_experts_per_tok", None)

    def watch(_module, _inputs, output):
        best = output[0].topk(used + 1, dim=-1).values
        margins.append((best[:, -2] - best[:, -1]).min().item())

    gates = [layer.mlp.gate for layer in model.model.layers] if used else []
    hooks = [gate.register_forward_hook(watch) for gate in gates]
    for text in texts:
        model(torch.tensor([text]))
    for hook in hooks:
        hook.remove()
    return min(margins)


def plain_frequencies(config) -> torch.Tensor:
    head_dim = config_head_dim(config)
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / config.rope_parameters["rope_theta"] ** exponents


def config_head_dim(config) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
