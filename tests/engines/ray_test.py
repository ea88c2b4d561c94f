"""cohort.ray.run on a real Ray: trains, and brings back what is killed."""

import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build/engines/bin/python3"
if __name__ == "__main__" and PYTHON.exists() and sys.prefix != str(
        PYTHON.parent.parent):
    os.execv(PYTHON, [PYTHON, "-B", *sys.argv])

# Ray gives its own processes 30 s to start, which a loaded machine may exceed.
for patience in ("gcs_server_port_wait_time_s", "raylet_start_wait_time_s"):
    os.environ[f"RAY_{patience}"] = "600"

try:
    import ray
except ImportError:
    ray = None
import cohort
import cohort.ray
import torch
from torch import nn

WHY_NOT = "" if ray else "no ray (tests/engines/make-env build/engines)"
MAX_STEPS = 200
HOLD_AT = 60


class Bars(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.labels = torch.randint(0, 2, (256,), generator=generator)
        self.images = torch.randn(256, 1, 12, 12, generator=generator)
        self.images[:, 0, 3] += self.labels.view(-1, 1).float()

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def train(config):
    """Writes config["dir"]/pid.RANK, and its steps to steps.RANK."""
    folder, rank = pathlib.Path(config["dir"]), os.environ["COHORT_RANK"]
    (folder / f"pid.{rank}").write_text(str(os.getpid()))
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.2),
        nn.Flatten(), nn.Linear(400, 2))
    job = cohort.join(model, torch.optim.SGD(model.parameters(), lr=0.05,
                                             momentum=0.9), log_level="error")
    for x, y in job.data(Bars(), batch_size=8):
        job.backward(nn.functional.cross_entropy(model(x), y))
        result = job.step()
        with open(folder / f"steps.{rank}", "a", encoding="utf-8") as out:
            print(result.version, file=out)
        # The test disturbs the run here, so it cannot be over before. In an
        # elastic cohort either rank may come here first.
        while ((result.version or 0) >= config.get("hold_at", MAX_STEPS + 1) and
               not (folder / "disturbed").exists()):
            (folder / "held").touch()
            time.sleep(0.02)
    return {"rank": job.rank, "weights": float(
        sum(value.double().abs().sum() for value in model.parameters()))}


def train_badly():
    raise ValueError("no data in the folder")


def kill_worker(folder):
    """The one of rank 1."""
    os.kill(int((folder / "pid.1").read_text()), signal.SIGKILL)


