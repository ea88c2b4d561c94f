"""A long run under faults, changes and readers: does anything grow?

COHORT_SOAK_MINUTES sets how long it runs (120). A proxy delays every message, so
that steps are slow and the run takes a small part of a core.

One server and the worker of rank 0 live through the last three quarters; the
other workers are killed and replaced. Once a second, memory, descriptors and
threads of the long-lived processes are noted. The medians of the second and of
the last quarter are compared.
"""

import collections
import dataclasses
import os
import random
import statistics
import threading
import time
import unittest

import history_check
from faults import CuttableProxy
from processes import Cohort, kill, run

# The programs refuse variables that they do not know.
MINUTES = float(os.environ.pop("COHORT_SOAK_MINUTES", "120"))
WORKERS = 3
# Share of the time after which no server is killed, until the last sample.
FAULTS_OF_SERVER_END = 0.2
DELAY_S = 0.02
# Between two disturbances.
PAUSE_S = (5, 20)

# Differences between two medians that are no leak:
# - Memory: the model has 15 KiB, so gradients of all ranks in flight, versions
#   that readers hold and a checkpoint being written are below 2 MiB. glibc
#   gives each of a process's 10 to 30 threads an arena that grows in steps of
#   132 KiB: 4 MiB. LibTorch's worker frees in other orders than it allocates:
#   4 % of its 210 MiB. A leak of one gradient a step would be 15 KiB times
#   thousands of steps.
# - The server keeps a record of each change of its policy: its settings, below
#   16 KiB each.
# - Descriptors: a call of cohortctl, a scrape or a reader may be open in one
#   median and not in the other, 1 each.
# - Threads: gRPC starts threads when all of its are busy, and ends idle ones:
#   as many as there are cores.
MEMORY_KIB = 6 * 1024
MEMORY_SHARE = 0.04
CHANGE_KIB = 16
DESCRIPTORS = 3
THREADS = max(4, os.cpu_count() or 1)


@dataclasses.dataclass
class Sample:
    at_s: float
    memory_kib: int
    descriptors: int
    threads: int
    size: int


