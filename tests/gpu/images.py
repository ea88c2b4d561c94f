#!/usr/bin/env python3
"""Writes images to train on where there are no photographs: stripes whose
period and colour are the class, under noise. In the layout of
--dataset=imagefolder: FOLDER/train/CLASS/N.png and FOLDER/val/CLASS/N.png.

    images.py FOLDER TRAIN TEST SIZE CLASSES
"""

import pathlib
import random
import struct
import sys
import zlib


def _png(size: int, rows: bytes) -> bytes:
    """An RGB image of size x size, from its rows, each behind a filter byte."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (struct.pack(">I", len(data)) + kind + data +
                struct.pack(">I", zlib.crc32(kind + data)))

    return (b"\x89PNG\r\n\x1a\n" +
            chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)) +
            # Noise does not compress.
            chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b""))


def _rows(size: int, label: int, classes: int, draw: random.Random) -> bytes:
    """Stripes of the class's period and colour, moved at random."""
    period = 4 + 3 * (label % 4)
    shift = draw.randrange(period)
    channel = label * 3 // classes
    row = bytearray(1)
    for x in range(size):
        on = (x + shift) // period % 2
        row += bytes(160 if on and c == channel else 96 for c in range(3))
    count = len(row) * size
    # All bytes at once, as one number: below 256, so none carries.
    mask = int.from_bytes((b"\0" + b"\x3f" * (3 * size)) * size)
    total = int.from_bytes(bytes(row) * size) + (
        int.from_bytes(draw.randbytes(count)) & mask)
    return total.to_bytes(count)


def write_folder(folder: pathlib.Path, train: int, test: int, size: int,
                 classes: int) -> None:
    """Writes `train` and `test` images of size x size pixels."""
    draw = random.Random(1)
    for split, count in (("train", train), ("val", test)):
        for number in range(count):
            label = number % classes
            path = folder / split / f"class{label:02}" / f"{number:05}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_png(size, _rows(size, label, classes, draw)))


if __name__ == "__main__":
    write_folder(pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:]))
