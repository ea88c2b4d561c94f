"""Where batches come from: samples of a data set that the server names by
number, or batches of the worker's own."""

import array
import hashlib
import multiprocessing
import os
import pickle
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, Protocol

import torch

from cohort import _batches, _core, _errors

if TYPE_CHECKING:
    from cohort._sampler import SampledOrder

try:
    import numpy
except ImportError:  # torch works without it
    numpy = None  # type: ignore[assignment]


def seed_everything(seed: int) -> None:
    """Seeds torch, random and NumPy. `seed` is a 64-bit number."""
    # torch.manual_seed also seeds GPUs. Until one is used, it does so by adding
    # to a list, with a stack trace, at each call.
    torch.default_generator.manual_seed(seed)
    if (torch.cuda.is_available() and
            torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


class MapDataset(Protocol):
    """A data set whose samples have numbers: torch's Dataset with a length."""

    def __getitem__(self, index: int) -> Any: ...

    def __len__(self) -> int: ...


def is_map_style(data: Any) -> bool:
    """Whether samples can be read by number."""
    return (hasattr(data, "__getitem__") and isinstance(data, Sized) and
            not isinstance(data, (torch.utils.data.DataLoader,
                                  torch.utils.data.IterableDataset)))


# The address of an object, as default representations print it.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

# How often a sample is read to see whether the readings are equal. A flip that
# happens every second time is alike three times in four samples only once in 256.
_READINGS = 3


def _described(item: object) -> str:
    """An object as text that is the same in all processes."""
    if isinstance(item, (set, frozenset)):
        # Their order depends on the process.
        return f"{type(item).__name__}{sorted(_described(part) for part in item)}"
    return _ADDRESS.sub("", repr(item))


def _feed(digest: "hashlib._Hash", item: Any) -> None:
    """Adds an item to a digest: tensors and arrays by their bytes."""
    if isinstance(item, torch.Tensor):
        digest.update(f"{item.dtype}{tuple(item.shape)}".encode())
        flat = item.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            raw = flat.view(torch.uint8)
            digest.update(bytes(raw.tolist()) if numpy is None else raw.numpy())
    elif isinstance(item, dict):
        for key in sorted(item, key=str):
            digest.update(str(key).encode())
            _feed(digest, item[key])
    elif isinstance(item, (list, tuple)):
        for part in item:
            _feed(digest, part)
    elif hasattr(item, "tobytes") and getattr(item, "dtype", None) != object:
        digest.update(item.tobytes())
    else:
        digest.update(_described(item).encode())


def _outline(item: Any, extents: bool) -> str:
    """The types and lengths of an item, without its values.

    Args:
        item: a sample.
        extents: with the extents of tensors and the lengths of lists.
    """
    if isinstance(item, dict):
        inside = ",".join(f"{key}:{_outline(item[key], extents)}"
                          for key in sorted(item, key=str))
        return f"{{{inside}}}"
    if isinstance(item, tuple) or (isinstance(item, list) and extents):
        return f"({','.join(_outline(part, extents) for part in item)})"
    name = type(item).__name__
    shape = getattr(item, "shape", None)
    if shape is None:
        return name
    return (f"{name} {getattr(item, 'dtype', '')} "
            f"{tuple(shape) if extents else len(shape)}")


def _outline_of(samples: Sequence[Sequence[Any]]) -> str:
    """The common part of several readings of several samples."""
    detailed = {_outline(reading, True) for readings in samples
                for reading in readings}
    # If samples have one size, another worker is likely to find the same.
    if len(detailed) == 1:
        return detailed.pop()
    return str([outlines.pop() if len(outlines) == 1 else "" for outlines in
                ({_outline(reading, False) for reading in readings}
                 for readings in samples)])


def digest_of(dataset: MapDataset, seed: int,
              order: "SampledOrder | None" = None) -> str:
    """A digest of the length and of four samples, so that workers with other
    data are refused. Reading every sample would take as long as an epoch.

    Samples that do not depend on the seed alone (separate random numbers)
    are compared by types and shapes; the log says so.

    Args:
        dataset: the samples.
        seed: the run's.
        order: of a sampler, whose first epoch is part of the digest. Other
            samples than it yields may not be readable.
    """
    size = len(dataset) if order is None else order.size
    samples = []
    contents = []
    for index in sorted({0, size // 3, 2 * size // 3, size - 1}):
        readings = []
        key = index if order is None else order.indices(0, index, index + 1)[0]
        for _ in range(_READINGS):
            seed_everything(_core.mix_seed(seed, index))
            readings.append(dataset[key])
            digest = hashlib.sha256()
            _feed(digest, readings[-1])
            contents.append((index, digest.hexdigest()))
        samples.append(readings)
    total = hashlib.sha256(str(len(dataset)).encode())
    if order is not None:
        total.update(order.digest())
    if len(set(contents)) == len(samples):
        total.update("".join(content for _, content in
                             contents[::_READINGS]).encode())
    else:
        _core.log("warning", "a sample of the data set differs when it is read "
                  "twice with the same seed: the data set uses a separate "
                  "generator, so results are not bitwise reproducible; draw from "
                  "the global generator of torch, NumPy or Python instead. "
                  "Workers' data are compared by types and shapes only")
        total.update(_outline_of(samples).encode())
    return total.hexdigest()[:32]


class Order:
    """The samples behind the positions that the server hands out: one
    permutation an epoch, the same on every worker."""

    # Whether positions, not samples, seed augmentation.
    by_position = False

    def __init__(self, seed: int, size: int) -> None:
        self._seed = seed
        self.size = size
        self._epoch: int | None = None
        self._permutation = array.array("q")

    def indices(self, epoch: int, begin: int, end: int) -> list[int]:
        """Samples of the positions [begin, end) in `epoch`."""
        if self._epoch != epoch:
            self._permutation = array.array("q")
            self._permutation.frombytes(
                _core.permutation(self._seed, epoch, self.size))
            self._epoch = epoch
        return self._permutation[begin:end].tolist()


class _Seeded(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Seeds the random generators around each sample, so that its random
    augmentation depends only on the run, the epoch and a number."""

    def __init__(self, dataset: MapDataset, run_seed: int) -> None:
        self._dataset = dataset
        self._run_seed = run_seed

    def __getitem__(self, key: tuple[int, int, Any]) -> Any:
        epoch, number, index = key
        seed_everything(_core.mix_seed(self._run_seed, epoch, number))
        return self._dataset[index]


_TensorDataset: Any = torch.utils.data.TensorDataset
_tensor_item = _TensorDataset.__getitem__


def _batch_of_tensors(dataset: Any, indices: list[Any]) -> list[torch.Tensor] | None:
    """What torch's default_collate makes of these samples of a TensorDataset; None
    of other data sets, whose samples may need a seed each."""
    if type(dataset) is not _TensorDataset or (
            _TensorDataset.__getitem__ is not _tensor_item):
        return None
    if not all(type(tensor) is torch.Tensor and tensor.device.type == "cpu" and
               tensor.is_contiguous() and not tensor.requires_grad
               for tensor in dataset.tensors) or (
                   not all(type(index) is int for index in indices)):
        return None
    rows = torch.tensor(indices, dtype=torch.int64)
    return [tensor[rows] for tensor in dataset.tensors]


class _LoaderStart:
    """Runs first in a loader process: it ends with this process, and not
    before. (A loader that was forked as its parent was killed would wait for
    ever: torch would take its next parent for the one to watch.)"""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._parent = os.getpid()
        self._then = then

    def __call__(self, worker: int) -> None:
        _core.bind_loader_process(self._parent)
        if self._then is not None:
            self._then(worker)


def _loader_start(options: dict[str, Any]) -> Callable[[int], None] | None:
    """The first code of loader processes, given the options of DataLoader."""
    then: Callable[[int], None] | None = options.get("worker_init_fn")
    context = options.get("multiprocessing_context")
    if not isinstance(context, str):
        context = (context or multiprocessing).get_start_method()
    # A fork server is not this process; and a loader ends with the thread that
    # started it.
    if context == "forkserver" or (threading.current_thread() is not
                                   threading.main_thread()):
        return then
    return _LoaderStart(then)


# A batch by name: the epoch, and the positions [begin, end) in it.
Range = tuple[int, int, int]


class RangeReader:
    """Reads batches of a map-style data set by their ranges.

    With worker processes, the ranges that follow are forecast (as far after
    this one as this one is after the last) and read ahead by a DataLoader. A
    wrong forecast restarts it; results do not depend on it.

    Args:
        dataset: the samples.
        order: from positions to samples.
        run_seed: seeds augmentation.
        options: of torch.utils.data.DataLoader: num_workers, collate_fn,
            pin_memory, worker_init_fn, prefetch_factor, timeout,
            multiprocessing_context.
    """

    def __init__(self, dataset: MapDataset, order: "Order | SampledOrder",
                 run_seed: int, options: dict[str, Any]) -> None:
        self._dataset = dataset
        self._seeded = _Seeded(dataset, run_seed)
        self._order = order
        self._size = len(dataset)
        self._options = options
        self._collate = (options.get("collate_fn") or
                         torch.utils.data.default_collate)
        self._workers = int(options.get("num_workers") or 0)
        self._last: Range | None = None
        self._stride = 0
        self._due: list[Range] = []
        self._loader: Iterator[Any] | None = None

    def _keys(self, where: Range) -> list[tuple[int, int, Any]]:
        epoch, begin, end = where
        indices = self._order.indices(epoch, begin, end)
        numbers = range(begin, end) if self._order.by_position else indices
        return [(epoch, number, index)
                for number, index in zip(numbers, indices)]

    def read(self, where: Range) -> Any:
        """The batch of these positions, collated; see `_read`."""
        try:
            return self._read(where)
        except IndexError as error:
            if self._options.get("collate_fn"):
                error.add_note(
                    "job.data(collate_fn=...): if it leaves out samples, none may be "
                    "left for a worker; let it return a batch of none then, such as "
                    "(torch.zeros(0, 3, 32, 32), torch.zeros(0)), and train it by "
                    "job.backward(loss if len(x) else out.sum() * 0, weight=len(x))")
            raise

    def _read(self, where: Range) -> Any:
        """The batch of these positions, collated.

        Raises:
            UsageError: the data set has another length than at the beginning.
        """
        if len(self._dataset) != self._size:
            raise _errors.UsageError(
                f"job.data(): got a data set of {len(self._dataset)} samples, want "
                f"{self._size}, as when the run began: the server hands out their "
                "numbers. Start a new run from the model's weights")
        if self._workers == 0:
            keys = self._keys(where)
            if self._collate is torch.utils.data.default_collate:
                batch = _batch_of_tensors(self._dataset,
                                          [index for _, _, index in keys])
                if batch is not None:
                    return batch
            return self._collate([self._seeded[key] for key in keys])
        try:
            return self._read_ahead(where)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if "pickle" not in str(error):
                raise
            raise _errors.ConfigurationError(
                f"the data set cannot be sent to loader processes: {error}; "
                "define its class and functions at the top of a module, or use "
                "num_workers=0") from error

    def _read_ahead(self, where: Range) -> Any:
        if self._last is not None and self._last[0] == where[0]:
            stride = where[1] - self._last[1]
            if stride > 0:
                self._stride = stride
        self._last = where
        if self._loader is None or not self._due or self._due[0] != where:
            self._start(where)
        assert self._loader is not None
        self._due.pop(0)
        return next(self._loader)

    def _after(self, where: Range) -> Range | None:
        epoch, begin, end = where
        following = begin + self._stride
        if self._stride == 0 or following >= self._order.size:
            return None
        return epoch, following, min(following + (end - begin), self._order.size)

    def _forecast(self, where: Range) -> Iterator[list[tuple[int, int, Any]]]:
        current: Range | None = where
        while current is not None:
            self._due.append(current)
            yield self._keys(current)
            current = self._after(current)

    def _start(self, where: Range) -> None:
        self._loader = None
        self._due = []
        allowed = {key: value for key, value in self._options.items()
                   if value is not None}
        allowed["worker_init_fn"] = _loader_start(allowed)
        self._loader = iter(torch.utils.data.DataLoader(
            self._seeded, batch_sampler=self._forecast(where), **allowed))


# Bytes of a batch that its digest depends on.
_DIGEST_BYTES = 64 << 10
_DIGEST_EVERY = 16
_DIGEST_FIRST = 3


def _first_bytes(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` bytes of the values, on the CPU; about as many of a
    tensor that is not contiguous."""
    elements = -(-count // tensor.element_size())
    if not tensor.is_contiguous() and tensor.dim() > 0 and tensor.shape[0] > 0:
        # Without a copy of all.
        row = max(1, tensor[0].numel())
        tensor = tensor[:-(-elements // row)]
    flat = tensor.detach().reshape(-1)[:elements]
    first: torch.Tensor = flat.cpu().contiguous().view(torch.uint8)[:count]
    return first


def digest_of_batch(batch: Any) -> int:
    """64 bits that two workers have in common only for equal batches: of the
    shapes and the first 64 KiB of its tensors. 0: it has none."""
    digest = hashlib.blake2b(digest_size=8)
    left = _DIGEST_BYTES
    for tensor in _batches.tensors_in(batch):
        if left <= 0:
            break
        if (tensor.numel() == 0 or tensor.is_sparse or tensor.is_quantized or
                tensor.is_nested):
            continue
        part = _first_bytes(tensor, left)
        left -= part.numel()
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(bytes(part.tolist()) if numpy is None else
                      part.numpy().tobytes())
    if left == _DIGEST_BYTES:
        return 0
    return int.from_bytes(digest.digest(), "little") or 1


class OwnBatches:
    """Batches of the worker's own, one after another. Those of a step are kept
    until it counts, and come again if it was void.

    Args:
        source: any iterable of batches.
        loop: start over when it ends.
    """

    def __init__(self, source: Iterable[Any], loop: bool) -> None:
        self._source = source
        self._loop = loop
        self._iterator = iter(source)
        self._kept: list[Any] = []
        # The position among them of the one that comes next.
        self._next = 0
        self._handed_out = 0
        # The tensors that the script has of them, each with the version that it had;
        # and whether they are copies, as the script changes them.
        self._handed: list[tuple[torch.Tensor, int]] = []
        self._clones = True
        self._digest: int | None = None
        self._counter = _batches.OwnCounter()

    def samples(self, declared: int | None) -> tuple[int | None, str]:
        """Those of the batch in progress, and why they are in doubt."""
        return self._counter.count(self._kept[self._next - 1], declared)

    def digest(self, version: int) -> int:
        """A digest of the step's first batch, in the step from this version; 0 in
        most steps: a tensor on a GPU must be waited for. All ranks of a
        synchronous step choose the same ones, by the version; those of other
        policies by their own number of batches.
        """
        if not self._kept or (
                version >= _DIGEST_FIRST and version % _DIGEST_EVERY != 0 and
                self._handed_out > _DIGEST_FIRST and
                self._handed_out % _DIGEST_EVERY != 1):
            return 0
        if self._digest is None:
            self._digest = digest_of_batch(self._kept[0])
        return self._digest

    def rewind(self) -> None:
        """A step begins."""
        self._next = 0

    def next(self) -> Any:
        """The next batch of the step in progress.

        Raises:
            StopIteration: the source has ended.
        """
        self._next += 1
        if self._next <= len(self._kept):
            if not self._clones and self._is_changed():
                raise _errors.UsageError(
                    "job.data(): the loop's body has changed a tensor of the batch in "
                    "place, and the step is void, so the same batch comes again; change "
                    "a copy: x = x - mean, not x -= mean")
            return self._hand_out(self._kept[self._next - 1])
        try:
            batch = next(self._iterator)
        except StopIteration:
            if not self._loop:
                raise
            self._iterator = iter(self._source)
            batch = next(self._iterator)
        self._kept.append(batch)
        self._handed_out += len(self._kept) == 1
        return self._hand_out(batch)

    def _hand_out(self, batch: Any) -> Any:
        given = _batches.copied(batch, self._clones)
        self._handed += [(tensor, tensor._version)
                         for tensor in _batches.tensors_in(given)
                         if not tensor.is_inference()]
        return given

    def _is_changed(self) -> bool:
        return any(tensor._version != version for tensor, version in self._handed)

    def counted(self) -> None:
        """The step of the kept batches is part of a version."""
        if self._handed:
            # What the body does to tensors in the first step it does in others.
            self._clones = self._clones and self._is_changed()
        self._kept, self._next, self._handed = [], 0, []
        self._digest = None
