"""Buffers of a model besides those of its batch norms. The server does not keep
them, so they must not change."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from cohort import _core, _devices, _errors

# A digest as a number that float64 holds exactly.
_DIGEST_BITS = 52


# The buffers of a batch norm that the server keeps.
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Buffers:
    """The buffers of a model, without the moving statistics of some layers.

    Args:
        model: non-persistent buffers count, too.
        layers: the batch norms.
    """

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module]) -> None:
        self._model = model
        self._layers = {id(layer) for layer in layers}
        # The first step has begun.
        self._begun = False
        # By name: shape and fingerprint.
        self._noted: dict[str, tuple[torch.Size, Any]] = {}

    def _each(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Names, buffers, and whether they are in the state dict."""
        for prefix, module in self._model.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is None or buffer.layout is not torch.strided or (
                        id(module) in self._layers and name in _STATISTICS):
                    continue
                yield (f"{prefix}.{name}" if prefix else name, buffer,
                       name not in module._non_persistent_buffers_set)

    def note(self) -> None:
        """A step begins: what is new must stay as it is."""
        first, self._begun = not self._begun, True
        for name, buffer, persistent in self._each():
            if name not in self._noted and (first or not persistent):
                self._noted[name] = (buffer.shape, _devices.fingerprint(buffer))

    def compare(self, worker: "_core.Worker") -> None:
        """In the run's first step: all members meet here, if they have buffers.

        Raises:
            ConfigurationError: another member has other ones.
        """
        each = list(self._each())
        if not each:
            return
        digest = 0
        for _, buffer, _ in each:
            printed = _devices.fingerprint(buffer.detach().cpu())
            digest = (digest * 31 + int(printed)) % (1 << _DIGEST_BITS)
        _, (spread,), _ = worker.meet("buffers", [float(digest)])
        if spread > 0:
            names = ", ".join(name for name, _, _ in each[:3])
            raise _errors.ConfigurationError(
                f"{names}{', ...' if len(each) > 3 else ''}: buffers differ "
                "between workers, and the server does not exchange them; call "
                "torch.manual_seed() before the model is made")

    def check(self) -> None:
        """Raises UsageError if one has changed. One that is in no state dict and
        has another shape now is made of the shape of a batch, such as a grid of
        positions."""
        for name, buffer, persistent in self._each():
            shape, printed = self._noted.get(name, (None, None))
            if shape != buffer.shape:
                if not persistent:
                    continue
            elif _devices.same(printed, _devices.fingerprint(buffer)):
                continue
            raise _errors.UsageError(
                f"{name}: the script or the module writes this buffer, but the "
                "server does not keep it: workers would have different ones, or a "
                "replacement of one would lose it. Make it before cohort.join(); "
                "compute it without writing, or with persistent=False if it is made "
                "of a batch's shape; or use a module without such state "
                "(spectral_norm, queues and observers of quantisation have it)")
