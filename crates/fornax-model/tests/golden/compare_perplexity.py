#!/usr/bin/env python3
"""Lays `fornax perplexity` beside llama.cpp's `llama-perplexity`, and keeps what the latter says.

Owns `perplexity.json`. For every tiny model that llama.cpp reads alike: the perplexity of `text.txt`,
and token by token the KL divergence and how often the best token is the same, over logits that
Fornax writes and llama.cpp reads.

usage: compare_perplexity.py FORNAX LLAMA_PERPLEXITY [--directory DIRECTORY] [MODEL.gguf TEXT ...]
"""

import argparse
import json
import math
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import gguf

def whole_pair_beta() -> float:
    """Turns over tiny-gpt-oss's context of 16 of the pair before its fourth, for its RoPE.

    gpt-oss was trained with a ramp that is not cut to whole pairs. llama.cpp cuts it, and agrees only
    where a copy of the file has a ramp that begins and ends at whole pairs.
    """
    pair, rotary, base, context = 3.9999, 16, 1.5e5, 16
    return context / (2 * math.pi * base ** (2 * pair / rotary))


PEER = "llama.cpp, from the source distribution of PyPI llama-cpp-python 0.3.36 (ggml 0.25.3)"
CTX = 64
# float32 throughout: the KV cache is f16 by default, and flash attention rounds further.
FLAGS = ["-c", str(CTX), "-b", str(CTX), "-t", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off"]
# tiny-mistral: llama.cpp knows no window in the `llama` architecture. tiny-deepseek2: it takes models
# without compressed queries for others of 27 layers. Both are compared with transformers alone.
MODELS = ["tiny-llama", "tiny-llama3", "tiny-llama-linear", "tiny-llama-yarn", "tiny-qwen2",
          "tiny-qwen2moe", "tiny-qwen3", "tiny-qwen3moe", "tiny-gemma3", "tiny-gpt-oss",
          "tiny-deepseek3", "tiny-qwen3-q8_0", "tiny-qwen3-q4_0"]
# Weights in blocks: both programs round activations too, each in its own way, so that on weights
# as random as these the best of nearly equal tokens is not always the same.
IN_BLOCKS = {"tiny-qwen3-q8_0", "tiny-qwen3-q4_0", "tiny-gpt-oss"}
# llama.cpp writes these into files but does not read them: it is told what the file says.
BETAS = {"tiny-llama-yarn": (2.0, 0.1), "tiny-gpt-oss": (3.0, whole_pair_beta())}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("fornax")
    arguments.add_argument("peer")
    arguments.add_argument("--directory", type=Path, default=Path(__file__).parent)
    arguments.add_argument("more", nargs="*", help="other models with their texts; not kept")
    arguments = arguments.parse_args()
    text, kept = arguments.directory / "text.txt", []
    for name in MODELS:
        path = arguments.directory / f"{name}.gguf"
        exact = name not in IN_BLOCKS
        found = compare(arguments, path, text, exact)
        if name != "tiny-gpt-oss":
            kept.append({"file": path.name, **found})
    for model, words in zip(arguments.more[::2], arguments.more[1::2]):
        compare(arguments, Path(model), Path(words), exact="f16" in model)
    lines = ",\n".join("    " + json.dumps(found) for found in kept)
    made_by = json.dumps(f"{PEER}: llama-perplexity {' '.join(FLAGS)} -f text.txt")
    head = f'{{\n  "made_by": {made_by},\n  "ctx": {CTX},\n  "models": [\n'
    (arguments.directory / "perplexity.json").write_text(f"{head}{lines}\n  ]\n}}\n")


def compare(arguments, model: Path, text: Path, exact: bool) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        logits, betas = Path(scratch) / "logits", BETAS.get(model.stem)
        if betas:
            model = with_betas(model, Path(scratch), betas)
        ours = json.loads(run([arguments.fornax, "perplexity", "--model", model, "--file", text,
                               "--ctx", CTX, "--kv-type", "f32", "--json", "--logits-out", logits]))
        peer = [arguments.peer, "-m", model, *FLAGS]
        if betas:
            peer += ["--yarn-beta-fast", betas[0], "--yarn-beta-slow", betas[1]]
        [theirs] = figures([*peer, "-f", text], r"Final estimate: PPL = ([0-9.]+)")
        against = ["--kl-divergence", "--kl-divergence-base", logits]
        divergence, same = figures([*peer, *against], r"Mean +KLD: +(-?[0-9.e-]+)",
                                   r"Same top p: +([0-9.]+)")
    off = abs(ours["perplexity"] / theirs - 1)
    print(f"{model.stem}: perplexity {ours['perplexity']:.4f}, llama.cpp {theirs:.4f} ({off:.4%} off), "
          f"mean KL {divergence:.2e}, best token the same at {same:.2f} %", flush=True)
    most_off, most_divergence, least_same = (1e-3, 1e-5, 99.9) if exact else (5e-3, 5e-3, 98)
    random = model.stem.startswith("tiny-") and not exact
    assert off <= most_off and divergence <= most_divergence, "the programs disagree"
    assert same >= least_same or random, "the programs disagree on the best token"
    return {"perplexity": theirs, "exact": exact}


def with_betas(model: Path, scratch: Path, betas: tuple[float, float]) -> Path:
    """A copy with these ends of its YaRN ramp."""
    copy = scratch / model.name
    shutil.copy(model, copy)
    reader = gguf.GGUFReader(copy, "r+")
    architecture = reader.fields["general.architecture"].contents()
    for end, beta in zip(("fast", "slow"), betas):
        field = reader.fields[f"{architecture}.rope.scaling.yarn_beta_{end}"]
        field.parts[field.data[0]][0] = beta
    reader.data.flush()
    return copy


def figures(command, *patterns: str) -> list[float]:
    """What the other program says; its log may lose its end when it exits, so it is asked again."""
    for _ in range(100):
        told = run(command, stderr=subprocess.STDOUT)
        found = [re.search(pattern, told) for pattern in patterns]
        if all(found):
            return [float(match.group(1)) for match in found]
    raise RuntimeError(f"no {patterns} in\n{told[-2000:]}")


def run(command, stderr=subprocess.DEVNULL) -> str:
    command = [str(part) for part in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert done.returncode == 0, f"{command} failed: {done.stdout[-2000:]}"
    return done.stdout


if __name__ == "__main__":
    main()
