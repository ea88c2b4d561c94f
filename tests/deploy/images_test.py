#!/usr/bin/env python3
"""The images, run as intended: confined, on a separate network.

The images are those of deploy/containers/build, as tests/run --only=images makes
them.
"""

import csv
import json
import os
import pathlib
import signal
import unittest

import manifests
import podman
from podman import Network

SERVER = {"COHORT_LISTEN": "0.0.0.0:7070", "COHORT_OPS_LISTEN": "0.0.0.0:7071",
          "COHORT_INSECURE": "true", "COHORT_WORKERS": "2",
          "COHORT_RESULTS_DIR": "/var/lib/cohort/results",
          "COHORT_CHECKPOINT_DIR": "/var/lib/cohort/checkpoints",
          "COHORT_CHECKPOINT_EVERY": "20", "COHORT_RESUME": "true",
          "COHORT_EPOCHS": "1"}
WORKER = {"COHORT_SERVER": "server:7070", "COHORT_OPS_LISTEN": "0.0.0.0:7072",
          "COHORT_INSECURE": "true", "COHORT_BATCH_SIZE": "256"}
SIZES = pathlib.Path(__file__).with_name("image_sizes.tsv")


def start(network: Network, volume: str, *worker_options: str,
          server: dict[str, str] | None = None) -> tuple[str, list[str]]:
    """Starts workers and, after them, their server."""
    workers = [network.run("worker", f"worker{i}", WORKER, *worker_options)
               for i in range(2)]
    return network.run("server", "server", {**SERVER, **(server or {})},
                       f"--volume={volume}:/var/lib/cohort"), workers


def added_mb(image: str) -> float:
    """Returns what an image adds to its base, of cohort-python without torch."""
    layers = json.loads(podman.podman("history", "--format=json", image).stdout)
    # The base image's layer is the last one.
    return sum(layer["size"] for layer in layers[:-1]
               if "/opt/venv" not in layer["CreatedBy"]) / 1e6


def lines_of(image: str, command: str) -> list[str]:
    """Returns the lines that a command prints within an image."""
    return podman.podman(
        "run", "--rm", "--network=none", "--no-healthcheck",
        "--entrypoint=/bin/sh", image, "-c", command).stdout.splitlines()


class ImagesTest(unittest.TestCase):

    def test_say_what_they_are(self):
        for program in ("server", "worker"):
            image = podman.IMAGES[program]
            text = podman.podman("run", "--rm", "--network=none",
                                 "--no-healthcheck", image,
                                 "--version").stdout
            labels = podman.inspect(image)["Config"]["Labels"]
            prefix = "org.opencontainers.image."
            self.assertEqual(
                text, f"cohort-{program} {labels[prefix + 'version']} "
                f"(commit {labels[prefix + 'revision']})\n")

    def test_sizes_are_within_their_limits(self):
        with open(SIZES, encoding="utf-8") as file:
            most = {row["image"]: int(row["MB"])
                    for row in csv.DictReader(file, delimiter="\t")}
        self.assertEqual(set(most), set(podman.IMAGES))
        for program, image in podman.IMAGES.items():
            size = added_mb(image)
            print(f"cohort-{program} adds {size:.0f} MB to its base")
            self.assertLess(size, most[program], program)

    def test_the_list_of_packages_is_that_of_the_image(self):
        for image in podman.IMAGES.values():
            listed = lines_of(image, "sed -n 's/^PackageName: //p' "
                              "/usr/share/cohort/sbom.spdx")
            installed = lines_of(image, "dpkg-query --show --showformat="
                                 "'${db:Status-Status} ${Package}\\n'")
            self.assertCountEqual(
                listed[1:], [line.removeprefix("installed ")
                             for line in installed])
            self.assertEqual(lines_of(image, "dpkg --audit"), [])

    def test_wrong_use_is_told_in_the_last_line(self):
        for variables, code, text in (
                ({"COHORT_WROKERS": "2"}, 2, "did you mean COHORT_WORKERS"),
                ({"COHORT_LISTEN": "0.0.0.0:7070"}, 3, "--insecure"),
                ({"COHORT_RESULTS_DIR": "/results"}, 3,
                 "--results_dir: cannot create /results")):
            result = podman.podman(
                "run", "--rm", "--network=none", *podman.CONFINED,
                *(f"--env={key}={value}" for key, value in variables.items()),
                podman.IMAGES["server"], check=False)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(text, result.stderr)

    def test_trains_is_scraped_and_ends(self):
        with Network("cohort-train") as network:
            volume = network.volume("state")
            server, workers = start(network, volume)
            address = network.address(server)
            podman.until(lambda: "cohort_model_version{" in podman.page(
                address, 7071, "/metrics"), "metrics")
            worker = network.address(workers[0])
            podman.until(lambda: "cohort_worker_steps_total" in podman.page(
                worker, 7072, "/metrics"), "a worker's metrics")
            for container in (server, *workers):
                health = podman.podman(
                    "exec", container, "/usr/bin/cohortctl", "health",
                    "--live", f"--ops=127.0.0.1:{7071 + (container != server)}")
                self.assertEqual(health.stdout, "alive\n")
            self.assertEqual(podman.wait(server), 0, podman.log(server))
            self.assertIn("test accuracy", podman.log(server))
            for worker in workers:
                self.assertEqual(podman.wait(worker), 0, podman.log(worker))

    def test_a_killed_worker_comes_back_and_the_bits_are_the_same(self):
        digests = []
        for disturbed in (False, True):
            with Network("cohort-kill") as network:
                volume = network.volume("state")
                server, workers = start(network, volume,
                                        "--restart=on-failure:5")
                if disturbed:
                    podman.until(lambda: "of step 40 is on disk" in podman.log(
                        server), "version 40")
                    # podman's own kill would count as a requested stop.
                    os.kill(podman.inspect(workers[1])["State"]["Pid"],
                            signal.SIGKILL)
                self.assertEqual(podman.wait(server), 0, podman.log(server))
                if disturbed:
                    self.assertIn("a replacement joined", podman.log(server))
                digests.append(podman.model_digest(volume))
        self.assertEqual(digests[0], digests[1])

    def test_stop_ends_with_zero_and_the_next_one_goes_on(self):
        with Network("cohort-stop") as network:
            volume = network.volume("state")
            server, workers = start(network, volume)
            podman.until(lambda: "of step 20 is on disk" in podman.log(server),
                         "version 20")
            podman.podman("stop", "--time=60", workers[0])
            self.assertEqual(podman.inspect(workers[0])["State"]["ExitCode"], 0)
            podman.podman("stop", "--time=60", server)
            self.assertEqual(podman.inspect(server)["State"]["ExitCode"], 0,
                             podman.log(server))
            podman.podman("start", server, workers[0])
            self.assertEqual(podman.wait(server), 0, podman.log(server))
            self.assertIn("continuing from", podman.log(server))


