"""torchrun starts the workers: with a server elsewhere, and with one that rank 0
starts."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import cohort
import torch
from cohort import _server, _torchrun
from ports import named_ports
from processes import taken_address
from ranks import Server, is_alive

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "gang.py"
MISSING = ("no torchrun here" if importlib.util.find_spec(
    "torch.distributed.run") is None else "")
# torch 1.13 under Python 3.11 cannot read its own default, 0; a rank that there
# is not leaves the others' output alone.
OPTIONS = (["--redirects=9:1", "--tee=9:1"]
           if torch.__version__.startswith("1.") else [])


class Variables(unittest.TestCase):
    """Without processes."""

    def gang(self, **changes):
        variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0",
                     "MASTER_PORT": "29500", **changes}
        with mock.patch.dict(os.environ, variables, clear=True):
            return _torchrun.gang()

    def test_all_of_them_make_a_gang(self):
        gang = self.gang()
        self.assertEqual((gang.rank, gang.size, gang.host, gang.port),
                         (1, 2, "node0", 29500))
        self.assertFalse(gang.one_machine or gang.started_again)
        self.assertTrue(self.gang(LOCAL_WORLD_SIZE="2").one_machine)
        self.assertTrue(self.gang(MASTER_ADDR="127.0.0.1").one_machine)
        self.assertTrue(
            self.gang(TORCHELASTIC_RESTART_COUNT="1").started_again)
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            self.assertIsNone(self.gang(**{name: ""}), name)

    def test_numbers_that_cannot_be_are_refused(self):
        for changes, text in (({"RANK": "x"}, "RANK: got 'x'"),
                              ({"MASTER_PORT": "-1"}, "MASTER_PORT: got '-1'"),
                              ({"RANK": "2"}, "want less than WORLD_SIZE, 2")):
            with self.assertRaisesRegex(cohort.ConfigurationError, text):
                self.gang(**changes)

    def test_other_ranks_know_where_the_server_is(self):
        for changes, options, address in (
                ({}, {}, "node0:29501"),
                ({"LOCAL_WORLD_SIZE": "2"}, {}, "127.0.0.1:29501"),
                ({"MASTER_ADDR": "fd00::1"}, {}, "[fd00::1]:29501"),
                ({}, {"listen": "0.0.0.0:7070"}, "node0:7070"),
                ({"LOCAL_WORLD_SIZE": "2"}, {"listen": "unix:/run/cohort"},
                 "unix:/run/cohort")):
            reached = _server._shared_by_gang(self.gang(**changes), options,
                                              False)
            self.assertEqual(reached.address, address)
            self.assertIsNone(reached.own)
        with self.assertRaisesRegex(cohort.ConfigurationError, "so not 0"):
            _server._shared_by_gang(self.gang(), {"listen": "0.0.0.0:0"}, False)
        with self.assertRaisesRegex(cohort.ConfigurationError, "several machines"):
            _server._shared_by_gang(self.gang(), {"listen": "unix:/run/cohort"},
                                    False)

    def test_serve_is_rank0_or_flags(self):
        with self.assertRaisesRegex(cohort.ConfigurationError,
                                    "serve: got 'rank1', want 'rank0'"):
            _server.reach(None, "rank1", None, False)
        with mock.patch.dict(os.environ, {"SLURM_NTASKS": "2"}), \
                self.assertRaisesRegex(cohort.ConfigurationError, "SLURM_NTASKS"):
            _server.reach(None, "rank0", None, False)


@unittest.skipIf(MISSING, MISSING)
class Torchrun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cohort-torchrun-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def start(self, name, *arguments, restarts=0, **environment):
        """A gang of two processes in a separate folder."""
        folder = self.dir / name
        folder.mkdir()
        return folder, subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone",
             *OPTIONS, "--nproc_per_node=2", "--monitor_interval=0.1", f"--max_restarts={restarts}",
             SCRIPT, folder, *arguments],
            capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment})

    def digest(self, name, *arguments, **options):
        """What both ranks end with."""
        folder, done = self.start(name, *arguments, **options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        digests = {(folder / f"digest.{rank}").read_text() for rank in range(2)}
        self.assertEqual(len(digests), 1)
        return digests.pop()

    def rank0(self, **flags):
        return f"--rank0={json.dumps({'epochs': 2, **flags})}"

    def listen(self):
        # All processes of a gang must know it before one listens.
        return {"COHORT_LISTEN": f"127.0.0.1:{named_ports(1)[0]}"}

    def starts_of(self, name, rank=0):
        """Each start of the gang: the version that its first step made."""
        firsts = {}
        for line in (self.dir / name / f"steps.{rank}").read_text().splitlines():
            count, version = line.split()
            firsts.setdefault(int(count), int(version))
        return firsts

    def test_a_server_elsewhere_keeps_the_run_of_a_gang(self):
        with Server(2, "--epochs=2") as server:
            killed = self.digest("killed", "--kill=1", restarts=1,
                                 COHORT_SERVER=server.address)
            server.complete()
        self.assertEqual(killed, self.digest("plain", self.rank0()))
        # Nothing but the step in progress was lost.
        self.assertGreaterEqual(self.starts_of("killed")[1], 10)
        self.check_ended("plain", servers=1)

    def test_a_gang_that_is_started_again_goes_on_from_the_checkpoint(self):
        # Without a checkpoint it starts from the beginning.
        again = self.digest("again", self.rank0(), "--kill=1", restarts=1,
                           **self.listen())
        self.assertEqual(self.starts_of("again"), {0: 1, 1: 1})
        state = self.rank0(checkpoint_dir=str(self.dir / "state"),
                           checkpoint_every=4)
        self.assertEqual(self.digest("killed", state, "--kill=0", restarts=1,
                                     **self.listen()), again)
        self.assertGreater(self.starts_of("killed")[1], 4)
        self.check_ended("killed", servers=2)

    def check_ended(self, name, servers):
        """The servers that rank 0 started."""
        files = list((self.dir / name).glob("server.*"))
        self.assertEqual(len(files), servers)
        for file in files:
            self.assertFalse(is_alive(int(file.read_text())))

    def test_without_a_server_it_says_what_to_do(self):
        _, done = self.start("none")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("no server: WORLD_SIZE", done.stderr)
        self.assertIn("cohort.join(serve='rank0', server_flags={...})",
                      done.stderr)

    def test_a_port_that_is_taken_is_named(self):
        with taken_address() as listen:
            _, done = self.start("taken", self.rank0(), COHORT_LISTEN=listen)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("The port is that of listen", done.stderr)


if __name__ == "__main__":
    unittest.main()
