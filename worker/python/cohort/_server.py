"""The server of a job: an address, or a server of this process's own."""

import atexit
import contextlib
import ctypes
import dataclasses
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from cohort import _errors

# Variables of launchers that start several processes of a job.
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_PR_SET_PDEATHSIG = 1


def _others() -> str | None:
    """The variable that says that there are other workers."""
    if os.environ.get("COHORT_RANK"):
        return "COHORT_RANK"
    for name in _SIZES:
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 1:
            return name
    return None


@dataclasses.dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files; all empty without encryption."""
    cert: str
    key: str
    ca: str


# Variables of a process's own certificate, as all programs read them.
_TLS_VARIABLES = ("COHORT_TLS_CERT", "COHORT_TLS_KEY", "COHORT_TLS_CA")


def tls_files(cert: str | None, key: str | None, ca: str | None) -> TlsFiles:
    """The files given, or else those that the environment names."""
    return TlsFiles(*(os.environ.get(variable, "") if given is None else given
                      for given, variable in zip((cert, key, ca),
                                                 _TLS_VARIABLES, strict=True)))


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


class EmbeddedServer:
    """A cohort-server for this process alone. It ends with the process.

    Args:
        options: its flags, such as {"epochs": 3}.

    Raises:
        ConfigurationError: it did not start; the text has its own error.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cohort-")
        address = pathlib.Path(self._folder.name) / "address"
        log = pathlib.Path(self._folder.name) / "log"
        # Free ports: another script may run beside this one. The server prints
        # the address of its page.
        flags = {"workers": 1, "listen": "127.0.0.1:0",
                 "ops_listen": "127.0.0.1:0", "address_file": str(address), **options}
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [find_program("cohort-server"), *flags_of(flags)], stdout=None,
                stderr=out,
                # A worker's certificate is not the server's.
                env={name: value for name, value in os.environ.items()
                     if name not in _TLS_VARIABLES},
                # A terminal's Ctrl-C is for the script, which then needs its
                # server to leave in order.
                process_group=0,
                preexec_fn=functools.partial(_end_with, os.getpid()))
        while not address.exists():
            if self._process.poll() is not None:
                raise _errors.ConfigurationError(
                    "cohort-server did not start: " +
                    log.read_text(errors="replace").strip())
            time.sleep(0.02)
        self.address = address.read_text().strip()
        atexit.register(self.close)

    def close(self, finished: bool = False) -> None:
        """Waits until a finished run is written, or ends the server."""
        atexit.unregister(self.close)
        if finished:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=60)
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


def address_of(server: str | None,
               options: Mapping[str, Any]) -> tuple[str, EmbeddedServer | None]:
    """The server's address, and the server if it is this process's own.

    Raises:
        ConfigurationError: no address, although there are other workers.
    """
    if server and options:
        raise _errors.ConfigurationError(
            f"serve: got {dict(options)}, but the server at {server} has flags of "
            "its own; set them there")
    given = server or os.environ.get("COHORT_SERVER")
    if given:
        return given, None
    others = _others()
    if others is not None:
        raise _errors.ConfigurationError(
            f"no server: {others} says that other workers belong to this job, so "
            "this process cannot start a server for itself; start one with "
            "cohort-server --workers=N (or cohortctl run) and set "
            "COHORT_SERVER=HOST:PORT or cohort.join(server=...)")
    embedded = EmbeddedServer(options)
    return embedded.address, embedded
