"""The weights of a tiny model under GGUF's names and in GGUF's conventions.

Owns the naming and the row order of rotated projections. Knows nothing of files or of Fornax.
"""

import itertools

import numpy as np
import torch

from tiny_models import Tiny, config_head_dim, plain_frequencies

# The norm before the feed-forward; Gemma 3 and gpt-oss call what stands after attention so.
POST_ATTENTION = {"gemma3": "post_attention_norm", "gpt-oss": "post_attention_norm"}


def gguf_tensors(tiny: Tiny, model: torch.nn.Module):
    """The weights as `(name, values)` in GGUF's names and conventions."""
    config = model.config
    yield "token_embd.weight", array(model.model.embed_tokens.weight)
    if config.rope_parameters.get("rope_type") == "llama3":
        yield "rope_freqs.weight", array(plain_frequencies(config) / model.model.rotary_emb.inv_freq)
    for index, layer in enumerate(model.model.layers):
        named = itertools.chain(
            [("attn_norm.weight", layer.input_layernorm.weight)],
            attention_tensors(tiny, layer.self_attn),
            norm_tensors(tiny, layer),
            feed_forward_tensors(tiny, layer.mlp),
        )
        for name, weight in named:
            yield f"blk.{index}.{name}", array(folded(tiny, name, weight))
    yield "output_norm.weight", array(folded(tiny, "output_norm.weight", model.model.norm.weight))
    if not config.tie_word_embeddings:
        yield "output.weight", array(model.lm_head.weight)


def folded(tiny: Tiny, name: str, weight: torch.Tensor) -> torch.Tensor:
    """Gemma multiplies by 1 + w; files hold that sum."""
    return weight + 1 if tiny.architecture == "gemma3" and name.endswith("norm.weight") else weight


def norm_tensors(tiny: Tiny, layer: torch.nn.Module):
    name = POST_ATTENTION.get(tiny.architecture, "ffn_norm")
    yield f"{name}.weight", layer.post_attention_layernorm.weight
    if tiny.architecture == "gemma3":
        yield "ffn_norm.weight", layer.pre_feedforward_layernorm.weight
        yield "post_ffw_norm.weight", layer.post_feedforward_layernorm.weight


def attention_tensors(tiny: Tiny, attention: torch.nn.Module):
    if tiny.architecture == "deepseek2":
        yield from latent_tensors(tiny, attention)
        return
    adjacent = tiny.architecture == "llama"
    head_dim = config_head_dim(tiny.config)
    paired = lambda w: adjacent_pairs(w, head_dim) if adjacent else w
    yield "attn_q.weight", paired(attention.q_proj.weight)
    yield "attn_k.weight", paired(attention.k_proj.weight)
    yield "attn_v.weight", attention.v_proj.weight
    yield "attn_output.weight", attention.o_proj.weight
    for name, projection in [("q", attention.q_proj), ("k", attention.k_proj),
                             ("v", attention.v_proj), ("output", attention.o_proj)]:
        if projection.bias is not None:
            yield f"attn_{name}.bias", projection.bias
    if hasattr(attention, "q_norm"):
        yield "attn_q_norm.weight", attention.q_norm.weight
        yield "attn_k_norm.weight", attention.k_norm.weight
    if hasattr(attention, "sinks"):
        yield "attn_sinks.weight", attention.sinks


def latent_tensors(tiny: Tiny, attention: torch.nn.Module):
    """Keys and values of a head are apart in new files (tiny-deepseek3), by turns in old ones."""
    config = tiny.config
    if config.q_lora_rank is None:
        yield "attn_q.weight", attention.q_proj.weight
    else:
        yield "attn_q_a.weight", attention.q_a_proj.weight
        yield "attn_q_a_norm.weight", attention.q_a_layernorm.weight
        yield "attn_q_b.weight", attention.q_b_proj.weight
    yield "attn_kv_a_mqa.weight", attention.kv_a_proj_with_mqa.weight
    yield "attn_kv_a_norm.weight", attention.kv_a_layernorm.weight
    if config.q_lora_rank is None:
        yield "attn_kv_b.weight", attention.kv_b_proj.weight
    else:
        heads = attention.kv_b_proj.weight.unflatten(0, (config.num_attention_heads, -1))
        keys, values = heads.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
        yield "attn_k_b.weight", keys.transpose(1, 2)
        yield "attn_v_b.weight", values
    yield "attn_output.weight", attention.o_proj.weight


def adjacent_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of each head reordered from half-split to adjacent-pair RoPE.

    transformers turns rows (i, i + head_dim/2) of a head together by angle i; GGUF's llama
    turns rows (2i, 2i + 1) by angle i. So row i of either half goes to 2i or 2i + 1. Queries
    and keys move alike, which leaves their products as they were. `compare_llama_cpp.py`
    shows that this is what a reader of GGUF expects.
    """
    heads = weight.unflatten(0, (-1, 2, head_dim // 2))
    return heads.transpose(1, 2).reshape(weight.shape)


def feed_forward_tensors(tiny: Tiny, mlp: torch.nn.Module):
    if not hasattr(mlp, "experts"):
        yield from dense_tensors(mlp, "")
        return
    if tiny.architecture == "gpt-oss":
        yield from biased_experts(mlp)
        return
    gate, up = mlp.experts.gate_up_proj.chunk(2, dim=1)
    yield "ffn_gate_inp.weight", mlp.gate.weight
    yield "ffn_gate_exps.weight", gate
    yield "ffn_up_exps.weight", up
    yield "ffn_down_exps.weight", mlp.experts.down_proj
    if hasattr(mlp.gate, "e_score_correction_bias"):
        yield "exp_probs_b.bias", mlp.gate.e_score_correction_bias
    if hasattr(mlp, "shared_expert_gate"):
        yield "ffn_gate_inp_shexp.weight", mlp.shared_expert_gate.weight[0]
        yield from dense_tensors(mlp.shared_expert, "_shexp")
    if hasattr(mlp, "shared_experts"):
        yield from dense_tensors(mlp.shared_experts, "_shexp")


def dense_tensors(mlp: torch.nn.Module, suffix: str):
    yield f"ffn_gate{suffix}.weight", mlp.gate_proj.weight
    yield f"ffn_up{suffix}.weight", mlp.up_proj.weight
    yield f"ffn_down{suffix}.weight", mlp.down_proj.weight


def biased_experts(mlp: torch.nn.Module):
    """gpt-oss keeps matrices the other way round, and gate and up by turns."""
    experts = mlp.experts
    yield "ffn_gate_inp.weight", mlp.router.weight
    yield "ffn_gate_inp.bias", mlp.router.bias
    both = experts.gate_up_proj.transpose(1, 2)
    yield "ffn_gate_exps.weight", both[:, ::2]
    yield "ffn_up_exps.weight", both[:, 1::2]
    yield "ffn_down_exps.weight", experts.down_proj.transpose(1, 2)
    yield "ffn_gate_exps.bias", experts.gate_up_proj_bias[:, ::2]
    yield "ffn_up_exps.bias", experts.gate_up_proj_bias[:, 1::2]
    yield "ffn_down_exps.bias", experts.down_proj_bias


def array(weight: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(weight.detach().to(torch.float32).numpy())
