#!/usr/bin/env python3
"""Errors of llama.cpp's quantiser on the outliers of tests/outliers.rs, as the constants there.

    measure_outliers.py LIBGGML_BASE

LIBGGML_BASE is llama.cpp's libggml-base.so. Prints, per distribution, the relative errors of Q4_K, Q5_K and Q6_K.

Made with: pip install gguf==0.19.0 numpy==2.4.6
"""
import ctypes
import sys

import numpy as np
from gguf import GGMLQuantizationType as Type, quants

from measure_encoders import theirs

ROWS, COLS = 64, 512


def numbers():
    """Of each value four 16-bit numbers, from the generator that the test has, too."""
    state, drawn = 1, []
    for _ in range(4 * ROWS * COLS):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        drawn.append(state >> 48)
    return np.array(drawn, dtype=np.int64).reshape(ROWS, COLS, 4)


def distributions():
    drawn = numbers()
    bell = (drawn.sum(2) - 131070).astype(np.float32) / np.float32(1 << 20)
    index = np.arange(ROWS * COLS).reshape(ROWS, COLS)
    root = np.sqrt((drawn[..., 1] + 1).astype(np.float32))
    return {
        "columns": bell * np.where(index % COLS % 200 == 7, 50, 1).astype(np.float32),
        "values": bell * np.where(index % 499 == 3, 50, 1).astype(np.float32),
        "tail": np.where(drawn[..., 0] % 2 == 0, 1, -1).astype(np.float32) / root,
    }


def error(decoded, x, kind):
    x = x.astype(np.float64)
    groups = x.reshape(-1, 32)
    usual = np.sqrt((groups**2).mean(1, keepdims=True))
    weights = x**2 if kind == Type.Q6_K else (usual + np.abs(groups)).reshape(x.shape)
    return (weights * (decoded - x) ** 2).sum() / (weights * x**2).sum()


def main():
    library = ctypes.CDLL(sys.argv[1])
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    for name, x in distributions().items():
        x = np.ascontiguousarray(x, dtype=np.float32)
        found = [error(theirs(library, x, kind), x, kind) for kind in (Type.Q4_K, Type.Q5_K, Type.Q6_K)]
        print(name, " ".join(f"{error:.4e}" for error in found))


if __name__ == "__main__":
    main()