def sample_of(pid, at_s, size):
    """None if the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return Sample(at_s, int(fields["VmRSS"].split()[0]),
                      len(os.listdir(f"/proc/{pid}/fd")),
                      int(fields["Threads"]), size)
    except (OSError, KeyError):
        return None


class Sampler:
    """Notes samples of processes once a second on its own thread."""

    def __init__(self, cohort):
        self._cohort = cohort
        self._begin = time.monotonic()
        self._stop = threading.Event()
        self.samples = collections.defaultdict(list)
        self._thread = threading.Thread(target=self._run, name="sampler")
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def elapsed_s(self):
        return time.monotonic() - self._begin

    def _run(self):
        while not self._stop.wait(1):
            for name, process in (("server", self._cohort.server),
                                  ("worker 0", self._cohort.workers[0])):
                sample = sample_of(process.pid, self.elapsed_s(),
                                   self._cohort.size)
                if sample is not None:
                    self.samples[name, process.pid].append(sample)


def quarters(samples, total_s):
    """The second and the last quarter of the run, where the number of workers
    was the usual one: each worker has a connection and costs memory."""
    usual = [sample for sample in samples if sample.size == WORKERS]
    return ([s for s in usual if total_s / 4 <= s.at_s < total_s / 2],
            [s for s in usual if total_s * 3 / 4 <= s.at_s <= total_s])


def medians_of_tenths(samples, total_s, field):
    """How a figure went: a leak rises to the end, a warm-up does not."""
    parts = [[] for _ in range(10)]
    for sample in samples:
        if sample.size == WORKERS:
            parts[min(int(sample.at_s / total_s * 10), 9)].append(
                getattr(sample, field))
    return " ".join(f"{statistics.median(part):.0f}" if part else "-"
                    for part in parts)


class Soak(unittest.TestCase):
    def setUp(self):
        self.seed = random.SystemRandom().randrange(1 << 30)
        print(f"seed {self.seed}, {MINUTES:g} minutes", flush=True)
        self.random = random.Random(self.seed)
        self.done = collections.Counter()
        self.versions = 0

    def version(self):
        return self.cohort.status()["version"]

    def await_steps(self, steps=3):
        """The run continues, whatever was done to it."""
        begin = self.version()
        self.cohort.wait_until(lambda: self.version() >= begin + steps,
                               f"version {begin + steps}")
        self.versions += steps

    def start_worker(self, rank):
        self.cohort.start_worker(
            rank, f"--exchange_log={self.cohort.dir}/{rank}.jsonl")

    # ---- what happens to the run

    def replace_worker(self):
        """Of any rank but 0, at times more than one."""
        for rank in self.random.sample(range(1, self.cohort.size),
                                       self.random.randint(
                                           1, self.cohort.size - 1)):
            kill(self.cohort.workers[rank])
            self.start_worker(rank)

    def restart_server(self):
        self.cohort.resume_server()

    def cut(self):
        self.proxy.cut()

    def change_policy(self):
        aggregation, pushes_min, staleness = self.random.choice((
            ("sync", 0, "keep"), ("sync", 2, "keep"), ("bounded", 0, "keep"),
            ("async", 0, "keep"), ("async", 0, "drop")))
        self.cohort.ctl("policy", "set", f"--aggregation={aggregation}",
                 f"--min_pushes={pushes_min}", f"--staleness={staleness}",
                 "--max_staleness=2", "--max_lead=2",
                 f"--learning_rate=0.0{self.random.randint(10, 19)}")

    def resize(self):
        """One worker more, then one less."""
        self.cohort.ctl("policy", "set", f"--workers={WORKERS + 1}")
        self.cohort.size = WORKERS + 1
        self.start_worker(WORKERS)
        self.await_steps()
        self.cohort.ctl("policy", "set", f"--workers={WORKERS}")
        self.cohort.until(
            lambda: self.cohort.workers[WORKERS].poll() is not None,
            "the worker that is no longer needed to leave")
        del self.cohort.workers[WORKERS]
        self.cohort.size = WORKERS

    def read(self):
        """A reader of weights, and one of the metrics."""
        result = run("cohort-worker", f"--server={self.cohort.server_address}",
                     "--evaluate", *self.cohort.worker_flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(self.version())
        self.assertIn("\ncohort_model_version{", self.cohort.page())

    def save(self):
        self.cohort.ctl("checkpoint", "save")

    # ---- the run

    def disturb_until(self, sampler, end_s, actions):
        """Something happens every few seconds; then the run has to continue."""
        pause = threading.Event()
        while sampler.elapsed_s() < end_s:
            action = self.random.choice(actions)
            action()
            self.done[action.__name__] += 1
            self.await_steps()
            pause.wait(self.random.uniform(*PAUSE_S))

    def test_nothing_grows(self):
        total_s = MINUTES * 60
        self.cohort = Cohort(workers=WORKERS, server_flags=[
            "--epochs=100000", "--checkpoint_every=20",
            "--on_worker_loss=continue"], keeps=True)
        with self.cohort as cohort:
            cohort.start_server()
            with CuttableProxy(cohort.address, delay_s=DELAY_S) as self.proxy:
                cohort.address = self.proxy.address
                for rank in range(WORKERS):
                    self.start_worker(rank)
                self.await_steps()
                # A server that is killed before its first checkpoint begins
                # another run.
                cohort.await_checkpoint()
                often = [self.replace_worker, self.cut, self.change_policy,
                         self.change_policy, self.resize, self.read, self.save]
                with Sampler(cohort) as sampler:
                    self.disturb_until(sampler, total_s * FAULTS_OF_SERVER_END,
                                       [*often, self.restart_server])
                    self.disturb_until(sampler, total_s, often)
                    total_s = sampler.elapsed_s()
                self.restart_server()
                self.await_steps()
                cohort.drain()
            self.check_growth(sampler.samples, total_s)
            self.check_history(cohort)

    def check_history(self, cohort):
        events = history_check.load(cohort.dir.glob("*.jsonl"))
        print(history_check.summary(events), flush=True)
        # --min_pushes changes in the run.
        self.assertEqual(history_check.check(events, pushes_min=0)[:20], [])

    def check_growth(self, samples, total_s):
        grown = []
        print(f"{total_s / 60:.1f} minutes, {dict(self.done)}")
        print(f"{'process':10}{'':12}{'2nd quarter':>12}{'4th':>8}{'may grow':>9}")
        compared = 0
        for (name, pid), found in samples.items():
            second, last = quarters(found, total_s)
            # A process that was killed in between.
            if not second or not last:
                continue
            compared += 1
            for field, allowed in (
                    ("memory_kib", self.memory_allowed(second)),
                    ("descriptors", DESCRIPTORS), ("threads", THREADS)):
                before, after = (statistics.median(getattr(s, field)
                                                   for s in part)
                                 for part in (second, last))
                print(f"{name:10}{field:12}{before:12.0f}{after:8.0f}"
                      f"{allowed:9.0f}")
                print(f"{'':10}each tenth  "
                      f"{medians_of_tenths(found, total_s, field)}")
                if after - before > allowed:
                    grown.append(f"{name} ({pid}): {field} grew from "
                                 f"{before:.0f} to {after:.0f}, want at most "
                                 f"{allowed:.0f} more")
        self.assertEqual(grown, [], f"seed {self.seed}")
        self.assertEqual(compared, 2, "the server and rank 0 live on")

    def memory_allowed(self, second):
        before = statistics.median(sample.memory_kib for sample in second)
        changes = self.done["change_policy"] + self.done["resize"]
        return MEMORY_KIB + MEMORY_SHARE * before + CHANGE_KIB * changes


if __name__ == "__main__":
    unittest.main(verbosity=2)
