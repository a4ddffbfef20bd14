#!/usr/bin/env python3
"""`fornax convert` beside llama.cpp's converter: the same tensors, bit for bit, and the same tokenizer.

    compare_converter.py FORNAX CONVERT_HF_TO_GGUF FOLDER…

FORNAX is the built program, CONVERT_HF_TO_GGUF llama.cpp's script, each FOLDER a model that transformers saved.

Made with: pip install gguf==0.19.0 numpy==2.4.6 torch transformers
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGMLQuantizationType as Type

# What only names a file, or what one side leaves to its readers.
IGNORED = ("GGUF.", "general.")


def fields(reader):
    return {key: field.contents() for key, field in reader.fields.items() if not key.startswith(IGNORED)}


def compare(fornax, script, folder, scratch):
    ours, theirs = Path(scratch, "ours.gguf"), Path(scratch, "theirs.gguf")
    subprocess.run([fornax, "convert", folder, ours], check=True, capture_output=True)
    matrix = next(t for t in GGUFReader(ours).tensors if t.name == "token_embd.weight")
    kind = {Type.F32: "f32", Type.F16: "f16", Type.BF16: "bf16"}[matrix.tensor_type]
    command = [sys.executable, script, folder, "--outfile", theirs, "--outtype", kind]
    subprocess.run(command, check=True, capture_output=True)
    ours, theirs = GGUFReader(ours), GGUFReader(theirs)
    left, right = ({t.name: t for t in reader.tensors} for reader in (ours, theirs))
    differ = sorted(set(left) ^ set(right))
    for name in sorted(set(left) & set(right)):
        a, b = (np.asarray(side[name].data).view(np.uint8) for side in (left, right))
        if left[name].tensor_type != right[name].tensor_type or not np.array_equal(a, b):
            differ.append(name)
    left, right = fields(ours), fields(theirs)
    keys = [key for key in sorted(set(left) | set(right)) if left.get(key) != right.get(key)]
    print(f"{folder}: {len(ours.tensors)} tensors, different: {differ or 'none'}; keys: {keys or 'none'}")
    return not differ


def main():
    fornax, script, *folders = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        same = [compare(fornax, script, folder, scratch) for folder in folders]
    sys.exit(not all(same))


if __name__ == "__main__":
    main()
