"""Ports for processes that must know theirs before they start."""

import pathlib
import random
import socket

_RANGE = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")


def named_ports(count):
    """Free ports that no process gets by asking for any: the kernel takes those
    from a range, and these lie below it."""
    first = int(_RANGE.read_text().split()[0])
    found = []
    while len(found) < count:
        port = random.randrange(5000, first)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
