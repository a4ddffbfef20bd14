"""The training loop: rows to the GPU, document-masked attention, the schedule over time. It knows no text."""

import time

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from model import rope_table
from optimizer import Optimizer

_WARM_UP, _DECAY = 0.01, 0.45  # shares of the training time


class Trainer:
    """Trains until the deadline (or for a number of steps).

    The learning rate follows the time that has passed: warm up, hold, fall to zero at the deadline.
    """

    def __init__(self, model, rows, batch_rows, deadline, steps, note):
        self.model, self.deadline, self.steps, self.note = model, deadline, steps, note
        self.device = model.embedding.weight.device
        self.on_gpu = self.device.type == "cuda"
        self.tokens = torch.from_numpy(rows.tokens.astype("int32")).to(self.device)
        self.weights = torch.from_numpy(rows.weights).to(self.device)
        self.documents = torch.from_numpy(rows.documents).to(self.device)
        self.batch_rows = min(batch_rows, len(self.tokens))
        self.cosine, self.sine = rope_table(model.config, self.device)
        self.optimizer = Optimizer(model, on_gpu=self.on_gpu)
        self.current = torch.zeros(self.batch_rows, self.tokens.size(1), dtype=torch.uint8, device=self.device)
        self.loss = torch.compile(self._loss) if self.on_gpu else self._loss
        self.block_mask = torch.compile(create_block_mask) if self.on_gpu else None

    def run(self):
        """The loop."""
        began, step, shown = time.monotonic(), 0, time.monotonic()
        order, position = torch.randperm(len(self.tokens)), 0
        recent = []
        while True:
            if position + self.batch_rows > len(order):
                order, position = torch.randperm(len(self.tokens)), 0
            chosen = order[position:position + self.batch_rows].to(self.device)
            position += self.batch_rows
            if step == 5:  # compiled and warm: the schedule starts here
                self._wait()
                began = time.monotonic()
            progress = self._progress(began, step)
            loss = self._step(chosen, schedule(progress))
            recent.append(loss)
            step += 1
            if step % 8 == 0:
                self._wait()  # keeps the clock honest
            if time.monotonic() - shown > 15 or progress >= 1:
                shown = time.monotonic()
                rate = (step - 5) * self.batch_rows * self.tokens.size(1) / (shown - began) / 1e6
                self.note(f"step {step}, {100 * progress:.0f} %, loss {torch.stack(recent).mean().item():.4f}, {rate:.2f} M tokens/s")
                recent = []
            if progress >= 1:
                break
        self.note(f"trained: {step} steps, {step * self.batch_rows * self.tokens.size(1) / 1e6:.0f} M tokens with padding, "
                  f"{step * self.batch_rows / len(self.tokens):.1f} epochs")

    def _progress(self, began, step):
        if self.steps is not None:
            return (step + 1) / self.steps
        return (time.monotonic() - began) / max(1e-6, self.deadline - began) if step >= 5 else 0.0

    def _wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def _step(self, chosen, scale):
        tokens, documents = self.tokens[chosen].long(), self.documents[chosen]
        self.current.copy_(documents)
        same = documents[:, 1:] == documents[:, :-1]
        weights = self.weights[chosen][:, 1:].float() * same / 10
        loss = self.loss(tokens, weights, self._mask())
        loss.backward()
        self.optimizer.step(scale)
        return loss.detach()

    def _mask(self):
        """Causal, within one document: a block mask on the GPU, a dense one elsewhere."""
        documents, length = self.current, self.current.size(1)
        if not self.on_gpu:
            causal = torch.ones(length, length, dtype=torch.bool).tril()
            return (documents[:, :, None] == documents[:, None, :])[:, None] & causal
        def visible(batch, head, query, key):
            return (query >= key) & (documents[batch, query] == documents[batch, key])
        return self.block_mask(visible, self.batch_rows, None, length, length, device=self.device)

    def _loss(self, tokens, weights, mask):
        """Mean cross-entropy, weighted."""
        if self.on_gpu:
            def attend(q, k, v):
                return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        else:
            def attend(q, k, v):
                return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        cosine, sine = self.cosine[None, None], self.sine[None, None]
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            hidden = self.model.hidden(tokens, cosine, sine, [attend] * self.model.config.layers, torch.bfloat16)
            logits = self.model.logits(hidden[:, :-1])
        losses = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
        return (losses * weights.flatten()).sum() / weights.sum()


def schedule(progress):
    """The factor of the learning rate at this share of the training time."""
    if progress < _WARM_UP:
        return progress / _WARM_UP + 0.01
    return max(0.0, min(1.0, (1 - progress) / _DECAY))
