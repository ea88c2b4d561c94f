"""The server of a job: an address, or a server of this process's own."""

import atexit
import contextlib
import ctypes
import dataclasses
import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from cohort import _errors, _torchrun

# Variables of launchers that start several processes of a job.
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_PR_SET_PDEATHSIG = 1
# Seconds that the server of an earlier rank 0 has to end.
_PATIENCE = 60.0


# The newest run that a job of this process has finished, by the address of its
# server: a server has one run.
finished_runs: dict[str, str] = {}
# Seconds for such a server to answer again, unless the script says how long.
AGAIN_TIMEOUT = 15.0


def second_join(address: str, why: str) -> _errors.UsageError:
    """The error of a job that joins where an earlier one of this process has
    finished its run."""
    return _errors.UsageError(
        f"cohort.join(): this process has finished the run of the server at "
        f"{address}, and a server has one run ({why}). Give each phase a server: "
        "start the script once for each, with `cohortctl run ... -- python3 "
        "train.py --phase=N`, and pass weights on in a file; or run it alone, "
        "without COHORT_SERVER: then each cohort.join() starts a server")


def _others() -> str | None:
    """The variable that says that there are other workers."""
    if os.environ.get("COHORT_RANK"):
        return "COHORT_RANK"
    for name in _SIZES:
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 1:
            return name
    return None


# Variables of a process's own certificate, as all programs read them.
_TLS_VARIABLES = ("COHORT_TLS_CERT", "COHORT_TLS_KEY", "COHORT_TLS_CA")


def find_program(name: str) -> str:
    """The path of a program of this release: in COHORT_BIN_DIR, beside the
    interpreter (where the wheel installs it), or on the PATH.

    Raises:
        ConfigurationError: it is nowhere.
    """
    places = [pathlib.Path(sys.executable).parent]
    if os.environ.get("COHORT_BIN_DIR"):
        places.insert(0, pathlib.Path(os.environ["COHORT_BIN_DIR"]))
    for place in places:
        if os.access(place / name, os.X_OK):
            return str(place / name)
    found = shutil.which(name)
    if found is None:
        raise _errors.ConfigurationError(
            f"{name}: not found in {', '.join(map(str, places))} or on the PATH; "
            "install the program, or set COHORT_BIN_DIR to its folder")
    return found


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """{"epochs": 3, "insecure": True} as ["--epochs=3", "--insecure=true"]."""
    return [f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in options.items()]


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # The parent may have ended before that took effect.
    if os.getppid() != parent:
        os._exit(1)


def _missing_shard(log: str) -> str | None:
    """What a server that starts says last of data shards that are not there."""
    told = re.findall("waiting for data shard .*", log)
    return told[-1] if told else None


