"""A network that damages the bytes of TCP connections, from a seed."""

import dataclasses
import random
import socket

from faults import CuttableProxy


@dataclasses.dataclass
class Damage:
    """What happens to the piece in which a byte of one direction falls.

    at: that byte, counted over all connections since the first damage.
    """

    kind: str
    to_server: bool
    at: int

    def __str__(self):
        return (f"{self.kind} at byte {self.at} to the "
                f"{'server' if self.to_server else 'client'}")


# flip: one bit is another. drop: some bytes are missing. repeat: some come
# twice. swap: the piece's halves are exchanged. cut: the connection ends.
# stall: nothing more arrives on this connection in this direction, as after
# damage to the length of a frame. It is not among those drawn, because each
# takes as long as the reader's patience.
KINDS = ("flip", "flip", "flip", "drop", "repeat", "swap", "cut")


def damages(chance: random.Random, count: int, bytes_max: int) -> list[Damage]:
    """`count` damages, each within `bytes_max` bytes of the one before."""
    return [Damage(kind=chance.choice(KINDS), to_server=chance.random() < 0.5,
                   at=chance.randrange(bytes_max)) for _ in range(count)]


class DamagingProxy(CuttableProxy):
    """Connects each client to `server` (host:port) and passes bytes on.

    The damages happen one after the other, each counted from the one before,
    so that there is always an end of them.
    """

    def __init__(self, server: str, planned: list[Damage], seed: int):
        self._planned = list(planned)
        self._chance = random.Random(seed)
        self._passed = 0
        self._stalled: set[socket.socket] = set()
        # The damages done, in order.
        self.done: list[str] = []
        super().__init__(server)

    def _passed_on(self, piece: bytes, one: socket.socket) -> bytes | None:
        if one in self._stalled:
            return None
        if not self._planned or self._planned[0].to_server != (
                one in self._clients):
            return piece
        at = self._planned[0].at - self._passed
        self._passed += len(piece)
        if at >= len(piece):
            return piece
        self._passed = 0
        damage = self._planned.pop(0)
        self.done.append(str(damage))
        if damage.kind == "stall":
            self._stalled.add(one)
            return None
        return self._damaged(piece, damage.kind, at)

    def _damaged(self, piece: bytes, kind: str, at: int):
        length = self._chance.randrange(1, 64)
        if kind == "flip":
            flipped = piece[at] ^ (1 << self._chance.randrange(8))
            return piece[:at] + bytes([flipped]) + piece[at + 1:]
        if kind == "drop":
            # Part of a piece at most: an empty one means another thing.
            return piece[:at] + piece[at + length:] or piece[:1]
        if kind == "repeat":
            return piece[:at + length] + piece[at:]
        if kind == "swap":
            return piece[at:] + piece[:at]
        return b""
