"""Actors of Ray that run cohort-server: the server of a run and its data shards."""

import csv
import importlib
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from cohort import _errors, _server

# Exit codes of a server that would end so again.
FINAL_CODES = (2, 3, 7, 8)
# Flags of the server that are a data shard's too. It gets the others from the
# server, and must not take its ports and files.
_SHARD_FLAGS = ("workers", "insecure", "tls_cert", "tls_key", "tls_ca",
                "connections_per_address", "fold_threads", "inflight_mib",
                "log_level")


class CohortServer:
    """Runs cohort-server on its node."""

    def __init__(self, flags: Mapping[str, Any], loopback: bool,
                 before: str | None) -> None:
        """Args:
            before: HOST:PORT of the server that this one replaces.
        """
        host = "127.0.0.1" if loopback else _node_address()
        port = before.rpartition(":")[2] if (
            before is not None and before.rpartition(":")[0] == host) else "0"
        self._server = _server.EmbeddedServer(
            {"listen": f"{host}:{port}", **flags}, patience=60.0 if before else 0)
        # A data shard has none.
        self._results = pathlib.Path(str(flags.get("results_dir", "")))

    def address(self) -> str:
        return self._server.address

    def exit_code(self) -> int | None:
        return self._server.exit_code()

    def log(self) -> str:
        return self._server.log()

    def results(self) -> tuple[dict[str, Any], str | None]:
        model = self._results / "model.safetensors"
        return (_last_line(self._results / "history.csv"),
                str(model) if model.exists() else None)

    def close(self) -> None:
        self._server.close()


def _node_address() -> str:
    return str(importlib.import_module("ray").util.get_node_ip_address())


def _last_line(history: pathlib.Path) -> dict[str, Any]:
    if not history.exists():
        return {}
    with history.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return {}
    return {name: _number(text) for name, text in rows[-1].items() if text}


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def reason_of(error: Exception) -> str:
    """The message of an error of Ray, which comes with a stack."""
    text = str(error).strip()
    names = list(re.finditer(r"^[\w.]*(?:Error|Exception): ", text, re.M))
    return text[names[-1].end():] if names else text.rpartition("\n")[2].strip()


def address_of(ray: Any, server: Any,
               meanwhile: Callable[[], None] = lambda: None) -> str:
    """Where a new server listens.

    Args:
        meanwhile: called every second until it does.

    Raises:
        TrainingError: it did not start.
    """
    call = server.address.remote()
    while not ray.wait([call], timeout=1.0)[0]:
        meanwhile()
    try:
        return str(ray.get(call))
    except ray.exceptions.RayError as error:
        # An actor whose constructor raised: its text has the reason.
        raise _errors.TrainingError(reason_of(error)) from None


def exit_code_of(ray: Any, server: Any) -> int | None:
    """None if the server runs; -1 if its actor is lost."""
    try:
        code = ray.get(server.exit_code.remote())
    except ray.exceptions.RayActorError:
        return -1
    return None if code is None else int(code)


class DataShards:
    """Data shards of a run, which are started again.

    Attributes:
        addresses: where they listen, in order.
    """

    def __init__(self, ray: Any, count: int, max_restarts: int,
                 start: Callable[[int, str | None], Any]) -> None:
        """Args:
            start: starts the actor of a data shard, counted from 0, in place of
                the one at an address.
        """
        self._ray = ray
        self._max_restarts = max_restarts
        self._start = start
        self._restarts = [0] * count
        self._actors = [start(i, None) for i in range(count)]
        self.addresses = [address_of(ray, actor) for actor in self._actors]

    def check(self) -> bool:
        """Starts lost ones again. True if one has another address then, of
        which the server must be told.

        Raises:
            TrainingError: one was lost too often, or would end so again.
        """
        before = list(self.addresses)
        for i, actor in enumerate(self._actors):
            code = exit_code_of(self._ray, actor)
            # It ends by itself, just before the server.
            if code is not None and code != 0:
                self._replace(i, code)
        return self.addresses != before

    def _replace(self, i: int, code: int) -> None:
        why = ("its actor was lost" if code == -1 else f"exit code {code}: "
               f"{self._ray.get(self._actors[i].log.remote())}")
        if code in FINAL_CODES or self._restarts[i] >= self._max_restarts:
            raise _errors.TrainingError(
                f"data shard {i + 1} was lost {self._restarts[i] + 1} times "
                f"(max_restarts={self._max_restarts}), at last: {why}")
        self._restarts[i] += 1
        print(f"cohort.ray: data shard {i + 1} was lost and is started again; "
              "the run goes on from the newest checkpoint", flush=True)
        self._ray.kill(self._actors[i])
        self._actors[i] = self._start(i, self.addresses[i])
        self.addresses[i] = address_of(self._ray, self._actors[i])

    def release(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)


def shard_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a data shard of a server with `flags`."""
    return {"data_shard": True,
            **{name: flags[name] for name in _SHARD_FLAGS if name in flags}}
