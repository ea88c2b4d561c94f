"""What torchrun, and other launchers of torch.distributed, tell a process."""

import dataclasses
import os

from cohort import _errors

# All four are set for each process; LOCAL_WORLD_SIZE only by torchrun.
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclasses.dataclass(frozen=True)
class Gang:
    """The processes that were started together, and this one's place."""
    rank: int
    size: int
    # Host and port of torch's own store, on the machine of rank 0.
    host: str
    port: int
    one_machine: bool
    # After processes of the gang were lost.
    started_again: bool


def number(name: str, text: str) -> int:
    """The number in a variable.

    Raises:
        ConfigurationError: it has none.
    """
    if not text.isdigit():
        raise _errors.ConfigurationError(
            f"{name}: got {text!r}, want a number of at least 0")
    return int(text)


def gang() -> Gang | None:
    """The gang of this process; None if it was started in another way.

    Raises:
        ConfigurationError: a variable is no number, or the rank is too large.
    """
    values = {name: os.environ.get(name, "") for name in _VARIABLES}
    # RANK alone may be anything.
    if not all(values.values()):
        return None
    rank, size, port = (number(name, values[name])
                        for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if rank >= size:
        raise _errors.ConfigurationError(
            f"RANK: got {rank}, want less than WORLD_SIZE, {size}")
    host = values["MASTER_ADDR"]
    return Gang(rank, size, host, port, one_machine=(
        host in ("localhost", "127.0.0.1", "::1") or
        os.environ.get("LOCAL_WORLD_SIZE") == str(size)),
        started_again=os.environ.get("TORCHELASTIC_RESTART_COUNT",
                                     "0") != "0")
