"""The weights of a tiny model under GGUF's names and in GGUF's conventions.

Owns the naming and the row order of rotated projections. Knows nothing of files or of Fornax.
"""

import itertools

import numpy as np
import torch

from tiny_models import Tiny, config_head_dim, plain_frequencies


def gguf_tensors(tiny: Tiny, model: torch.nn.Module):
    """The weights as `(name, values)` in GGUF's names and conventions."""
    config = model.config
    yield "token_embd.weight", array(model.model.embed_tokens.weight)
    if config.rope_parameters["rope_type"] == "llama3":
        yield "rope_freqs.weight", array(plain_frequencies(config) / model.model.rotary_emb.inv_freq)
    for index, layer in enumerate(model.model.layers):
        named = itertools.chain(
            [("attn_norm", layer.input_layernorm.weight)],
            attention_tensors(tiny, layer.self_attn),
            [("ffn_norm", layer.post_attention_layernorm.weight)],
            feed_forward_tensors(layer.mlp),
        )
        for name, weight in named:
            yield f"blk.{index}.{name}.weight", array(weight)
    yield "output_norm.weight", array(model.model.norm.weight)
    if not config.tie_word_embeddings:
        yield "output.weight", array(model.lm_head.weight)


def attention_tensors(tiny: Tiny, attention: torch.nn.Module):
    adjacent = tiny.architecture == "llama"
    head_dim = config_head_dim(tiny.config)
    paired = lambda w: adjacent_pairs(w, head_dim) if adjacent else w
    yield "attn_q", paired(attention.q_proj.weight)
    yield "attn_k", paired(attention.k_proj.weight)
    yield "attn_v", attention.v_proj.weight
    yield "attn_output", attention.o_proj.weight
    if hasattr(attention, "q_norm"):
        yield "attn_q_norm", attention.q_norm.weight
        yield "attn_k_norm", attention.k_norm.weight


def adjacent_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of each head reordered from half-split to adjacent-pair RoPE.

    transformers turns rows (i, i + head_dim/2) of a head together by angle i; GGUF's llama
    turns rows (2i, 2i + 1) by angle i. So row i of either half goes to 2i or 2i + 1. Queries
    and keys move alike, which leaves their products as they were. `compare_llama_cpp.py`
    shows that this is what a reader of GGUF expects.
    """
    heads = weight.unflatten(0, (-1, 2, head_dim // 2))
    return heads.transpose(1, 2).reshape(weight.shape)


def feed_forward_tensors(mlp: torch.nn.Module):
    if not hasattr(mlp, "experts"):
        yield "ffn_gate", mlp.gate_proj.weight
        yield "ffn_up", mlp.up_proj.weight
        yield "ffn_down", mlp.down_proj.weight
        return
    gate, up = mlp.experts.gate_up_proj.chunk(2, dim=1)
    yield "ffn_gate_inp", mlp.gate.weight
    yield "ffn_gate_exps", gate
    yield "ffn_up_exps", up
    yield "ffn_down_exps", mlp.experts.down_proj


def array(weight: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(weight.detach().to(torch.float32).numpy())
