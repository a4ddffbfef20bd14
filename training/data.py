"""From seeds to packed rows: writes the corpus in parallel, encodes it, weighs each token, packs documents into rows.

It knows the corpus as text and the chat markers, not the model.
"""

import gzip
import multiprocessing
from dataclasses import dataclass

import numpy

import chat_format
from corpus import conversation

PROMPT_WEIGHT, ANSWER_WEIGHT = 1, 10  # in tenths: what the user says is hardly worth learning to predict
_SHARD = 4000  # documents


@dataclass
class Rows:
    """Packed documents. Each array is [rows, length]; padding has document number 255 and weight 0."""

    tokens: numpy.ndarray     # uint16
    weights: numpy.ndarray    # uint8, tenths: how much predicting this token counts
    documents: numpy.ndarray  # uint8, number of the document within its row
    token_count: int          # without padding


def write_corpus(folder, seed, documents, processes):
    """Writes the corpus as gzipped shards and returns their paths."""
    jobs = [(folder / f"corpus-{index:03}.gz", seed * 100_000 + index) for index in range(-(-documents // _SHARD))]
    with multiprocessing.Pool(processes) as pool:
        return pool.starmap(_write_shard, jobs, chunksize=1)


def _write_shard(path, seed):
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write("\0".join(conversation.shard(seed, _SHARD)))
    return path


def read_shard(path):
    """The documents of one shard."""
    with gzip.open(path, "rt") as file:
        return file.read().split("\0")


def pack(paths, tokenizer, length, processes):
    """Encodes all shards and packs each of them into rows of `length` tokens."""
    with multiprocessing.Pool(processes, _set_tokenizer, (tokenizer.to_str(), length)) as pool:
        parts = pool.map(_pack_shard, paths, chunksize=1)
    return Rows(*(numpy.concatenate([part[index] for part in parts]) for index in range(3)), sum(part[3] for part in parts))


def _set_tokenizer(text, length):
    global _tokenizer, _length
    from tokenizers import Tokenizer
    _tokenizer, _length = Tokenizer.from_str(text), length


def _pack_shard(path):
    markers = Markers(_tokenizer)
    encoded = [numpy.array(_tokenizer.encode(document, add_special_tokens=False).ids, dtype=numpy.uint16)
               for document in read_shard(path)]
    encoded = [ids for ids in encoded if len(ids) <= _length]
    rows = _fit([len(ids) for ids in encoded], _length)
    shape = (len(rows), _length)
    tokens = numpy.full(shape, markers.padding, numpy.uint16)
    weights, documents = numpy.zeros(shape, numpy.uint8), numpy.full(shape, 255, numpy.uint8)
    for row, members in enumerate(rows):
        start = 0
        for number, member in enumerate(members):
            ids = encoded[member]
            tokens[row, start:start + len(ids)] = ids
            weights[row, start:start + len(ids)] = token_weights(ids, markers)
            documents[row, start:start + len(ids)] = number
            start += len(ids)
    return tokens, weights, documents, sum(map(len, encoded))


def _fit(lengths, capacity):
    """First fit over the last 32 open rows; returns the members of each row."""
    rows, open_rows = [], []  # open_rows: [space left, row index]
    for member, length in enumerate(lengths):
        slot = next((slot for slot in open_rows if slot[0] >= length and len(rows[slot[1]]) < 250), None)
        if slot is None:
            slot = [capacity, len(rows)]
            rows.append([])
            open_rows = sorted(open_rows, reverse=True)[:31] + [slot]
        rows[slot[1]].append(member)
        slot[0] -= length
    return rows


class Markers:
    """The ids that mark the turns."""

    def __init__(self, tokenizer):
        def ids(text):
            return tokenizer.encode(text, add_special_tokens=False).ids
        self.padding = tokenizer.token_to_id("<|endoftext|>")
        self.start = tokenizer.token_to_id(chat_format.START)
        self.end = tokenizer.token_to_id(chat_format.END)
        self.think = tokenizer.token_to_id("<think>")
        self.assistant = ids("assistant\n")
        self.empty_thought = ids(chat_format.EMPTY_THOUGHT)


def token_weights(ids, markers):
    """How much predicting each token counts.

    An answer counts in full, with the marker that ends it. What the generation prompt writes does not count: the empty
    thought of thinking off, and the first token of an earlier turn, whose thought the template has dropped.
    """
    starts = numpy.flatnonzero(ids == markers.start)
    if not len(starts):
        return numpy.full(len(ids), ANSWER_WEIGHT, numpy.uint8)  # a plain story
    weights = numpy.full(len(ids), PROMPT_WEIGHT, numpy.uint8)
    ends = numpy.flatnonzero(ids == markers.end)
    for start in starts:
        first = start + 1 + len(markers.assistant)
        if list(ids[start + 1:first]) != markers.assistant:
            continue
        end = ends[numpy.searchsorted(ends, first)]
        weights[first:end + 1] = ANSWER_WEIGHT
        empty = len(markers.empty_thought)
        if list(ids[first:first + empty]) == markers.empty_thought:
            weights[first:first + empty] = 0
        elif ids[first] != markers.think:
            weights[first] = 0
    return weights
