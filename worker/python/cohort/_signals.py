"""Ctrl-C and SIGTERM: the step in progress ends, then the worker leaves."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# Seconds that the step in progress has after a signal.
_PATIENCE = 5.0

# In place of a signal's number: the watcher is closed.
_END = b"\0"

# Whether the interpreter writes signals to the socket of a StopWatcher.
_watching = False


def _forget_socket() -> None:
    # In a forked child: its signals are not the parent's.
    if _watching:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget_socket)


class StopWatcher:
    """Notices a signal while the main thread waits in C++.

    Python runs handlers only between two of its instructions, so a second
    thread reads the byte that the interpreter writes as soon as the signal
    arrives. Handlers that the script has set are not replaced.

    Args:
        on_stop: called on that thread with the signal's number, and whether the
            step in progress may continue. It returns False if it does; then it
            is called once more, without patience, after some seconds or at the
            next signal.
    """

    def __init__(self, on_stop: Callable[[int, bool], bool]) -> None:
        self._on_stop = on_stop
        self._previous: dict[int, Any] = {}
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._thread: threading.Thread | None = None
        # Kept until the interpreter does not write to them any more.
        self._open: tuple[socket.socket, ...] = ()
        self._previous_fd = -1
        self._pid = os.getpid()
        # By the watcher's thread, and by the handler, which may run later.
        self._noticed: int | None = None
        self._handled: int | None = None
        if threading.current_thread() is not threading.main_thread():
            return
        ours = [number for number in _SIGNALS
                if signal.getsignal(number) in (signal.SIG_DFL,
                                                signal.default_int_handler)]
        if not ours:
            return
        self._sockets = socket.socketpair()
        reader, writer = self._sockets
        writer.setblocking(False)
        self._previous_fd = signal.set_wakeup_fd(writer.fileno(),
                                                 warn_on_full_buffer=False)
        global _watching
        _watching = True
        for number in ours:
            self._previous[number] = signal.signal(number, self._handle)
        self._thread = threading.Thread(target=self._watch, args=(reader,),
                                        name="cohort-signals", daemon=True)
        self._thread.start()

    @property
    def signal(self) -> int | None:
        """The first signal that arrived."""
        return self._handled if self._handled is not None else self._noticed

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A loader process that was forked with this handler.
            os._exit(128 + number)
        if self._sockets is None:
            # Closed by another thread, which cannot put handlers back.
            self._restore()
            signal.raise_signal(number)
            return
        if self._handled is not None and number == signal.SIGINT:
            # The second Ctrl-C: no more patience.
            raise KeyboardInterrupt
        if self._handled is None:
            self._handled = number

    def _watch(self, reader: socket.socket) -> None:
        patient = True
        while (data := self._receive(reader)) != _END:
            if data[0] not in self._previous:
                continue
            self._noticed = self._noticed or data[0]
            if self._on_stop(data[0], patient) or not patient:
                reader.settimeout(None)
            else:
                reader.settimeout(_PATIENCE)
            patient = False

    def _receive(self, reader: socket.socket) -> bytes:
        """The next signal's number, or the last one's when patience ends; _END
        after `close`."""
        try:
            return reader.recv(1)
        except TimeoutError:
            return bytes([self._noticed or 0])

    def close(self) -> None:
        """Puts the handlers back, and waits for the thread."""
        if self._sockets is None or os.getpid() != self._pid:
            return
        self._open, self._sockets = self._sockets, None
        # Closing alone would not end a recv that waits.
        self._open[1].send(_END)
        assert self._thread is not None
        self._thread.join()
        # The interpreter lets no other thread do this; then the next signal
        # does.
        if threading.current_thread() is threading.main_thread():
            self._restore()

    def _restore(self) -> None:
        global _watching
        _watching = False
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        for end in self._open:
            end.close()
