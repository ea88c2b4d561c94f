"""Rules for buffers that each worker changes by its own samples, such as the
centre of a teacher's outputs: at job.step() the changes of all workers become
one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cohort import _errors, _totals
from cohort._kept import STATISTICS, Kept
from cohort._normalizer import RunningNormalizer

if TYPE_CHECKING:
    from cohort._step import Step

_RULES = ("mean", "sum")
# All changes are one sum over the workers, in float64.
_NUMBERS_MAX = _totals.BYTES_MAX // 8 - 1


class Rules:
    """The rules of a job.

    Args:
        kept: its kept state, which gets the buffers.
        rules: by name of the tensor, as in `cohort.join`.

    Raises:
        ConfigurationError: a name or a rule that makes no sense.
    """

    def __init__(self, kept: Kept, rules: Mapping[str, str]) -> None:
        self._kept = kept
        self._rules = dict(sorted(rules.items()))
        # At the beginning of the step, or at the last job.step() of it.
        self._before: dict[str, torch.Tensor] = {}
        owners = dict(kept.modules())
        tensors = kept.tensors()
        numbers = 0
        for name, rule in self._rules.items():
            prefix, _, leaf = name.rpartition(".")
            _check_owner(name, owners.get(prefix), leaf)
            if name not in tensors:
                known = list(tensors)
                raise _errors.ConfigurationError(
                    f"buffers: {name}: the model has no such buffer, and keep= no "
                    f"such tensor; want one of {', '.join(known[:8]) or 'none'}"
                    f"{', ...' if len(known) > 8 else ''}")
            _check_rule(name, rule, tensors[name].dtype)
            kept.declare(name)
            numbers += tensors[name].numel()
        if numbers > _NUMBERS_MAX:
            raise _errors.ConfigurationError(
                f"buffers: got {numbers} numbers, want at most {_NUMBERS_MAX}; "
                "name fewer or smaller buffers")

    def begin(self) -> None:
        """A step's body begins."""
        if self._rules:
            self._note(self._kept.tensors())

    def _note(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._before = {name: tensors[name].detach().clone()
                        for name in self._rules}

    @torch.no_grad()
    def sync(self, step: "Step") -> None:
        """What the workers have changed since the last call becomes one change.

        Raises:
            UsageError: the changes cannot be combined.
        """
        if not self._rules:
            return
        tensors = self._kept.tensors()
        samples = (step.batch.samples_of(step.done, "buffers=") if "mean" in self._rules.values()
                   else 0.0)
        changes = [torch.tensor([samples], dtype=torch.float64)]
        for name, rule in self._rules.items():
            change = _change(name, self._before[name],
                             tensors.get(name)).reshape(-1).cpu()
            if rule == "mean":
                # A mean over no samples may be no number.
                change = change.mul_(samples) if samples else change.zero_()
            changes.append(change)
        total: Any = _totals.sum_of(step, torch.cat(changes), "buffers=")
        if step.members.are_void():
            return
        count, *totals = total.split([len(change) for change in changes])
        for (name, rule), sums in zip(self._rules.items(), totals):
            if rule == "mean":
                sums = sums / count.clamp(min=1)
            before = self._before[name]
            sums = sums.view(before.shape).to(before.device)
            value = (before.double() + sums if before.is_floating_point() else
                     before.long() + sums.round().long()).to(before.dtype)
            # Graphs may have used it.
            if not torch.equal(tensors[name], value):
                tensors[name].copy_(value)
        self._note(tensors)


def _check_owner(name: str, owner: nn.Module | None, leaf: str) -> None:
    if isinstance(owner, nn.modules.batchnorm._BatchNorm) and leaf in STATISTICS:
        raise _errors.ConfigurationError(
            f"buffers: {name}: belongs to a batch norm, whose statistics are those "
            "of all workers without a rule; leave it out")
    if isinstance(owner, RunningNormalizer):
        raise _errors.ConfigurationError(
            f"buffers: {name}: belongs to a RunningNormalizer, which adds up the "
            "samples of all workers by itself; leave it out")


def _check_rule(name: str, rule: str, kind: torch.dtype) -> None:
    if rule not in _RULES:
        raise _errors.ConfigurationError(
            f"buffers: {name}: got the rule {rule!r}, want 'mean' (of the changes, "
            "weighted by samples) or 'sum' (of the changes)")
    if kind.is_complex or kind is torch.bool or (
            rule == "mean" and not kind.is_floating_point):
        raise _errors.ConfigurationError(
            f"buffers: {name}: got {rule!r} for {kind}, want a buffer of floating "
            "point numbers" + (", or of integers" if rule == "sum" else
                               "; integers may have 'sum'"))


def _change(name: str, before: torch.Tensor, now: torch.Tensor | None
            ) -> torch.Tensor:
    if now is None or now.shape != before.shape or now.dtype != before.dtype:
        seen = ("none" if now is None else
                f"{now.dtype} of shape {list(now.shape)}")
        raise _errors.UsageError(
            f"buffers: {name}: got {seen}, want {before.dtype} of shape "
            f"{list(before.shape)} as at the beginning of the step: a change of "
            "type or shape cannot be combined")
    if before.is_floating_point():
        change: torch.Tensor = now.double() - before.double()
        return change
    whole = now.long() - before.long()
    _totals.check_integers(f"buffers: {name}", whole, _totals.SUMMED_MAX)
    change = whole.double()
    return change
