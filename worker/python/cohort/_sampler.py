"""The order of epochs that a sampler of the script decides."""

import array
import hashlib
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch

from cohort import _core, _data, _errors


def check_sampler(sampler: Any) -> None:
    """Raises UsageError if it cannot decide the order of a run."""
    name = type(sampler).__name__
    if hasattr(sampler, "num_replicas"):
        raise _errors.UsageError(
            f"job.data(sampler=...): got a {name}, which shards the data set, but "
            "the server shards each epoch already; remove it (without a sampler "
            "the server shuffles), or pass a sampler of the whole data set")
    if not (hasattr(sampler, "__iter__") and isinstance(sampler, Sized)):
        raise _errors.UsageError(
            f"job.data(sampler=...): got a {name}, want an iterable of indices "
            "with a length, the samples of an epoch; for an endless one pass "
            "DataLoader(dataset, batch_size=..., sampler=...) as own data")


def _generators(sampler: Any) -> Iterator[torch.Generator]:
    """Those that a sampler, and samplers in it, draw from."""
    for value in getattr(sampler, "__dict__", {}).values():
        if isinstance(value, torch.Generator):
            yield value
        elif isinstance(value, torch.utils.data.Sampler):
            yield from _generators(value)


class SampledOrder:
    """The samples behind the positions that the server hands out, as a sampler
    yields them. They are drawn again for each epoch, with a seed of the run and
    the epoch, so that all workers and their replacements have the same.

    Args:
        sampler: has passed `check_sampler`.
        seed: the run's.

    Raises:
        ConfigurationError: the sampler depends on more than that seed.
    """

    # With replacement a sample comes several times in an epoch; its random
    # augmentation is another each time, as in torch.
    by_position = True

    def __init__(self, sampler: Any, seed: int) -> None:
        self._sampler = sampler
        self._seed = seed
        self.size = len(sampler)
        self._epoch = 0
        self._drawn = self._draw(0)
        if self._draw(0) != self._drawn:
            raise _errors.ConfigurationError(
                f"job.data(sampler=...): the {type(sampler).__name__} yields "
                "different samples when it is iterated again with the same seed: "
                "it depends on a counter or on a generator that the seed does not "
                "reach, so workers would differ; draw from the global generator of "
                "torch, NumPy or Python or from a torch.Generator that is its "
                "attribute, and take the epoch from a method set_epoch(epoch)")
        self._digest = self._digest_now()

    def _draw(self, epoch: int) -> Sequence[Any]:
        seed = _core.mix_seed(self._seed, epoch)
        _data.seed_everything(seed)
        for generator in _generators(self._sampler):
            generator.manual_seed(seed)
        if callable(getattr(self._sampler, "set_epoch", None)):
            self._sampler.set_epoch(epoch)
        drawn = list(self._sampler)
        if len(drawn) != self.size:
            raise _errors.UsageError(
                f"job.data(sampler=...): the {type(self._sampler).__name__} yields "
                f"{len(drawn)} samples in epoch {epoch}, want {self.size}, its "
                "length when the run began: the server hands out those. Make it "
                "yield the same number in each epoch, which __len__ returns, or "
                "pass a DataLoader with this sampler as own data")
        try:
            return array.array("q", drawn)
        except TypeError:  # keys of the script's own, such as pairs
            return drawn

    def _digest_now(self) -> bytes:
        content = (self._drawn.tobytes() if isinstance(self._drawn, array.array)
                   else repr(self._drawn).encode())
        return hashlib.blake2b(content, digest_size=16).digest()

    def indices(self, epoch: int, begin: int, end: int) -> list[Any]:
        """Samples of the positions [begin, end) in `epoch`."""
        if self._epoch != epoch:
            self._drawn = self._draw(epoch)
            self._digest = self._digest_now()
            self._epoch = epoch
        return list(self._drawn[begin:end])

    def digest(self) -> bytes:
        """A digest of the epoch that was last read."""
        return self._digest
