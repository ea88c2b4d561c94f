"""Containers on a separate network without access to others."""

import hashlib
import http
import json
import os
import pathlib
import re
import subprocess
import time
import urllib.error
import urllib.request

from manifests import ROOT

CONF = pathlib.Path(__file__).with_name("containers.conf")
VERSION = re.search(r"^project\(cohort VERSION (\S+)",
                    (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"),
                    re.M).group(1)
BASE = "debian:bookworm-slim"
IMAGES = {program: f"localhost/cohort-{program}:{VERSION}"
          for program in ("server", "worker", "python")}
ENVIRONMENT = {**os.environ,
               "CONTAINERS_CONF": os.environ.get("CONTAINERS_CONF", str(CONF))}
CONFINED = ("--read-only", "--cap-drop=ALL",
            "--security-opt=no-new-privileges", "--no-healthcheck")
# The time limit of an epoch on a loaded machine.
TIMEOUT_S = 900


def podman(*arguments: str, check: bool = True
           ) -> subprocess.CompletedProcess:
    """Runs podman and returns its output."""
    result = subprocess.run(
        ["podman", *arguments], capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, env=ENVIRONMENT, timeout=TIMEOUT_S)
    if check and result.returncode != 0:
        raise AssertionError(f"podman {' '.join(arguments)}: {result.stderr}")
    return result


class Network:
    """An internal network with its containers and volumes, all removed."""

    def __init__(self, name: str):
        self.name = f"{name}-{os.getpid()}"
        self._containers: list[str] = []
        self._volumes: list[str] = []

    def __enter__(self):
        podman("network", "create", "--internal", self.name)
        return self

    def __exit__(self, *_):
        for container in self._containers:
            podman("rm", "--force", "--time=0", container, check=False)
        for volume in self._volumes:
            podman("volume", "rm", "--force", volume, check=False)
        podman("network", "rm", "--force", self.name, check=False)

    def volume(self, name: str) -> str:
        full = f"{self.name}-{name}"
        podman("volume", "create", full)
        self._volumes.append(full)
        return full

    def run(self, program: str, name: str, variables: dict[str, str],
            *options: str) -> str:
        """Starts a container that others find under `name`; returns its id."""
        container = f"{self.name}-{name}"
        self._containers.append(container)
        podman("run", "--detach", "--pull=never", f"--name={container}",
               f"--network={self.name}", f"--network-alias={name}", *CONFINED,
               *(f"--env={key}={value}" for key, value in variables.items()),
               *options, IMAGES[program])
        return container

    def address(self, container: str) -> str:
        """Returns its address within the network, for this machine."""
        networks = inspect(container)["NetworkSettings"]["Networks"]
        return networks[self.name]["IPAddress"]


def inspect(container: str) -> dict:
    only, = json.loads(podman("inspect", container).stdout)
    return only


def wait(container: str) -> int:
    """Waits for its end and returns the exit code."""
    return int(podman("wait", container).stdout)


def log(container: str) -> str:
    result = podman("logs", container, check=False)
    return result.stdout + result.stderr


def page(address: str, port: int, path: str) -> str:
    """Returns the page served there; empty while nothing answers yet."""
    try:
        with urllib.request.urlopen(f"http://{address}:{port}{path}",
                                    timeout=20) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.SERVICE_UNAVAILABLE:
            return ""
        raise
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            return ""
        raise


def until(condition, what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Polls, and names what did not come on failure."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"gave up waiting for {what}")
        time.sleep(0.1)


def model_digest(volume: str) -> str:
    """SHA-256 of the model that a server left in a volume."""
    only, = json.loads(podman("volume", "inspect", volume).stdout)
    return hashlib.sha256((pathlib.Path(only["Mountpoint"]) /
                           "results/model.safetensors").read_bytes()
                          ).hexdigest()
