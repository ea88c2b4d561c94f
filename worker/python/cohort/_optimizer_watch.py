"""Notices changes of an optimizer that the server, which applies it, would not
follow."""

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cohort import _core, _errors, _scaler
from cohort._optimizer import GroupNumbers

# Its package deletes the name.
_optimizers: Any = importlib.import_module("torch.optim.optimizer")

# Entries of a group that belong to the update rule.
_CLASSES = [made for rule in _core.optimizer_rules() for made in rule.torch_classes]
_WATCHED = sorted(
    {"weight_decay", "maximize"} |
    {argument.name for made in _CLASSES for argument in made.arguments} |
    {value.name for made in _CLASSES for value in made.values})

# Methods that would change the script's optimizer, but not the server's.
_METHODS = {
    "step": "the server applies the optimizer; call job.step(). A GradScaler calls "
            f"it, too: {_scaler.INSTEAD}",
    "add_param_group": "the run has the parameters that the optimizer had when "
                       "it was joined; add the group before cohort.join()",
    "load_state_dict": "the server holds the optimizer's state; it continues "
                       "from its own checkpoint (cohort-server --resume). "
                       "cohort.join() reads rates and groups, but takes no "
                       "state: set them before it",
}

# The same of the inner optimizer of local steps, which the script's process has.
_METHODS_LOCALLY = {
    "step": "job.step() calls it, once for each batch; remove this call",
    "add_param_group": _METHODS["add_param_group"],
    "load_state_dict": "with local steps the state begins again in each step of the "
                       "run; set rates before cohort.join()",
}


def _counted(step: Callable[..., Any]) -> Callable[..., Any]:
    # Schedulers look for these, and warn without them.
    step._with_counter = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


def _needing_state(optimizer: torch.optim.Optimizer, place: str
                   ) -> Callable[..., Any]:
    """Its step() after the run, whose momentum and other state the server had."""
    step = optimizer.step

    def stepped(*args: Any, **kwargs: Any) -> Any:
        if not optimizer.state:
            raise _errors.UsageError(
                f"{place}.step(): the run is over, and the server had the optimizer's "
                "momentum and other state, without which this one would begin; for "
                "what follows make a new optimizer of the model's parameters")
        return step(*args, **kwargs)
    return _counted(stepped)


def _warning(state_dict: Callable[..., Any]) -> Callable[..., Any]:
    warn = functools.cache(lambda: _core.log(
        "warning", "optimizer.state_dict(): the server holds the optimizer's state, "
        "so this one has no momentum or other state; a run continues from the "
        "server's checkpoints (cohort-server --checkpoint_dir)"))

    def warned(*args: Any, **kwargs: Any) -> Any:
        warn()
        return state_dict(*args, **kwargs)
    return warned


def _hooks_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    """The hooks of optimizer.step(), with the methods that registered them;
    torch has them from 2.0 on. Those of torch itself only observe."""
    places = ((optimizer, "_optimizer_step_{}_hooks",
               "optimizer.register_step_{}_hook()"),
              (_optimizers, "_global_optimizer_{}_hooks",
               "torch.optim.optimizer.register_optimizer_step_{}_hook()"))
    for place, attribute, method in places:
        for kind in ("pre", "post"):
            for hook in getattr(place, attribute.format(kind), {}).values():
                module = getattr(hook, "__module__", None) or ""
                if module.partition(".")[0] not in ("torch", "cohort"):
                    yield method.format(kind), hook


def check_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Raises UsageError if the optimizer has hooks: they would not be called, as
    the server applies the optimizer."""
    for method, hook in _hooks_of(optimizer):
        name = getattr(hook, "__qualname__", type(hook).__name__)
        raise _errors.UsageError(
            f"{method}: {name} would never be called, because the server applies "
            "the optimizer; remove the hook. In place of a pre hook use the "
            "server's --clip_norm or change the loss; in place of a post hook that "
            "only reads, job.after_step(f)")


def _plain(value: Any) -> Any:
    """A copy that later changes in place do not reach."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return tuple(value) if isinstance(value, list) else value


class OptimizerWatch:
    """An optimizer of a job, as it was when `cohort.join` read it.

    Args:
        optimizer: its methods that would act on it alone raise a UsageError
            until `detach`.
        place: what errors call it.
        numbers: may change, as the steps send them.
        local: it is the inner optimizer of local steps, not the server's.

    Raises:
        UsageError: the optimizer has hooks of its step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, place: str,
                 numbers: GroupNumbers, local: bool = False) -> None:
        self._local = local
        if not local:
            check_hooks(optimizer)
        self._optimizer = optimizer
        self._place = place
        self._numbers = numbers
        self._noted = self._values()
        # Methods of the instance; absent: the class has the method.
        replaced: dict[str, Callable[..., Any]] = {
            name: _counted(_errors.refusing(f"{place}.{name}(): {text}"))
            for name, text in
            (_METHODS_LOCALLY if local else _METHODS).items()}
        if not local:
            replaced["state_dict"] = _warning(optimizer.state_dict)
        self._methods = {name: vars(optimizer).get(name) for name in replaced}
        for name, method in replaced.items():
            setattr(optimizer, name, method)

    def _values(self) -> list[dict[str, Any]]:
        return [{name: _plain(group[name]) for name in _WATCHED
                 if name in group and not self._local} |
                {"params": [id(parameter) for parameter in group["params"]]}
                for group in self._optimizer.param_groups]

    def _is_same(self, name: str, value: Any, noted: Any) -> bool:
        if isinstance(value, tuple) and isinstance(noted, tuple):
            return len(value) == len(noted) and all(
                one == other or self._numbers.covers(name, position)
                for position, (one, other) in enumerate(zip(value, noted)))
        return value == noted or self._numbers.covers(name)

    def check(self) -> None:
        """Raises UsageError if the optimizer was changed in a way that the server
        does not follow, or has hooks."""
        if not self._local:
            check_hooks(self._optimizer)
        now = self._values()
        if now == self._noted:
            return
        for number, (group, noted) in enumerate(zip(now, self._noted)):
            for name in _WATCHED:
                if not self._is_same(name, group.get(name), noted.get(name)):
                    raise _errors.UsageError(
                        f"{self._place}: {name} of group {number} was changed by hand "
                        f"from {noted.get(name)} to {group.get(name)}, but the "
                        "server applies the optimizer and continues with "
                        f"{noted.get(name)}; set it before cohort.join()")
        if [group["params"] for group in now] != [
                group["params"] for group in self._noted]:
            raise _errors.UsageError(
                f"{self._place}: its groups have other parameters than when the run "
                "was joined, but the server applies the optimizer; change them before "
                "cohort.join()")

    def detach(self, trained: bool) -> None:
        """The optimizer is the script's alone again. `trained`: the run has made
        steps."""
        optimizer = self._optimizer
        for name, method in self._methods.items():
            if method is not None:
                setattr(optimizer, name, method)
            else:
                delattr(optimizer, name)
        has_state = not isinstance(optimizer, torch.optim.SGD) or any(
            group["momentum"] for group in optimizer.param_groups)
        if trained and has_state and not self._local:
            optimizer.step = _needing_state(  # type: ignore[method-assign]
                optimizer, self._place)
