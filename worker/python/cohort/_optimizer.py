"""From a torch optimizer to what the server needs of it: settings, and a
learning rate and weight decay for each parameter."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch

from cohort import _core, _errors


class _OfTheServer(torch.optim.Optimizer):
    """An optimizer that PyTorch has not."""

    def step(self, closure: Any = None) -> None:
        raise _errors.UsageError(
            f"cohort.{type(self).__name__} has no local step: the server applies "
            "it; pass it to cohort.join() and call job.step()")


class LARS(_OfTheServer):
    """Layer-wise adaptive rate scaling, computed on the server.

    Source: You, Gitman, Ginsburg, "Large Batch Training of Convolutional
    Networks", 2017. Parameters with fewer than two dimensions (biases, and the
    scale and shift of batch norm) are neither adapted nor decayed.

    Args:
        params: parameters or groups, as for torch.optim.SGD.
        lr: learning rate, above 0; LARS is usually run with 1 to 10.
        momentum: decay of the velocity, in [0, 1).
        weight_decay: at least 0.
        trust_coefficient: above 0.
    """

    def __init__(self, params: Iterable[Any], lr: float, momentum: float = 0.9,
                 weight_decay: float = 0.0,
                 trust_coefficient: float = 0.001) -> None:
        super().__init__(params, {
            "lr": lr, "momentum": momentum, "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient})


class Lion(_OfTheServer):
    """Steps of one length, by the sign of a mean gradient, computed on the
    server.

    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.

    Args:
        params: parameters or groups, as for torch.optim.AdamW.
        lr: length of a step, above 0; a tenth of AdamW's is usual.
        betas: in [0, 1): of the mean in the sign, and decay of the mean.
        weight_decay: at least 0, decoupled as in AdamW.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-4,
                 betas: tuple[float, float] = (0.9, 0.99),
                 weight_decay: float = 0.0) -> None:
        super().__init__(params, {
            "lr": lr, "betas": betas, "weight_decay": weight_decay})


class LAMB(_OfTheServer):
    """Adam whose update of each parameter is as long as the parameter is, computed
    on the server.

    Source: You et al., "Large Batch Optimization for Deep Learning: Training BERT
    in 76 minutes", 2020, algorithm 2: the rate is multiplied by the norm of the
    parameter over that of its update, or by 1 if either is 0. Parameters with
    fewer than two dimensions are neither adapted nor decayed; all others are
    adapted, without decay too. Both moments are corrected for their start.
    Gradients are clipped by the server's --clip_norm only.

    Args:
        params: parameters or groups, as for torch.optim.AdamW.
        lr: learning rate, above 0.
        betas: decays of the moments, in [0, 1).
        eps: added to the root in the divisor, above 0.
        weight_decay: at least 0, a part of the update.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
                 weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps,
                                  "weight_decay": weight_decay})


@dataclasses.dataclass(frozen=True)
class ParameterRates:
    """How one parameter is updated, relative to the run's settings."""
    rate_multiplier: float
    decay_multiplier: float
    decay_exempt: bool
    group: int


@dataclasses.dataclass(frozen=True)
class OptimizerPlan:
    """An optimizer as the server takes it."""
    # The server's settings by name, such as "learning_rate" -> "0.1".
    settings: dict[str, str]
    # By the identity of the parameter.
    rates: dict[int, ParameterRates]
    # The learning rates come with every step. Otherwise with those steps in which
    # they are others than these, by group.
    rates_by_workers: bool
    initial_rates: list[float]


def _refuse(optimizer: torch.optim.Optimizer, what: str, wanted: str) -> None:
    raise _errors.ConfigurationError(
        f"{type(optimizer).__name__}: got {what}, want {wanted}: the server "
        "applies the optimizer and has no such rule")


def _same_in_all_groups(optimizer: torch.optim.Optimizer, name: str) -> Any:
    values = [group[name] for group in optimizer.param_groups]
    if any(value != values[0] for value in values):
        _refuse(optimizer, f"{name} of {values} in its groups",
                "one value: only lr and weight_decay may differ by group")
    return values[0]


def _is_nothing(value: Any) -> bool:
    """Whether a value of an optimizer's state is the one that it begins with."""
    if isinstance(value, torch.Tensor):
        return not bool(value.detach().any())
    return not value


