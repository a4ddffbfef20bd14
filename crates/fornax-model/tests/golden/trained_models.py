"""Tiny models that have learned a little language, so that their logits are peaked.

Owns the language, the shapes and the training. With random weights the best of 320 tokens leads the
second by about as much as rounded activations move them; here a model knows what comes next, or
which few words may, as models of people do. Knows nothing of GGUF or of Fornax.
"""

import dataclasses
import random

import torch
import transformers

from tiny_models import COMMON, Tiny, seeded_model
from tiny_vocabulary import TEXT, TinyVocabulary

TOKENS, BATCH = 64, 8
NARROW, WIDE = 64, 256


def trained_models() -> list[Tiny]:
    """Each architecture narrow, and once more in rows of 256, which the larger blocks need."""
    wide = [renamed(tiny) for tiny in models_of(WIDE) if tiny.name != "deepseek2"]
    return models_of(NARROW) + wide


def renamed(tiny: Tiny) -> Tiny:
    return dataclasses.replace(tiny, name=f"wide-{tiny.name.removeprefix('tiny-')}")


def models_of(width: int) -> list[Tiny]:
    rope = lambda theta, **more: {"rope_type": "default", "rope_theta": theta, **more}
    llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=32)
    gemma = {"sliding_attention": rope(1e4), "full_attention": rope(1e6)}
    base = {**COMMON, "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2}
    moe = {**base, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": width}
    head, rank = (32, 32) if width == NARROW else (64, WIDE)
    latent = dict(
        num_key_value_heads=4, kv_lora_rank=rank, qk_nope_head_dim=32,
        qk_rope_head_dim=16, v_head_dim=head, n_routed_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=width, first_k_dense_replace=1, tie_word_embeddings=False,
    )
    of = transformers
    return [
        # The narrow one as Llama 3, the wide one as Llama 2.
        Tiny("llama", "llama", "llama-bpe", of.LlamaConfig(
            **base, tie_word_embeddings=width == NARROW,
            rope_parameters=rope(5e5, **llama3) if width == NARROW else rope(1e4)),
            of.LlamaForCausalLM),
        Tiny("qwen2", "qwen2", "qwen2", of.Qwen2Config(
            **base, tie_word_embeddings=True, rope_parameters=rope(1e6)), of.Qwen2ForCausalLM),
        Tiny("qwen2moe", "qwen2moe", "qwen2", of.Qwen2MoeConfig(
            **moe, tie_word_embeddings=False, rope_parameters=rope(1e6),
            shared_expert_intermediate_size=width, norm_topk_prob=False), of.Qwen2MoeForCausalLM),
        Tiny("qwen3", "qwen3", "qwen2", of.Qwen3Config(
            **base, head_dim=head, tie_word_embeddings=True, rope_parameters=rope(1e6)),
            of.Qwen3ForCausalLM),
        Tiny("qwen3moe", "qwen3moe", "qwen2", of.Qwen3MoeConfig(
            **moe, head_dim=head, tie_word_embeddings=False, rope_parameters=rope(1e6),
            norm_topk_prob=True), of.Qwen3MoeForCausalLM),
        Tiny("gemma3", "gemma3", "llama-bpe", of.Gemma3TextConfig(
            **{**base, "num_hidden_layers": 7}, head_dim=head, tie_word_embeddings=True,
            rope_parameters=gemma, query_pre_attn_scalar=head, sliding_window=16),
            of.Gemma3ForCausalLM),
        Tiny("gpt-oss", "gpt-oss", "llama-bpe", of.GptOssConfig(
            **{**base, "attention_bias": True, "intermediate_size": width}, head_dim=head,
            tie_word_embeddings=False, num_local_experts=4, num_experts_per_tok=2,
            sliding_window=16, rope_parameters=rope(1.5e5)), of.GptOssForCausalLM),
        # As V2-Lite, by whose 27 layers llama.cpp knows that queries are not compressed.
        Tiny("deepseek2", "deepseek2", "qwen2", of.DeepseekV2Config(
            **{**base, **latent, "num_hidden_layers": 27}, q_lora_rank=None, n_shared_experts=2,
            n_group=1, topk_group=1, topk_method="greedy", routed_scaling_factor=1.0,
            rope_parameters=rope(1e4)), of.DeepseekV2ForCausalLM),
        Tiny("tiny-deepseek3", "deepseek2", "qwen2", of.DeepseekV3Config(
            **{**base, **latent, "num_hidden_layers": 3}, q_lora_rank=rank,
            n_shared_experts=1, n_group=4, topk_group=2, norm_topk_prob=True,
            routed_scaling_factor=2.5, rope_parameters=rope(1e4)), of.DeepseekV3ForCausalLM),
    ]


def language(letters: int, seed: int) -> str:
    """Words of the vocabulary's text, each with three that may follow it, one of them most often."""
    words = sorted(set(TEXT.split()))
    draw = random.Random(7)
    follow = {word: draw.sample(words, 3) for word in words}
    draw, word, text = random.Random(seed), words[0], []
    while sum(map(len, text)) < letters:
        word = draw.choices(follow[word], (0.8, 0.15, 0.05))[0]
        text.append(word + (" " if draw.random() < 0.95 else "\n"))
    return "".join(text)


def trained(tiny: Tiny, encode, steps: int) -> torch.nn.Module:
    """The model after so many steps on the language, whose tokens `encode` gives."""
    model = seeded_model(tiny, 1)
    for name, weight in model.named_parameters():
        # Every layer begins small, for deep models to learn at all.
        if weight.dim() > 1:
            weight.mul_(0.3)
    tokens, first = torch.tensor(encode(language(24_000, 1))), TinyVocabulary(tiny.pre).begins_with
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.05, steps)
    draw = random.Random(2)
    model.train()
    with torch.enable_grad():
        for _ in range(steps):
            starts = [draw.randrange(len(tokens) - TOKENS) for _ in range(BATCH)]
            batch = torch.stack([tokens[start : start + TOKENS] for start in starts])
            if first:
                batch[:, 0] = first[0]
            loss = model(batch, labels=batch, use_cache=False).loss
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    print(f"{tiny.name}: loss {loss.item():.3f} nats a token", flush=True)
    return model.eval()
