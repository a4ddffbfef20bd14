"""The Qwen3 architecture in PyTorch: QK-norm, grouped-query attention, half-split RoPE, SwiGLU, tied head.

It knows shapes and arithmetic; nothing of text, data or training.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Config:
    """The sizes of the model; every width is a multiple of 256 (key and value heads together)."""

    vocabulary: int = 4096
    width: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 128
    feed_forward: int = 768
    context: int = 2048
    rope_base: float = 10_000.0
    epsilon: float = 1e-6


class RmsNorm(nn.Module):
    """Root mean square norm over the last dimension, computed in float32."""

    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (normed * self.weight).to(x.dtype)


def rope_table(config, device):
    """Cosine and sine, each [context, head_width / 2], float32."""
    half = torch.arange(config.head_width // 2, device=device, dtype=torch.float32)
    frequencies = config.rope_base ** (-2.0 * half / config.head_width)
    angles = torch.arange(config.context, device=device, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x, cosine, sine):
    """Half-split RoPE on [batch, heads, tokens, head_width]; cosine and sine broadcast over heads."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention; `attend(q, k, v)` is given by the caller, who owns the mask."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        q_width, kv_width = config.heads * config.head_width, config.kv_heads * config.head_width
        self.q = nn.Linear(config.width, q_width, bias=False)
        self.k = nn.Linear(config.width, kv_width, bias=False)
        self.v = nn.Linear(config.width, kv_width, bias=False)
        self.out = nn.Linear(q_width, config.width, bias=False)
        self.q_norm = RmsNorm(config.head_width, config.epsilon)
        self.k_norm = RmsNorm(config.head_width, config.epsilon)

    def forward(self, x, cosine, sine, attend):
        batch, tokens, _ = x.shape
        def heads(y):
            return y.view(batch, tokens, -1, self.config.head_width)
        q = rotate(self.q_norm(heads(self.q(x))).transpose(1, 2), cosine, sine)
        k = rotate(self.k_norm(heads(self.k(x))).transpose(1, 2), cosine, sine)
        v = heads(self.v(x)).transpose(1, 2)
        return self.out(attend(q, k, v).transpose(1, 2).reshape(batch, tokens, -1))


class Layer(nn.Module):
    """One pre-norm block."""

    def __init__(self, config):
        super().__init__()
        self.attention_norm = RmsNorm(config.width, config.epsilon)
        self.attention = Attention(config)
        self.mlp_norm = RmsNorm(config.width, config.epsilon)
        self.gate = nn.Linear(config.width, config.feed_forward, bias=False)
        self.up = nn.Linear(config.width, config.feed_forward, bias=False)
        self.down = nn.Linear(config.feed_forward, config.width, bias=False)

    def forward(self, x, cosine, sine, attend):
        x = x + self.attention(self.attention_norm(x), cosine, sine, attend)
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    """Tokens to logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RmsNorm(config.width, config.epsilon)
        self.apply(self._initialise)
        for layer in self.layers:
            for projection in (layer.attention.out, layer.down):
                nn.init.normal_(projection.weight, std=0.02 / (2 * config.layers) ** 0.5)

    @staticmethod
    def _initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def hidden(self, tokens, cosine, sine, attends, dtype=torch.float32):
        """The normed hidden states [batch, tokens, width]; `attends` holds one attention function a layer.

        The residual stream is kept in `dtype`.
        """
        x = self.embedding(tokens).to(dtype)
        for layer, attend in zip(self.layers, attends):
            x = layer(x, cosine, sine, attend)
        return self.norm(x)

    def logits(self, hidden):
        """[…, vocabulary] from hidden states; the head is the embedding."""
        return F.linear(hidden, self.embedding.weight)

    def parameter_count(self):
        """All parameters, the tied head counted once."""
        return sum(parameter.numel() for parameter in self.parameters())