def check_no_state(optimizer: torch.optim.Optimizer) -> None:
    """Raises ConfigurationError if the optimizer has state from earlier steps,
    such as momentum: the server begins without."""
    for state in optimizer.state.values():
        # Adagrad makes its state when it is made itself.
        if "step" in state and _is_nothing(state["step"]):
            continue
        for name, value in state.items():
            if not _is_nothing(value):
                raise _errors.ConfigurationError(
                    f"{type(optimizer).__name__}: got state of earlier steps "
                    f"({name}), which the server would begin without; pass a new "
                    "optimizer of the model's parameters to cohort.join(). The "
                    "server keeps the state of its own run in its checkpoint "
                    "(cohort-server --checkpoint_dir=DIR, then --resume)")


def _class_of(optimizer: torch.optim.Optimizer) -> str:
    """As the server's rules name it; of another class than theirs, such as a
    subclass of the script's own, its name alone."""
    kind = type(optimizer)
    if kind in (LARS, Lion, LAMB):
        return f"cohort.{kind.__name__}"
    if getattr(torch.optim, kind.__name__, None) is kind:
        return f"torch.optim.{kind.__name__}"
    return kind.__name__


def _value(optimizer: torch.optim.Optimizer, name: str, position: int = -1) -> Any:
    """An argument of all groups; 0 if this version of torch has it not."""
    if name not in optimizer.param_groups[0]:
        return 0
    value = _same_in_all_groups(optimizer, name)
    return value if position < 0 else value[position]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(float(value))


def _rule(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    rules = [(rule.name, made) for rule in _core.optimizer_rules()
             for made in rule.torch_classes]
    fitting = [(name, made, [value for value in made.values
                             if float(_value(optimizer, value.name)) != value.value])
               for name, made in rules if made.name == _class_of(optimizer)]
    if not fitting:
        names = dict.fromkeys(made.name for _, made in rules)
        raise _errors.ConfigurationError(
            f"optimizer: got {type(optimizer).__name__}, want one of "
            f"{', '.join(names)}: the server applies the optimizer, and a subclass "
            "of the script's own cannot be followed there")
    # The first that fits; if none does, the nearest, to name what differs.
    name, made, wrong = min(fitting, key=lambda fit: (
        len(fit[2]), -len(fit[1].values) if fit[2] else 0))
    for value in wrong:
        seen = _value(optimizer, value.name)
        _refuse(optimizer, f"{value.name}={seen}", str(type(seen)(value.value)))
    return {"optimizer": name, "maximize": _text(bool(_value(optimizer, "maximize")))} | {
        argument.number: _text(_value(optimizer, argument.name, argument.position))
        for argument in made.arguments
        if argument.name in optimizer.param_groups[0]}


def plan_of(optimizer: torch.optim.Optimizer,
            rates_by_workers: bool) -> OptimizerPlan:
    """What the server needs of `optimizer`.

    Args:
        optimizer: one of the classes that the server knows.
        rates_by_workers: the learning rates come with every step, as they do
            where the first one is 0; otherwise those that the groups have now are
            registered as multiples of the first group's.

    Raises:
        ConfigurationError: the server has no rule for it.
    """
    settings = _rule(optimizer)
    check_no_state(optimizer)
    groups = [{"weight_decay": 0.0} | group for group in optimizer.param_groups]
    for group in groups:
        rate, decay = float(group["lr"]), float(group["weight_decay"])
        if not (math.isfinite(rate) and math.isfinite(decay) and rate >= 0 and
                decay >= 0):
            _refuse(optimizer, f"lr {rate} and weight_decay {decay}",
                    "finite numbers of at least 0")
    initial = [float(group["lr"]) for group in groups]
    rates_by_workers = rates_by_workers or initial[0] == 0
    # Where the rates come with every step the setting only has to be valid.
    base = initial[0] or 1.0
    decay = max(float(group["weight_decay"]) for group in groups)
    settings |= {"learning_rate": repr(base), "weight_decay": repr(decay),
                 "schedule": "constant"}
    adapts = settings["optimizer"] in ("lars", "lamb")
    rates = {}
    for index, group in enumerate(groups):
        own_decay = float(group["weight_decay"])
        for parameter in group["params"]:
            rates[id(parameter)] = ParameterRates(
                rate_multiplier=(1.0 if rates_by_workers else
                                 float(group["lr"]) / base),
                decay_multiplier=own_decay / decay if decay > 0 else 1.0,
                decay_exempt=adapts and parameter.dim() < 2,
                group=index)
    return OptimizerPlan(settings=settings, rates=rates,
                         rates_by_workers=rates_by_workers,
                         initial_rates=initial)
