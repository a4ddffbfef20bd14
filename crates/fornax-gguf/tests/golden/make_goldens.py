#!/usr/bin/env python3
"""Writes the golden vectors beside it: blocks as the `gguf` Python package encodes and decodes them.

Per format: FORMAT.blocks (the encoding of values.f32), FORMAT.decoded (its decoding), FORMAT.random (random block
bytes with finite scales) and FORMAT.random.decoded. Floats are single precision, little-endian.

Made with: pip install gguf==0.19.0 numpy==2.4.6
"""
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type, quants
from gguf.constants import GGML_QUANT_SIZES

HERE = Path(__file__).parent
BLOCK = 32


def values(rng):
    """48 blocks: ordinary weights at several scales, and the corners at which encoders part."""
    blocks = [rng.standard_normal(BLOCK) * 10.0**e for e in np.linspace(-5, 3, 32)]
    blocks.append(np.zeros(BLOCK))
    blocks.append(-np.zeros(BLOCK))
    blocks.append(np.full(BLOCK, 0.3))
    blocks.append(np.full(BLOCK, -7.0))
    blocks.append(np.where(np.arange(BLOCK) % 2, 1.0, -1.0))  # two values of largest magnitude: the first counts
    blocks.append(np.where(np.arange(BLOCK) % 2, -1.0, 1.0))
    blocks.append(np.arange(BLOCK) - 127.0)
    blocks.append((np.arange(BLOCK) - 16) / 2)  # halves: rounding
    blocks.append(np.concatenate([[127.0], (np.arange(BLOCK - 1) - 15) + 0.5]))
    blocks.append(np.concatenate([[-8.0], (np.arange(BLOCK - 1) - 15) / 2]))
    blocks.append(rng.standard_normal(BLOCK) * 1e-7)  # scales that are subnormal in half precision
    blocks.append(rng.standard_normal(BLOCK) * 2e-9)  # and that vanish in it
    blocks.append(1 + np.arange(BLOCK) / 4096)  # half precision rounds to even
    blocks.append(1 + np.arange(BLOCK) / 512)  # brain float rounds to even
    blocks.append(65504 * rng.uniform(-1, 1, BLOCK))
    blocks.append(np.concatenate([[30000.0], np.zeros(BLOCK - 1)]))
    return np.array(blocks, dtype=np.float32)


def random_blocks(rng, kind, count):
    _, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if kind in (Type.Q8_0, Type.Q4_0):
        blocks[:, :2] = (rng.standard_normal((count, 1)) * 0.05).astype("<f2").view(np.uint8)
    return blocks


def main():
    rng = np.random.default_rng(20261121)
    x = values(rng)
    x.tofile(HERE / "values.f32")
    for kind in (Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0):
        name = kind.name.lower()
        blocks = quants.quantize(x, kind)
        blocks.tofile(HERE / f"{name}.blocks")
        quants.dequantize(blocks, kind).astype("<f4").tofile(HERE / f"{name}.decoded")
        length, _ = GGML_QUANT_SIZES[kind]
        blocks = random_blocks(rng, kind, 1024 // length)
        decoded = quants.dequantize(blocks, kind).astype("<f4").reshape(-1)
        if length == 1:  # keep NaN out: how its bits travel depends on the machine
            keep = ~np.isnan(decoded)
            blocks, decoded = blocks[keep], decoded[keep]
        blocks.tofile(HERE / f"{name}.random")
        decoded.tofile(HERE / f"{name}.random.decoded")


if __name__ == "__main__":
    main()
