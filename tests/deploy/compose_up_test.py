#!/usr/bin/env python3
"""deploy/compose.yaml brought up by podman-compose, with Debian's Prometheus.

Its fixed ports must be free. The images are those of images_test.py.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.parse

import monitoring_files as files
import podman
from manifests import DEPLOY

TLS = ("--file", DEPLOY / "compose.tls.yaml")
# Steps of milliseconds.
SMALL = {"COHORT_DATASET": "synthetic", "COHORT_MODEL": "smooth",
         "COHORT_CHECKPOINT_EVERY": "20"}
PROMETHEUS = f"localhost/cohort-test-prometheus:{podman.VERSION}"
PROMETHEUS_FILE = f"""\
FROM {podman.BASE}
COPY prometheus /usr/bin/
RUN install -d -o 65534 -g 65534 /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
"""


def setUpModule():
    """Makes the image of Prometheus, in place of the registry's."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(shutil.which("prometheus"), folder)
        (pathlib.Path(folder) / "Containerfile").write_text(PROMETHEUS_FILE)
        podman.podman("build", "--tag", PROMETHEUS, folder)


def tearDownModule():
    podman.podman("rmi", PROMETHEUS)


class Project:
    """The services of the compose file, removed at the end."""

    def __init__(self, test: unittest.TestCase, *options, **settings: str):
        self.name = f"cohort-compose-{os.getpid()}"
        self._environment = {**podman.ENVIRONMENT, "COHORT_WORKERS": "2",
                             **settings}
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        replaced = pathlib.Path(folder.name) / "prometheus.yaml"
        replaced.write_text(json.dumps(  # JSON is YAML, too.
            {"services": {"prometheus": {"image": PROMETHEUS}}}))
        self._options = ["--file", DEPLOY / "compose.yaml", *options,
                         "--file", replaced]
        test.addCleanup(self.down)

    def _compose(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["podman-compose", "-p", self.name, *self._options, *arguments],
            capture_output=True, text=True, check=False,
            env=self._environment, timeout=podman.TIMEOUT_S)

    def up(self, *services: str) -> None:
        result = self._compose("up", "-d", *services)
        if result.returncode != 0:
            raise AssertionError(result.stderr)

    def down(self) -> None:
        self._compose("down", "-v")
        podman.podman("network", "rm", "--force", f"{self.name}_default",
                      check=False)

    def container(self, service: str, number: int = 1) -> str:
        return f"{self.name}_{service}_{number}"

    def containers(self) -> list[str]:
        """Returns all but Prometheus's, which does not end with the run."""
        names = podman.podman("ps", "--all", "--format={{.Names}}",
                              f"--filter=name={self.name}").stdout.split()
        return [name for name in names if "prometheus" not in name]

    def log(self) -> str:
        return podman.log(self.container("server"))

    def until_checkpoints(self, count: int) -> None:
        podman.until(lambda: self.log().count("is on disk") >= count,
                     f"{count} checkpoints")

    def model_digest(self) -> str:
        return podman.model_digest(f"{self.name}_state")


def kill_program(container: str, program: str) -> None:
    """Kills it within its container, as the kernel does when memory runs out."""
    lines = podman.podman("top", container, "hpid", "args").stdout.splitlines()
    pid, = (line.split()[0] for line in lines
            if line.split()[1] == f"/usr/bin/{program}")
    os.kill(int(pid), signal.SIGKILL)


