"""What a row of the table is written with. The same function runs as a worker of
a cohort, and as one process that has the batches of all workers."""

import contextlib
import copy
import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

import cohort
from cohort import _batches, _core, _data
from networks import samples_of_steps
from shapes import scalers

SEED = 7


def batch_of(rank: int, step: int, size: int, shape: Sequence[int]
             ) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of a rank's batch. Each rank's inputs have another mean
    and scale, so that a normalisation by rank shows."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(size, *shape, generator=generator)
    y = torch.randn(size, 2, generator=generator)
    return x * (1 + 0.5 * rank) + 0.8 * rank + 0.2 * step, y


class Samples(torch.utils.data.Dataset):
    """The samples of a data set that the server numbers."""

    def __init__(self, size: int, shape: Sequence[int]) -> None:
        self._x, self._y = batch_of(0, 0, size, shape)
        self._x += torch.arange(size).view(-1, *(1 for _ in shape)) * 0.1

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._x[index], self._y[index]


class Script:
    """The common part.

    A row gets its model by `model`, calls `join`, and iterates `data` or
    `indexed`. Beside the weights and buffers at the end, the values given to
    `own`, `total` and `same` are compared.

    Attributes:
        steps: of the run.
        step_number: the number of the step in progress, from 0.
        rank: of the worker; None in one process.
    """

    def __init__(self, sizes: Sequence[int], steps: int) -> None:
        self.sizes = tuple(sizes)
        self.steps = steps
        self.step_number = 0
        self.rank: int | None = None
        self.trained: nn.Module | None = None
        # The script itself sets gradients to 0, or lets them be.
        self.zeroes_gradients = False
        # (step, kind, name, value) in the order of the calls.
        self.values: list[tuple[int, str, str, torch.Tensor]] = []

    # ---- values to compare

    def _keep(self, kind: str, name: str, value: Any) -> None:
        value = torch.as_tensor(value).detach().clone()
        self.values.append((self.step_number, kind, name, value))

    def own(self, name: str, value: torch.Tensor) -> None:
        """One row a sample of this process."""
        self._keep("own", name, value)

    def total(self, name: str, value: Any) -> None:
        """A share: its sum over the workers is compared."""
        self._keep("total", name, value)

    def same(self, name: str, value: Any) -> None:
        """A tensor or number that every worker has alike."""
        self._keep("same", name, value)

    def same_state(self, name: str, module: nn.Module) -> None:
        """All weights and buffers of a module, which every worker has alike."""
        for key, value in module.state_dict().items():
            if isinstance(value, torch.Tensor):
                self.same(f"{name}.{key}", value)

    def finish(self) -> None:
        """The script has ended. (A rank may have had no part in the last steps.)
        """
        self.step_number = self.steps
        if self.trained is not None:
            self.same_state("model", self.trained)


