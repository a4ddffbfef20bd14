#!/usr/bin/env python3
"""The first 64 tokens of every taught model in float32, written greedily by Fornax and by llama.cpp.

Reads the files that `compare_accuracy.py` left in SCRATCH; fails where one token differs.

usage: compare_greedy.py FORNAX LLAMA_SERVER SCRATCH
"""

import argparse
import subprocess
from pathlib import Path

from compare_llama_cpp import complete, serving
from tiny_vocabulary import TinyVocabulary
from trained_models import language, trained_models

TOKENS = 64


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("fornax")
    arguments.add_argument("server")
    arguments.add_argument("scratch", type=Path)
    arguments = arguments.parse_args()
    # Text that no model saw; a model goes on with words of its language.
    prompts = [language(60, seed).strip() for seed in (4, 5, 6)]
    for tiny in trained_models():
        model = arguments.scratch / f"{tiny.name}-F32.gguf"
        first = TinyVocabulary(tiny.pre).begins_with
        with serving(arguments.server, model):
            for prompt in prompts:
                ids = [int(id) for id in run(arguments, "tokenize", "--model", model, prompt).split()]
                theirs = complete(first + ids, TOKENS, 0)["tokens"][:TOKENS]
                written = run(arguments, "run", "--model", model, "--raw", "--temperature", 0,
                              "--max-tokens", TOKENS, prompt)
                expected = run(arguments, "detokenize", "--model", model, *theirs)
                assert written == expected, f"{model.stem}: {written!r}, llama.cpp {expected!r}"
        print(f"{model.stem}: {len(prompts)} texts of {TOKENS} tokens are the same", flush=True)


def run(arguments, *words) -> str:
    command = [arguments.fornax, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip("\n")


if __name__ == "__main__":
    main()
