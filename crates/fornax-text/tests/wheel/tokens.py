#!/usr/bin/env python3
"""What the `tokenizers` of PyPI make of texts, for tests and benchmarks in Rust.

Knows nothing of our tokens: who starts it compares. Reads JSON by the line: the definition of a
tokenizer (a `tokenizer.json`), then lists of texts. Answers each text with the number of its
tokens and their ids, in four bytes each: to write millions as JSON takes a fifth of the time.
"""

import json
import sys
from array import array

try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit("Python finds no `tokenizers`: install it, or run `cargo xtask ci peer`, which does")


def main():
    lines, answers = sys.stdin.buffer, sys.stdout.buffer
    tokenizer = Tokenizer.from_str(next(lines).decode())
    for line in lines:
        # Without the places of tokens in the text, which nobody asks for.
        for encoding in tokenizer.encode_batch_fast(json.loads(line), add_special_tokens=False):
            ids = encoding.ids
            answers.write(array("I", [len(ids)]))
            answers.write(array("I", ids))
        answers.flush()


if __name__ == "__main__":
    main()
