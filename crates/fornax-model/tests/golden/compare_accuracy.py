#!/usr/bin/env python3
"""Lays Fornax beside llama.cpp on trained tiny models, in full and in blocks, and writes the table.

For each architecture and format: the perplexities of a text that no model saw, the mean KL divergence of
llama.cpp's probabilities from ours and how often the best token is the same, as rows of a table. Owns
the folder `trained`: one model in blocks of each architecture, the text, and llama.cpp's perplexities.

usage: compare_accuracy.py FORNAX LLAMA_PERPLEXITY SCRATCH [--steps N] [--isa ISA] [--only NAME]
"""

import argparse
import json
import shutil
import struct
import subprocess
from pathlib import Path

import gguf
import torch

from compare_perplexity import FLAGS, PEER, figures, run
from gguf_tensors import gguf_tensors
from make_goldens import write_model
from tiny_vocabulary import TinyVocabulary
from trained_models import TOKENS, language, trained, trained_models

HERE = Path(__file__).parent
# Of every model; of wide ones; of two of these the rest that Fornax writes, and what llama.cpp alone
# writes.
FORMATS = ["F32", "F16", "BF16", "Q8_0", "Q4_0"]
LARGER = ["Q4_K", "Q6_K"]
MORE = ["Q4_1", "Q5_0", "Q5_1", "Q5_K", "Q4_K_M", "Q5_K_M"]
IN_ALL = ("wide-llama", "wide-qwen3moe")
THEIRS = ["Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS"]
# Q8_0, and MXFP4 in the experts.
OF_EXPERTS = "MXFP4_MOE"
EXACT = {"F32", "F16"}
# The format of those that a test of the repository reads, and which are too large for it.
KEPT, LARGE = "Q4_0", ("wide-", "deepseek2")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("fornax")
    arguments.add_argument("peer")
    arguments.add_argument("scratch", type=Path)
    arguments.add_argument("--steps", type=int, default=250)
    arguments.add_argument("--isa")
    arguments.add_argument("--only", default="")
    arguments = arguments.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    text, rows, kept = arguments.scratch / "text.txt", [], []
    text.write_text(language(6_000, 3))
    for tiny in trained_models():
        if not tiny.name.startswith(arguments.only):
            continue
        plain = arguments.scratch / f"{tiny.name}-F32.gguf"
        if not plain.exists():
            make(arguments, tiny, plain)
        more = LARGER if tiny.name.startswith("wide-") else []
        more = more + (MORE + THEIRS if tiny.name in IN_ALL else [])
        of_experts = [OF_EXPERTS] if tiny.architecture == "gpt-oss" else []
        for format in FORMATS + more + of_experts:
            model = in_format(arguments, plain, format)
            row, theirs = compare(arguments, tiny.name.removeprefix("tiny-"), format, model, text)
            rows.append(row)
            if format == KEPT and not tiny.name.startswith(LARGE):
                shutil.copy(model, HERE / "trained")
                kept.append({"file": model.name, "perplexity": theirs})
    if not arguments.only:
        keep(text, kept)
    head = "| model | format | Fornax | llama.cpp | off by | mean KL | best token the same |\n|---|---|---|---|---|---|---|\n"
    (arguments.scratch / "accuracy.md").write_text(head + "\n".join(rows) + "\n")


def make(arguments, tiny, path: Path) -> None:
    """Trains it, with the tokens that Fornax makes of the language."""
    vocabulary = TinyVocabulary(tiny.pre)
    # The random models have the same vocabularies.
    same = HERE / {"qwen2": "tiny-qwen3.gguf", "llama-bpe": "tiny-llama.gguf"}[tiny.pre]

    def encode(words: str) -> list[int]:
        command = [arguments.fornax, "tokenize", "--model", same, "--json", "-"]
        done = subprocess.run(command, input=words, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["tokens"]

    model = trained(tiny, encode, arguments.steps)
    tensors = dict(gguf_tensors(tiny, model))
    write_model(path.parent, path.stem, tiny, vocabulary, 1, tensors, made="taught weights")


def in_format(arguments, plain: Path, format: str) -> Path:
    path = plain.with_name(plain.name.replace("F32", format))
    if format in (*THEIRS, OF_EXPERTS):
        command = [Path(arguments.peer).with_name("llama-quantize"), plain, path, format]
        if format == "IQ2_XXS":
            command[1:1] = ["--imatrix", even_importance(plain)]
    elif format != "F32":
        command = [arguments.fornax, "quantize", plain, path, format]
    else:
        return plain
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


def even_importance(plain: Path) -> Path:
    """A file for llama.cpp, which writes no two-bit blocks without one, that finds all alike.

    Its older format: entries with a name, a count of calls and an importance for each column.
    """
    path, entries = plain.with_suffix(".imatrix"), []
    for tensor in gguf.GGUFReader(plain).tensors:
        columns, *rest = [int(length) for length in tensor.shape]
        count = columns * (rest[1] if len(rest) == 2 else 1)
        name = tensor.name.encode()
        entries.append(struct.pack(f"<i{len(name)}sii{count}f", len(name), name, 1, count, *[1.0] * count))
    path.write_bytes(struct.pack("<i", len(entries)) + b"".join(entries))
    return path


def compare(arguments, name: str, format: str, model: Path, text: Path) -> tuple[str, float]:
    logits = arguments.scratch / "logits"
    command = [arguments.fornax, "perplexity", "--model", model, "--file", text, "--ctx", TOKENS,
               "--kv-type", "f32", "--json", "--logits-out", logits]
    ours = json.loads(run(command + (["--isa", arguments.isa] if arguments.isa else [])))
    peer = [arguments.peer, "-m", model, *FLAGS]
    [theirs] = figures([*peer, "-f", text], r"Final estimate: PPL = ([0-9.]+)")
    against = ["--kl-divergence", "--kl-divergence-base", logits]
    divergence, same = figures([*peer, *against], r"Mean +KLD: +(-?[0-9.e-]+)",
                               r"Same top p: +([0-9.]+)")
    off = abs(ours["perplexity"] / theirs - 1)
    most_off, most_divergence, least_same = (1e-3, 1e-5, 99.9) if format in EXACT else (5e-3, 5e-3, 98)
    good = off <= most_off and divergence <= most_divergence and same >= least_same
    row = (f"| {name} | {format} | {ours['perplexity']:.4f} | {theirs:.4f} | {off:.4%} "
           f"| {max(divergence, 0):.1e} | {same:.2f} % |")
    print(row + ("" if good else "  <- outside"), flush=True)
    return row, theirs


def keep(text: Path, kept: list[dict]) -> None:
    shutil.copy(text, HERE / "trained" / "text.txt")
    lines = ",\n".join("    " + json.dumps(model) for model in kept)
    made_by = json.dumps(f"{PEER}: llama-perplexity {' '.join(FLAGS)} -f text.txt")
    head = f'{{\n  "made_by": {made_by},\n  "ctx": {TOKENS},\n  "models": [\n'
    (HERE / "trained" / "perplexity.json").write_text(f"{head}{lines}\n  ]\n}}\n")


if __name__ == "__main__":
    main()
