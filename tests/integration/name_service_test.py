"""A name service that answers a worker once, and then never again.

Server and workers run in a separate network and file tree, where this
test is the only name service. This needs root.
"""

import fcntl
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

SERVER_NAME = "cohort.test"
TYPE_A = 1
INSIDE = "--inside"
RESOLVER = pathlib.Path("/etc/resolv.conf").resolve()
WORLD = ["unshare", "--net", "--mount"]


def set_loopback_up():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0x1 | 0x40)  # UP | RUNNING
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS


class NameService:
    """Answers 127.0.0.1 to the first `askers` sockets that send a query."""

    def __init__(self, askers):
        self._askers = askers
        self._known = set()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            query, asker = self._socket.recvfrom(4096)
            if asker not in self._known and len(self._known) == self._askers:
                continue
            self._known.add(asker)
            self._socket.sendto(self._answer(query), asker)

    @staticmethod
    def _answer(query):
        end = query.index(b"\0", 12) + 5  # The name, its type and class.
        asked = query[12:end]
        wants_address = struct.unpack("!H", asked[-4:-2])[0] == TYPE_A
        header = query[:2] + struct.pack("!5H", 0x8180, 1, int(wants_address),
                                         0, 0)
        record = struct.pack("!3HIH4s", 0xc00c, TYPE_A, 1, 60, 4,
                             socket.inet_aton("127.0.0.1"))
        return header + asked + (record if wants_address else b"")


def own_world():
    """The reason why there can be none here; empty if there can."""
    try:
        made = subprocess.run(
            [*WORLD, "mount", "--bind", RESOLVER, RESOLVER],
            capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return made.stderr.strip()


class OutsideTest(unittest.TestCase):

    def test_a_worker_asks_for_its_server_once(self):
        why_not = own_world()
        if why_not:
            self.skipTest(f"no separate network: {why_not}")
        inside = subprocess.run(
            [*WORLD, sys.executable, "-B", __file__, INSIDE],
            capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(inside.returncode, 0, inside.stdout + inside.stderr)


def train_inside():
    # Imported here because only the restarted process needs it.
    from processes import Cohort

    set_loopback_up()
    NameService(askers=2)
    with tempfile.TemporaryDirectory() as folder:
        resolver = pathlib.Path(folder) / "resolv.conf"
        resolver.write_text("nameserver 127.0.0.1\n")
        subprocess.run(["mount", "--bind", resolver, RESOLVER], check=True)
        with Cohort(workers=2, server_flags=["--epochs=1"]) as cohort:
            cohort.start_server()
            _, port = cohort.address.rsplit(":", 1)
            for rank in range(2):
                cohort.start_worker(rank, f"--server={SERVER_NAME}:{port}")
                cohort.wait_until(
                    lambda: f"rank {rank} joined" in cohort.log(),
                    f"worker {rank} to join")
            # A process that asks a second time gets no answer. (When the
            # server ends, gRPC asks once more; nothing waits for that.)
            if cohort.finish() != 0:
                raise SystemExit(cohort.log())


if __name__ == "__main__":
    if sys.argv[1:] == [INSIDE]:
        train_inside()
    else:
        unittest.main(verbosity=2)
