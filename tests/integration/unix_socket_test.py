"""A server at a Unix socket, and workers in network namespaces of their own,
as containers have them."""

import os
import signal
import unittest

import processes
from processes import OWN_NETWORK, WHY_NO_NETWORK, Cohort, run

EPOCHS = "--epochs=2"


def cohort_of(*server_flags):
    """A cohort whose server will listen on a socket in its folder."""
    cohort = Cohort(workers=2, server_flags=[
        EPOCHS, "--checkpoint_every=4", *server_flags])
    cohort.server_flags.append(f"--checkpoint_dir={cohort.checkpoints}")
    cohort.sockets = cohort.dir / "sockets"
    cohort.sockets.mkdir()
    cohort.address = f"unix:{cohort.sockets}/server"
    cohort.local = "auto"
    return cohort


def network_of(pid):
    return os.readlink(f"/proc/{pid}/ns/net")


class UnixSocket(unittest.TestCase):
    def test_a_stopped_server_leaves_no_socket(self):
        with cohort_of() as cohort:
            cohort.server_flags[1] = "--epochs=100000"
            cohort.start()
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 8,
                              "version 8")
            cohort.server.send_signal(signal.SIGTERM)
            self.assertEqual(cohort.finish(), 0, cohort.log())
            self.assertEqual(list(cohort.sockets.iterdir()), [])

    def test_says_why_it_cannot_listen(self):
        with cohort_of() as cohort:
            cohort.start_server()
            folder = cohort.sockets
            for address, code, text in (
                    (cohort.address, 1, "the socket is in use: another process "
                                        "listens there"),
                    (f"unix:{folder}/no/server", 1,
                     f"the folder {folder}/no does not exist"),
                    (f"unix:{folder}/{'a' * 108}", 3, "want 1 to 107"),
                    ("unix:server", 3, "the path of a socket from the root")):
                with self.subTest(address):
                    result = run("cohort-server", f"--listen={address}",
                                 "--ops_listen=")
                    self.assertEqual(result.returncode, code)
                    self.assertIn(text, result.stderr)
            # The first one goes on.
            self.assertEqual(cohort.status()["version"], 0)

    def test_cohortctl_finds_it_by_flag_and_variable(self):
        with cohort_of() as cohort:
            cohort.start_server()
            variable = {"COHORT_SERVER": cohort.address}
            for flags, variables in (
                    ([f"--server={cohort.address}"], {}), ([], variable)):
                told = run("cohortctl", "status", *flags, environment=variables)
                self.assertEqual(told.returncode, 0, told.stderr)
            checked = run("cohortctl", "doctor", "--json", environment=variable)
            self.assertIn("takes connections", checked.stdout)
            if not processes.TLS:
                self.assertIn("on this machine", checked.stdout)

    def test_cohortctl_run_starts_a_cohort_there(self):
        with cohort_of() as cohort:
            result = run("cohortctl", "run", "--workers=1", EPOCHS,
                         f"--listen={cohort.address}", "--ops_listen=", "--",
                         *cohort.worker_flags, timeout_s=180)
            self.assertEqual(result.returncode, 0,
                             result.stdout + result.stderr)
            self.assertIn(f"watch --server={cohort.address}",
                          result.stdout + result.stderr)

    def test_nobody_there_is_told_as_such(self):
        result = run("cohortctl", "status", "--server=unix:/nowhere/cohort",
                     "--timeout=60s")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("unix:/nowhere/cohort: cannot be reached", result.stderr)


@unittest.skipIf(WHY_NO_NETWORK, f"no network namespaces here: {WHY_NO_NETWORK}")
class OwnNetworks(unittest.TestCase):
    """Workers that have nothing of the server but a folder."""

    def start(self, cohort, local="auto"):
        cohort.local = local
        cohort.start_server()
        for rank in range(2):
            worker = cohort.start_worker(rank, wrapper=OWN_NETWORK)
            cohort.until(lambda pid=worker.pid: network_of(pid) != network_of(
                os.getpid()), "the worker's network")

    def test_without_a_common_folder_memory_is_not_shared(self):
        with cohort_of() as cohort:
            self.start(cohort)
            for rank in range(2):
                cohort.await_log(
                    f"worker{rank}",
                    "go over a Unix socket: no shared memory: @cohort-")
            self.assertEqual(cohort.finish(), 0, cohort.log())
        with cohort_of() as cohort:
            self.start(cohort, "shm")
            # The other one may wait for a replacement of the first that ends.
            ended = cohort.until(
                lambda: [rank for rank, worker in cohort.workers.items()
                         if worker.poll()], "a worker to fail")
            log = cohort.log(f"worker{ended[0]}")
            self.assertIn("--local=shm: @cohort-", log)
            self.assertIn("with the server's --local_dir", log)


if __name__ == "__main__":
    assert processes.BIN.is_dir(), processes.BIN
    unittest.main(verbosity=2)
