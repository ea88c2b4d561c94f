"""Buffers of a model besides those of its batch norms. The server does not keep
them, so they must not change."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from cohort import _core, _devices, _errors

# A digest as a number that a sum of float64 over all workers holds exactly.
_DIGEST_BITS = 40


class Buffers:
    """The buffers of a model, without those of some layers.

    Args:
        model: non-persistent buffers count, too.
        layers: their buffers are not watched.
    """

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module]) -> None:
        self._model = model
        self._layers = {id(layer) for layer in layers}
        # By name: shape and fingerprint.
        self._noted: dict[str, tuple[torch.Size, Any]] = {}

    def _each(self) -> Iterator[tuple[str, torch.Tensor]]:
        for prefix, module in self._model.named_modules():
            if id(module) in self._layers:
                continue
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.layout is torch.strided:
                    yield f"{prefix}.{name}" if prefix else name, buffer

    def note(self) -> None:
        """A step begins: what is new must stay as it is."""
        for name, buffer in self._each():
            if name not in self._noted:
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
        for _, buffer in each:
            printed = _devices.fingerprint(buffer.detach().cpu())
            digest = (digest * 31 + int(printed)) % (1 << _DIGEST_BITS)
        total, members = worker.sum_of_weights("buffers", float(digest))
        if total != digest * members:
            names = ", ".join(name for name, _ in each[:3])
            raise _errors.ConfigurationError(
                f"{names}{', ...' if len(each) > 3 else ''}: buffers differ "
                "between workers, and the server does not exchange them; call "
                "torch.manual_seed() before the model is made")

    def check(self) -> None:
        """Raises UsageError if one has changed. One that has another shape now is
        made of the shape of a batch, such as a grid of positions."""
        for name, buffer in self._each():
            shape, printed = self._noted.get(name, (None, None))
            if shape != buffer.shape or _devices.same(
                    printed, _devices.fingerprint(buffer)):
                continue
            raise _errors.UsageError(
                f"{name}: the script or the module writes this buffer, but the "
                "server does not keep it: workers would have different ones, or a "
                "replacement of one would lose it. Compute it without writing, or "
                "use a module without such state (spectral_norm, queues and "
                "observers of quantisation have it)")
