"""Ctrl-C and SIGTERM: the step in progress ends, then the worker leaves."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Whether the interpreter writes signals to the socket of a StopWatcher.
_watching = False


def _forget_socket() -> None:
    # In a forked child: its signals are not the parent's.
    if _watching:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget_socket)


class StopWatcher:
    """Notices a signal while the main thread waits in C++.

    Python runs handlers only between two of its own instructions, so a second
    thread reads the byte that the interpreter writes as soon as the signal
    arrives. Handlers that the script has set are not replaced.

    Args:
        on_stop: called on that thread, once, with the signal's number.
    """

    def __init__(self, on_stop: Callable[[int], None]) -> None:
        self._on_stop = on_stop
        self._previous: dict[int, Any] = {}
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._pid = os.getpid()
        self.signal: int | None = None
        if threading.current_thread() is not threading.main_thread():
            return
        ours = [number for number in _SIGNALS
                if signal.getsignal(number) in (signal.SIG_DFL,
                                                signal.default_int_handler)]
        if not ours:
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._sockets = (reader, writer)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        global _watching
        _watching = True
        for number in ours:
            self._previous[number] = signal.signal(number, self._handle)
        threading.Thread(target=self._watch, name="cohort-signals",
                         daemon=True).start()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A loader process that was forked with this handler.
            os._exit(128 + number)
        if self.signal is not None and number == signal.SIGINT:
            # The second Ctrl-C: no more patience.
            raise KeyboardInterrupt
        self.signal = number

    def _watch(self) -> None:
        assert self._sockets is not None
        with self._sockets[0] as reader:
            while data := reader.recv(1):
                if data[0] in self._previous:
                    self._on_stop(data[0])

    def close(self) -> None:
        """Puts the handlers back."""
        if self._sockets is None or os.getpid() != self._pid:
            return
        signal.set_wakeup_fd(-1)
        global _watching
        _watching = False
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._sockets[1].close()
        self._sockets = None
