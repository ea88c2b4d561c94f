"""From torch optimizers to what the server needs of them: settings, and a
learning rate and weight decay for each parameter."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
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
class OptimizerPlan:
    """The optimizers as the server takes them."""
    # The server's settings by name, such as "learning_rate" -> "0.1".
    settings: dict[str, str]
    # By the identity of the parameter: how it is updated, relative to the settings.
    # Its name and shape are the model's to fill in.
    rates: dict[int, "_core.ParameterSpec"]
    # The learning rates come with every step. Otherwise with those steps in which
    # they are others than at the join.
    rates_by_workers: bool


def _refuse(optimizer: torch.optim.Optimizer, what: str, wanted: str) -> None:
    raise _errors.ConfigurationError(
        f"{type(optimizer).__name__}: got {what}, want {wanted}: the server "
        "applies the optimizer and has no such rule")


Optimizers = Sequence[torch.optim.Optimizer]


def is_of_the_server(optimizer: torch.optim.Optimizer) -> bool:
    """Whether only the server can apply it."""
    return isinstance(optimizer, _OfTheServer)


def groups_of(optimizers: Optimizers) -> list[dict[str, Any]]:
    """Their groups, numbered as the server does."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def place_of(optimizers: Sequence[object], position: int) -> str:
    """What errors call an optimizer: of several by its place in the list that was
    passed to `cohort.join`."""
    return f"optimizers[{position}]" if len(optimizers) > 1 else "optimizer"


def check_optimizers(optimizers: Sequence[object], model: torch.nn.Module) -> None:
    """Raises ConfigurationError unless these are optimizers of one class, of
    different parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    owners: dict[int, int] = {}
    for position, optimizer in enumerate(optimizers):
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise _errors.ConfigurationError(
                f"optimizer: got a {type(optimizer).__name__}, want a "
                "torch.optim.Optimizer of the model's parameters, or a list of "
                "several in the order in which the loop's body steps them")
        if type(optimizer) is not type(optimizers[0]):
            raise _errors.ConfigurationError(
                f"optimizers[{position}]: got {type(optimizer).__name__}, and "
                f"optimizers[0] is {type(optimizers[0]).__name__}; want one class: "
                "the server has one rule for all parameters. Their numbers may "
                "differ")
        for parameter in (parameter for group in optimizer.param_groups
                          for parameter in group["params"]):
            other = owners.setdefault(id(parameter), position)
            if other != position:
                name = names.get(id(parameter), "a parameter of shape "
                                 f"{tuple(parameter.shape)}")
                raise _errors.ConfigurationError(
                    f"optimizers[{other}] and optimizers[{position}]: both have "
                    f"{name}; want each parameter in one of them")
    if not optimizers:
        raise _errors.ConfigurationError("optimizer: got none, want one or more")


def _check_same(optimizers: Optimizers, name: str) -> None:
    values = [group.get(name) for group in groups_of(optimizers)]
    if any(value != values[0] for value in values):
        _refuse(optimizers[0], f"{name} of {values} in its groups",
                "one value for all groups")


def _is_nothing(value: Any) -> bool:
    """Whether a value of an optimizer's state is the one that it begins with."""
    if isinstance(value, torch.Tensor):
        return not bool(value.detach().any())
    return not value