class EmbeddedServer:
    """A cohort-server that belongs to this process, and ends with it.

    Args:
        options: its flags, such as {"epochs": 3}.
        patience: seconds in which a server before it may release its port and
            folders.

    Raises:
        ConfigurationError: it did not start; the text has its own error.
    """

    def __init__(self, options: Mapping[str, Any],
                 patience: float = 0.0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cohort-")
        address = pathlib.Path(self._folder.name) / "address"
        log = self._log = pathlib.Path(self._folder.name) / "log"
        # Free ports: another script may run beside this one. The server prints
        # the address of its page.
        flags = {"workers": 1, "listen": "127.0.0.1:0",
                 "ops_listen": "127.0.0.1:0", "address_file": str(address), **options}
        command = [find_program("cohort-server"), *flags_of(flags)]
        deadline = time.monotonic() + patience
        self._process = self._start(command, log)
        told = None
        while not address.exists():
            missing = _missing_shard(log.read_text(errors="replace"))
            if missing not in (None, told):
                told = missing
                print(f"cohort: {missing}", file=sys.stderr, flush=True)
            if self._process.poll() is not None:
                why = log.read_text(errors="replace").strip()
                taken = "in use" in why or "uses the port" in why
                if not taken or time.monotonic() > deadline:
                    raise _errors.ConfigurationError(
                        f"cohort-server did not start: {why}")
                self._process = self._start(command, log)
            time.sleep(0.02)
        self.address = address.read_text().strip()
        atexit.register(self.close)

    @staticmethod
    def _start(command: list[str],
               log: pathlib.Path) -> "subprocess.Popen[bytes]":
        with log.open("wb") as out:
            return subprocess.Popen(
                command, stdout=None, stderr=out,
                # A worker's certificate is not the server's.
                env={name: value for name, value in os.environ.items()
                     if name not in _TLS_VARIABLES},
                # A terminal's Ctrl-C is for the script, which then needs its
                # server to leave in order.
                process_group=0,
                preexec_fn=functools.partial(_end_with, os.getpid()))

    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def log(self) -> str:
        """The last lines that it has logged."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])

    def close(self, finished: bool = False) -> None:
        """Waits until a finished run is written, or ends the server."""
        atexit.unregister(self.close)
        if finished:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=60)
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


@dataclasses.dataclass(frozen=True)
class Reached:
    """The server of a job."""
    address: str
    # If it belongs to this process.
    own: EmbeddedServer | None
    # Only this process uses it: no other one can have its certificate.
    alone: bool


def _addresses_of_gang(gang: _torchrun.Gang, listen: str) -> tuple[str, str]:
    """Where the server of a gang listens, and where its other processes find it.

    Raises:
        ConfigurationError: they cannot find it.
    """
    if listen.startswith(("unix:", "unix-abstract:")):
        if not gang.one_machine:
            raise _errors.ConfigurationError(
                f"listen: got {listen}, want HOST:PORT: the job has processes "
                "on several machines")
        return listen, listen
    # Without a word to each other all processes must know the port.
    host, _, port = listen.rpartition(":")
    if not port:
        port = str(gang.port + 1)
    if not port.isdigit() or int(port) == 0:
        raise _errors.ConfigurationError(
            f"listen: got {listen}, want HOST:PORT with a port that all "
            "processes of the job know, so not 0")
    if not host:
        host = "127.0.0.1" if gang.one_machine else "0.0.0.0"
    found = "127.0.0.1" if gang.one_machine else gang.host
    return (f"{host}:{port}",
            f"[{found}]:{port}" if ":" in found else f"{found}:{port}")


def _shared_by_gang(gang: _torchrun.Gang, options: Mapping[str, Any],
                    insecure: bool) -> Reached:
    """The server of all processes of a gang, which that of rank 0 starts.

    Raises:
        ConfigurationError: it did not start, or its address is not known.
    """
    given = str(options.get("listen") or os.environ.get("COHORT_LISTEN") or "")
    listen, found = _addresses_of_gang(gang, given)
    if gang.rank != 0:
        return Reached(found, None, alone=False)
    flags = {"workers": gang.size, **options, "listen": listen}
    if insecure:
        flags.setdefault("insecure", True)
    if flags.get("checkpoint_dir") or os.environ.get("COHORT_CHECKPOINT_DIR"):
        # A launcher that starts the gang again expects it to continue.
        flags.setdefault("resume", True)
    # torchrun may start a gang while the server of the one before it, whose
    # rank 0 was killed, still writes its checkpoint.
    try:
        own = EmbeddedServer(flags,
                             patience=_PATIENCE if gang.started_again else 0)
    except _errors.ConfigurationError as error:
        if "--listen:" not in str(error):
            raise
        raise _errors.ConfigurationError(
            f"{error}. The port is {'that of listen' if given else 'MASTER_PORT + 1'}; "
            "set another one with server_flags={'listen': 'HOST:PORT'}, or with "
            "COHORT_LISTEN on all machines") from None
    host, _, port = own.address.rpartition(":")
    return Reached(f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]")
                   else own.address, own, alone=False)


def reach(server: str | None, serve: Mapping[str, Any] | str | None,
          server_flags: Mapping[str, Any] | None, insecure: bool) -> Reached:
    """Finds or starts the server; the arguments are those of `join`.

    Raises:
        ConfigurationError: no address, although there are other workers; or
            arguments that contradict each other.
    """
    if isinstance(serve, str) and serve != "rank0":
        raise _errors.ConfigurationError(
            f"serve: got {serve!r}, want 'rank0', or flags of the server such as "
            "{'epochs': 3}")
    options = {**(server_flags or {}),
               **(serve if isinstance(serve, Mapping) else {})}
    if server and (serve or options):
        raise _errors.ConfigurationError(
            f"serve: got {options or serve}, but the server at {server} was started "
            "separately; set its flags there")
    given = server or os.environ.get("COHORT_SERVER")
    if given:
        return Reached(given, None, alone=False)
    gang = _torchrun.gang()
    others = _others()
    if serve == "rank0" and gang is not None and gang.size > 1:
        return _shared_by_gang(gang, options, insecure)
    if others is not None:
        raise _errors.ConfigurationError(_no_server(others, serve, gang))
    own = EmbeddedServer(options)
    return Reached(own.address, own, alone=True)


def _no_server(others: str, serve: object, gang: _torchrun.Gang | None) -> str:
    text = (f"no server: {others} says that other workers belong to this job, so "
            "this process cannot start a server for itself; start one with "
            "cohort-server --workers=N (or cohortctl run) and set "
            "COHORT_SERVER=HOST:PORT or cohort.join(server=...)")
    if serve == "rank0":
        return text + ("; serve='rank0' needs RANK, WORLD_SIZE, MASTER_ADDR and "
                       "MASTER_PORT, which torchrun sets")
    if gang is not None:
        return text + ("; or let rank 0 start one: "
                       "cohort.join(serve='rank0', server_flags={...})")
    return text
