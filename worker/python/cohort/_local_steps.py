"""Local steps: updates of this worker's own weights by the script's optimizer, the
inner one. Their sum is what the worker pushes, and the server applies the outer
optimizer to the mean over the workers."""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from cohort import _core, _errors
from cohort._optimizer import (OptimizerPlan, Optimizers, check_no_state, groups_of,
                               is_of_the_server, plan_of)

if TYPE_CHECKING:
    from cohort._model import RegisteredModel

# An optimizer of the same parameters, or what makes one of them.
Outer = torch.optim.Optimizer | Callable[[list[Any]], torch.optim.Optimizer]

# As the server's --local_steps.
_STEPS_MAX = 1024

# Arguments that change how torch computes an update, not what it is; and the
# rate, which may differ from step to step.
_UNNAMED = frozenset({"lr", "foreach", "fused", "capturable", "differentiable"})


@dataclasses.dataclass(frozen=True)
class Options:
    """What the script passes to `cohort.join`.

    Attributes:
        steps: local steps in a step of the run; 0: none.
        outer: None: the server's default.
        keep_inner: whether the inner optimizer keeps its state.
    """
    steps: int = 0
    outer: Outer | None = None
    keep_inner: bool = False


def check_options(options: Options, optimizers: Optimizers, scaled: bool) -> None:
    """Raises ConfigurationError unless these optimizers can make local steps.

    Args:
        scaled: by a GradScaler.
    """
    steps = options.steps
    if not isinstance(steps, int) or isinstance(steps, bool) or not (
            0 <= steps <= _STEPS_MAX):
        raise _errors.ConfigurationError(
            f"cohort.join(local_steps=...): got {steps!r}, want a whole number of 1 to "
            f"{_STEPS_MAX}, or 0 for none")
    if not steps:
        if options == Options():
            return
        raise _errors.ConfigurationError(
            "cohort.join(): got outer= or keep_inner= without local_steps=, want the "
            "number of local steps too, or neither")
    what = f"cohort.join(local_steps={options.steps})"
    if len(optimizers) > 1:
        raise _errors.ConfigurationError(
            f"{what}: got {len(optimizers)} optimizers, want one; leave "
            "local_steps= out to train with several")
    if scaled:
        raise _errors.ConfigurationError(
            f"{what}: got a GradScaler, whose scale all workers agree on in each "
            "step; leave local_steps= out, or use bfloat16 autocast, which needs no "
            "scaler")
    optimizer = optimizers[0]
    if options.outer is optimizer:
        raise _errors.ConfigurationError(
            f"{what}: got the same optimizer as outer=; want another one, with its "
            f"own rate, or leave outer= out; {_WANTED}")
    if is_of_the_server(optimizer):
        raise _errors.ConfigurationError(
            f"{what}: got cohort.{type(optimizer).__name__}, which only the server "
            "computes; want one that torch computes, such as torch.optim.AdamW")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise _errors.ConfigurationError(
            f"{what}: got {type(optimizer).__name__}, whose step() needs a closure; "
            "want an optimizer that takes one gradient a step")
    check_no_state(optimizer, "optimizer", "each step would begin with")


def plan_with_outer(options: Options, inner: torch.optim.Optimizer) -> OptimizerPlan:
    """What the server needs of the outer optimizer.

    Raises:
        ConfigurationError: it cannot be one.
    """
    # Schedules are the script's, unless a flag says otherwise.
    settings = {"local_steps": str(options.steps), "schedule": "constant"}
    if options.outer is None:
        return OptimizerPlan(settings, {}, False)
    parameters = [parameter for group in inner.param_groups
                  for parameter in group["params"]]
    outer = _made(options.outer, parameters)
    if {id(parameter) for group in outer.param_groups
            for parameter in group["params"]} != set(map(id, parameters)):
        _refuse(outer, "other parameters than the inner optimizer has",
                "the same ones")
    plan = plan_of([outer], False)
    if plan.rates_by_workers:
        _refuse(outer, "lr=0", "a rate above 0")
    if float(plan.settings["weight_decay"]):
        _refuse(outer, f"weight_decay={plan.settings['weight_decay']}",
                "weight_decay=0: the inner optimizer decays the weights")
    if plan.settings["optimizer"] in ("lars", "lamb"):
        _refuse(outer, f"cohort.{type(outer).__name__}",
                "a rule without layer-wise rates, such as SGD with momentum")
    return dataclasses.replace(plan, settings=plan.settings | settings)


def _made(outer: Outer, parameters: list[Any]) -> torch.optim.Optimizer:
    made = outer
    if not isinstance(outer, torch.optim.Optimizer):
        try:
            made = outer(parameters)
        except (TypeError, ValueError) as error:
            raise _errors.ConfigurationError(
                f"cohort.join(outer=...): {error}; {_WANTED}") from error
    if not isinstance(made, torch.optim.Optimizer):
        raise _errors.ConfigurationError(
            f"cohort.join(outer=...): got a {type(made).__name__}; {_WANTED}")
    return made


_WANTED = ("want functools.partial(torch.optim.SGD, lr=0.7, momentum=0.9, "
           "nesterov=True), or an optimizer of the model's parameters")


def _refuse(outer: torch.optim.Optimizer, seen: str, wanted: str) -> None:
    raise _errors.ConfigurationError(
        f"cohort.join(outer=...): {type(outer).__name__}: got {seen}, want {wanted}")


