"""Judges answers against the held-out evaluation, and generates them in PyTorch in batches.

`judge` is the rule that every engine's evaluation follows; see `eval/README.md`.
"""

import json
import math
import re

import torch
import torch.nn.functional as F

import chat_format
from model import rope_table

_TOOL_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


def judge(item, output):
    """Whether the generated text (without the end marker) is what the item expects."""
    content = output
    if item["enable_thinking"]:
        opened, closed, content = output.partition("</think>")
        if not closed or not opened.startswith("<think>\n") or not opened.removeprefix("<think>").strip():
            return False
    elif "<think>" in output or "</think>" in output:
        return False
    content = content.strip()
    if item["check"] == "exact":
        return content == item["expect"]
    if item["check"] == "contains":
        return item["expect"] in content
    try:
        if item["check"] == "json":
            return _same(json.loads(content), item["expect"])
        calls = [json.loads(call) for call in _TOOL_CALL.findall(content)]
    except json.JSONDecodeError:
        return False
    return _same(calls, item["expect"]) and not _TOOL_CALL.sub("", content).strip()


def _same(one, other):
    """Equality that tells true from 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def prompt(item):
    """The prompt of an evaluation item."""
    return chat_format.render(item["messages"], item.get("tools"), True, item["enable_thinking"])


class Generator:
    """Batched generation with a key-value cache; prompts are padded on the left."""

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self.device = model.embedding.weight.device
        self.table = rope_table(model.config, self.device)
        self.end = tokenizer.token_to_id(chat_format.END)

    @torch.no_grad()
    def generate(self, prompts, most_tokens, temperature=0.0, top_p=1.0, seed=0):
        """The texts that follow the prompts, without the end marker."""
        encoded = [self.tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
        width = max(map(len, encoded))
        most_tokens = min(most_tokens, self.model.config.context - width)
        total, batch = width + most_tokens, len(encoded)
        tokens = torch.zeros(batch, width, dtype=torch.long)
        real = torch.zeros(batch, total, dtype=torch.bool)
        for row, ids in enumerate(encoded):
            tokens[row, width - len(ids):] = torch.tensor(ids)
            real[row, width - len(ids):] = True
        tokens, real = tokens.to(self.device), real.to(self.device)
        padding = width - real[:, :width].sum(1)
        caches = [_Cache(self.model.config, batch, total, self.device) for _ in self.model.layers]
        random = torch.Generator(self.device).manual_seed(seed)
        output, done, start = [], torch.zeros(batch, dtype=torch.bool, device=self.device), 0
        for _ in range(most_tokens):
            logits = self._forward(tokens, real, padding, caches, start)
            start += tokens.size(1)
            chosen = _choose(logits, temperature, top_p, random)
            output.append(torch.where(done, self.end, chosen))
            done |= chosen == self.end
            tokens = chosen[:, None]
            if len(output) % 16 == 0 and done.all():
                break
        return [self._text(row) for row in torch.stack(output, 1).tolist()]

    def _forward(self, tokens, real, padding, caches, start):
        count = tokens.size(1)
        places = torch.arange(start, start + count, device=self.device)
        positions = (places[None] - padding[:, None]).clamp(min=0)
        cosine, sine = (table[positions][:, None] for table in self.table)
        seen = torch.arange(start + count, device=self.device)
        mask = (seen[None, None] <= places[None, :, None]) & real[:, None, :start + count]
        mask |= seen[None, None] == places[None, :, None]  # a padding row sees itself: no empty softmax
        attends = [cache.attend(start, mask[:, None]) for cache in caches]
        hidden = self.model.hidden(tokens, cosine, sine, attends)
        return self.model.logits(hidden[:, -1]).float()

    def _text(self, ids):
        ids = ids[:ids.index(self.end)] if self.end in ids else ids
        return self.tokenizer.decode(ids, skip_special_tokens=False)


class _Cache:
    """Keys and values of one layer, each [batch, kv_heads, total, head_width]."""

    def __init__(self, config, batch, total, device):
        shape = (batch, config.kv_heads, total, config.head_width)
        self.keys, self.values = torch.zeros(shape, device=device), torch.zeros(shape, device=device)

    def attend(self, start, mask):
        """The attention function for tokens that begin at `start`."""
        def attention(q, k, v):
            stop = start + k.size(2)
            self.keys[:, :, start:stop], self.values[:, :, start:stop] = k, v
            return F.scaled_dot_product_attention(q, self.keys[:, :, :stop], self.values[:, :, :stop], mask, enable_gqa=True)
        return attention


def _choose(logits, temperature, top_p, random):
    if temperature == 0:
        return logits.argmax(-1)
    probabilities, order = (logits / temperature).softmax(-1).sort(-1, descending=True)
    probabilities[probabilities.cumsum(-1) - probabilities > top_p] = 0
    return order.gather(-1, torch.multinomial(probabilities, 1, generator=random))[:, 0]


def run(model, tokenizer, items, batch=128, most_tokens=200):
    """Greedy answers to all items; returns (share right per skill, wrong answers)."""
    generator = Generator(model, tokenizer)
    order = sorted(range(len(items)), key=lambda index: len(prompt(items[index])))
    outputs = {}
    for start in range(0, len(order), batch):
        part = order[start:start + batch]
        outputs.update(zip(part, generator.generate([prompt(items[index]) for index in part], most_tokens)))
    right, total, wrong = {}, {}, []
    for index, item in enumerate(items):
        ok = judge(item, outputs[index])
        total[item["skill"]] = total.get(item["skill"], 0) + 1
        right[item["skill"]] = right.get(item["skill"], 0) + ok
        if not ok:
            wrong.append({"skill": item["skill"], "prompt": item["messages"][-1]["content"],
                          "thinking": item["enable_thinking"], "expect": item["expect"], "output": outputs[index]})
    return {skill: (right[skill], total[skill]) for skill in total}, wrong


@torch.no_grad()
def perplexity(model, tokenizer, texts):
    """Perplexity per token of plain texts, each on its own, the first token not counted; and the tokens counted."""
    table = rope_table(model.config, model.embedding.weight.device)
    loss, count = 0.0, 0
    for text in texts:
        ids = tokenizer.encode(text + chat_format.END, add_special_tokens=False).ids
        tokens = torch.tensor([ids], device=model.embedding.weight.device)
        cosine, sine = (part[:len(ids)][None, None] for part in table)
        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        logits = model.logits(model.hidden(tokens, cosine, sine, [attend] * model.config.layers))
        loss += F.cross_entropy(logits[0, :-1].float(), tokens[0, 1:], reduction="sum").item()
        count += len(ids) - 1
    return math.exp(loss / count), count
