"""Signals, as terminals and batch systems send them: a worker leaves in order,
and its loader processes end when it does."""

import functools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch
from torch import nn

import cohort
from networks import Shapes, digest, three_batch_norms
from ranks import DEADLINE, Rank, Server


def train(rank, address, log):
    """Writes each version to `log`."""
    model = three_batch_norms(dropout=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    job = cohort.join(model, optimizer, server=address, rank=rank,
                      log_level="error")
    for x, y in job.data(Shapes(512, noise=0.3), batch_size=4, num_workers=2):
        job.backward(nn.functional.cross_entropy(model(x), y))
        result = job.step()
        with open(log, "a", encoding="utf-8") as out:
            print(result.version, file=out)
        time.sleep(0.02)
    return digest(model.state_dict())


def sleep_in_loader(folder, _):
    (pathlib.Path(folder) / str(os.getpid())).touch()
    time.sleep(1)


def train_with_slow_loaders(_, address, folder, method):
    model = three_batch_norms()
    job = cohort.join(model, torch.optim.SGD(model.parameters(), lr=0.01),
                      server=address, log_level="error")
    for _ in job.data(Shapes(64), batch_size=4, num_workers=2,
                      multiprocessing_context=method,
                      worker_init_fn=functools.partial(sleep_in_loader, folder)):
        pass


def is_alive(pid):
    try:
        return "\nState:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def until(condition, what):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain: {what}")
        time.sleep(0.02)


class Script:
    """Rank 1 as a script of its own, with a process group of its own."""

    def __init__(self, address, folder):
        self._log = pathlib.Path(folder) / "versions"
        self._log.write_text("")
        self.process = subprocess.Popen(
            [sys.executable, "-B", __file__, "worker", address, self._log],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def after_steps(self, steps):
        until(lambda: len(self._log.read_text().split()) >= steps or
              self.process.poll() is not None, f"{steps} steps")
        return self

    def end(self):
        out, error = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out.strip(), error


class Signals(unittest.TestCase):
    def test_a_worker_leaves_in_order_and_comes_again(self):
        with tempfile.TemporaryDirectory() as folder, \
                Server(2, "--epochs=3") as server:
            first = Rank(train, 0, server.address, f"{folder}/rank0")
            for number, send, code in (
                    (signal.SIGTERM, os.kill, 75),
                    (signal.SIGINT, os.kill, -signal.SIGINT),
                    (signal.SIGTERM, os.killpg, 75),
                    (signal.SIGINT, os.killpg, -signal.SIGINT)):
                script = Script(server.address, folder).after_steps(8)
                self.assertIsNone(script.process.poll(), script)
                send(script.process.pid, number)
                ended, _, error = script.end()
                self.assertEqual(ended, code, error)
                self.assertNotIn("DataLoader worker", error)
            code, last, error = Script(server.address, folder).end()
            self.assertEqual(code, 0, error)
            self.assertEqual(first.result(), last)
            log = server.log()
        self.assertEqual(log.count("stopped by a signal"), 4, log)
        self.assertNotIn("lost", log)
        with tempfile.TemporaryDirectory() as folder, \
                Server(2, "--epochs=3") as server:
            undisturbed = Rank(train, 0, server.address, f"{folder}/rank0")
            Rank(train, 1, server.address, f"{folder}/rank1").result()
            self.assertEqual(undisturbed.result(), last)

    def test_loaders_of_a_killed_worker_end(self):
        for method in ("fork", "spawn"):
            with self.subTest(method), Server(1) as server, \
                    tempfile.TemporaryDirectory() as folder:
                rank = Rank(train_with_slow_loaders, 0, server.address, folder,
                            method)
                until(lambda folder=folder: len(os.listdir(folder)) == 2,
                      "two loaders")
                rank.kill()
                for pid in os.listdir(folder):
                    until(lambda pid=pid: not is_alive(pid), f"the end of {pid}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        torch.set_num_threads(1)
        print(train(1, *sys.argv[2:]))
    else:
        unittest.main()
