"""The moving statistics in a model's buffers, which are those of a version."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from cohort import _core, _devices


class _Buffers:
    """Those of one layer, and as C++ reads and writes them.

    Attributes:
        own: mean, variance and number of batches; None: it has none.
        host: the same in host memory.
    """

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer
        self.own: tuple[torch.Tensor | None, ...] = ()
        self.host: tuple[torch.Tensor | None, ...] = ()
        # A tensor may move, by share_memory() or `.data`.
        self._places: list[int] = []
        self.adopt()

    def adopt(self) -> bool:
        """Takes what the layer has now, such as a tensor that the script has
        assigned. Returns whether there was something new."""
        now = tuple(getattr(self._layer, name, None) for name in
                    ("running_mean", "running_var", "num_batches_tracked"))
        places = _addresses(now)
        if len(self.own) == 3 and places == self._places and all(
                a is b for a, b in zip(now, self.own)):
            return False
        self.own, self._places = now, places
        self.host = tuple(
            buffer if buffer is None or self._is_shared(buffer)
            else torch.empty(buffer.shape, dtype=buffer.dtype)
            for buffer in now)
        return True

    @staticmethod
    def _is_shared(buffer: torch.Tensor) -> bool:
        return _devices.on_host(buffer.device) and buffer.is_contiguous()

    def addresses(self) -> list[int]:
        return _addresses(self.host)


def _addresses(buffers: Sequence[torch.Tensor | None]) -> list[int]:
    return [0 if buffer is None else buffer.data_ptr() for buffer in buffers]


class MovingStatistics:
    """The moving statistics of a model's layers. C++ moves them and finds what
    the script has written; here are the tensors.

    Args:
        layers: in the order of the registered model.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._buffers = [_Buffers(layer) for layer in layers]
        self._worker: Any = None

    def attach(self, worker: "_core.Worker") -> None:
        """The run is joined; the model is where it stays."""
        self._worker = worker
        for buffers in self._buffers:
            buffers.own = ()
            buffers.adopt()
        self._attach()

    def detach(self) -> None:
        """The worker, which owns connections and a port, is no longer used."""
        self._worker = None

    def _attach(self) -> None:
        self._worker.attach_statistics(
            [buffers.addresses() for buffers in self._buffers])

    def owns(self, layer: int, mean: torch.Tensor | None) -> bool:
        """Whether `mean` is the layer's own, rather than put in its place for a
        call (functional_call)."""
        return mean is not None and mean is self._buffers[layer].own[0]

    def layer_of(self, mean: torch.Tensor | None) -> int | None:
        """The layer whose moving mean this tensor is."""
        if mean is None:
            return None
        address = mean.data_ptr()
        for number, buffers in enumerate(self._buffers):
            own = buffers.own[0] if buffers.own else None
            if own is mean or (own is not None and own.numel() and
                               own.data_ptr() == address):
                return number
        return None

    def adopt(self, layer: int | None = None) -> None:
        """C++ gets the addresses of what the layer has now; of all layers, if it is
        None."""
        if any([buffers.adopt() for buffers in (
                self._buffers if layer is None else [self._buffers[layer]])]):
            self._attach()

    def fetch(self) -> None:
        """What is on a device is read by C++ afterwards."""
        self.adopt()
        with torch.no_grad():
            for own, host in self._mirrored():
                host.copy_(own)

    def _mirrored(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(own, host) for buffers in self._buffers
                for own, host in zip(buffers.own, buffers.host)
                if own is not None and host is not None and own is not host]

    def capture(self) -> None:
        """Notes what the script has written since the last step: it comes before
        the first call of the next one."""
        self.fetch()
        self._worker.capture_statistics()

    def load(self) -> None:
        """The model gets the statistics of the version that the worker holds."""
        self.adopt()
        self._worker.load_statistics()
        self._upload()

    def show(self, pulled: "_core.Pulled") -> None:
        """The model gets other statistics, until `load`."""
        self.adopt()
        self._worker.show_statistics(pulled)
        self._upload()

    def _upload(self) -> None:
        with torch.no_grad():
            for own, host in self._mirrored():
                own.copy_(host)


@contextlib.contextmanager
def uncounted(tracked: torch.Tensor | None) -> Any:
    """The number of batches in here stays."""
    before = None if tracked is None else tracked.clone()
    try:
        yield
    finally:
        if tracked is not None:
            with torch.no_grad():
                tracked.copy_(before)
