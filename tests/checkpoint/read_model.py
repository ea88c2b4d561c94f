"""Prints the tensors of a safetensors file, read with numpy and nothing else.

One line a tensor, in file order: name, type, shape, values. This is a second
reader of the format, written from its description and not from our code.
"""

import json
import sys

import numpy

TYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8"}


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        content = file.read()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + length])
    print("metadata", sorted(header.pop("__metadata__", {}).items()))
    tensors = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    for name, entry in tensors:
        begin, end = (8 + length + at for at in entry["data_offsets"])
        values = numpy.frombuffer(content[begin:end], TYPES[entry["dtype"]])
        values = values.reshape(entry["shape"])
        print(name, entry["dtype"], entry["shape"], values.tolist())


main()
