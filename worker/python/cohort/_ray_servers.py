"""The actor of Ray that runs cohort-server."""

import csv
import importlib
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from cohort import _server


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
        self._results = pathlib.Path(flags["results_dir"])

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
