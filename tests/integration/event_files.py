"""Reads TensorBoard's event files without TensorBoard or protobuf."""

import struct

CASTAGNOLI = 0x82F63B78


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (CASTAGNOLI if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(content):
    """Data of each record; raises if a checksum is wrong or the end missing."""
    at = 0
    while at < len(content):
        length, check = struct.unpack_from("<QI", content, at)
        if masked(content[at:at + 8]) != check:
            raise ValueError(f"wrong checksum of the length at byte {at}")
        data = content[at + 12:at + 12 + length]
        (check,) = struct.unpack_from("<I", content, at + 12 + length)
        if masked(data) != check:
            raise ValueError(f"wrong checksum of the data at byte {at}")
        yield data
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) of each field of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            (value,) = struct.unpack_from("<d", data, at)
            at += 8
        elif kind == 2:
            length, at = varint(data, at)
            value = data[at:at + length]
            at += length
        elif kind == 5:
            (value,) = struct.unpack_from("<f", data, at)
            at += 4
        else:
            raise ValueError(f"wire type {kind}")
        yield tag >> 3, value


def events(path):
    """Each event: wall_time, step, and file_version, scalars or started."""
    for data in records(path.read_bytes()):
        event = {"step": 0, "scalars": {}}
        for number, value in fields(data):
            if number == 1:
                event["wall_time"] = value
            elif number == 2:
                event["step"] = value
            elif number == 3:
                event["file_version"] = value.decode()
            elif number == 5:
                for _, summary in fields(value):
                    one = dict(fields(summary))
                    event["scalars"][one[1].decode()] = one[2]
            elif number == 7:
                event["started"] = dict(fields(value)).get(1) == 1
            else:
                raise ValueError(f"field {number} of an event")
        yield event


def series(folder):
    """{tag: {step: value}} of a directory, as TensorBoard shows it."""
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in events(path):
            if event.get("started"):
                for values in found.values():
                    for step in [s for s in values if s >= event["step"]]:
                        del values[step]
            for tag, value in event["scalars"].items():
                found.setdefault(tag, {})[event["step"]] = value
    return found
