#!/usr/bin/env python3
"""How far the built-in model's probabilities move in each fast format, in Fornax and in llama.cpp.

Quantises the model and reads held-out stories with both programs. Two references, both computed by
Fornax's plain loops in float32: the weights before they were quantised, and the quantised weights
themselves, which leaves what a program's arithmetic adds. Writes the rows of a table.

usage: compare_formats.py FORNAX LLAMA_PERPLEXITY SCRATCH [--chunks 16]
"""

import argparse
import json
from pathlib import Path

import numpy as np

from compare_perplexity import run

ROOT = Path(__file__).parents[4]
MODEL = ROOT / "crates/fornax-cli/model/fornax-mini.gguf"
STORIES = ROOT / "training/eval/stories.jsonl"
FORMATS = ["F16", "BF16", "Q8_0", "Q6_K", "Q4_K", "Q4_0"]
CTX = 512


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("fornax")
    arguments.add_argument("peer")
    arguments.add_argument("scratch", type=Path)
    arguments.add_argument("--chunks", type=int, default=16)
    arguments.add_argument("--isa", default="", help="instruction set of Fornax, as its --isa has it")
    arguments = arguments.parse_args()
    text = arguments.scratch / "stories.txt"
    stories = [json.loads(line)["text"] for line in STORIES.read_text().splitlines()]
    # About four letters a token of this vocabulary, and some to spare.
    text.write_text("\n\n".join(stories)[: arguments.chunks * CTX * 5])
    plain = quantised(arguments, MODEL, "F32")
    truth = ours(arguments, plain, text, "scalar")
    print("| format | from F32 weights: Fornax | llama.cpp | from the same weights: Fornax | llama.cpp |\n|---|--:|--:|--:|--:|")
    for format in FORMATS:
        model = quantised(arguments, plain, format)
        itself = ours(arguments, quantised(arguments, model, "F32"), text, "scalar")
        isa = ["--isa", arguments.isa] if arguments.isa else []
        found = [ours(arguments, model, text, "parallel", *isa), theirs(arguments, model, text)]
        cells = [f"{divergence(base, one):.2e}" for base in (truth, itself) for one in found]
        print(f"| {format} | {' | '.join(cells)} |", flush=True)


def quantised(arguments, model: Path, format: str) -> Path:
    path = arguments.scratch / f"{model.stem}-{format}.gguf"
    run([arguments.fornax, "quantize", "--requantize", model, path, format])
    return path


def ours(arguments, model: Path, text: Path, backend: str, *isa: str) -> np.ndarray:
    logits = arguments.scratch / "logits"
    run([arguments.fornax, "perplexity", "--model", model, "--file", text, "--ctx", CTX,
         "--backend", backend, *isa, "--kv-type", "f32", "--logits-out", logits])
    return probabilities(logits)


def theirs(arguments, model: Path, text: Path) -> np.ndarray:
    logits = arguments.scratch / "logits"
    run([arguments.peer, "-m", model, "-f", text, "-c", CTX, "-b", CTX, "-t", 2, "-ctk", "f32",
         "-ctv", "f32", "-fa", "off", "--kl-divergence-base", logits])
    return probabilities(logits)


def probabilities(path: Path) -> np.ndarray:
    """Log-probabilities of every scored position, from the file that both programs write."""
    bytes = path.read_bytes()
    assert bytes[:8] == b"_logits_"
    ctx, vocabulary, chunks = np.frombuffer(bytes, "<u4", 3, 8)
    rows = np.frombuffer(bytes, "<u2", offset=20 + 4 * ctx * chunks)
    rows = rows.reshape(-1, 4 + vocabulary + vocabulary % 2)
    step, start = np.ascontiguousarray(rows[:, :4]).view("<f4").astype(np.float64).T
    return start[:, None] + step[:, None] * rows[:, 4 : 4 + vocabulary]


def divergence(base: np.ndarray, found: np.ndarray) -> float:
    """The mean over positions of KL(base || found)."""
    assert base.shape == found.shape, "the programs scored other positions"
    return float((np.exp(base) * (base - found)).sum(axis=1).mean())


if __name__ == "__main__":
    main()
