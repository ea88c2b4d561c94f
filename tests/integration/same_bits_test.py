"""A synchronous run has the same bits however gradients and weights travel, on
however many servers the model is, and whichever process is killed.

tests/run takes a few rows of transport, wire, shards and victim; with
COHORT_KILLS above 1, the rows are all that can be."""

import collections
import dataclasses
import itertools
import math
import os
import random
import stat
import time
import unittest

import history_check
from processes import KILLS, TLS, kill, own_network
from shards import Shards

OWN_NETWORK, WHY_NO_NETWORK = own_network()
# Much longer than the time before a kill.
EPOCHS = 4
# A kill comes at most this long after the version at which it is due, so that
# it comes at any moment of a step.
KILL_DELAY_MAX_S = 0.1


@dataclasses.dataclass(frozen=True)
class Transport:
    """How gradients and weights travel: --local of each rank, and whether the
    server listens on a Unix socket, with workers in separate networks."""
    local: tuple = ("tcp", "tcp")
    socket: bool = False
    networks: bool = False

    def sentence(self, rank):
        """What the log of a worker says, at level debug."""
        if self.local[rank] != "tcp":
            return "go through shared memory"
        return "go over a Unix socket" if self.socket else "go over TCP"


TRANSPORTS = {
    "tcp": Transport(),
    "shm": Transport(("shm", "shm")),
    "mixed": Transport(("auto", "tcp")),
    "unix": Transport(socket=True),
    "unix_shm": Transport(("auto", "auto"), socket=True),
    "networks": Transport(socket=True, networks=True),
    "networks_shm": Transport(("shm", "shm"), socket=True, networks=True),
}
VICTIMS = {"none": (), "worker": ("worker",), "server": ("server",),
           "shard": ("shard",), "all": ("server", "shard", "worker")}


@dataclasses.dataclass(frozen=True)
class Row:
    transport: str
    wire: str
    shards: int
    victim: str

    def possible(self):
        if self.shards == 1:
            return self.victim not in ("shard", "all")
        # Data shards are reached over TCP; the trial's authority has no
        # certificates for them.
        return self.transport == "tcp" and not TLS

    def __str__(self):
        return f"{self.transport}_{self.wire}_{self.shards}_{self.victim}"


CHOSEN = [
    Row("tcp", "float32", 1, "none"),
    Row("tcp", "float32", 1, "worker"),
    Row("tcp", "bf16", 1, "server"),
    Row("shm", "bf16", 1, "worker"),
    Row("shm", "float32", 1, "server"),
    Row("mixed", "bf16", 1, "none"),
    Row("mixed", "float32", 1, "worker"),
    Row("unix_shm", "float32", 1, "server"),
    Row("networks", "float32", 1, "none"),
    Row("networks_shm", "bf16", 1, "none"),
    Row("tcp", "float32", 5, "none"),
    Row("tcp", "bf16", 3, "all"),
]
PRODUCT = [Row(*values) for values in itertools.product(
    TRANSPORTS, ("float32", "bf16"), (1, 3), VICTIMS)]


class RowCohort(Shards):
    """The processes of a row. Workers write down what they exchange."""

    def __init__(self, row):
        # The size of partitions must not matter either.
        super().__init__(row.shards, f"--epochs={EPOCHS}",
                         f"--wire={row.wire}",
                         f"--partition_kib={4 if row.shards == 1 else 1}")
        self.transport = TRANSPORTS[row.transport]
        self.local = self.transport.local
        self.sockets = self.dir / "sockets"
        self.sockets.mkdir()
        if self.transport.socket:
            self.address = f"unix:{self.sockets}/server"
        if "tcp" not in self.local:
            self.server_flags.append(f"--local_dir={self.sockets}")

    def start_worker(self, rank, *flags, **others):
        wrapper = OWN_NETWORK if self.transport.networks else ()
        return super().start_worker(
            rank, f"--exchange_log={self.dir}/{rank}.jsonl",
            "--log_level=debug", *flags,
            wrapper=wrapper, **others)

    def replace(self, victim):
        """Kills a process and starts its replacement at once."""
        if victim == "worker":
            kill(self.workers[1])
            self.start_worker(1)
        elif victim == "server":
            kill(self.server)
            # With the setting of its checkpoint.
            self.server_flags = [flag for flag in self.server_flags
                                 if not flag.startswith("--wire")]
            self.start_server("--resume")
        else:
            self.kill_and_restart(1)

    def events(self):
        return history_check.load(self.dir.glob("*.jsonl"))


