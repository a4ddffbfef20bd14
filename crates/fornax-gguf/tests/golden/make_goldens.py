#!/usr/bin/env python3
"""Writes the golden vectors beside it: blocks as the `gguf` Python package encodes and decodes them.

Per format: FORMAT.random (random block bytes with finite scales) and FORMAT.random.decoded; where the package encodes
the format and so do we in the same way, also FORMAT.blocks (the encoding of values.f32) and FORMAT.decoded (its
decoding). Floats are single precision, little-endian.

    make_goldens.py            writes the vectors
    make_goldens.py FOLDER N   writes N random values per format there instead, to check more than is kept

Made with: pip install gguf==0.19.0 numpy==2.4.6
"""
import sys
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


ENCODED = (Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.MXFP4)
DECODED = (Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ2_XXS, Type.IQ4_NL, Type.IQ4_XS)
# Where the half-precision numbers of a block begin.
SCALES = {
    Type.Q8_0: (0,), Type.Q4_0: (0,), Type.Q4_1: (0, 2), Type.Q5_0: (0,), Type.Q5_1: (0, 2),
    Type.Q2_K: (80, 82), Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,),
    Type.IQ2_XXS: (0,), Type.IQ4_NL: (0,), Type.IQ4_XS: (0,),
}


def random_blocks(rng, kind, count):
    _, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for start in SCALES.get(kind, ()):
        blocks[:, start:start + 2] = (rng.standard_normal((count, 1)) * 0.05).astype("<f2").view(np.uint8)
    return blocks


def write_random(folder, rng, kind, length):
    block_length, _ = GGML_QUANT_SIZES[kind]
    blocks = random_blocks(rng, kind, length // block_length)
    decoded = quants.dequantize(blocks, kind).astype("<f4").reshape(-1)
    if block_length == 1:  # keep NaN out: how its bits travel depends on the machine
        keep = ~np.isnan(decoded)
        blocks, decoded = blocks[keep], decoded[keep]
    blocks.tofile(folder / f"{kind.name.lower()}.random")
    decoded.tofile(folder / f"{kind.name.lower()}.random.decoded")


def main():
    rng = np.random.default_rng(20261121)
    if len(sys.argv) == 3:
        folder, length = Path(sys.argv[1]), int(sys.argv[2])
        for kind in ENCODED + DECODED:
            write_random(folder, rng, kind, length)
        return
    x = values(rng)
    x.tofile(HERE / "values.f32")
    for kind in ENCODED:
        name = kind.name.lower()
        blocks = quants.quantize(x, kind)
        blocks.tofile(HERE / f"{name}.blocks")
        quants.dequantize(blocks, kind).astype("<f4").tofile(HERE / f"{name}.decoded")
        write_random(HERE, rng, kind, 1024)
    for kind in DECODED:
        write_random(HERE, rng, kind, 1024)


if __name__ == "__main__":
    main()
