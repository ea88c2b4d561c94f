"""A running mean and variance over the samples of all workers.

A worker adds up the samples of a step by itself. At job.step() the workers gather
these sums, and each of them adds them, in rank order, to buffers that are kept
state: so a version has them, and a void step takes them back."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cohort import _errors, _operator, _totals

if TYPE_CHECKING:
    from cohort._kept import Kept
    from cohort._run import Run

# How many samples, their mean, and the sum of squared differences from it.
_Moments = tuple[float, torch.Tensor, torch.Tensor]


def _merged(a: _Moments, b: _Moments) -> _Moments:
    """Those of the samples of both.

    Source: Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances, 1979."""
    count = a[0] + b[0]
    if b[0] == 0:
        return a
    apart = b[1] - a[1]
    return (count, a[1] + apart * (b[0] / count),
            a[2] + b[2] + apart.square() * (a[0] * b[0] / count))


class RunningNormalizer(nn.Module):
    """Normalises by the mean and variance of all samples so far, those of all
    workers: observations and returns of reinforcement learning, features of a
    data pipeline.

        observations = cohort.RunningNormalizer(4)
        job = cohort.join(model, optimizer, keep={"observations": observations})
        for x, y in job.data(dataset, batch_size=16):
            observations.update(x)
            job.backward(criterion(model(observations(x)), y))
            job.step()

    `update` needs no other worker. What all workers have added moves the numbers at
    job.step(), or at sync(): as one process that updates once with all samples.
    Between these they are constant. Each sample of a step that counts is counted
    once: a step that is repeated takes back what it has added, and a run that is
    continued, or a process that is replaced, has the numbers of its version.

    It is a module, and its numbers are buffers, because `keep` and the model are how
    state comes into a run: a part of the model needs no `keep`, and state_dict()
    and to() do what they do for any module. Use it only where kept state is
    possible (--aggregation=sync, --normalization=global, one server, no groups).

    Args:
        shape: of a sample; () for numbers.
        momentum: None: all samples weigh the same. Otherwise the numbers move by
            this part towards those of the new samples, once for each job.step()
            or sync() that has any; they begin at 0 and 1.
        eps: is added to the variance.

    Attributes:
        count: of all samples so far.
        mean: float64, 0 at first.
        variance: float64, not corrected for bias, 1 at first.
    """
    count: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, shape: int | Sequence[int], *,
                 momentum: float | None = None, eps: float = 1e-8) -> None:
        super().__init__()
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if min(shape, default=1) < 1 or eps < 0 or (
                momentum is not None and not 0 < momentum <= 1):
            raise _errors.ConfigurationError(
                f"RunningNormalizer: got shape {shape}, momentum {momentum} and eps "
                f"{eps}, want extents of at least 1, a momentum above 0 and up to "
                "1, or None, and no negative eps")
        self.momentum, self.eps = momentum, eps
        zeros = torch.zeros(shape, dtype=torch.float64)
        self.register_buffer("count", zeros.new_zeros(()))
        self.register_buffer("mean", zeros)
        self.register_buffer("variance", torch.ones_like(zeros))
        self._name = "RunningNormalizer"
        self._run: Run | None = None
        # This worker's samples in the step, since the last exchange.
        self._own = self._none()

    def __getstate__(self) -> dict[str, Any]:
        # A copy belongs to no run.
        return {**vars(self), "_run": None, "_own": self._none()}

    def _none(self) -> _Moments:
        zeros = torch.zeros_like(self.mean)
        return 0.0, zeros, zeros

    @_operator.not_compiled
    @torch.no_grad()
    def update(self, x: torch.Tensor) -> None:
        """Adds samples of this worker, [..., *shape].

        Raises:
            UsageError: no batch is in progress, or these are no such samples.
        """
        what = f"{self._name}.update()"
        step = self._joined(what).step
        if step.tape.recomputes() or not step.calls.are_watched():
            return  # A pass that is repeated, or that trains nothing.
        if not step.trains():
            raise _errors.UsageError(
                f"{what}: no batch is in progress; call it in the loop over "
                "job.data(), before job.step(): a step that is repeated takes back "
                "what its body has added")
        step.calls.check_training_call(what)
        shape = tuple(self.mean.shape)
        if tuple(x.shape)[x.dim() - len(shape):] != shape or x.dim() < len(shape):
            raise _errors.UsageError(
                f"{what}: got shape {list(x.shape)}, want that of a sample, "
                f"{list(shape)}, after any others")
        rows = x.to(self.mean).reshape(-1, *shape)
        if len(rows) == 0:
            return
        mean = rows.mean(0)
        squares = (rows - mean).square().sum(0)
        if not math.isfinite(float(squares.sum())):
            raise _errors.UsageError(
                f"{what}: got numbers that are not finite, or whose squares are "
                "not, want finite ones; leave out such samples")
        self._own = _merged(self._own, (float(len(rows)), mean, squares))

    def sync(self) -> None:
        """What all workers have added moves the numbers now, not only at
        job.step(). All of them must call it at the same places of a step."""
        what = f"{self._name}.sync()"
        _sync(self._joined(what), [self], what)

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        """(x - mean) / sqrt(variance + eps), [..., *shape]."""
        scale = self.variance.add(self.eps).rsqrt()
        y: torch.Tensor = x.double().sub(self.mean).mul(scale).to(_type(x))
        return y

    def denormalize(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse of `normalize`."""
        scale = self.variance.add(self.eps).sqrt()
        y: torch.Tensor = x.double().mul(scale).add(self.mean).to(_type(x))
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`normalize`."""
        return self.normalize(x)

    def _joined(self, what: str) -> "Run":
        if self._run is None:
            raise _errors.UsageError(
                f"{what}: it belongs to no run; pass it to cohort.join(..., "
                'keep={"observations": normalizer}), or make it a part of the model')
        return self._run

    def _add(self, rows: torch.Tensor) -> None:
        """Moves the numbers. `rows`: a count, mean and sum of squares by rank."""
        new = self._none()
        for row in rows.unbind():
            mean, squares = row[1:].view(2, *self.mean.shape).unbind()
            new = _merged(new, (float(row[0]), mean, squares))
        self._own = self._none()
        if new[0] == 0:
            return
        if self.momentum is None:
            _, mean, squares = _merged(
                (float(self.count), self.mean, self.variance * self.count), new)
            self.mean.copy_(mean)
            self.variance.copy_(squares / (self.count + new[0]))
        else:
            self.mean.lerp_(new[1], self.momentum)
            self.variance.lerp_(new[2] / new[0], self.momentum)
        self.count.add_(new[0])


def _type(x: torch.Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


@torch.no_grad()
def _sync(run: "Run", normalizers: Sequence[RunningNormalizer], name: str) -> None:
    """One exchange for all of them. `name`: of the call."""
    parts = [torch.cat((one.mean.new_tensor([one._own[0]]), one._own[1].reshape(-1),
                        one._own[2].reshape(-1))).cpu() for one in normalizers]
    rows: Any = _totals.gather(run.step, torch.cat(parts)[None], name,
                               run.joined().rank)
    if run.step.members.are_void():
        return
    for one, part in zip(normalizers, rows.split(list(map(len, parts)), 1)):
        one._add(part.to(one.mean.device))


class Normalizers:
    """Those of a job: in its model, and in what the script keeps.

    Args:
        run: the job's.
        kept: its kept state, which gets those of the model, too.

    Raises:
        ConfigurationError: the numbers of one are no longer float64.
    """

    def __init__(self, run: "Run", kept: "Kept") -> None:
        self._run = run
        self._all: list[RunningNormalizer] = []
        named = kept.ids()
        for name, one in kept.modules():
            if not isinstance(one, RunningNormalizer) or one in self._all:
                continue
            if one.mean.dtype != torch.float64:
                raise _errors.ConfigurationError(
                    f"{name}: got a RunningNormalizer of {one.mean.dtype}, want "
                    "torch.float64; call float() or half() on the model without it")
            for part, buffer in one.named_buffers():
                if id(buffer) not in named:
                    kept.add(f"{name}.{part}", buffer)
            one._run, one._name = run, name or one._name
            self._all.append(one)

    def begin(self) -> None:
        """A step's body begins."""
        for one in self._all:
            one._own = one._none()

    def sync(self) -> None:
        """The step is about to be sent."""
        if self._all:
            _sync(self._run, self._all, "job.step()")

    def detach(self) -> None:
        """They belong to no run."""
        for one in self._all:
            one._run = None
