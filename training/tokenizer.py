"""The tokenizer: byte-level BPE with Qwen2's pre-tokenizer, learned from the corpus. It knows no model."""

import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

# Qwen2's pre-tokenizer: contractions, words, single digits, punctuation, line ends, spaces.
PRE_TOKENIZER = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                 r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# As in Qwen3: these are tokens of their own, but ordinary text to the reader.
USER_DEFINED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
_SPECIAL = re.compile("|".join(re.escape(token) for token in CONTROL + USER_DEFINED))


def learn(documents, vocabulary):
    """Learns the merges from documents; special tokens take the last ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRE_TOKENIZER), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    specials = CONTROL + USER_DEFINED
    trainer = trainers.BpeTrainer(vocab_size=vocabulary - len(specials), show_progress=False, special_tokens=[],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    pieces = (piece for document in documents for piece in _SPECIAL.split(document) if piece)
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in USER_DEFINED])
    if tokenizer.get_vocab_size() != vocabulary:
        raise RuntimeError(f"the corpus gave {tokenizer.get_vocab_size()} tokens instead of {vocabulary}: use more documents")
    return tokenizer
