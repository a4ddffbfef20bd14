"""A small but complete byte-level BPE vocabulary for the tiny models.

Owns the byte alphabet, a few learned merges and the control tokens of each
model family, as GGUF `tokenizer.ggml.*` metadata. Knows nothing of models.
"""

import re
from collections import Counter

import gguf

VOCABULARY_LENGTH = 320

CONTROL_TOKENS = {
    "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "llama-bpe": [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ],
}

TEXT = """
The old fox and the young hare met by the river when the water was low. "Where are you
going?" asked the hare. "Over there," said the fox, "where the other foxes are." The hare
went with him, and then they were there together, hearing the wind and the water in the
reeds, and thinking of the winter that was on the way.
"""


def byte_alphabet() -> list[str]:
    """One printable character per byte: itself if it prints, else the next one from U+0100."""
    prints = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in prints else next(spare)) for byte in range(256)]


def learn_merges(text: str, count: int) -> list[tuple[str, str]]:
    """Joins the most frequent adjacent pair, `count` times; ties go to the smaller pair."""
    alphabet = byte_alphabet()
    words = Counter(
        tuple(alphabet[byte] for byte in word.encode())
        for word in re.findall(r" ?[A-Za-z]+", text)
    )
    merges = []
    for _ in range(count):
        pairs = Counter()
        for word, seen in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += seen
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = Counter({joined(word, best): seen for word, seen in words.items()})
    return merges


def joined(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out, at = [], 0
    while at < len(word):
        if word[at : at + 2] == pair:
            out.append(pair[0] + pair[1])
            at += 2
        else:
            out.append(word[at])
            at += 1
    return tuple(out)


class TinyVocabulary:
    """Ids: 0..256 the bytes, then the merges in rank order, then the control tokens."""

    def __init__(self, pre: str):
        self.pre = pre
        self.control = CONTROL_TOKENS[pre]
        self.merges = learn_merges(TEXT, VOCABULARY_LENGTH - 256 - len(self.control))
        self.tokens = byte_alphabet() + [a + b for a, b in self.merges] + self.control
        assert len(set(self.tokens)) == VOCABULARY_LENGTH, "two merges make the same token"

    @property
    def first_control_id(self) -> int:
        return VOCABULARY_LENGTH - len(self.control)

    @property
    def begins_with(self) -> list[int]:
        """The BOS that Llama 3 puts before every text; Qwen has none."""
        return [self.tokens.index("<|begin_of_text|>")] if self.pre == "llama-bpe" else []

    def write(self, writer: gguf.GGUFWriter) -> None:
        normal = [gguf.TokenType.NORMAL] * self.first_control_id
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(normal + [gguf.TokenType.CONTROL] * len(self.control))
        writer.add_token_merges([f"{a} {b}" for a, b in self.merges])
        if self.pre == "llama-bpe":
            writer.add_bos_token_id(self.tokens.index("<|begin_of_text|>"))
            writer.add_eos_token_id(self.tokens.index("<|eot_id|>"))
            writer.add_add_bos_token(True)
        else:
            writer.add_eos_token_id(self.tokens.index("<|im_end|>"))
            writer.add_pad_token_id(self.tokens.index("<|endoftext|>"))
            writer.add_add_bos_token(False)
