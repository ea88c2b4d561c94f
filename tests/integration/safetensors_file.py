"""Reads models in the format safetensors."""

import json
import pathlib
import struct

_FORMATS = {"F32": "f", "I64": "q"}


def _entries(path):
    content = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        yield name, entry["dtype"], content[8 + length + begin:8 + length + end]


def tensors_of(path):
    """Bytes by name."""
    return {name: content for name, _, content in _entries(path)}


def numbers_of(path):
    """Elements by name."""
    return {name: struct.unpack(
        f"<{len(content) // struct.calcsize(_FORMATS[dtype])}{_FORMATS[dtype]}",
        content) for name, dtype, content in _entries(path)}


def floats(content):
    return struct.unpack(f"<{len(content) // 4}f", content)
