"""Reads models in the format safetensors."""

import json
import pathlib
import struct

_FORMATS = {"F32": "f", "I64": "q"}


def entries(path):
    """Yields (name, what the header says of it, bytes)."""
    content = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        yield name, entry, content[8 + length + begin:8 + length + end]


def tensors_of(path):
    """Bytes by name."""
    return {name: content for name, _, content in entries(path)}


def numbers_of(path):
    """Elements by name."""
    return {name: memoryview(content).cast(_FORMATS[entry["dtype"]]).tolist()
            for name, entry, content in entries(path)}


def floats(content):
    return struct.unpack(f"<{len(content) // 4}f", content)