def text_of(options: Options, inner: torch.optim.Optimizer) -> str:
    """The inner optimizer with all numbers but the rate, which is compared between
    the workers."""
    names = [name for name in inner.defaults if name not in _UNNAMED]
    values = [[group.get(name) for group in groups_of([inner])] for name in names]
    numbers = ", ".join(
        f"{name}={each[0] if all(one == each[0] for one in each) else each}"
        for name, each in zip(names, values) if not callable(each[0]))
    keeps = ", keeps its state" if options.keep_inner else ""
    return f"{type(inner).__name__}({numbers}){keeps}"


class LocalSteps:
    """The inner optimizer, and the local steps of the step in progress.

    Args:
        model: its parameters.
        optimizer: the inner one.
        keeps: whether it keeps its state from one step to the next.

    Attributes:
        is_open: a step that has local ones is in progress.
        index: of the local step in progress, or of the next one.
        made: local steps of the step that this worker had a batch for.
        weight, loss: of the local step in progress: what its loss is a mean over,
            and its sum.
        samples: of all local steps of the step.
    """

    def __init__(self, model: "RegisteredModel", optimizer: torch.optim.Optimizer,
                 keeps: bool) -> None:
        self._model = model
        self._optimizer = optimizer
        # The job replaces it later.
        self._step = optimizer.step
        self._keeps = keeps
        self._state = self._copied_state()
        if keeps:
            _core.log("warning", "cohort.join(keep_inner=True): the state of "
                      f"{type(optimizer).__name__} is this process's alone, so a "
                      "replacement of a killed worker begins without it and "
                      "computes other bits")
        self.is_open = False
        self.index = self.made = self.samples = 0
        self.weight = self.loss = 0.0
        self._ranges: Sequence[tuple[int, int]] = ()
        self._rate_factor = 1.0
        # The weight that the local step was expected to have.
        self._expected = 1.0
        # The trained parameters before the first local step; and those that
        # have had a gradient.
        self._before: dict[int, torch.Tensor] = {}
        self._reached: set[int] = set()

    def _copied_state(self) -> list[tuple[Any, Any]]:
        return [(parameter, copy.deepcopy(state))
                for parameter, state in self._optimizer.state.items()]

    # ---- a step

    def begin(self, ranges: Sequence[tuple[int, int]], rate_factor: float) -> None:
        """A step begins.

        Args:
            ranges: the samples of each local step.
            rate_factor: of the server's --schedule.
        """
        self.is_open = True
        self.index = self.made = self.samples = 0
        self._ranges, self._rate_factor = ranges, rate_factor
        self._reached = set()
        self._before = {number: self._model.parameters[number].detach().clone()
                        for number in self._model.trained}
        if self._keeps:
            self._state = self._copied_state()
        else:
            self._restart()

    def _restart(self) -> None:
        """The optimizer gets its state at the beginning of the step."""
        state = self._optimizer.state
        state.clear()
        for parameter, values in self._state:
            state[parameter] = copy.deepcopy(values)

    @property
    def range(self) -> tuple[int, int] | None:
        """The positions of the samples of the next local step; None: there is no
        further one."""
        return self._ranges[self.index] if self.index < len(self._ranges) else None

    def is_last(self) -> bool:
        """Whether no local step with samples follows the one in progress."""
        begin, end = self._ranges[self.index]
        rest = self._ranges[self.index + 1:]
        # Own data has no ranges.
        return not rest if begin == end else all(
            begin == end for begin, end in rest)

    # ---- a local step

    def factor(self, weight: float, expected: float, reduction: str) -> float:
        """The gradient at a loss of the local step, whose weight grows by
        `weight`.

        Args:
            expected: the weight of the local step, by its first part.
            reduction: over `weight`.
        """
        if self.weight == 0:
            self._expected = expected or 1.0
        self.weight += weight
        return (weight if reduction == "mean" else 1.0) / self._expected

    @torch.no_grad()
    def end_passes(self) -> None:
        """The backward passes of the local step are over."""
        if self.weight in (0.0, self._expected):
            return
        for number in self._model.trained:
            grad = self._model.parameters[number].grad
            if grad is not None:
                grad.mul_(self._expected / self.weight)

    def step(self) -> None:
        """Updates the weights. Without a sample that counts there is nothing to
        learn from."""
        self.index += 1
        self.made += 1
        if self.weight == 0:
            return
        self._reached.update(number for number in self._model.trained
                             if self._model.parameters[number].grad is not None)
        groups = ([] if self._rate_factor == 1 else
                  [(group, group["lr"]) for group in self._optimizer.param_groups])
        for group, rate in groups:
            group["lr"] = rate * self._rate_factor
        self._step()
        for group, rate in groups:
            group["lr"] = rate
        self._model.note_weights()

    # ---- the end

    @torch.no_grad()
    def differences(self, scale: float) -> dict[int, torch.Tensor]:
        """(weights before - after) x scale, by number of the parameter; without
        those that never had a gradient."""
        return {number: (before - self._model.parameters[number]).mul_(scale)
                for number, before in self._before.items()
                if number in self._reached}

    @torch.no_grad()
    def put_back(self) -> None:
        """The step is over: the weights are those of its version."""
        if not self.is_open:
            return
        self.is_open = False
        for number, before in self._before.items():
            self._model.parameters[number].copy_(before)
        self._before = {}
        self._model.note_weights()

    def ended(self, counts: bool) -> None:
        """The verdict is there. `counts`: the step is part of a version."""
        if not counts:
            self._restart()
