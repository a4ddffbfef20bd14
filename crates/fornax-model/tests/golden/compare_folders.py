#!/usr/bin/env python3
"""Saves every tiny model as `transformers` saves models, and has Fornax and llama.cpp read it.

A folder must score as the GGUF file of the same weights does, whose activations are golden; so must
what `fornax convert` makes of it, in llama.cpp too. gpt-oss is saved twice: with plain experts, and
with them in blocks as it was published.

usage: compare_folders.py FORNAX LLAMA_PERPLEXITY [--only NAME] [--isa ISA]
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from compare_perplexity import BETAS, FLAGS, CTX, figures, run, with_betas
from tiny_models import Tiny, seeded_model, tiny_models
from tiny_vocabulary import TinyVocabulary

HERE = Path(__file__).parent
WORDS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
# What llama.cpp does not read alike; see compare_perplexity.py.
FORNAX_ALONE = {"tiny-mistral", "tiny-deepseek2"}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("fornax")
    arguments.add_argument("peer")
    arguments.add_argument("--only", default="")
    arguments.add_argument("--isa", help="instructions that Fornax must take")
    arguments = arguments.parse_args()
    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory() as scratch:
        for tiny in tiny_models():
            if not tiny.name.startswith(arguments.only):
                continue
            folder = Path(scratch) / tiny.name
            save(tiny, folder, torch.float32)
            compare(arguments, tiny.name, folder)
            if tiny.architecture in ("gpt-oss", "deepseek2"):
                save(tiny, folder.with_name(f"{tiny.name}-bf16"), torch.bfloat16)
                compare(arguments, tiny.name, folder.with_name(f"{tiny.name}-bf16"))
            if tiny.architecture == "gpt-oss":
                in_blocks = folder.with_name("tiny-gpt-oss-in-blocks")
                shutil.copytree(folder, in_blocks)
                pack(in_blocks / "model.safetensors")
                compare(arguments, tiny.name, in_blocks)


def compare(arguments, name: str, folder: Path) -> None:
    file, made = HERE / f"{name}.gguf", folder.with_suffix(".gguf")
    subprocess.run([arguments.fornax, "convert", folder, made], check=True, capture_output=True)
    plain, read, converted = (ours(arguments, model) for model in (file, folder, made))
    told = f"{folder.name}: file {plain:.4f}, folder {read:.4f}, converted {converted:.4f}"
    # gpt-oss's experts are in blocks in the file and may be plain in the folder. Half of a float's
    # bits make another model: that it is the same in folder and file, and in llama.cpp, shows it right.
    halved = folder.name.endswith("-bf16")
    bound = 0.3 if halved else 5e-3 if name == "tiny-gpt-oss" else 1e-5
    assert abs(converted / read - 1) < 1e-6 and abs(read / plain - 1) < bound, told
    if name not in FORNAX_ALONE:
        if halved:
            # Both may round activations to as few bits; those of the same weights in full they do not.
            command = [arguments.fornax, "convert", folder, made, "--type", "F32"]
            subprocess.run(command, check=True, capture_output=True)
            converted = ours(arguments, made)
        betas = BETAS.get(name)
        if betas:
            made = with_betas(made, folder, betas)
        peer = [arguments.peer, "-m", made, *FLAGS, "-f", HERE / "text.txt"]
        if betas:
            converted = ours(arguments, made)
            peer += ["--yarn-beta-fast", betas[0], "--yarn-beta-slow", betas[1]]
        [theirs] = figures(peer, r"Final estimate: PPL = ([0-9.]+)")
        off = abs(converted / theirs - 1)
        told += f", llama.cpp {theirs:.4f} ({off:.4%} off)"
        assert off < (5e-3 if "blocks" in folder.name else 1e-3), told
    print(told, flush=True)


def ours(arguments, model: Path) -> float:
    command = [arguments.fornax, "perplexity", "--model", model, "--file", HERE / "text.txt",
               "--ctx", CTX, "--kv-type", "f32", "--json"]
    command += ["--isa", arguments.isa] if arguments.isa else []
    return json.loads(run(command))["perplexity"]


def save(tiny: Tiny, folder: Path, kind: torch.dtype) -> None:
    reader = gguf.GGUFReader(HERE / f"{tiny.name}.gguf")
    seed = int(reader.fields["general.name"].contents().rsplit(" ", 1)[1])
    model = seeded_model(tiny, seed).to(kind)
    model.save_pretrained(folder)
    vocabulary = TinyVocabulary(tiny.pre)
    ids = {token: id for id, token in enumerate(vocabulary.tokens[: vocabulary.first_control_id])}
    tokenizer = Tokenizer(models.BPE(ids, vocabulary.merges))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in vocabulary.control])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS[tiny.pre]), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    eos, bos = "<|im_end|>", None
    if tiny.pre == "llama-bpe":
        eos, bos = "<|eot_id|>", "<|begin_of_text|>"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, vocabulary.tokens.index(bos))])
    more = {"bos_token": bos} if bos else {}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, **more).save_pretrained(folder)


def pack(path: Path) -> None:
    """The experts of gpt-oss in blocks: outputs outermost, two neighbouring values to a byte."""
    tensors, kind = load_file(path), gguf.GGMLQuantizationType.MXFP4
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        rows = np.ascontiguousarray(tensors.pop(name).swapaxes(1, 2))
        blocks = gguf.quants.quantize(rows, kind).reshape(*rows.shape[:2], -1, 17)
        values = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)
        tensors[f"{name}_scales"] = np.ascontiguousarray(blocks[..., 0])
        tensors[f"{name}_blocks"] = values[..., ::2] | values[..., 1::2] << 4
    save_file(tensors, path, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
