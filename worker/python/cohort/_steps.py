"""The number of steps of a run, before it is joined."""

import json
import os
import subprocess
from collections.abc import Mapping, Sized
from typing import Any

from cohort import _core, _errors, _server, _torchrun

# The server's default of --epochs.
_EPOCHS = 5


def _asked(address: str, *verb: str) -> dict[str, Any]:
    """The output of cohortctl.

    Raises:
        ConfigurationError: it has no answer; the text has its reason.
    """
    done = subprocess.run(
        [_server.find_program("cohortctl"), *verb, f"--server={address}", "--json"],
        capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _errors.ConfigurationError(
            f"cohort.steps(): {' '.join(done.stderr.split())} (A worker's "
            "certificate does not permit this request: pass workers= and epochs=.)")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _of_the_server(address: str) -> tuple[int, int, int]:
    """Workers, epochs, and samples of a step or 0."""
    status = _asked(address, "status")
    settings = _asked(address, "policy", "get")["settings"]
    least, _, most = str(settings["workers"]).rpartition(":")
    if least:
        _core.log("warning", f"cohort.steps(): the cohort is elastic, {least} to "
                  f"{most} workers: an epoch has fewer steps the more there are; "
                  f"counted with {most}")
    together = str(settings["global_batch"])
    return (int(most), int(status["epochs"]),
            int(together) if together.isdigit() else 0)


def steps(samples: Sized | int, batch_size: int, *, workers: int | None = None,
          epochs: int | None = None, server: str | None = None,
          server_flags: Mapping[str, Any] | None = None) -> int:
    """The steps of the whole run, for schedules such as OneCycleLR that want
    their number before `cohort.join`.

        total = cohort.steps(dataset, batch_size=16)
        scheduler = OneCycleLR(optimizer, 1.0, total)
        job = cohort.join(model, optimizer, schedulers=[scheduler])

    It is epochs times `len(job.data(...))` within an epoch, without parts
    (`accumulate`): all workers are there and have this batch size. Steps that are
    void do not count. A server with --max_steps may end the run before; then, and
    with own data, the number is that flag's. With `local_steps` of `cohort.join` it
    counts these; that flag's steps have so many each.

    Args:
        samples: the data set, or its length.
        batch_size: samples of this worker in a step.
        workers: of the run; by default the server is asked.
        epochs: the same.
        server: as in `cohort.join`.
        server_flags: those given to `cohort.join` as server_flags or serve, if it
            starts the server.

    Raises:
        ConfigurationError: the server does not answer, or may not; or there are
            no epochs.
    """
    count = samples if isinstance(samples, int) else len(samples)
    if count < 1 or batch_size < 1:
        raise _errors.ConfigurationError(
            f"cohort.steps(): got {count} samples and batch_size {batch_size}, "
            "want at least 1")
    address = server or os.environ.get("COHORT_SERVER")
    together = 0
    if workers is None or epochs is None:
        if address:
            found, turns, together = _of_the_server(address)
        else:
            flags = server_flags or {}
            gang = _torchrun.gang()
            found = int(flags.get("workers", gang.size if gang else 1))
            turns = int(flags.get("epochs", _EPOCHS))
            together = int(flags.get("global_batch", 0))
        workers = found if workers is None else workers
        epochs = turns if epochs is None else epochs
    if epochs < 1:
        raise _errors.ConfigurationError(
            "cohort.steps(): the run has no epochs, as its workers bring their own "
            "data; its number of steps is the server's --max_steps")
    return epochs * -(-count // (together or workers * batch_size))
