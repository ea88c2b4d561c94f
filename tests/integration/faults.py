"""Faults that tests inject into a run: slow and cut connections."""

import collections
import selectors
import socket
import threading
import time

PIECE_BYTES = 1 << 16


class CuttableProxy:
    """Forwards TCP connections to a server; cut() breaks those there are.

    `delay_s`: how long each piece is kept, as on a slow network.
    One thread forwards everything, so a test's processes and not the proxy
    take the machine's time.
    """

    def __init__(self, target, delay_s=0):
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        # Wakes the thread for a cut or the end.
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._peers = {}
        # Those whose bytes go to the server.
        self._clients = set()
        self._delay_s = delay_s
        # (when it is due, to whom, bytes), in the order of time.
        self._kept = collections.deque()
        self._cut = threading.Event()
        self._stop = False
        self.cuts = 0
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop = True
        self._wake.send(b"x")
        self._thread.join()
        # Only now: the thread may have ended before it was woken.
        self._wake.close()
        self._woken.close()

    def cut(self):
        """Breaks all connections; new ones are accepted."""
        self._cut.clear()
        self._wake.send(b"c")
        if not self._cut.wait(60):
            raise TimeoutError("the proxy's thread does not answer")
        self.cuts += 1

    def _run(self):
        try:
            while not self._stop:
                for key, _ in self._selector.select(self._deliver()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._woken:
                        self._woken.recv(1)
                        for one in list(self._peers):
                            self._close(one)
                        self._cut.set()
                    elif key.fileobj in self._peers:
                        self._forward(key.fileobj)
        finally:
            for one in [*self._peers, self._listener]:
                one.close()
            self._selector.close()

    def _accept(self):
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._target, timeout=10)
        except OSError:
            # The server is away: the client sees a broken connection, as it
            # would without a proxy.
            client.close()
            return
        self._clients.add(client)
        for one, other in ((client, server), (server, client)):
            one.settimeout(10)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _forward(self, one):
        try:
            piece = one.recv(PIECE_BYTES)
        except OSError:
            piece = b""
        if piece:
            piece = self._passed_on(piece, one)
        if piece is not None:
            # The end of a connection is kept like its bytes.
            self._kept.append((time.monotonic() + self._delay_s, one, piece))

    def _passed_on(self, piece, _):
        """What arrives in place of a piece from that socket; empty: the
        connection ends there; None: nothing."""
        return piece

    def _deliver(self):
        """Hands on what is due; returns the seconds until the next piece."""
        while self._kept:
            due, one, piece = self._kept[0]
            left = due - time.monotonic()
            if left > 0:
                return left
            self._kept.popleft()
            try:
                if one in self._peers and piece:
                    self._peers[one].sendall(piece)
                    continue
            except OSError:
                pass
            self._close(one)
        return None

    def _close(self, one):
        """Closes both ends of a connection."""
        for end in (one, self._peers.get(one)):
            if end is not None and self._peers.pop(end, None) is not None:
                self._selector.unregister(end)
                end.close()
