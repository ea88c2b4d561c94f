"""More connections than a server may have open: it refuses and recovers."""

import contextlib
import pathlib
import resource
import socket
import unittest
import urllib.error

from processes import Cohort, run

FILES = 1024
FLOOD = 1100


class ConnectionFlood(unittest.TestCase):
    def setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < FLOOD + FILES:
            self.skipTest(f"want a hard limit of {FLOOD + FILES} open files, "
                          f"got {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE,
                        (soft, hard))
        self.cohort = Cohort()
        self.addCleanup(self.cohort.__exit__)

    def start(self, soft, hard, *flags):
        """Starts a server with these limits on open files."""
        self.cohort.wrapper = ["prlimit", f"--nofile={soft}:{hard}"]
        self.cohort.start_server(*flags)
        self.proc = pathlib.Path(f"/proc/{self.cohort.server.pid}")

    def files_max(self):
        limits = (self.proc / "limits").read_text()
        line = next(l for l in limits.splitlines() if "open files" in l)
        return [int(word) for word in line.split()[3:5]]

    def files_open(self):
        return len(list((self.proc / "fd").iterdir()))

    def status(self):
        """Whether a new connection is served."""
        return run("cohortctl", "status",
                   f"--server={self.cohort.address}").returncode == 0

    def http(self, path):
        try:
            self.cohort.page(path)
            return 200
        except urllib.error.HTTPError as error:
            return error.code

    def flood(self, stack):
        """Opens connections that send nothing."""
        host, port = self.cohort.address.rsplit(":", 1)
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
            self.cohort.wait_until(lambda: self.files_open() > FLOOD, "the flood")
            self.assertTrue(self.status())

    def test_low_hard_limit_is_told(self):
        self.start(256, 256, "--workers=16")
        self.assertIn("open files: got a limit of 256", self.cohort.log())

    def test_server_accepts_again_after_it_was_full(self):
        self.start(FILES, FILES)
        with contextlib.ExitStack() as stack:
            self.flood(stack)
            self.cohort.wait_until(lambda: "a connection was refused" in self.cohort.log(),
                            "a refusal")
            # Files and the operations port have a reserved part of the limit.
            self.assertEqual(self.http("/livez"), 200)
            self.cohort.wait_until(lambda: self.unready_while_full(stack),
                            "readyz to notice")
        self.cohort.wait_until(self.status, "a new connection to be served")
        self.cohort.wait_until(lambda: self.http("/readyz") == 200, "readyz")
        self.cohort.server.terminate()
        self.cohort.complete()


if __name__ == "__main__":
    unittest.main()
