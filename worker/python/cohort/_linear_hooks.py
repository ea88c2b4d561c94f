"""Hooks of the script on parameters. Each gets this worker's share of a gradient,
so only one that is linear, such as a mask, does the same to the sum."""

import collections
import contextlib
import copy
import dis
import functools
import re
import types
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cohort import _errors


class _Entry:
    """The first hook of a parameter, and the last: they see what the script's
    hooks between them do."""

    def __init__(self, name: str) -> None:
        self._name = name
        # The gradient that the script's hooks get, as it is and as it was.
        self._given: tuple[torch.Tensor, int] | None = None
        self._before: torch.Tensor | None = None
        self.between: list[Any] = []
        self._tried: list[Any] = []

    def enter(self, gradient: torch.Tensor) -> None:
        # Hooks may write into the gradient.
        self._given = gradient, gradient._version
        self._before = gradient.detach().clone()

    def leave(self, gradient: torch.Tensor) -> None:
        given, self._given = self._given, None
        before, self._before = self._before, None
        if given is None or before is None:
            return
        # Those that only look are not called with other numbers. One that may
        # act under a condition has not acted on this share.
        same = gradient is given[0] and gradient._version == given[1]
        if same and not any(map(_may_act, self.between)):
            return
        # Its step does not count.
        if not bool(torch.isfinite(before).all()):
            return
        with torch.no_grad():
            if not self._is_linear(before, gradient):
                raise _errors.UsageError(
                    f"{self._name}: has a hook that is not linear in the gradient, "
                    "but it gets this worker's share of it; use the server's "
                    "--clip_norm, or change the loss")

    def _is_linear(self, before: torch.Tensor, after: torch.Tensor) -> bool:
        # What a hook notes beside, it must not note of these numbers.
        copies = _Copies()
        self._tried = [copies.of(hook) for hook in self.between]
        # Powers of two are exact.
        for scale in (-1.0, 2.0 ** 20, 2.0 ** -20):
            if not torch.equal(self._apply(before.mul(scale)), after.mul(scale)):
                return False
        # One that keeps the largest entries does the same at every scale.
        other = before.flatten().flip(0).view_as(before).mul(0.75)
        wanted = after + self._apply(other.clone())
        return torch.allclose(self._apply(before + other), wanted, rtol=0,
                              atol=1e-4 * float(wanted.abs().max()))

    def _apply(self, gradient: torch.Tensor) -> torch.Tensor:
        for hook in self._tried:
            result = hook(gradient)
            gradient = gradient if result is None else result
        return gradient


class _Copies:
    """Copies of functions and of what they may write to: closures, defaults,
    global variables, objects of the script. What is large stays itself."""

    _KEPT = (nn.Module, nn.Parameter, torch.optim.Optimizer, Dataset, DataLoader)
    _PLAIN = (list, tuple, set, dict, collections.OrderedDict, collections.deque,
              collections.defaultdict, collections.Counter)
    _DEPTH_MAX = 6
    _ELEMENTS_MAX = 1 << 20

    def __init__(self) -> None:
        # By number; the value is kept, so that no other gets its number.
        self._made: dict[int, tuple[Any, Any]] = {}
        self._depth = 0

    def of(self, value: Any) -> Any:
        """The copy; the value itself, if it cannot or need not be copied."""
        if id(value) not in self._made:
            self._made[id(value)] = value, value
            if self._depth < self._DEPTH_MAX:
                self._depth += 1
                with contextlib.suppress(Exception):  # slots, a lock, a file
                    self._made[id(value)] = value, self._copy(value)
                self._depth -= 1
        return self._made[id(value)][1]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, self._KEPT):
            return value
        if isinstance(value, torch.Tensor):
            return (value.detach().clone() if value.numel() <= self._ELEMENTS_MAX
                    else value)
        if type(value).__module__ == "numpy" and hasattr(value, "copy"):
            return value.copy() if value.size <= self._ELEMENTS_MAX else value
        if isinstance(value, functools.partial):
            return functools.partial(self.of(value.func),
                                     *map(self.of, value.args),
                                     **self._items(value.keywords))
        if isinstance(value, types.MethodType):
            return types.MethodType(self.of(value.__func__),
                                    self.of(value.__self__))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if type(value) in self._PLAIN:
            made = copy.copy(value)
            if len(made) > self._ELEMENTS_MAX:
                return value
            if isinstance(made, dict):
                made.update(self._items(made))
            elif isinstance(made, (list, tuple)):
                made = type(made)(map(self.of, value))
            return made
        if type(value).__module__.partition(".")[0] in ("builtins", "torch",
                                                        "cohort"):
            return value
        made = copy.copy(value)
        vars(made).update(self._items(vars(value)))
        return made

    def _items(self, values: dict[Any, Any]) -> dict[Any, Any]:
        return {name: self.of(value) for name, value in values.items()}

    def _function(self, function: types.FunctionType) -> Any:
        package = (function.__module__ or "").partition(".")[0]
        if package in ("torch", "cohort"):
            return function
        known = function.__globals__
        names = _names_in(function.__code__) & known.keys()
        cells = tuple(types.CellType(self.of(cell.cell_contents))
                      if _is_filled(cell) else types.CellType()
                      for cell in function.__closure__ or ())
        made = types.FunctionType(
            function.__code__,
            {**known, **{name: self.of(known[name]) for name in names}},
            function.__name__, self.of(function.__defaults__), cells)
        made.__kwdefaults__ = self.of(function.__kwdefaults__)
        return made


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def _names_in(code: types.CodeType) -> set[str]:
    """The names that code, and functions within it, use of the module."""
    return set(code.co_names).union(*(
        _names_in(part) for part in code.co_consts
        if isinstance(part, types.CodeType)))


def _may_act(hook: Any) -> bool:
    """Whether a hook that has changed nothing may change another gradient: its
    code has branches, and returns something or writes in place."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    # torch ignores what hooks of several tensors at once return.
    if getattr(hook, "__module__", "") == "torch.autograd.graph":
        return False
    if not hasattr(hook, "__code__") and not hasattr(hook, "__func__"):
        hook = getattr(type(hook), "__call__", None)
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    if code is None:
        return False
    steps = list(dis.get_instructions(code))
    branches = any("JUMP" in step.opname for step in steps)
    returns = any(step.opname == "RETURN_VALUE" and not (
        before.opname == "LOAD_CONST" and before.argval is None)
        for before, step in zip(steps, steps[1:]))
    writes = any(step.opname == "STORE_SUBSCR" or (
        isinstance(step.argval, str) and re.fullmatch(r"[a-z]\w*[^_]_", step.argval))
        for step in steps)
    return branches and (returns or writes)


def surround(name: str, parameter: nn.Parameter) -> None:
    """Watches the hooks that a parameter has now, if it has any."""
    hooks: Any = parameter._backward_hooks
    if not hooks or not parameter.requires_grad:
        return
    entry = next((hook.__self__ for hook in hooks.values()
                  if isinstance(getattr(hook, "__self__", None), _Entry)), None)
    others = {key: hook for key, hook in hooks.items()
              if not isinstance(getattr(hook, "__self__", None), _Entry)}
    if entry is not None and list(others.values()) == entry.between:
        return
    entry = _Entry(name)
    entry.between = list(others.values())
    # Hooks run in this order.
    hooks.clear()
    register: Any = parameter.register_hook
    register(entry.enter)
    hooks.update(others)
    register(entry.leave)
