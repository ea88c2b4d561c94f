"""Hooks of the script on parameters. Each gets this worker's share of a gradient,
so only one that is linear, such as a mask, does the same to the sum."""

import dis
import functools
import re
from typing import Any

import torch
from torch import nn

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
        with torch.no_grad():
            if not self._is_linear(before, gradient):
                raise _errors.UsageError(
                    f"{self._name}: has a hook that is not linear in the gradient, "
                    "but it gets this worker's share of it; use the server's "
                    "--clip_norm, or change the loss")

    def _is_linear(self, before: torch.Tensor, after: torch.Tensor) -> bool:
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
        for hook in self.between:
            result = hook(gradient)
            gradient = gradient if result is None else result
        return gradient


def _may_act(hook: Any) -> bool:
    """Whether a hook that has changed nothing may change another gradient: its
    code has branches, and returns something or writes in place."""
    while isinstance(hook, functools.partial):
        hook = hook.func
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