KUBE_WHY_NOT = manifests.why_not_rendered()


@unittest.skipIf(KUBE_WHY_NOT, f"pods not run: {KUBE_WHY_NOT}")
class PodsTest(unittest.TestCase):
    """The pods of the overlay `cpu`, by podman instead of a cluster."""

    def pods(self, network: Network, volume: str) -> str:
        documents = manifests.render("cpu")
        maps = list(manifests.of_kind(documents, "ConfigMap").values())
        for entry in maps:
            del entry["metadata"]["namespace"]
            for name, value in (("COHORT_WORKERS", "2"), ("COHORT_EPOCHS", "1"),
                                ("COHORT_BATCH_SIZE", "256")):
                if name in entry["data"]:
                    entry["data"][name] = value
        wanted = []
        for pod in manifests.pods(documents):
            for rank in range(1 if pod.program == "server" else 2):
                wanted.append(self.pod(pod, rank, network, volume))
        return manifests.yaml.safe_dump_all(maps + wanted)

    def pod(self, pod: manifests.Pod, rank: int, network: Network,
            volume: str) -> dict:
        spec = dict(pod.spec)
        # The images have no curl for podman to probe with, and podman would
        # publish the same ports of this machine for each pod.
        container = {key: value for key, value in pod.container.items()
                     if key != "ports" and not key.endswith("Probe")}
        # Nor does podman replace $(NAME).
        spec["containers"] = [container | {"env": [
            {"name": entry["name"], "value": pod.environment[entry["name"]]}
            if "value" in entry else entry for entry in container["env"]]}]
        if pod.program == "server":
            spec["volumes"] = [*spec["volumes"], {
                "name": "state", "persistentVolumeClaim": {"claimName": volume}}]
        name = "cohort-server" if pod.program == "server" else f"worker-{rank}"
        return {"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": {
            "name": name, "labels": {"test": network.name}, "annotations": {
                "batch.kubernetes.io/job-completion-index": str(rank)}}}

    def test_train_to_the_end(self):
        with Network("cohort-kube") as network:
            volume = network.volume("state")
            path = os.path.join(os.environ.get("TMPDIR", "/tmp"),
                                f"{network.name}.yaml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.pods(network, volume))
            try:
                podman.podman("play", "kube", f"--network={network.name}", path)
                podman.until(
                    lambda: "stays up until it is stopped" in podman.log(
                        "cohort-server-server"), "the end of the run")
                for rank in range(2):
                    self.assertEqual(podman.wait(f"worker-{rank}-worker"), 0,
                                     podman.log(f"worker-{rank}-worker"))
                podman.podman("stop", "--time=60", "cohort-server-server")
                self.assertEqual(podman.inspect("cohort-server-server")[
                    "State"]["ExitCode"], 0)
                self.assertTrue(podman.model_digest(volume))
            finally:
                podman.podman("play", "kube", "--down", path, check=False)
                os.unlink(path)


if __name__ == "__main__":
    unittest.main()
