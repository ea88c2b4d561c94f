"""The numbers by which a loss adds up what is computed of samples, found by derivatives:
where a derivative does not depend on any output of the model, the loss is a sum of what
is below, by whatever functions, and the derivatives are its coefficients."""

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from cohort._graphs import Saved, inputs_of
from cohort._layers import Pass, Top, zeros
from cohort._nodes import (
    MEAN, SUM, SUMS, by_entry, chooses_rows, depends_on_samples, dims_of, entries_of,
    is_of_losses, kind_of, mask_of, matches, shape_of)
from cohort._terms import Term, factor_of, is_multiple

# Functions that add up products of their inputs.
_PRODUCTS = re.compile(r"(Dot|Vdot|Mv|Mm|Bmm|Addmm|Baddbmm|Convolution)Backward\d")


@dataclasses.dataclass(frozen=True)
class _Derivatives:
    """Those of a loss by what a node gives out.

    Attributes:
        greatest: their greatest size.
        sizes: numbers of entries of the outputs.
        input_sizes: the same of the inputs.
        is_linear: those by the inputs are numbers, too, or functions of parameters that
            have no layer.
    """
    greatest: float
    sizes: list[int]
    input_sizes: list[int] = dataclasses.field(default_factory=list)
    is_linear: bool = False

    @staticmethod
    def of(by_outputs: Iterable[torch.Tensor | None],
           by_inputs: Iterable[torch.Tensor | None] = (), is_linear: bool = False
           ) -> "_Derivatives":
        outputs = [one.detach() for one in by_outputs if one is not None and one.numel()]
        inputs = [one for one in by_inputs if one is not None]
        return _Derivatives(
            max((float(one.abs().max()) for one in outputs), default=0.0),
            [one.numel() for one in outputs], [one.numel() for one in inputs],
            is_linear and not any(one.requires_grad and depends_on_samples(one.grad_fn)
                                  for one in inputs))


class Coefficients:
    """Those of a loss.

    Args:
        loss: of one element.
        samples: in the batch, at least 2.
        saved: what was looked at.
        has_saved_hooks: as of Top.can_differentiate.
    """

    def __init__(self, loss: torch.Tensor, samples: int, saved: Saved,
                 has_saved_hooks: bool) -> None:
        self._loss, self._samples, self._saved = loss, samples, saved
        self._has_saved_hooks = has_saved_hooks

    @functools.cached_property
    def _top(self) -> Top:
        return Top(self._loss)

    @functools.cached_property
    def _found(self) -> dict[Any, _Derivatives]:
        can = self._top.can_differentiate(self._saved, self._has_saved_hooks)
        return self._derivatives(()) if can else {}

    def are_of_sum(self, term: Term, terms: Iterable[Term]) -> bool:
        """Whether one of the loss's terms is a sum over the samples, times a number, and
        no mean. (A sum over entries that a mask has chosen, over a number, is a
        share.)"""
        # Most losses are, and need no pass.
        if self._is_mean(term.node):
            return False
        others = {other.node for other in terms} - {term.node}
        # They may be of the same values.
        return self._adds_up(term, self._found) and (
            not others or self._adds_up(term, self._derivatives(others)))

    def _derivatives(self, without: Iterable[Any]) -> dict[Any, _Derivatives]:
        """Those by the nodes of the last layers, and above."""
        found: dict[Any, _Derivatives] = {}

        def note(node: Any, by_inputs: Any, by_outputs: Any) -> None:
            found[node] = _Derivatives.of(by_outputs, by_inputs, is_linear=True)

        with Pass(self._top.near, self._top.parameters()) as passes:
            for node in self._top.nodes:
                passes.add_hook(node, functools.partial(note, node))
            for node in without:
                passes.add_hook(node, zeros)
            # There may be no memory for it.
            with contextlib.suppress(RuntimeError, NotImplementedError):
                for (node, _), gradient in passes.run(self._loss,
                                                      create_graph=True).items():
                    found[node] = _Derivatives.of([gradient])
        return found

    def _adds_up(self, term: Term, by_node: Mapping[Any, _Derivatives]) -> bool:
        is_share = any(factor.divides for factor in term.factors)
        if term.node not in by_node:
            return False
        # Nodes, with the coefficients that a sum of what they give out would have.
        todo = [(term.node, by_node[term.node].greatest)]
        seen = set()
        while todo:
            node, unit = todo.pop()
            found = by_node.get(node)
            if found is None or node in seen or self._is_mean(node) or (
                    is_share and mask_of(node, self._saved) is not None):
                continue
            seen.add(node)
            if not found.is_linear:
                # Losses of tasks, each times a parameter.
                if node.next_functions and is_of_losses(node, self._samples, self._saved):
                    todo += [(part, by_node[part].greatest)
                             for part in inputs_of(entries_of(node)) if part in by_node]
                elif self._adds_samples(node, found, unit):
                    return True
                continue
            factor = factor_of(node, self._saved)
            if factor is not None and factor.value:
                unit *= abs(factor.value)
                if is_multiple(1 / abs(factor.value), self._samples):
                    continue
            unit /= self._averaged(node)
            todo += [(other, unit) for other in inputs_of(node)]
        return False

    def _is_mean(self, node: Any) -> bool:
        """Whether it is one over samples."""
        if getattr(node, "_saved_reduction", None) == MEAN:
            return True
        if not kind_of(node).startswith("Mean") or any(
                matches(SUMS, kind_of(part)) and self._length(part) == self._samples
                for part in by_entry(node)):
            return False
        shape, dims = shape_of(node, self._saved), dims_of(node, self._saved)
        left = math.prod(size for dim, size in enumerate(shape) if dim not in dims)
        # Times may come first, unless rows are chosen.
        return bool(left % self._samples) or 0 in dims and (
            shape[0] % self._samples == 0 or chooses_rows(node))

    def _length(self, node: Any) -> int:
        """That of the first dimension, if a node is over it; or 0."""
        return shape_of(node, self._saved)[0] if 0 in dims_of(node, self._saved) else 0

    def _averaged(self, node: Any) -> int:
        """The number of entries of each sample that a node is the mean of."""
        if not kind_of(node).startswith("Mean"):
            return 1
        shape = shape_of(node, self._saved)
        return max(1, math.prod(shape[dim] for dim in dims_of(node, self._saved)))

    def _adds_samples(self, node: Any, found: _Derivatives, unit: float) -> bool:
        """Whether all that a node gives out, times `unit`, is in the loss."""
        if not depends_on_samples(node, self._saved):
            return False
        if getattr(node, "_saved_reduction", None) == SUM:
            return math.prod(shape_of(node, self._saved)) % self._samples == 0
        sizes = list(found.sizes)
        if _PRODUCTS.fullmatch(kind_of(node)):
            sizes += found.input_sizes
        return found.greatest > 0 and any(size % self._samples == 0 for size in sizes) and (
            not is_multiple(unit / found.greatest, self._samples))
