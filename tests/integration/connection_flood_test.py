"""More connections than a server may have open: it refuses and recovers."""

import contextlib
import pathlib
import resource
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from processes import BIN

FILES = 1024
FLOOD = 1100
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ConnectionFlood(unittest.TestCase):
    def setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < FLOOD + FILES:
            self.skipTest(f"want a hard limit of {FLOOD + FILES} open files, "
                          f"got {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE,
                        (soft, hard))
        folder = tempfile.TemporaryDirectory(prefix="cohort-test-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def start(self, soft, hard, *flags):
        """Starts a server with these limits on open files."""
        files = [self.dir / "address", self.dir / "ops"]
        with open(self.dir / "server.log", "wb") as log:
            self.server = subprocess.Popen(
                [BIN / "cohort-server", "--listen=127.0.0.1:0",
                 "--ops_listen=127.0.0.1:0", f"--address_file={files[0]}",
                 f"--ops_address_file={files[1]}", *flags],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE,
                                                      (soft, hard)))
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.kill)
        self.await_true(lambda: all(f.exists() and f.read_text().strip()
                                    for f in files), "the server to listen")
        self.address, self.ops = (f.read_text().strip() for f in files)

    def await_true(self, condition, what):
        end = time.monotonic() + 60
        while not condition():
            self.assertIsNone(self.server.poll(), self.log())
            self.assertLess(time.monotonic(), end,
                            f"gave up waiting for {what}:\n{self.log()}")
            time.sleep(0.05)

    def log(self):
        return (self.dir / "server.log").read_text()

    def files_max(self):
        limits = pathlib.Path(f"/proc/{self.server.pid}/limits").read_text()
        line = next(l for l in limits.splitlines() if "open files" in l)
        return [int(word) for word in line.split()[3:5]]

    def files_open(self):
        return len(list(pathlib.Path(f"/proc/{self.server.pid}/fd").iterdir()))

    def status(self):
        """Whether a new connection is served."""
        command = [BIN / "cohortctl", "status", f"--server={self.address}"]
        return subprocess.run(command, capture_output=True,
                              check=False).returncode == 0

    def http(self, path):
        try:
            with OPENER.open(f"http://{self.ops}{path}", timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def flood(self, stack):
        """Opens connections that send nothing."""
        host, port = self.address.rsplit(":", 1)
        for _ in range(FLOOD):
            peer = stack.enter_context(socket.socket())
            peer.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                peer.connect((host, int(port)))

    def unready_while_full(self, stack):
        """Whether readyz reports it; connects again once the server has closed
        the connections that send nothing."""
        if self.files_open() < FILES // 3:
            stack.close()
            self.flood(stack)
        return self.http("/readyz") == 503

    def test_low_soft_limit_is_raised(self):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.start(256, hard)
        self.assertEqual(self.files_max(), [hard, hard])
        with contextlib.ExitStack() as stack:
            self.flood(stack)
            self.await_true(lambda: self.files_open() > FLOOD, "the flood")
            self.assertTrue(self.status())

    def test_low_hard_limit_is_told(self):
        self.start(256, 256, "--workers=16")
        self.assertIn("open files: got a limit of 256", self.log())

    def test_server_accepts_again_after_it_was_full(self):
        self.start(FILES, FILES)
        with contextlib.ExitStack() as stack:
            self.flood(stack)
            self.await_true(lambda: "a connection was refused" in self.log(),
                            "a refusal")
            # Files and the operations port have a reserved part of the limit.
            self.assertEqual(self.http("/livez"), 200)
            self.await_true(lambda: self.unready_while_full(stack),
                            "readyz to notice")
        self.await_true(self.status, "a new connection to be served")
        self.await_true(lambda: self.http("/readyz") == 200, "readyz")
        self.server.terminate()
        self.assertEqual(self.server.wait(timeout=60), 0)


if __name__ == "__main__":
    unittest.main()
