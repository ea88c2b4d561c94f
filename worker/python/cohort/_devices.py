"""Where tensors are: in host memory, where the C++ kernels and the network
reach them, or in a GPU's, from where they are copied."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from cohort import _core, _errors

# torch's stubs have no types for streams and events.
_cuda: Any = torch.cuda


def on_host(device: torch.device) -> bool:
    """Whether C++ code can read tensors there."""
    return device.type == "cpu"


def check(device: torch.device, what: str) -> None:
    """Raises ConfigurationError unless tensors on `device` can be used."""
    if device.type not in ("cpu", "cuda"):
        raise _errors.ConfigurationError(
            f"{what} on {device}, want the CPU or a CUDA device")


def storage_of(tensor: torch.Tensor) -> int:
    """The address of the memory that a tensor is a view of."""
    # Releases before 2.0 have one kind of storage.
    storage: Any = (tensor.untyped_storage() if hasattr(tensor, "untyped_storage")
                    else tensor.storage())  # type: ignore[no-untyped-call]
    return int(storage.data_ptr())


# Bytes of a tensor on a GPU whose digest is computed at once.
_DIGEST_PIECE = 4 << 20


def fingerprint(tensor: torch.Tensor) -> Any:
    """A value that changes with a tensor's bits, however they are written: views
    by `.data` and NumPy leave no trace in torch. On a GPU it stays there."""
    tensor = tensor.detach()
    if not on_host(tensor.device):
        # A tensor without dimensions has no view of another type.
        whole = tensor.reshape(-1).view(torch.uint8)
        return whole.sum(dtype=torch.int64), tensor.float().norm()
    if not (tensor.is_contiguous() or tensor.dim() == 4 and
            tensor.is_contiguous(memory_format=torch.channels_last)):
        tensor = tensor.contiguous()
    return _core.digest(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def number_of(content: bytes) -> float:
    """A digest that float64 holds exactly."""
    digest = hashlib.blake2b(content, digest_size=6).digest()
    return float(int.from_bytes(digest, "little"))


def digests(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A number for each, which depends on its bits alone and is below 2^52. On
    one kind of device equal bits have equal numbers."""
    found = [_digest(tensor.detach().contiguous()) for tensor in tensors]
    there = [number for number in found if isinstance(number, torch.Tensor)]
    # All are waited for at once.
    waited = iter(torch.stack(there).tolist() if there else ())
    return [(next(waited) if isinstance(number, torch.Tensor) else number) %
            (1 << 52) for number in found]


def _digest(tensor: torch.Tensor) -> Any:
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return 0
    if on_host(tensor.device):
        return _core.digest(tensor.data_ptr(), size)
    whole = tensor.reshape(-1).view(torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    # In pieces, as each byte takes eight here. Sums of integers have no order.
    for begin in range(0, size, _DIGEST_PIECE):
        piece = whole[begin:begin + _DIGEST_PIECE].long()
        factors = torch.arange(begin + 1, begin + 1 + len(piece),
                               device=tensor.device) * 0x9E3779B97F4A7C1
        total = total + ((piece + 1) * (factors ^ (factors >> 29))).sum()
    return total


def same(before: Any, now: Any) -> bool:
    """Whether two fingerprints are equal."""
    if isinstance(before, tuple) and isinstance(now, tuple):
        return all(bool(torch.equal(a, b)) for a, b in zip(before, now))
    return bool(before == now)


def move(batch: Any, device: torch.device) -> Any:
    """A collated batch with its tensors on `device`."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        parts = [move(value, device) for value in batch]
        return (type(batch)(*parts) if hasattr(batch, "_fields") else
                type(batch)(parts))
    return batch


class Copy:
    """A copy of what a tensor on a GPU holds once the work so far is done, in host
    memory; it has been started on the stream."""

    def __init__(self, tensor: torch.Tensor, stream: Any) -> None:
        # The allocator gives pinned memory out again only when copies from and
        # to it are over.
        self.host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        computed = _cuda.current_stream(tensor.device)
        if stream != computed:
            stream.wait_stream(computed)
            tensor.record_stream(stream)
        with _cuda.stream(stream):
            self.host.copy_(tensor, non_blocking=True)
            self._event = _cuda.Event()
            self._event.record(stream)

    def is_done(self) -> bool:
        """Whether `host` may be read."""
        return bool(self._event.query())

    def wait(self) -> None:
        """Until it may be read."""
        self._event.synchronize()


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory. Waits for the work so far, by one event."""
    if tensor.device.type != "cuda":
        host: torch.Tensor = tensor.to("cpu", copy=True)
        return host
    copy = Copy(tensor, _cuda.current_stream(tensor.device))
    copy.wait()
    return copy.host


def from_host(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on `device`, for the work that follows."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    moved: torch.Tensor = tensor.to(device, non_blocking=True, copy=True)
    return moved


class HostWeights:
    """The parameters of a model as the network reads and writes them: row-major,
    in host memory. Those that lie otherwise have a copy there.

    Args:
        parameters: all on one device.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._device = parameters[0].device
        self.host = [parameter.detach()
                     if on_host(parameter.device) and parameter.is_contiguous()
                     else to_host(parameter.detach().contiguous())
                     for parameter in parameters]
        self._copied = {number: (host, parameter) for number, (host, parameter)
                        in enumerate(zip(self.host, parameters))
                        if host.data_ptr() != parameter.data_ptr()}
        self._uploaded: Any = None

    def upload(self, numbers: Iterable[int]) -> None:
        """The network has written: the parameters of these numbers get the
        values."""
        copied = [self._copied[number] for number in numbers
                  if number in self._copied]
        if not copied:
            return
        with torch.no_grad():
            for host, parameter in copied:
                parameter.copy_(host, non_blocking=True)
        if self._device.type == "cuda":
            self._uploaded = _cuda.Event()
            self._uploaded.record(_cuda.current_stream(self._device))

    def wait(self) -> None:
        """Until the network may write again."""
        if self._uploaded is not None:
            self._uploaded.synchronize()
            self._uploaded = None


class GradientQueue:
    """Hands gradients to the network in host memory, each as soon as it is
    there, while the backward pass continues.

    Args:
        device: of the parameters.
        deliver: called with a parameter's number and its contiguous gradient.
    """

    def __init__(self, device: torch.device,
                 deliver: Callable[[int, torch.Tensor], None]) -> None:
        self._on_host = on_host(device)
        # Copies run beside the computation.
        self._stream = _cuda.Stream(device) if device.type == "cuda" else None
        self._deliver = deliver
        self._started: list[tuple[int, Copy]] = []

    def add(self, number: int, gradient: torch.Tensor) -> None:
        """The gradient of parameter `number` is final."""
        gradient = gradient.contiguous()
        if self._on_host:
            self._deliver(number, gradient)
            return
        self._started.append((number, Copy(gradient, self._stream)))
        # In order: later copies are not done before earlier ones.
        while self._started and self._started[0][1].is_done():
            self._deliver_first()

    def finish(self) -> None:
        """Waits for the rest."""
        while self._started:
            self._started[0][1].wait()
            self._deliver_first()

    def clear(self) -> None:
        """The step is over."""
        self._started = []

    def _deliver_first(self) -> None:
        number, copy = self._started.pop(0)
        self._deliver(number, copy.host)
