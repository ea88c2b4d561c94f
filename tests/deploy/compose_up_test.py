#!/usr/bin/env python3
"""deploy/compose.yaml brought up by podman-compose, Prometheus beside it.

The images are those of images_test.py. Without them, the tools or the file's
fixed ports, the test is skipped with a reason. Without Prometheus's image the
rest is brought up alone.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import unittest

import podman
from manifests import DEPLOY

PORTS = {"server": (7070, 7071), "prometheus": (9090,)}
PROMETHEUS_IMAGE = "docker.io/prom/prometheus:v2.53.4"
SETTINGS = {"COHORT_BATCH_SIZE": "256", "COHORT_WORKERS": "2"}


def taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def why_not_up() -> str:
    """Says why nothing can be brought up here; empty if it can."""
    if shutil.which("podman-compose") is None:
        return "no podman-compose (apt-get install podman-compose)"
    for port in PORTS["server"]:
        if taken(port):
            return f"port {port} is in use"
    return podman.why_not_run()


WHY_NOT = why_not_up()


@unittest.skipIf(WHY_NOT, f"compose.yaml not brought up: {WHY_NOT}")
class ComposeUpTest(unittest.TestCase):

    def setUp(self):
        self.settings = SETTINGS
        self.project = f"cohort-compose-{os.getpid()}"
        self.services = ["server", "worker"]
        has_image = podman.podman("image", "exists", PROMETHEUS_IMAGE,
                                  check=False).returncode == 0
        if has_image and not taken(*PORTS["prometheus"]):
            self.services.append("prometheus")
        self.addCleanup(self.down)

    def compose(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["podman-compose", "-p", self.project,
             "-f", DEPLOY / "compose.yaml", *arguments],
            capture_output=True, text=True, check=False,
            env={**podman.ENVIRONMENT, **self.settings}, timeout=podman.TIMEOUT_S)

    def down(self):
        self.compose("down", "-v")
        podman.podman("network", "rm", "--force", f"{self.project}_default",
                      check=False)

    def targets_up(self) -> int:
        answer = podman.page("127.0.0.1", *PORTS["prometheus"],
                             "/api/v1/targets?state=active")
        targets = json.loads(answer or '{"data": {"activeTargets": []}}')
        return sum(target["health"] == "up"
                   for target in targets["data"]["activeTargets"])

    def test_trains_and_is_scraped(self):
        up = self.compose("up", "-d", *self.services)
        server = f"{self.project}_server_1"
        self.assertEqual(up.returncode, 0, up.stderr)
        podman.until(lambda: "cohort_workers_registered 2" in podman.page(
            "127.0.0.1", 7071, "/metrics"), "both workers to register")
        if "prometheus" in self.services:
            # The server, two workers, and Prometheus itself.
            podman.until(lambda: self.targets_up() == 4, "four targets")
        else:
            print(f"Prometheus was not beside it: no image {PROMETHEUS_IMAGE}, "
                  "or its port is in use")
        # An epoch takes minutes.
        podman.until(lambda: "step " in podman.log(server), "a step")
        podman.podman("exec", server, "cohortctl", "run", "drain")
        self.assertEqual(podman.wait(server), 0, podman.log(server))
        self.assertIn("the run is over: drained", podman.log(server))
        self.assertIn("all workers exchange gradients and weights through "
                      "shared memory", podman.log(server))
        for rank in (1, 2):
            worker = f"{self.project}_worker_{rank}"
            self.assertEqual(podman.wait(worker), 0)

    def test_data_shards_come_back_and_end_with_the_run(self):
        self.settings = {**SETTINGS, "COHORT_CHECKPOINT_EVERY": "5",
                         "COHORT_PARTITION_KIB": "16",
                         "COHORT_SHARD_ADDRESSES": "shard-[1-2]:7070"}
        up = self.compose("up", "-d", "server", "worker", "shard-1", "shard-2")
        self.assertEqual(up.returncode, 0, up.stderr)
        server = f"{self.project}_server_1"
        shard = f"{self.project}_shard-1_1"

        def checkpoints() -> int:
            return podman.log(server).count("is on disk")

        podman.until(lambda: checkpoints() >= 1, "a checkpoint")
        self.assertIn("the model is shared among 3 shards", podman.log(server))
        # As the kernel does when memory runs out; `podman kill` counts as a
        # stop, after which a container is not started again.
        os.kill(podman.inspect(shard)["State"]["Pid"], signal.SIGKILL)
        podman.until(lambda: podman.log(server).count("shared among") == 2,
                     "the data shard to come back")
        before = checkpoints()
        podman.until(lambda: checkpoints() > before, "another checkpoint")
        podman.podman("exec", server, "cohortctl", "run", "drain")
        self.assertEqual(podman.wait(server), 0, podman.log(server))
        for number in (1, 2):
            self.assertEqual(podman.wait(
                f"{self.project}_shard-{number}_1"), 0)


if __name__ == "__main__":
    unittest.main()
