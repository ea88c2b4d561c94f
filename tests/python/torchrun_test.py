"""torchrun starts the workers: with a server elsewhere, and with one that rank 0
starts."""

import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

import torch
from ranks import BIN, Server

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "gang.py"
MISSING = ("no torchrun here" if importlib.util.find_spec(
    "torch.distributed.run") is None else "")
# torch 1.13 under Python 3.11 cannot read its own default, 0; a rank that there
# is not leaves the others' output alone.
OPTIONS = (["--redirects=9:1", "--tee=9:1"]
           if torch.__version__.startswith("1.") else [])


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@unittest.skipIf(MISSING, MISSING)
class Torchrun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cohort-torchrun-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def start(self, name, *arguments, restarts=0, command=None, **environment):
        """A gang of two processes in a folder of its own."""
        folder = self.dir / name
        folder.mkdir()
        return folder, subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone",
             *OPTIONS, "--nproc_per_node=2", "--monitor_interval=0.1", f"--max_restarts={restarts}",
             *(command or [SCRIPT, folder]), *arguments],
            capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1",
                 "PYTHONPATH": f"{SCRIPT.parent.parent}:"
                               f"{os.environ.get('PYTHONPATH', '')}",
                 **environment})

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
        return {"COHORT_LISTEN": f"127.0.0.1:{free_port()}"}

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
            server.wait()
        self.assertEqual(killed, self.digest("plain", self.rank0()))
        # Nothing but the step in progress was lost.
        self.assertGreaterEqual(self.starts_of("killed")[1], 10)
        self.check_ended("plain", servers=1)

    def test_a_gang_that_is_started_again_goes_on_from_the_checkpoint(self):
        # Without a checkpoint it begins anew.
        anew = self.digest("anew", self.rank0(), "--kill=1", restarts=1,
                           **self.listen())
        self.assertEqual(self.starts_of("anew"), {0: 1, 1: 1})
        state = self.rank0(checkpoint_dir=str(self.dir / "state"),
                           checkpoint_every=4)
        self.assertEqual(self.digest("killed", state, "--kill=0", restarts=1,
                                     **self.listen()), anew)
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
        self.assertIn("no server: WORLD_SIZE says that other workers",
                      done.stderr)
        self.assertIn("cohort.join(serve='rank0', server_flags={...})",
                      done.stderr)

    def test_a_port_that_is_taken_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            _, done = self.start("taken", self.rank0(), COHORT_LISTEN=listen)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("The port is that of listen", done.stderr)

    @unittest.skipUnless((BIN / "cohort-worker").exists(), "no cohort-worker")
    def test_the_program_takes_its_rank(self):
        with Server(2, "--epochs=1") as server:
            _, done = self.start(
                "program", command=[
                    "--no_python", BIN / "cohort-worker", "--dataset=synthetic",
                    "--limit=64", "--test_limit=64", "--batch_size=8"],
                COHORT_SERVER=server.address)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            server.wait()
        for rank in range(2):
            self.assertRegex(done.stderr + done.stdout, rf'"worker":"{rank}"')


if __name__ == "__main__":
    unittest.main()
