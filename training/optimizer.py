"""Muon for the matrices of the layers, AdamW for the embedding and the norms.

Muon (Keller Jordan, 2024, https://kellerjordan.github.io/posts/muon) orthogonalises the momentum of each matrix by a
Newton-Schulz iteration. Matrices of one shape are stacked, so that a step is a few large kernels.
"""

from collections import defaultdict

import torch


def newton_schulz(gradient, steps=5):
    """The nearest (roughly) orthogonal matrices of a stack [n, rows, cols], in bfloat16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Muon:
    """Momentum, orthogonalised, with decoupled weight decay."""

    def __init__(self, matrices, rate, momentum=0.95, decay=0.05, compiled=True):
        groups = defaultdict(list)
        for matrix in matrices:
            groups[tuple(matrix.shape)].append(matrix)
        self.groups = list(groups.values())
        self.buffers = [torch.zeros(len(group), *group[0].shape, device=group[0].device) for group in self.groups]
        self.rate, self.momentum, self.decay = rate, momentum, decay
        self.orthogonalise = torch.compile(newton_schulz) if compiled else newton_schulz

    @torch.no_grad()
    def step(self, scale):
        """One step at `rate * scale`."""
        for group, buffer in zip(self.groups, self.buffers):
            gradient = torch.stack([matrix.grad for matrix in group])
            buffer.lerp_(gradient, 1 - self.momentum)
            update = self.orthogonalise(gradient.lerp(buffer, self.momentum)).float()
            rate = self.rate * scale
            rows, cols = group[0].shape
            torch._foreach_mul_(group, 1 - rate * self.decay)
            torch._foreach_add_(group, list(update.unbind(0)), alpha=-rate * max(1.0, rows / cols) ** 0.5)


class Optimizer:
    """Both optimizers behind one `step(scale)`; `scale` is the schedule's factor between 0 and 1."""

    def __init__(self, model, matrix_rate=0.02, embedding_rate=4e-3, on_gpu=True):
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and not name.startswith("embedding")]
        others = [p for name, p in model.named_parameters() if p.ndim == 1 or name.startswith("embedding")]
        self.muon = Muon(matrices, matrix_rate, compiled=on_gpu)
        self.adam = torch.optim.AdamW(others, lr=embedding_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=on_gpu)
        self.embedding_rate = embedding_rate

    def step(self, scale):
        """One step of both, then clears the gradients."""
        self.muon.step(scale)
        for group in self.adam.param_groups:
            group["lr"] = self.embedding_rate * scale
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        for group in self.muon.groups:
            for matrix in group:
                matrix.grad = None
