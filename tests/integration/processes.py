"""Starts servers and workers as a user would, and ends only what it started."""

import contextlib
import csv
import functools
import hashlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

BIN = pathlib.Path(os.environ["COHORT_BIN_DIR"])

# Whether processes have certificates and encrypt: part tls of tests/run.
# The programs refuse variables that they do not know.
TLS = os.environ.pop("COHORT_TEST_TLS", "") == "1"
_pki = None

# How often a test repeats a kill at a random moment.
KILLS = int(os.environ.get("COHORT_KILLS", "1"))

# How long to wait for what has to come. It only bounds a hang: a machine that is
# busy with other things may take long for all of it.
PATIENCE_S = 900

# Small and fast, but real: a network with three batch norms, two workers.
WORKER_FLAGS = ["--model=smooth", "--dataset=synthetic", "--batch_size=32"]


def certificates_of(role):
    """The environment of a process with the certificate of `role`, such as
    "server-0"."""
    global _pki
    if _pki is None:
        _pki = tempfile.TemporaryDirectory(prefix="cohort-pki-")
        subprocess.run([BIN / "cohortctl", "certs", "init", "--run=test",
                        f"--dir={_pki.name}/pki"], check=True,
                       capture_output=True)
    own = f"{_pki.name}/pki/{role}"
    return {"COHORT_TLS_CERT": f"{own}/tls.crt",
            "COHORT_TLS_KEY": f"{own}/tls.key",
            "COHORT_TLS_CA": f"{own}/ca.crt"}


def tls_variables(role):
    """The same; empty unless this run of the tests encrypts."""
    return certificates_of(role) if TLS else {}


def _role_of(program):
    return {"cohort-server": "server-0",
            "cohort-worker": "worker-any"}.get(program, "operator")


class Cohort:
    """One server and its workers in a separate folder."""

    def __init__(self, workers=2, server_flags=(), worker_flags=WORKER_FLAGS,
                 keeps=False):
        """`keeps`: the server writes checkpoints."""
        self._folder = tempfile.TemporaryDirectory(prefix="cohort-test-")
        self.dir = pathlib.Path(self._folder.name)
        self.results = self.dir / "results"
        self.checkpoints = self.dir / "checkpoints"
        self.checkpoints.mkdir()
        self.size = workers
        self.worker_flags = list(worker_flags)
        self.server_flags = [f"--workers={workers}", *server_flags]
        if keeps:
            self.server_flags.append(f"--checkpoint_dir={self.checkpoints}")
        # How gradients and weights travel: a value of --local, one for each
        # rank, or "mixed".
        self.local = "mixed"
        # A command that those of server and workers are appended to.
        self.wrapper = []
        # Variables that processes get in addition to the present ones.
        self.environment = {}
        # Where workers find the server, which may be a proxy, and where it is.
        self.address = self.server_address = None
        self.server = None
        self.workers = {}
        self._started = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._folder.cleanup()

    def start_process(self, name, command):
        """Starts a process with its own log; it ends with the others."""
        # A wrapper's own comes first.
        program = next((pathlib.Path(word).name for word in reversed(command)
                        if str(word).startswith(str(BIN))), "")
        with open(self.dir / f"{name}.log", "ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log,
                                       env={**os.environ,
                                            **tls_variables(_role_of(program)),
                                            **self.environment})
        self._started.append(process)
        return process

    def start_server(self, *flags):
        """Starts the server, on its previous address if it had one."""
        file = self.dir / "address"
        file.unlink(missing_ok=True)
        proxied = self.server_address not in (None, self.address)
        listen = (self.server_address if proxied else self.address
                  ) or "127.0.0.1:0"
        given = [*self.server_flags, *flags]
        if not any(flag.startswith("--ops_listen") for flag in given):
            (self.dir / "ops").unlink(missing_ok=True)
            given += ["--ops_listen=127.0.0.1:0",
                      f"--ops_address_file={self.dir}/ops"]
        self.server = self.start_process("server", [
            *self.wrapper, BIN / "cohort-server", f"--listen={listen}",
            f"--address_file={file}", f"--results_dir={self.results}",
            *given])
        self.wait_until(lambda: file.exists() and file.read_text().strip(),
                        "the server to listen")
        self.server_address = file.read_text().strip()
        if not proxied:
            self.address = self.server_address

    def start_worker(self, rank, *flags, wrapper=()):
        """`wrapper`: in place of that of all."""
        local = self.local
        if local == "mixed":
            local = "auto" if rank % 2 == 0 else "tcp"
        if not isinstance(local, str):
            local = local[rank]
        self.workers[rank] = self.start_process(f"worker{rank}", [
            *(wrapper or self.wrapper), BIN / "cohort-worker", f"--server={self.address}",
            f"--rank={rank}", f"--local={local}", *self.worker_flags, *flags])
        return self.workers[rank]

    def start(self, *flags):
        self.start_server(*flags)
        for rank in range(self.size):
            self.start_worker(rank)

    def resume_server(self):
        """Kills the server, and starts its replacement."""
        kill(self.server)
        self.start_server("--resume")

    def wait_until(self, condition, what):
        """Polls, and fails early if the server is gone."""
        def gone_or_there():
            gone = self.server.poll() is not None
            if condition():
                return True
            if gone:
                raise AssertionError(
                    f"the server ended while waiting for {what}:\n{self.log()}")
            return False
        self.until(gone_or_there, what)

    def until(self, poll, what):
        """Polls until it gets something, and returns that."""
        return until(poll, what, self.log)

    def await_log(self, name, text):
        """Polls a log until it holds a text."""
        try:
            self.until(lambda: text in self.log(name),
                       f"{name} to say '{text}'")
        except AssertionError as error:
            logs = "\n".join(path.read_text(errors="replace")
                             for path in sorted(self.dir.glob("*.log")))
            raise AssertionError(f"{error}; all logs:\n{logs}") from None

    def ctl(self, *words, code=0):
        """Runs cohortctl, which has to end with that exit code."""
        done = run("cohortctl", *words,
                   f"--server={self.server_address or self.address}")
        if done.returncode != code:
            raise AssertionError(
                f"{words} ended with {done.returncode}, want {code}: "
                f"{done.stdout}{done.stderr}\n{self.log()}")
        return done

    def json(self, *words):
        """What cohortctl answers to --json."""
        return json.loads(self.ctl(*words, "--json").stdout)

    def status(self):
        return self.json("status", "--timeout=60s")

    def await_version(self, version):
        self.wait_until(lambda: self.status()["version"] >= version,
                        f"version {version}")

    def await_checkpoint(self, version=1):
        self.wait_until(lambda: self.newest_checkpoint() >= version,
                        f"a checkpoint of version {version}")

    @property
    def ops(self):
        """The address of the server's operations port."""
        file = self.dir / "ops"
        return self.until(lambda: file.exists() and file.read_text().strip(),
                          "the operations port")

    def page(self, path="/metrics"):
        return get(f"http://{self.ops}{path}")

    def newest_checkpoint(self):
        # One of the same version again is named checkpoint-VERSION.NUMBER.
        versions = [int(path.name.split("-")[1].split(".")[0])
                    for path in self.checkpoints.glob("checkpoint-*")]
        return max(versions, default=0)

    def finish(self):
        """Waits for the server's end and returns its exit code."""
        try:
            return self.server.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"no end in sight:\n{self.log()}") from error

    def complete(self, code=0):
        """Waits for the end of the run, which has to be with that exit code;
        returns the digest of the model."""
        got = self.finish()
        if got != code:
            raise AssertionError(f"the server ended with {got}, want {code}:\n"
                                 f"{self.log()}\n{self.log('worker0')}")
        if (self.results / "model.safetensors").exists():
            return self.model_digest()
        return None

    def drain(self):
        """Ends the run, and returns the digest of the model."""
        self.ctl("run", "drain")
        return self.complete()

    def await_worker(self, rank, code=0):
        """Waits for its end with that exit code."""
        got = self.workers[rank].wait(PATIENCE_S)
        if got != code:
            raise AssertionError(f"worker {rank} ended with {got}, want {code}:\n"
                                 + self.log(f"worker{rank}"))

    def await_workers(self, code=0):
        for rank in self.workers:
            self.await_worker(rank, code)

    def rows(self, name="history.csv"):
        """A table of the results of a run that has ended."""
        if self.server.poll() is None:
            raise AssertionError(f"{name} is read before the server's end: "
                                 "complete() first, or rows_so_far()")
        return self.rows_so_far(name)

    def rows_so_far(self, name="history.csv"):
        """The same of any run. The server writes rows later than it answers
        calls, so a test waits for the row that it needs."""
        path = self.results / name
        if not path.exists():
            return []
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def log(self, name="server"):
        path = self.dir / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def model_digest(self):
        """SHA-256 of the exported weights and statistics."""
        return hashlib.sha256(
            (self.results / "model.safetensors").read_bytes()).hexdigest()