class SameBits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        seed = random.SystemRandom().randrange(1 << 30)
        print(f"seed {seed}", flush=True)
        cls.random = random.Random(seed)
        cls.digests = {}
        # By the victim: seconds until a step with its replacement.
        cls.seconds = collections.defaultdict(list)

    @classmethod
    def tearDownClass(cls):
        for victim, seconds in sorted(cls.seconds.items()):
            seconds.sort()
            p50, p99 = (seconds[math.ceil(share * len(seconds)) - 1]
                        for share in (0.5, 0.99))
            print(f"{len(seconds)} kills of a {victim}, seconds to the first "
                  f"step with its replacement: p50 {p50:.2f}, p99 {p99:.2f}, "
                  f"max {seconds[-1]:.2f}", flush=True)

    def digest(self, wire):
        """Of one server that workers reach over TCP, undisturbed."""
        if wire not in self.digests:
            with RowCohort(Row("tcp", wire, 1, "none")) as cohort:
                cohort.start()
                self.digests[wire] = cohort.complete()
        return self.digests[wire]

    def check(self, row):
        if TRANSPORTS[row.transport].networks and WHY_NO_NETWORK:
            self.skipTest(f"no network namespaces here: {WHY_NO_NETWORK}")
        with RowCohort(row) as cohort:
            cohort.start()
            kills = []
            for victim in VICTIMS[row.victim]:
                at = cohort.newest_checkpoint() + self.random.randrange(4, 24)
                cohort.await_checkpoint(at)
                time.sleep(self.random.uniform(0, KILL_DELAY_MAX_S))
                newest = max(event["incarnation"] for event in cohort.events())
                kills.append((victim, time.time_ns() // 1000, newest))
                cohort.replace(victim)
            if cohort.transport.socket:
                mode = (cohort.sockets / "server").stat().st_mode
                self.assertEqual(stat.S_IMODE(mode), 0o600)
            self.assertEqual(cohort.complete(), self.digest(row.wire))
            for rank in range(cohort.size):
                self.assertIn(cohort.transport.sentence(rank),
                              cohort.log(f"worker{rank}"))
            # Also those of killed processes are gone.
            self.assertEqual(os.listdir(cohort.sockets), [])
            for victim, killed_us, newest in kills:
                self.note_seconds(cohort, victim, killed_us, newest)

    def note_seconds(self, cohort, victim, killed_us, newest):
        """Until the first push was applied that needed the new process; the
        workers' logs have microseconds."""
        if victim == "shard":
            return
        applied = min(event["end_us"] for event in cohort.events()
                      if event.get("verdict") in history_check.APPLIED and
                      event["incarnation"] > newest and
                      (victim == "server" or event["rank"] == 1))
        self.seconds[victim].append((applied - killed_us) / 1e6)

    def test_rounding_is_another_digest(self):
        self.assertNotEqual(self.digest("float32"), self.digest("bf16"))


def test_of(row):
    def test(self):
        for turn in range(max(1, KILLS // 5)):
            with self.subTest(turn=turn):
                self.check(row)
    return test


for _row in CHOSEN if KILLS == 1 else PRODUCT:
    if _row.possible():
        setattr(SameBits, f"test_{_row}", test_of(_row))


if __name__ == "__main__":
    unittest.main(verbosity=2)
