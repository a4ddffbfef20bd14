#!/usr/bin/env python3
"""Our quantiser beside llama.cpp's: weighted errors over several distributions, or over a model's own matrices.

    measure_encoders.py FORNAX LIBGGML_BASE [MODEL.gguf]

FORNAX is the built program, LIBGGML_BASE llama.cpp's libggml-base.so. Prints, per format, our error over theirs: plain,
weighted by magnitude and by the group's, and weighted by the square. A ratio below 1 is better than llama.cpp.

Made with: pip install gguf==0.19.0 numpy==2.4.6
"""
import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter, GGMLQuantizationType as Type, quants

FORMATS = (Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q4_K, Type.Q5_K, Type.Q6_K)
SHAPE = (1024, 1024)


def distributions():
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(SHAPE)
    return {
        "normal": normal * 0.02,
        "laplace": rng.laplace(size=SHAPE) * 0.02,
        "uniform": rng.uniform(-1, 1, SHAPE) * 0.05,
        "student": rng.standard_t(3, SHAPE) * 0.02,
        "outliers": np.where(rng.random(SHAPE) < 0.005, 10, 1) * normal * 0.02,
        "shifted": normal * 0.02 + 0.01,
        "positive": np.abs(normal) * 0.02,
        "scaled": normal * 0.02 * np.exp(rng.standard_normal((1, SHAPE[1]))),
    }


def matrices(path):
    tensors = [t for t in GGUFReader(path).tensors if len(t.shape) == 2 and t.shape[0] % 256 == 0]
    return {t.name: quants.dequantize(t.data, t.tensor_type) for t in tensors}


def theirs(library, x, kind):
    out = np.zeros((x.shape[0], quants.quant_shape_to_byte_shape(x.shape, kind)[-1]), dtype=np.uint8)
    library.ggml_quantize_chunk(int(kind), x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1], None)
    return quants.dequantize(out, kind).reshape(x.shape)


def errors(decoded, x):
    groups = x.reshape(-1, 32)
    usual = np.sqrt((groups**2).mean(1, keepdims=True))
    weights = (np.ones_like(x), (usual + np.abs(groups)).reshape(x.shape), x**2)
    return np.array([(weight * (decoded.astype(np.float64) - x) ** 2).sum() for weight in weights])


def main():
    fornax, library = sys.argv[1], ctypes.CDLL(sys.argv[2])
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    inputs = matrices(sys.argv[3]) if len(sys.argv) > 3 else distributions()
    inputs = {name: np.ascontiguousarray(x, dtype=np.float32) for name, x in inputs.items()}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.gguf"), Path(folder, "out.gguf")
        writer = GGUFWriter(source, "llama")
        for index, x in enumerate(inputs.values()):
            writer.add_tensor(f"blk.{index}.attn_q.weight", x)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        for kind in FORMATS:
            subprocess.run([fornax, "quantize", source, target, kind.name], check=True, capture_output=True)
            tensors = {t.name: t for t in GGUFReader(target).tensors}
            total, worst = np.zeros((2, 3)), np.zeros(3)
            for index, x in enumerate(inputs.values()):
                ours = quants.dequantize(tensors[f"blk.{index}.attn_q.weight"].data, kind).reshape(x.shape)
                pair = np.array([errors(ours, x), errors(theirs(library, x, kind), x)])
                total += pair
                worst = np.maximum(worst, pair[0] / np.maximum(pair[1], 1e-300))
            print(f"{kind.name:5} in all {(total[0] / total[1]).round(4)}, at worst {worst.round(4)}")


if __name__ == "__main__":
    main()
