"""A server at a Unix socket, and workers in separate network namespaces,
as containers have them."""

import os
import unittest

import processes
from processes import Cohort, own_network, run

EPOCHS = "--epochs=2"


def cohort_of(*server_flags):
    """A cohort whose server will listen on a socket in its folder."""
    cohort = Cohort(keeps=True, server_flags=[
        EPOCHS, "--checkpoint_every=4", *server_flags])
    cohort.sockets = cohort.dir / "sockets"
    cohort.sockets.mkdir()
    cohort.address = f"unix:{cohort.sockets}/server"
    cohort.local = "auto"
    return cohort


def network_of(pid):
    return os.readlink(f"/proc/{pid}/ns/net")


class UnixSocket(unittest.TestCase):
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
                         *cohort.worker_flags)
            self.assertEqual(result.returncode, 0,
                             result.stdout + result.stderr)
            self.assertIn(f"watch --server={cohort.address}",
                          result.stdout + result.stderr)


OWN_NETWORK, WHY_NO_NETWORK = own_network()


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
            cohort.complete()
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
    unittest.main(verbosity=2)
