#!/usr/bin/env python3
"""Asks llama.cpp's `llama-server` for a second opinion on the tiny models, and keeps its greedy text.

Owns `greedy.json`. Reads only the committed files, so it also shows that the GGUF files say what
`transformers` computed: conventions such as the row order of Q and K are settled here, not by the
script that wrote them.

usage: compare_llama_cpp.py LLAMA_SERVER [--directory DIRECTORY]   (llama-quantize beside it)
"""

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import gguf
import numpy as np

PEER = "llama.cpp, from the source distribution of PyPI llama-cpp-python 0.3.36 (ggml 0.25.3)"
# float32 throughout: the KV cache is f16 by default, and flash attention rounds further.
FLAGS = ["-c", "512", "-np", "1", "-t", "2", "-ctk", "f32", "-ctv", "f32", "-fa", "off"]
EXACT = ["tiny-llama", "tiny-llama3", "tiny-qwen3", "tiny-qwen3moe"]
# Where weights are in blocks llama.cpp rounds the activations to 8 bits too, so `llama-quantize`
# first decodes these to float32: what the blocks stand for is then compared exactly.
IN_BLOCKS = ["tiny-qwen3-q8_0", "tiny-qwen3-q4_0"]
LETTER = ord("A")
PORT = 18642


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("server")
    arguments.add_argument("--directory", type=Path, default=Path(__file__).parent)
    arguments = arguments.parse_args()
    texts = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in EXACT + IN_BLOCKS:
            model = arguments.directory / f"{name}.gguf"
            if name in IN_BLOCKS:
                model = decoded(arguments.server, model, Path(scratch))
            tokens, logits, prompt, text = golden(arguments.directory / f"{name}.golden.gguf")
            with serving(arguments.server, model):
                error, same_best = compare(tokens, logits)
                print(f"{name}: logits within {error:.1e}, best token equal at {same_best:.1%}")
                assert error < 1e-4, f"{name}: llama.cpp disagrees"
                if name in EXACT:
                    texts.append(greedy(name, prompt, text))
    made_by = f"{PEER}: llama-server {' '.join(FLAGS)}; POST /completion with temperature -1"
    write(arguments.directory / "greedy.json", {"made_by": made_by, "texts": texts})


def golden(path: Path) -> tuple[list[int], np.ndarray, list[int], list[int]]:
    """The tokens, the logits after each, and a prompt with its greedy continuation."""
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    list_of = lambda key: [int(token) for token in reader.fields[key].contents()]
    logits = tensors["golden.logits"].data
    return list_of("golden.tokens"), logits, list_of("golden.prompt"), list_of("golden.greedy")


def decoded(server: str, model: Path, scratch: Path) -> Path:
    """The model with its blocks decoded to float32 by llama.cpp."""
    tool = Path(server).with_name("llama-quantize")
    command = [tool, "--allow-requantize", model, scratch / model.name, "F32"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return scratch / model.name


@contextlib.contextmanager
def serving(server: str, model: Path):
    command = [server, "-m", str(model), "--port", str(PORT), *FLAGS]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_loaded(process)
        yield
    finally:
        process.terminate()
        process.wait()


def wait_until_loaded(process: subprocess.Popen) -> None:
    for _ in range(600):
        assert process.poll() is None, "llama-server stopped: run its command by hand"
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health").read()
            return
        time.sleep(0.1)
    raise TimeoutError("llama-server did not load the model within a minute")


def complete(prompt: list[int], count: int, probabilities: int, **more) -> dict:
    body = dict(
        prompt=prompt,
        n_predict=count,
        n_probs=probabilities,
        temperature=-1,
        cache_prompt=False,
        return_tokens=True,
        **more,
    )
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    answer = json.load(urllib.request.urlopen(request))
    assert answer["tokens_evaluated"] == len(prompt), "the prompt was not taken as token ids"
    return answer


def compare(tokens: list[int], logits: np.ndarray) -> tuple[float, float]:
    """The worst relative error of a row, and how often the best token is the same.

    Log-probabilities are logits less a constant of the row, so both sides are centred first.
    The server answers with the probabilities only of whole characters, so the draw is biased to
    a letter; the probabilities themselves are of the untouched logits.
    """
    errors, same = [], 0
    for position, expected in enumerate(logits):
        answer = complete(tokens[: position + 1], 1, len(expected), logit_bias=[[LETTER, 1000]])
        entries = answer["completion_probabilities"][0]["top_logprobs"]
        found = np.full(len(expected), np.nan)
        for entry in entries:
            found[entry["id"]] = entry["logprob"]
        assert np.isfinite(found).all(), f"position {position}: not every token has a probability"
        difference = (found - found.mean()) - (expected - expected.mean())
        errors.append(np.abs(difference).max() / np.abs(expected).max())
        same += found.argmax() == expected.argmax()
    return max(errors), same / len(logits)


def greedy(name: str, prompt: list[int], expected: list[int]) -> dict:
    """The greedy text, with nothing biased: no end token is among its tokens."""
    answer = complete(prompt, len(expected), 0)
    # After a byte that begins a character the server goes on past the limit for its end.
    tokens = answer["tokens"][: len(expected)]
    assert answer["stop_type"] == "limit", f"{name}: stopped by {answer['stop_type']}"
    assert tokens == expected, f"{name}: llama.cpp writes {tokens}, transformers {expected}"
    return {"file": f"{name}.gguf", "prompt": prompt, "greedy": tokens}


def write(path: Path, value: dict) -> None:
    """JSON with an array of numbers on one line."""
    texts = ",\n".join("    " + json.dumps(text) for text in value["texts"])
    made_by = json.dumps(value["made_by"])
    path.write_text(f'{{\n  "made_by": {made_by},\n  "texts": [\n{texts}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
