#!/usr/bin/env python3
"""Makes the tiny models (GGUF) and their golden activations, with Hugging Face `transformers`.

Owns the files that are written. Knows nothing of Fornax: the activations must come from an
implementation that shares no code with it.

usage: make_goldens.py [--out DIRECTORY]      (pins: requirements.txt; formats: README.md)
"""

import argparse
import dataclasses
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

from activations import activations, report_noise, report_sensitivity
from gguf_tensors import gguf_tensors
from tiny_models import config_head_dim, first_usable_seed, greedy, tiny_models
from tiny_vocabulary import TinyVocabulary


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent)
    out = arguments.parse_args().out
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for tiny in tiny_models():
        vocabulary = TinyVocabulary(tiny.pre)
        chosen = first_usable_seed(tiny, vocabulary)
        tensors = dict(gguf_tensors(tiny, chosen.model))
        write_model(out, tiny.name, tiny, vocabulary, chosen.seed, tensors)
        write_golden(out, tiny.name, chosen)
        report_noise(chosen.model, chosen.tokens)
        report_sensitivity(tiny, chosen.model, chosen.tokens)
        if tiny.name == "tiny-qwen3":
            for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0):
                write_quantised(out, tiny, vocabulary, chosen, tensors, kind)


def write_model(out, name, tiny, vocabulary, seed, tensors, kinds=None, file_type=0) -> None:
    """`kinds`: tensor name to block format, for those that are not float32."""
    config, kinds = tiny.config, kinds or {}
    writer = gguf.GGUFWriter(out / f"{name}.gguf", tiny.architecture)
    writer.add_name(f"{name}, random weights, seed {seed}")
    writer.add_file_type(file_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if tiny.architecture == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config_head_dim(config))
    if config_head_dim(config) * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(config_head_dim(config))
        writer.add_value_length(config_head_dim(config))
    if tiny.architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    vocabulary.write(writer)
    if kinds:
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for tensor, values in tensors.items():
        if tensor in kinds:
            blocks = gguf.quants.quantize(values, kinds[tensor])
            writer.add_tensor(tensor, blocks, raw_dtype=kinds[tensor])
        else:
            writer.add_tensor(tensor, values)
    finish(writer)


def write_quantised(out, tiny, vocabulary, chosen, tensors, kind) -> None:
    """The same weights in blocks, and the activations of the weights those blocks stand for.

    With Q4_0 the embedding, which is also the head, stays Q8_0, as in published files.
    """
    q8_0, q4_0 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0
    file_type = {q8_0: gguf.LlamaFileType.MOSTLY_Q8_0, q4_0: gguf.LlamaFileType.MOSTLY_Q4_0}[kind]
    name = f"{tiny.name}-{kind.name.lower()}"
    kinds = {tensor: kind for tensor, values in tensors.items() if values.ndim > 1}
    kinds["token_embd.weight"] = q8_0
    write_model(out, name, tiny, vocabulary, chosen.seed, tensors, kinds, file_type)

    rounded = tiny.causal_lm(tiny.config).eval()
    rounded.load_state_dict(chosen.model.state_dict())
    stored = dict(gguf_tensors(tiny, rounded))
    for tensor, tensor_kind in kinds.items():
        blocks = gguf.quants.quantize(tensors[tensor], tensor_kind)
        # The arrays share memory with the model: qwen3 stores every matrix as transformers does.
        stored[tensor][...] = gguf.quants.dequantize(blocks, tensor_kind)
    text, margin = greedy(rounded, chosen.prompt, len(chosen.greedy))
    print(f"{name}: least margin of the best logit {margin:.3f}")
    changed = dataclasses.replace(chosen, model=rounded, greedy=text, greedy_margin=margin)
    write_golden(out, name, changed)


def write_golden(out, name, chosen) -> None:
    writer = gguf.GGUFWriter(out / f"{name}.golden.gguf", "golden")
    writer.add_string("golden.model", f"{name}.gguf")
    writer.add_uint32("golden.seed", chosen.seed)
    kinds = gguf.GGUFValueType
    for key in ("tokens", "prompt", "greedy"):
        ids = getattr(chosen, key)
        writer.add_key_value(f"golden.{key}", ids, kinds.ARRAY, sub_type=kinds.UINT32)
    writer.add_float32("golden.greedy_margin", chosen.greedy_margin)
    for package in (torch, transformers, np):
        writer.add_string(f"golden.{package.__name__}", str(package.__version__))
    for stage, values in activations(chosen.model, chosen.tokens).items():
        writer.add_tensor(f"golden.{stage}", values.astype(np.float32))
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
