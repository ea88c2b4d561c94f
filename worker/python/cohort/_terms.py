"""The terms of a loss, and the numbers that they are multiplied by."""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from cohort._graphs import Saved, first_inputs, inputs_of, walk
from cohort._nodes import (AVERAGES, FACTORS, PASSES, depends_on_samples, is_nonlinear,
                           kind_of, matches)

# Relative rounding of a number that a loss is divided by.
ROUNDING = 1e-5
# From a loss to the output that it is of, at most.
_STEPS_TO_OUTPUT = 4


@dataclasses.dataclass(frozen=True)
class Factor:
    """The number by which a node multiplies or divides; None: it is not known, or
    trained."""
    node: Any
    number: torch.Tensor | None
    divides: bool

    @property
    def value(self) -> float | None:
        """The factor; 0 for a division by 0."""
        if self.number is None:
            return None
        value = float(self.number)
        if not self.divides:
            return value
        return 1 / value if value else 0.0


@dataclasses.dataclass(frozen=True)
class Term:
    """A node whose output is a term of a loss, and what that is multiplied by."""
    node: Any
    factors: tuple[Factor, ...]


def terms_of(loss: torch.Tensor, saved: Saved) -> Iterator[Term]:
    """Those whose sum the loss is."""
    todo = [Term(loss.grad_fn, ())]
    seen = set()
    while todo:
        term = todo.pop()
        node = term.node
        if node is None or node in seen:
            continue
        seen.add(node)
        factor = factor_of(node, saved)
        if factor is not None:
            todo += [Term(other, (*term.factors, factor)) for other in inputs_of(node)]
        elif matches(PASSES, kind_of(node)):
            todo += [Term(other, term.factors) for other in inputs_of(node)]
        else:
            yield term


def factor_of(node: Any, saved: Saved) -> Factor | None:
    """None: the node does not multiply by a number."""
    if not matches(FACTORS, kind_of(node)) or is_nonlinear(node):
        return None
    inputs = inputs_of(node)
    number = None
    if None in inputs or len(inputs) == 1:
        number = saved.of(node, "self" if inputs[0] is None else "other")
    return Factor(node, number if number is not None and number.numel() == 1 else None,
                   kind_of(node).startswith("Div"))


def has_zero_factor(loss: torch.Tensor, saved: Saved) -> bool:
    """Whether a term is multiplied by 0, as at the beginning of a warm-up."""
    return any(factor.value == 0 for term in terms_of(loss, saved)
               for factor in term.factors)


def factors_in(loss: torch.Tensor, samples: int, reduction: str, saved: Saved
               ) -> list[float]:
    """The numbers that terms of a loss, or all that they are means or sums of, are
    multiplied by, ascending. Without integers and parts of 1, which may be numbers of
    samples, unless a mean is multiplied by that; and without those of mixup, which may be
    drawn: two whose sum is 1, and the one of a difference of two outputs."""
    terms = [term for term in terms_of(loss, saved) if depends_on_samples(term.node)]
    kinds = collections.Counter(kind_of(term.node) for term in terms)
    if samples > 1 and max(kinds.values(), default=0) >= samples:
        # Each may be of one sample.
        return []
    of_terms: dict[float, list[Any]] = {}
    for term in terms:
        for factor in (*term.factors, *_factors_within(term.node, saved)):
            value = factor.value
            if value and not any(is_multiple(abs(one), 1) for one in (
                    value, 1 / value)) and not any(
                        kind_of(other) == "SubBackward0" and None not in inputs_of(other)
                        for other in inputs_of(factor.node) if other is not None):
                of_terms.setdefault(value, []).append(term.node)
    last = _factor_of_all(loss, saved)
    if last == samples > 1 and reduction == "mean":
        of_terms[last] = []
    return sorted(value for value, nodes in of_terms.items() if not any(
        abs(value + other - 1) <= ROUNDING and _are_of_one_output(nodes, others)
        for other, others in of_terms.items()))


def _factor_of_all(loss: torch.Tensor, saved: Saved) -> float | None:
    last = factor_of(loss.grad_fn, saved)
    return None if last is None or last.divides else last.value


def _are_of_one_output(some: Iterable[Any], others: Iterable[Any]) -> bool:
    """Whether two terms are one function of one output, with other labels."""
    return any(kind_of(one) == kind_of(other) and _above(one) & _above(other)
               for one in some for other in others)


def _above(node: Any) -> set[Any]:
    """A node, and some that it is computed from."""
    return {node, *itertools.islice(first_inputs(node), _STEPS_TO_OUTPUT)}


def _factors_within(node: Any, saved: Saved) -> Iterator[Factor]:
    """Those of what a node adds up, or is the mean of."""
    def parts_of(part: Any) -> list[Any]:
        passes = matches(AVERAGES, kind_of(part)) or matches(PASSES, kind_of(part))
        return inputs_of(part) if passes or factor_of(part, saved) is not None else []

    for part in walk([node], parts_of) if matches(AVERAGES, kind_of(node)) else ():
        factor = factor_of(part, saved)
        if factor is not None and factor.number is not None:
            yield factor


def is_multiple(number: float, samples: int) -> bool:
    """Whether a sum divided by it is a mean over samples."""
    times = number / samples
    return math.isfinite(times) and round(times) >= 1 and (
        abs(times - round(times)) <= ROUNDING * times)