def until(poll, what, log=lambda: ""):
    """Polls until it gets something, and returns that."""
    end = time.monotonic() + PATIENCE_S
    while not (result := poll()):
        if time.monotonic() > end:
            raise AssertionError(f"gave up waiting for {what}:\n{log()}")
        time.sleep(0.01)
    return result


def get(url, context=None):
    """The body of an answer over HTTP, without a proxy."""
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=context))
    with opener.open(url, timeout=PATIENCE_S) as answer:
        return answer.read().decode()


def series(page):
    """Values by name with labels, of a page in Prometheus' text format."""
    return {name: float(value) for name, value in (
        line.rsplit(" ", 1) for line in page.splitlines()
        if line and not line.startswith("#"))}


@contextlib.contextmanager
def taken_address():
    """An address that a process listens at."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def run(program, *flags, environment=None):
    """Runs a program that is expected to end by itself.

    `environment`: variables in addition to the present ones.
    """
    return subprocess.run([BIN / program, *flags], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=PATIENCE_S,
                          env={**os.environ, **tls_variables(_role_of(program)),
                               **(environment or {})},
                          check=False)


@functools.cache
def own_network():
    """A command that runs another one in a separate network namespace, and the
    reason why there is none here."""
    why_not = ""
    for command in (["unshare", "--net"],
                    ["unshare", "--user", "--map-current-user", "--net"]):
        try:
            tried = subprocess.run([*command, "true"], capture_output=True,
                                   text=True, check=False)
        except OSError as error:
            return [], str(error)
        if tried.returncode == 0:
            return command, ""
        why_not = tried.stderr.strip()
    return [], why_not


def python_with_torch(interpreters=(sys.executable, "/usr/bin/python3")):
    """The first interpreter that has PyTorch: this one, or Debian's."""
    for python in interpreters:
        try:
            found = subprocess.run([python, "-c", "import torch"],
                                   capture_output=True, check=False)
        except OSError:
            continue
        if found.returncode == 0:
            return python
    return None