def check_no_state(optimizer: torch.optim.Optimizer, place: str,
                   why: str = "the server would begin without") -> None:
    """Raises ConfigurationError if the optimizer has state from earlier steps,
    such as momentum: the server begins without. `place`: what it is called;
    `why`: what would become of the state."""
    for state in optimizer.state.values():
        # Adagrad makes its state when it is made itself.
        if "step" in state and _is_nothing(state["step"]):
            continue
        for name, value in state.items():
            if not _is_nothing(value):
                raise _errors.ConfigurationError(
                    f"{place}: got a {type(optimizer).__name__} with state of earlier "
                    f"steps ({name}), which {why}; pass a new "
                    "optimizer of the model's parameters to cohort.join(). The "
                    "server keeps the state of the run in its checkpoint "
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


def _value(group: dict[str, Any], name: str, position: int = -1) -> Any:
    """An argument of a group; 0 if this version of torch has it not."""
    value = group.get(name, 0)
    return value if position < 0 else value[position]


def _is_number(group: dict[str, Any], name: str) -> bool:
    return not isinstance(group.get(name), (bool, type(None)))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(float(value))


def _rule(optimizers: Optimizers) -> "tuple[str, _core.TorchClass]":
    """The server's rule for optimizers of one class, and what of their arguments
    it takes."""
    optimizer, groups = optimizers[0], groups_of(optimizers)
    rules = [(rule.name, made) for rule in _core.optimizer_rules()
             for made in rule.torch_classes]
    def is_other(value: "_core.TorchValue") -> bool:
        return any(float(_value(group, value.name)) != value.value
                   for group in groups)

    fitting = [(name, made, [value for value in made.values if is_other(value)])
               for name, made in rules if made.name == _class_of(optimizer)]
    if not fitting:
        names = dict.fromkeys(made.name for _, made in rules)
        raise _errors.ConfigurationError(
            f"optimizer: got {type(optimizer).__name__}, want one of "
            f"{', '.join(names)}: the server applies the optimizer, and cannot "
            "apply a subclass that the script defines")
    # The first that fits; if none does, the nearest, to name what differs.
    name, made, wrong = min(fitting, key=lambda fit: (
        len(fit[2]), -len(fit[1].values) if fit[2] else 0))
    for value in wrong:
        seen = next(seen for group in groups
                    if float(seen := _value(group, value.name)) != value.value)
        _refuse(optimizer, f"{value.name}={seen}", str(type(seen)(value.value)))
    return name, made


def _settings(optimizers: Optimizers) -> dict[str, str]:
    name, made = _rule(optimizers)
    first = groups_of(optimizers)[0]
    settings = {"optimizer": name, "maximize": _text(bool(_value(first, "maximize")))}
    _check_same(optimizers, "maximize")
    for argument in made.arguments:
        if argument.name not in first:
            continue
        # Steps send those of the groups that differ from the first.
        if argument.constant or not _is_number(first, argument.name):
            _check_same(optimizers, argument.name)
        settings[argument.number] = _text(
            _value(first, argument.name, argument.position))
    return settings


def _numbers_in(group: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """All numbers of a group, as arguments of its class."""
    for name, value in group.items():
        if name == "params":
            continue
        for position, one in (enumerate(value) if isinstance(value, (list, tuple))
                              else [(-1, value)]):
            if isinstance(one, (int, float)) and not isinstance(one, bool) or (
                    isinstance(one, torch.Tensor) and one.numel() == 1):
                yield name, name, position


@dataclasses.dataclass(frozen=True)
class StepNumbers:
    """What a push sends of an optimizer's groups."""
    # By group; none: those of the join.
    rates: list[float]
    # Group, setting and value of other numbers that are not as registered,
    # ascending.
    changed: list[tuple[int, str, float]]


@dataclasses.dataclass(frozen=True)
class _Number:
    group: int
    # As the server names it.
    setting: str
    # The argument of the class, and the position if that is a tuple.
    name: str
    position: int
    # The group, for people.
    of: str

    def __str__(self) -> str:
        place = "" if self.position < 0 else f"[{self.position}]"
        return f"{self.name}{place} of {self.of}"


def _like(now: Any, value: float) -> Any:
    """A value of the type that it had: counts must stay integers, and compiled
    optimizers have tensors."""
    if isinstance(now, torch.Tensor):
        return now.fill_(value)
    return int(value) if isinstance(now, int) and value.is_integer() else value


class GroupNumbers:
    """The numbers in optimizers' groups that a script may change from step to
    step: rates, weight decay, and those of the rule.

    Args:
        optimizers: of one of the classes that the server knows.
        local: of any class, as the server does not apply them.

    Raises:
        ConfigurationError: the server has no rule for it.
    """

    def __init__(self, optimizers: Optimizers, local: bool = False) -> None:
        self._groups = groups_of(optimizers)
        arguments: Iterable[tuple[str, str, int]]
        if local:
            arguments = {number: None for group in self._groups
                         for number in _numbers_in(group)}
        else:
            arguments = [
                ("learning_rate", "lr", -1), ("weight_decay", "weight_decay", -1),
                *((argument.number, argument.name, argument.position)
                  for argument in _rule(optimizers)[1].arguments
                  if not argument.constant)]
        of = [f"group {index}" + (
                  f" of {place_of(optimizers, position)}" if len(optimizers) > 1 else "")
              for position, optimizer in enumerate(optimizers)
              for index in range(len(optimizer.param_groups))]
        self._numbers = [_Number(index, *argument, of[index])
                         for index, group in enumerate(self._groups)
                         for argument in sorted(arguments)
                         if _is_number(group, argument[1])]
        # What the server has: of the rule's numbers those of the first group.
        first = {number.setting: value for number, value in
                 zip(self._numbers, self.now()) if number.group == 0}
        self._registered = [
            value if number.name in ("lr", "weight_decay")
            else first.get(number.setting, value)
            for number, value in zip(self._numbers, self.now())]

    def now(self) -> list[float]:
        """All of them, by group."""
        values = []
        for number in self._numbers:
            value = self._groups[number.group][number.name]
            values.append(float(value if number.position < 0
                                else value[number.position]))
        return values

    def restore(self, values: list[float]) -> None:
        """Writes what `now` has returned."""
        for number, value in zip(self._numbers, values):
            group = self._groups[number.group]
            if number.position < 0:
                group[number.name] = _like(group[number.name], value)
            else:
                items = list(group[number.name])
                items[number.position] = _like(items[number.position], value)
                group[number.name] = type(group[number.name])(items)

    def covers(self, name: str, position: int = -1) -> bool:
        """Whether an argument is among them; else it must stay as it is."""
        return any(number.name == name and number.position == position
                   for number in self._numbers)

    def differing(self, values: list[float]) -> tuple[str, float, float] | None:
        """The first that is another than in `values`: what it is, its value there,
        and its value now."""
        for number, was, now in zip(self._numbers, values, self.now()):
            if was != now:
                return str(number), was, now
        return None

    def of_step(self, with_rates: bool) -> StepNumbers:
        """What a push sends of them.

        Args:
            with_rates: even where they are those of the join.
        """
        rates, changed = [], []
        for number, was, now in zip(self._numbers, self._registered, self.now()):
            if number.name == "lr":
                rates.append(now)
                with_rates = with_rates or was != now
            elif was != now:
                changed.append((number.group, number.setting, now))
        return StepNumbers(rates if with_rates else [], changed)


def plan_of(optimizers: Optimizers, rates_by_workers: bool) -> OptimizerPlan:
    """What the server needs of `optimizers`.

    Args:
        optimizers: of one of the classes that the server knows.
        rates_by_workers: the learning rates come with every step, as they do
            where the first one is 0; otherwise those that the groups have now are
            registered as multiples of the first group's.

    Raises:
        ConfigurationError: the server has no rule for it.
    """
    settings = _settings(optimizers)
    for position, optimizer in enumerate(optimizers):
        check_no_state(optimizer, place_of(optimizers, position))
    groups = [{"weight_decay": 0.0} | group for group in groups_of(optimizers)]
    for group in groups:
        rate, decay = float(group["lr"]), float(group["weight_decay"])
        if not (math.isfinite(rate) and math.isfinite(decay) and rate >= 0 and
                decay >= 0):
            _refuse(optimizers[0], f"lr {rate} and weight_decay {decay}",
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
            spec = rates[id(parameter)] = _core.ParameterSpec()
            spec.rate_multiplier = (1.0 if rates_by_workers else
                                    float(group["lr"]) / base)
            spec.decay_multiplier = own_decay / decay if decay > 0 else 1.0
            spec.decay_exempt = adapts and parameter.dim() < 2
            spec.rate_group = index
    return OptimizerPlan(settings=settings, rates=rates,
                         rates_by_workers=rates_by_workers)
