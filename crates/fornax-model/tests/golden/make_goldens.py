#!/usr/bin/env python3
"""Makes the tiny models (GGUF) and their golden activations, with Hugging Face `transformers`.

Owns the files that are written. Knows nothing of Fornax: the activations must come from an
implementation that shares no code with it.

usage: make_goldens.py [--out DIRECTORY] [--only NAME]      (pins: requirements.txt; formats: README.md)
"""

import argparse
import dataclasses
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

from activations import activations, report_noise, report_sensitivity
from gguf_metadata import write_metadata
from gguf_tensors import gguf_tensors
from tiny_models import first_usable_seed, greedy, tiny_models
from tiny_vocabulary import TinyVocabulary


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments.add_argument("--only", help="make the models alone whose names begin so")
    arguments = arguments.parse_args()
    out = arguments.out
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for tiny in tiny_models():
        if not tiny.name.startswith(arguments.only or ""):
            continue
        vocabulary = TinyVocabulary(tiny.pre)
        chosen = first_usable_seed(tiny, vocabulary)
        tensors = dict(gguf_tensors(tiny, chosen.model))
        write_model(out, tiny.name, tiny, vocabulary, chosen.seed, tensors, kinds_of(tiny, tensors))
        write_golden(out, tiny.name, chosen)
        report_noise(chosen.model, chosen.tokens)
        report_sensitivity(tiny, chosen.model, chosen.tokens)
        if tiny.name == "tiny-qwen3":
            for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0):
                write_quantised(out, tiny, vocabulary, chosen, tensors, kind)


def kinds_of(tiny, tensors) -> dict:
    """gpt-oss has its experts in MXFP4, as it was published; the rest is float32."""
    experts = [name for name in tensors if name.endswith("_exps.weight")]
    in_blocks = experts if tiny.architecture == "gpt-oss" else []
    return dict.fromkeys(in_blocks, gguf.GGMLQuantizationType.MXFP4)


def write_model(out, name, tiny, vocabulary, seed, tensors, kinds=None, file_type=0,
                made="random weights") -> None:
    """`kinds`: tensor name to block format, for those that are not float32."""
    kinds = kinds or {}
    writer = gguf.GGUFWriter(out / f"{name}.gguf", tiny.architecture)
    writer.add_name(f"{name}, {made}, seed {seed}")
    writer.add_file_type(file_type)
    write_metadata(writer, tiny)
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
        if not ids:
            continue
        writer.add_key_value(f"golden.{key}", ids, kinds.ARRAY, sub_type=kinds.UINT32)
    if chosen.greedy:
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