def prometheus(path: str, **parameters: str):
    """Returns the data of an answer, None before Prometheus listens."""
    text = podman.page("127.0.0.1", 9090,
                       f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
    return json.loads(text)["data"] if text else None


def targets_up() -> int:
    targets = prometheus("targets", state="active") or {"activeTargets": []}
    return sum(target["health"] == "up" for target in targets["activeTargets"])


class ComposeUpTest(unittest.TestCase):

    def check_ends(self, project: Project) -> None:
        """Waits for the end of the run, which the programs end with 0."""
        for container in project.containers():
            self.assertEqual(podman.wait(container), 0, podman.log(container))

    def check_confined(self, container: str) -> None:
        status = dict(line.split(":\t", 1) for line in podman.podman(
            "exec", container, "cat", "/proc/1/status").stdout.splitlines())
        self.assertEqual({status[name] for name in (
            "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}, {"0" * 16})
        self.assertEqual(status["NoNewPrivs"], "1")
        for name in ("Uid", "Gid"):
            self.assertNotIn("0", status[name].split(), container)
        written = podman.podman("exec", container, "touch", "/etc/new",
                                check=False)
        self.assertIn("Read-only file system", written.stderr)

    def check_healthy(self, container: str) -> None:
        """Runs the image's own check, which needs no systemd here."""
        podman.until(lambda: podman.podman(
            "healthcheck", "run", container, check=False).returncode == 0,
            f"{container} to be healthy")

    def test_is_confined_healthy_and_scraped(self):
        project = Project(self, COHORT_BATCH_SIZE="256")
        project.up("server", "worker", "prometheus")
        # The server, two workers, and Prometheus itself.
        podman.until(lambda: targets_up() == 4, "four targets")
        self.check_confined(project.container("prometheus"))
        for container in project.containers():
            self.check_confined(container)
            self.check_healthy(container)
        # An epoch takes minutes.
        podman.until(lambda: "step " in project.log(), "a step")
        podman.podman("exec", project.container("server"), "cohortctl", "run",
                      "drain")
        self.check_ends(project)
        self.assertIn("the run is over: drained", project.log())
        self.assertIn("all workers exchange gradients and weights through "
                      "shared memory", project.log())

    def test_kills_and_a_drain_leave_the_same_model(self):
        digests = []
        for disturbed in (False, True):
            project = Project(self, **SMALL, COHORT_EPOCHS="12")
            project.up("server", "worker")
            server = project.container("server")
            if disturbed:
                project.until_checkpoints(1)
                kill_program(project.container("worker", 1), "cohort-worker")
                # The container, with all that is in it.
                os.kill(podman.inspect(project.container("worker", 2))[
                    "State"]["Pid"], signal.SIGKILL)
                podman.until(lambda: project.log().count(
                    "a replacement joined") >= 2, "both workers")
                kill_program(server, "cohort-server")
                podman.until(lambda: "continuing from" in project.log(),
                             "the server")
                before = project.log().count("is on disk")
                project.until_checkpoints(before + 1)
                podman.podman("stop", "--time=60", server)
                self.assertEqual(
                    podman.inspect(server)["State"]["ExitCode"], 0)
                podman.podman("start", server)
            self.check_ends(project)
            digests.append(project.model_digest())
            project.down()
        self.assertEqual(digests[0], digests[1])

    def test_encrypted_run_answers_every_expression_of_the_dashboards(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        podman.podman(
            "run", "--rm", "--network=none", "--no-healthcheck", "--user=0:10001",
            f"--volume={folder.name}:/certs", "--entrypoint=/usr/bin/cohortctl",
            podman.IMAGES["server"], "certs", "init", "--dir=/certs",
            "--run=local")
        for path in pathlib.Path(folder.name).glob("*/*"):
            path.chmod(0o640)
            path.parent.chmod(0o750)
        pathlib.Path(folder.name).chmod(0o755)
        project = Project(self, *TLS, COHORT_CERTS=folder.name, **SMALL,
                          COHORT_EPOCHS="1000")
        project.up("server", "worker", "prometheus")
        podman.until(lambda: targets_up() == 4, "four targets")
        for container in project.containers():
            self.check_healthy(container)
        server = project.container("server")
        refused = podman.podman(
            "exec", "--env=COHORT_TLS_CERT=", "--env=COHORT_TLS_KEY=", server,
            "cohortctl", "status", check=False)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        podman.until(lambda: prometheus(
            "query", query="instance:cohort_samples:rate5m")["result"],
            "a recorded rate")
        # Those that show nothing are named by prometheus_test.py.
        for dashboard in files.dashboards().values():
            for where, query in files.dashboard_queries(dashboard):
                with self.subTest(where=where):
                    prometheus("query", query=files.instantiated(query))
        podman.podman("exec", server, "cohortctl", "run", "drain")
        self.check_ends(project)

    def test_a_script_trains_in_place_of_the_workers(self):
        project = Project(self, COHORT_EPOCHS="2")
        project.up("server", "script")
        self.check_ends(project)
        for number in (1, 2):
            self.assertIn("epoch 1: loss", podman.log(
                project.container("script", number)))
        self.assertTrue(project.model_digest())

    def test_data_shards_come_back_and_end_with_the_run(self):
        project = Project(
            self, COHORT_BATCH_SIZE="256", COHORT_CHECKPOINT_EVERY="5",
            COHORT_PARTITION_KIB="16", COHORT_SHARD_ADDRESSES="shard-[1-2]:7070")
        project.up("server", "worker", "shard-1", "shard-2")
        project.until_checkpoints(1)
        self.assertIn("the model is shared among 3 shards", project.log())
        os.kill(podman.inspect(project.container("shard-1"))["State"]["Pid"],
                signal.SIGKILL)
        podman.until(lambda: project.log().count("shared among") == 2,
                     "the data shard to come back")
        project.until_checkpoints(project.log().count("is on disk") + 1)
        podman.podman("exec", project.container("server"), "cohortctl", "run",
                      "drain")
        self.check_ends(project)


if __name__ == "__main__":
    unittest.main()