class Worker(Script):
    """The row as a worker.

    Args:
        dies: "forward" or "backward": it kills itself in the second step, after
            that pass; "step": after its job.step(), before what the script does
            then.
    """

    def __init__(self, sizes: Sequence[int], steps: int, rank: int,
                 address: str, dies: str | None = None) -> None:
        super().__init__(sizes, steps)
        self._dies = dies
        self.rank = rank
        self.address = address
        self.job: Any = None
        self.size = sizes[rank]
        # The step whose body has begun last.
        self._begun: int | None = None

    def model(self, module: nn.Module) -> nn.Module:
        return module

    def scaler(self, **options: Any) -> Any:
        return scalers.of_a_script(**options)

    def join(self, model: nn.Module, optimizer: Any, **options: Any) -> Any:
        self.trained = model
        self.job = cohort.join(model, optimizer, server=self.address,
                               rank=self.rank, log_level="error", **options)
        return self.job

    def data(self, shape: Sequence[int] = (3, 6, 6), accumulate: int = 1
             ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        def own() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            # A replacement continues where the run is.
            while True:
                yield batch_of(self.rank, self.job.version, self.size, shape)
        yield from self._counted(self.job.data(
            own(), batch_size=max(self.size, 1), accumulate=accumulate))

    def indexed(self, samples: int, shape: Sequence[int] = (3, 6, 6)
                ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield from self._counted(self.job.data(
            Samples(samples, shape), batch_size=self.size))

    def _counted(self, data: Any) -> Iterator[Any]:
        for batch in data:
            self.step_number = self.job.version
            if self.job._run.step.done == 0:
                if self._begun == self.step_number:
                    # It was void, with all that the row keeps of it.
                    self.values = [value for value in self.values
                                   if value[0] < self.step_number]
                self._begun = self.step_number
            yield batch

    def backward(self, loss: Any, weight: float | None = None,
                 **options: Any) -> None:
        self._die_after("forward")
        self.job.backward(loss, weight, **options)
        self._die_after("backward")

    def _die_after(self, phase: str) -> None:
        if phase == self._dies and self.step_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def step(self, optimizer: Any = None, **options: Any) -> None:
        self.job.step(optimizer, **options)
        self._die_after("step")

    # ---- what differs

    def here(self, *ranks: int) -> bool:
        """Whether there are samples of these ranks."""
        return self.rank in ranks

    def of(self, x: torch.Tensor, *ranks: int) -> torch.Tensor:
        """Which samples of a batch are those of these ranks."""
        return torch.full((len(x),), self.rank in ranks)

    def locally(self, function: Callable[[torch.Tensor], torch.Tensor],
                x: torch.Tensor) -> torch.Tensor:
        """The function of each worker's samples by themselves."""
        return function(x)

    def share(self, loss: torch.Tensor, weight: float) -> torch.Tensor:
        return self.job.share(loss, weight)

    def sum(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        return self.job.sum(tensor, **options)

    def gather(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        return self.job.gather(tensor, **options)

    def before(self, sizes: torch.Tensor) -> int:
        """Samples of the ranks before this one, from those of all."""
        return int(sizes[:self.rank].sum())

    def after_step(self, function: Callable[[], None]) -> None:
        self.job.after_step(function)

    def teacher(self, decay: float) -> Any:
        return self.job.teacher(decay)

    def normalizer(self, shape: Sequence[int], **options: Any) -> Any:
        return cohort.RunningNormalizer(shape, **options)

    def call(self, name: str) -> Any:
        return cohort.call(name)

    def local(self) -> Any:
        return cohort.local()

    def checkpoint(self, function: Any, *inputs: Any, reentrant: bool) -> Any:
        return checkpoint.checkpoint(function, *inputs,
                                     use_reentrant=reentrant)

    def autocast(self) -> Any:
        return torch.autocast("cpu", torch.bfloat16)

    def half(self, x: torch.Tensor) -> torch.Tensor:
        return x.half()

    def dropout_of(self, x: torch.Tensor, p: float) -> torch.Tensor:
        return nn.functional.dropout(x, p)


class Alone(Script):
    """The row as one process, with the batches of all workers."""

    job: Any = None

    def __init__(self, sizes: Sequence[int], steps: int,
                 dtype: torch.dtype) -> None:
        super().__init__(sizes, steps)
        self.dtype = dtype
        self._parts: list[int] = []
        self._weight = 0.0
        self._samples = 0
        self._part = self._parts_of_step = 0
        self._after: list[Callable[[], None]] = []
        self._normalizers: list[OneProcess] = []

    def model(self, module: nn.Module) -> nn.Module:
        """The module, in the precision of this process."""
        return _without_sync(module).to(self.dtype)

    def scaler(self, **options: Any) -> Any:
        return scalers.single_process(**options)

    def join(self, model: nn.Module, optimizer: Any, schedulers: Any = (),
             scaler: Any = None, **_: Any) -> None:
        self.trained = model
        self._scaler = scaler
        self._optimizer = optimizer
        self._schedulers = schedulers

    def _batches(self, batches: Iterator[list[Any]], accumulate: int
                 ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for self.step_number, ranks in enumerate(batches):
            if not self.zeroes_gradients and not isinstance(self._optimizer,
                                                            list):
                self._optimizer.zero_grad(set_to_none=True)
            self._weight = 0.0
            self._samples = sum(len(x) for x, _ in ranks)
            self._parts_of_step = accumulate
            for self._part in range(accumulate):
                pieces = [_batches.split(batch, self._part, accumulate)
                          for batch in ranks]
                self._parts = [len(x) for x, _ in pieces]
                x, y = (torch.cat(values).to(self.dtype)
                        for values in zip(*pieces))
                yield x, y

    def data(self, shape: Sequence[int] = (3, 6, 6), accumulate: int = 1
             ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield from self._batches(
            ([batch_of(rank, step, size, shape)
              for rank, size in enumerate(self.sizes)]
             for step in range(self.steps)), accumulate)

    def indexed(self, samples: int, shape: Sequence[int] = (3, 6, 6)
                ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        data = Samples(samples, shape)

        def batches() -> Iterator[list[Any]]:
            steps = samples_of_steps(SEED, samples, sum(self.sizes))
            for indices in itertools.islice(steps, self.steps):
                ranks, begin = [], 0
                for size in self.sizes:
                    # An empty batch has the shape of a sample.
                    items = [data[i] for i in indices[begin:begin + size]]
                    ranks.append(tuple(torch.stack(v) for v in zip(*items))
                                 if items else tuple(v[None][:0]
                                                     for v in data[0]))
                    begin += size
                yield ranks
        yield from self._batches(batches(), 1)

    def backward(self, loss: Any, weight: float | None = None,
                 reduction: str = "mean", optimizer: Any = None, **_: Any
                 ) -> None:
        """`weight` is that of all workers, as the loss is."""
        if isinstance(loss, list):
            loss = sum(one if reduction == "mean" else one / total
                       for one, total in loss if total)
            weight, reduction = 1.0, "mean"
        if optimizer is not None:
            (loss if reduction == "mean" else loss / weight).backward()
            return
        if weight is None:
            weight, total = float(sum(self._parts)), float(self._samples)
        else:
            # That of later parts is not known yet.
            total = float(weight) if self._parts_of_step == 1 else 1.0
        self._weight += weight / total
        loss = (loss * weight if reduction == "mean" else loss) / total
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def step(self, optimizer: Any = None, **_: Any) -> None:
        if optimizer is not None:
            optimizer.step()
            self._step_schedulers(optimizer)
            return
        if self._part + 1 < self._parts_of_step:
            return
        if self._weight != 1:
            for group in self._optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad /= self._weight
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        for normalizer in self._normalizers:
            normalizer.sync()
        self._step_schedulers(self._optimizer)
        for function in self._after:
            function()

    def _step_schedulers(self, optimizer: Any) -> None:
        for scheduler in self._schedulers:
            if scheduler.optimizer is optimizer:
                scheduler.step()

    # ---- what differs

    def here(self, *ranks: int) -> bool:
        return any(rank < len(self.sizes) for rank in ranks)

    def of(self, x: torch.Tensor, *ranks: int) -> torch.Tensor:
        return torch.cat([torch.full((size,), rank in ranks)
                          for rank, size in enumerate(self._parts)])

    def locally(self, function: Callable[[torch.Tensor], torch.Tensor],
                x: torch.Tensor) -> torch.Tensor:
        return torch.cat([function(part) for part in x.split(self._parts)])

    def share(self, loss: torch.Tensor, weight: float) -> torch.Tensor:
        del weight
        return loss

    def sum(self, tensor: torch.Tensor, **_: Any) -> torch.Tensor:
        return tensor

    def gather(self, tensor: torch.Tensor, **_: Any) -> torch.Tensor:
        return tensor

    def before(self, sizes: torch.Tensor) -> int:
        del sizes
        return 0

    def after_step(self, function: Callable[[], None]) -> None:
        self._after.append(function)

    def teacher(self, decay: float) -> Any:
        """An average of weights and statistics."""
        average = copy.deepcopy(self.trained).eval().requires_grad_(False)

        def follow() -> None:
            with torch.no_grad():
                theirs = self.trained.state_dict()
                for name, mine in average.state_dict().items():
                    if mine.is_floating_point():
                        mine.mul_(decay).add_(theirs[name], alpha=1 - decay)
                    else:
                        mine.copy_(theirs[name])
        self._after.append(follow)
        return average

    def normalizer(self, shape: Sequence[int], **options: Any) -> Any:
        self._normalizers.append(OneProcess(shape, **options))
        return self._normalizers[-1]

    def call(self, name: str) -> Any:
        del name
        return contextlib.nullcontext()

    def local(self) -> Any:
        return contextlib.nullcontext()

    def checkpoint(self, function: Any, *inputs: Any, reentrant: bool) -> Any:
        """torch's own updates moving statistics again in the recomputation."""
        del reentrant
        return function(*inputs)

    def autocast(self) -> Any:
        return (torch.autocast("cpu", torch.bfloat16)
                if self.dtype == torch.float32 else contextlib.nullcontext())

    def half(self, x: torch.Tensor) -> torch.Tensor:
        return x.half().float() if self.dtype == torch.float32 else x

    def dropout_of(self, x: torch.Tensor, p: float) -> torch.Tensor:
        """As the workers draw: each with its own seed for the step."""
        outputs = []
        for rank, part in enumerate(x.split(self._parts)):
            _data.seed_everything(_core.mix_seed(SEED, self.step_number, rank))
            outputs.append(nn.functional.dropout(part.float(), p).to(x.dtype))
        return torch.cat(outputs)


class OneProcess(nn.Module):
    """RunningNormalizer of one process: it has all samples at hand, in float64."""

    def __init__(self, shape: Sequence[int], momentum: float | None = None) -> None:
        super().__init__()
        self._momentum = momentum
        self._all = self._new = torch.zeros(0, *shape, dtype=torch.float64)
        for name in ("count", "mean", "variance"):
            self.register_buffer(name, torch.zeros(
                () if name == "count" else shape, dtype=torch.float64))
        self.variance += 1

    def _apply(self, *_: Any) -> Any:
        return self

    def update(self, x: torch.Tensor) -> None:
        self._new = torch.cat((self._new, x.detach().double().reshape(
            -1, *self.mean.shape)))

    def sync(self) -> None:
        new, self._new = self._new, self._new[:0]
        self._all = torch.cat((self._all, new))
        if len(new) == 0:
            return
        over, weight = ((self._all, 1.0) if self._momentum is None else
                        (new, self._momentum))
        self.count = torch.tensor(float(len(self._all))).double()
        self.mean = torch.lerp(self.mean, over.mean(0), weight)
        self.variance = torch.lerp(self.variance, over.var(0, unbiased=False), weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x - self.mean) / self.variance.sqrt()).to(x.dtype)

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)

    def denormalize(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.variance.sqrt() + self.mean).to(x.dtype)


def _without_sync(module: nn.Module) -> nn.Module:
    """nn.SyncBatchNorm does not run on the CPU; it is batch norm here."""
    for name, child in module.named_children():
        if type(child) is nn.SyncBatchNorm:
            plain = nn.BatchNorm2d(child.num_features, child.eps, child.momentum)
            plain.load_state_dict(child.state_dict())
            setattr(module, name, plain)
        else:
            _without_sync(child)
    return module