def train_nothing():
    pass


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Ray(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="cohort-ray-")
        os.environ["HOME"] = cls.folder.name  # Ray keeps a token there.
        # Three actors of one CPU each; the machine may have two. A test's
        # functions are not importable by the actors.
        # The paths of its sockets must be short.
        cls.sessions = tempfile.TemporaryDirectory(
            prefix="r", dir="/tmp", ignore_cleanup_errors=True)
        ray.init(num_cpus=4, include_dashboard=False,
                 _temp_dir=cls.sessions.name, log_to_driver=False)
        ray.cloudpickle.register_pickle_by_value(sys.modules["__main__"])

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()
        cls.sessions.cleanup()
        cls.folder.cleanup()

    def setUp(self):
        self.dir = pathlib.Path(self.folder.name) / self.id().rpartition(".")[2]
        self.dir.mkdir()

    def run_cohort(self, name, function=train, workers=2, **options):
        folder = self.dir / name
        folder.mkdir(exist_ok=True)
        flags = {"epochs": 100, "max_steps": MAX_STEPS, "checkpoint_every": 10,
                 **options.pop("server_flags", {})}
        return cohort.ray.run(
            function, workers=workers, server_flags=flags, name=name,
            config={"dir": str(folder), **options.pop("config", {})},
            storage_path=str(self.dir / "storage"), **options)

    def model(self, result):
        self.assertIsNone(result.error)
        self.assertEqual(result.metrics["version"], MAX_STEPS)
        self.assertEqual(result.checkpoint,
                         f"{result.path}/results/model.safetensors")
        return pathlib.Path(result.checkpoint).read_bytes()

    def disturbed(self, name, disturb, **options):
        """A run with `disturb(folder)` called after step HOLD_AT."""
        folder = self.dir / name

        def wait_and_disturb():
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline and not all(
                    (folder / name).exists() for name in ("held", "pid.0", "pid.1")):
                time.sleep(0.05)
            disturb(folder)
            (folder / "disturbed").touch()

        thread = threading.Thread(target=wait_and_disturb)
        thread.start()
        try:
            return self.run_cohort(name, config={"hold_at": HOLD_AT}, **options)
        finally:
            thread.join()

    def test_killed_workers_and_servers_change_no_bit(self):
        result = self.run_cohort("plain")
        plain = self.model(result)
        self.assertEqual([value["rank"] for value in result.returned], [0, 1])
        self.assertEqual(result.metrics["weights"],
                         result.returned[1]["weights"])
        self.assertGreater(result.metrics["train_loss"], 0)
        self.assertEqual(result.restarts, [0, 0])

        result = self.disturbed("worker", kill_worker)
        self.assertEqual(result.restarts, [0, 1])
        self.assertEqual(self.model(result), plain)

        result = self.disturbed("server", lambda _: self.kill_one(
            str(self.dir / "storage/server")))
        self.assertEqual(self.model(result), plain)
        self.assertEqual(result.restarts, [0, 0])

    def kill_one(self, word):
        """Kills the one process of this cluster with a word in its command
        line."""
        found = []
        home = f"HOME={self.folder.name}".encode()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (word.encode() in (process / "cmdline").read_bytes() and
                        home in (process / "environ").read_bytes().split(b"\0")):
                    found.append(int(process.name))
            except OSError:  # Another process that has just ended.
                continue
        os.kill(*found, signal.SIGKILL)

    def test_a_run_of_the_same_name_goes_on(self):
        self.run_cohort("twice", server_flags={"max_steps": 20})
        result = self.run_cohort("twice")
        self.assertEqual(result.metrics["version"], MAX_STEPS)
        steps = [int(line) for line in
                 (self.dir / "twice/steps.0").read_text().split()]
        self.assertEqual(steps, list(range(1, MAX_STEPS + 1)))

    def test_an_exception_of_the_script_ends_the_run(self):
        with self.assertRaisesRegex(cohort.ray.RunFailedError, "no data") as raised:
            self.run_cohort("bad", train_badly)
        self.assertIsInstance(raised.exception.__cause__, ValueError)
        self.assertIsNotNone(raised.exception.result.error)

    def test_a_worker_that_is_lost_too_often_ends_it(self):
        with self.assertRaisesRegex(cohort.ray.RunFailedError, "lost 1 times"):
            self.disturbed("often", kill_worker, max_restarts=0)

    def test_mistakes_are_named(self):
        with self.assertRaisesRegex(cohort.ConfigurationError, "'CPU': 9.*: 4.0"):
            self.run_cohort("large", workers=8, resources_timeout=1)
        with self.assertRaisesRegex(cohort.ConfigurationError,
                                    "workers: got 0"):
            self.run_cohort("none", workers=0)
        with self.assertRaisesRegex(cohort.ray.RunFailedError, "--epochs"):
            self.run_cohort("flag", server_flags={"epochs": 0})
        with self.assertRaisesRegex(cohort.ray.RunFailedError, "--epochs"):
            self.run_cohort("name", server_flags={"epoch": 3})
        for size in (3, "1:3", "3:2", "0:2", "2:", ""):
            with self.subTest(size=size), self.assertRaisesRegex(
                    cohort.ConfigurationError, "want 2,.* 'MIN:2'"):
                self.run_cohort("size", server_flags={"workers": size})

    def test_an_elastic_cohort_goes_on_while_a_worker_is_away(self):
        for restarts in (3, 0):
            result = self.disturbed(
                f"elastic{restarts}", kill_worker, max_restarts=restarts,
                server_flags={"workers": "1:2"})
            self.assertEqual(result.restarts, [0, 1])
            self.model(result)
            if restarts == 0:
                self.assertIsNone(result.returned[1])


@unittest.skipIf(WHY_NOT, WHY_NOT)
class SeveralNodes(unittest.TestCase):
    """Nodes by Ray's account; all are this machine."""

    def test_plaintext_between_nodes_has_to_be_allowed(self):
        from ray.cluster_utils import Cluster
        folder = tempfile.TemporaryDirectory(prefix="cohort-ray-")
        self.addCleanup(folder.cleanup)
        os.environ["HOME"] = folder.name
        sessions = tempfile.TemporaryDirectory(
            prefix="r", dir="/tmp", ignore_cleanup_errors=True)
        self.addCleanup(sessions.cleanup)
        # Ray writes the cluster's address there, and expects the folder.
        pathlib.Path("/tmp/ray").mkdir(exist_ok=True)
        cluster = Cluster(initialize_head=True, connect=True, head_node_args={
            "num_cpus": 1, "temp_dir": sessions.name})
        self.addCleanup(cluster.shutdown)
        self.addCleanup(ray.shutdown)
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        ray.cloudpickle.register_pickle_by_value(sys.modules["__main__"])
        options = {"workers": 2, "strategy": "STRICT_SPREAD",
                   "config": {"dir": folder.name}, "name": "spread",
                   "server_flags": {"epochs": 1},
                   "storage_path": folder.name}
        with self.assertRaisesRegex(cohort.ConfigurationError, "encryption"):
            cohort.ray.run(train, **options)
        result = cohort.ray.run(train, insecure=True, **options)
        self.assertTrue(pathlib.Path(result.checkpoint).exists())


if __name__ == "__main__":
    unittest.main()
