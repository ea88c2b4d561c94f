"""A network that damages the bytes of TCP connections, from a seed."""

import dataclasses
import random
import socket
import threading

CHUNK_BYTES = 16384


@dataclasses.dataclass
class Damage:
    """What happens to the chunk in which a byte of one direction falls.

    at: that byte, counted over all connections since the first damage.
    """

    kind: str
    to_server: bool
    at: int

    def __str__(self):
        return (f"{self.kind} at byte {self.at} to the "
                f"{'server' if self.to_server else 'client'}")


# flip: one bit is another. drop: some bytes are missing. repeat: some come
# twice. swap: the chunk's halves are exchanged. cut: the connection ends.
# stall: nothing more arrives on this connection in this direction, as after
# damage to the length of a frame. It is not among those drawn, because each
# takes as long as somebody's patience.
KINDS = ("flip", "flip", "flip", "drop", "repeat", "swap", "cut")


def damages(chance: random.Random, count: int, bytes_max: int) -> list[Damage]:
    """`count` damages, each within `bytes_max` bytes of the one before."""
    return [Damage(kind=chance.choice(KINDS), to_server=chance.random() < 0.5,
                   at=chance.randrange(bytes_max)) for _ in range(count)]


class DamagingProxy:
    """Connects each client to `server` (host:port) and passes bytes on.

    The damages happen one after the other, each counted from the one before,
    so that there is always an end of them.
    """

    def __init__(self, server: str, planned: list[Damage], seed: int):
        host, port = server.rsplit(":", 1)
        self._server = (host, int(port))
        self._planned = list(planned)
        self._chance = random.Random(seed)
        self._passed = 0
        self._lock = threading.Lock()
        # The damages done, in order.
        self.done: list[str] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._start(self._accept)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end(self._listener)
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets:
            self._end(one)
        for thread in self._threads:
            thread.join()
        for one in [*sockets, self._listener]:
            one.close()

    def _start(self, body, *arguments):
        thread = threading.Thread(target=body, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    @staticmethod
    def _end(one: socket.socket):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets += [client, server]
            self._start(self._pump, client, server, True)
            self._start(self._pump, server, client, False)

    def _pump(self, source, sink, to_server: bool):
        stalled = False
        try:
            while chunk := source.recv(CHUNK_BYTES):
                if stalled:
                    continue
                chunk = self._pass(chunk, to_server)
                if chunk is None:
                    break
                stalled = chunk == b""
                sink.sendall(chunk)
        except OSError:
            pass
        self._end(sink)
        self._end(source)

    def _pass(self, chunk: bytes, to_server: bool):
        """The bytes to send in place of `chunk`; none: swallow the rest of the
        connection; None: end it."""
        with self._lock:
            if not self._planned or self._planned[0].to_server != to_server:
                return chunk
            at = self._planned[0].at - self._passed
            self._passed += len(chunk)
            if at >= len(chunk):
                return chunk
            self._passed = 0
            damage = self._planned.pop(0)
            self.done.append(str(damage))
            return self._damaged(chunk, damage.kind, at)

    def _damaged(self, chunk: bytes, kind: str, at: int):
        length = self._chance.randrange(1, 64)
        if kind == "flip":
            flipped = chunk[at] ^ (1 << self._chance.randrange(8))
            return chunk[:at] + bytes([flipped]) + chunk[at + 1:]
        if kind == "drop":
            # Part of a chunk at most: an empty one means another thing.
            return chunk[:at] + chunk[at + length:] or chunk[:1]
        if kind == "repeat":
            return chunk[:at + length] + chunk[at:]
        if kind == "swap":
            return chunk[at:] + chunk[:at]
        return b"" if kind == "stall" else None
