"""What autograd's nodes compute, as far as the checks of losses need it."""

import functools
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from cohort._graphs import (Saved, first_inputs, has_indices, inputs_of, signed,
                            walk)

# Values of the reduction that nodes of losses save.
MEAN, SUM = 1, 2
# Sums, and means, over some dimensions.
SUMS = re.compile(r"(Sum|Nansum)Backward[01]")
AVERAGES = re.compile(r"(Sum|Nansum|Mean)Backward[01]")
# Nodes whose output is a term, or terms, of the loss.
PASSES = re.compile(r"(Add|Sub|Rsub|Neg|View|UnsafeView|ReshapeAlias|Squeeze|Unsqueeze|"
                     r"ToCopy|Clone|Alias)Backward\d")
FACTORS = re.compile(r"(Mul|Div)Backward\d")
# Functions of one number, or from many to one, that are no sums.
_NONLINEAR = re.compile(
    r"(Sqrt|Rsqrt|Log|Log2|Log10|Log1P|Exp|Expm1|Pow|Abs|Clamp|ClampMin|ClampMax|Relu|"
    r"LeakyRelu|Elu|Softplus|Tanh|Sigmoid|Reciprocal|Maximum|Minimum|Norm|"
    r"LinalgVectorNorm|Dist|Std|Var|Max|Min|Amax|Amin|Median|Logsumexp|Prod)Backward\d")
_NORM = re.compile(r"(LinalgVector)?NormBackward\d")
# Functions that choose rows.
_ROWS = ("IndexBackward0", "IndexSelectBackward0")
# Functions whose output has as many entries, or rows of them, as its first input.
BY_ENTRY = re.compile(r"(LogSoftmax|Pow|Abs|Sub|Add|Mul|Div|Neg|Log|Sqrt|Squeeze|Sum|"
                      r"Rsub)Backward\d")


def kind_of(node: Any) -> str:
    """The name of its class."""
    return type(node).__name__


@functools.cache
def matches(kinds: re.Pattern[str], kind: str) -> bool:
    return kinds.fullmatch(kind) is not None


def is_linear(node: Any) -> bool:
    """Whether its output has the entries of its inputs, up to factors and terms."""
    return matches(PASSES, kind_of(node)) or matches(FACTORS, kind_of(node))


def is_nonlinear(node: Any) -> bool:
    """Whether it is a function of something computed from samples that is no sum."""
    kind = kind_of(node)
    if matches(FACTORS, kind):
        # A factor may be no tensor.
        first, second = [*inputs_of(node), None][:2]
        return second is not None and depends_on_samples(second) and (
            kind.startswith("Div") or first is not None and depends_on_samples(first))
    return matches(_NONLINEAR, kind) and depends_on_samples(node)


def is_square_of_norm(node: Any) -> bool:
    """Whether it is a sum of squares."""
    inner = inputs_of(node)[0] if node.next_functions else None
    return bool(kind_of(node) == "PowBackward0" and node._saved_exponent == 2 and
                matches(_NORM, kind_of(inner)) and
                getattr(inner, "_saved_p", getattr(inner, "_saved_ord", None)) == 2)


def depends_on_samples(node: Any, saved: Saved | None = None) -> bool:
    """Whether it is computed from more than parameters, numbers and, with what was
    looked at, masks."""
    for part in walk([node]):
        if not isinstance(getattr(part, "variable", None), (nn.Parameter, type(None))):
            return True
        is_chosen = has_indices(part) and (saved is None or mask_of(part, saved) is None)
        if is_chosen or not matches(BY_ENTRY, kind_of(part)) and (
                None in inputs_of(part)):
            return True
    return False


def shape_of(node: Any, saved: Saved) -> Sequence[int]:
    """That of what a sum, mean or loss is over; empty: it is none."""
    one = None
    if kind_of(node) == "DotBackward0":
        one = saved.of(node, "tensor" if node.next_functions[1][0] is None else "self")
    elif getattr(node, "_saved_reduction", None) in (MEAN, SUM):
        one = saved.of(node, "target")
    elif matches(AVERAGES, kind_of(node)):
        return saved.shape_of(node, "self")
    return () if one is None else tuple(one.shape)


def dims_of(node: Any, saved: Saved) -> set[int]:
    """The dimensions that it is over."""
    rank = len(shape_of(node, saved))
    dims = rank and getattr(node, "_saved_dim", None) or range(rank)
    return {signed(dim) % rank for dim in dims}


def summed(node: Any, saved: Saved) -> Sequence[int]:
    """The shape of what a node adds up to a number; empty: it does not."""
    if kind_of(node).startswith("Mean") or getattr(node, "_saved_reduction", SUM) == MEAN:
        return ()
    shape = shape_of(node, saved)
    return shape if len(dims_of(node, saved)) == len(shape) else ()


def is_mean_by_column(node: Any, saved: Saved) -> bool:
    """Whether it is a mean over samples, of several columns."""
    return kind_of(node) == "MeanBackward1" and 0 in dims_of(node, saved)


def mask_of(node: Any, saved: Saved) -> torch.Tensor | None:
    """By which a node chooses entries; None: it does not."""
    chosen = {"IndexBackward0": "indices",
              "MaskedSelectBackward0": "mask"}.get(kind_of(node))
    masks = saved.of(node, chosen) if chosen else None
    for mask in masks if isinstance(masks, (tuple, list)) else [masks]:
        if mask is not None and mask.dtype == torch.bool:
            found: torch.Tensor = mask
            return found
    return None


def chooses_rows(node: Any) -> bool:
    """Whether a node's entries come from rows that were chosen."""
    return any(kind_of(part) in _ROWS for part in by_entry(node))


def by_entry(node: Any) -> list[Any]:
    """The nodes that a node's entries come from, the last ones included."""
    return list(walk(inputs_of(node), lambda part: (
        inputs_of(part) if matches(BY_ENTRY, kind_of(part)) else [])))


def entries_of(node: Any) -> Any:
    """What a mean or sum is over, up to factors."""
    return _without_factors(node.next_functions[0][0])


def _without_factors(node: Any) -> Any:
    while is_linear(node) and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node


def is_stack(node: Any) -> bool:
    """Whether it puts numbers or tensors together."""
    return kind_of(node) in ("StackBackward0", "CatBackward0")


def losses_in(node: Any) -> int:
    """How many numbers or tensors a stack has, up to factors; 0: it is none."""
    return len(node.next_functions) if is_stack(node := _without_factors(node)) else 0


def is_of_losses(node: Any, samples: int, saved: Saved) -> bool:
    """Whether a mean or sum has entries that are means or sums over samples already:
    those of tasks, times or columns."""
    inner = entries_of(node)
    return all(_is_over_samples(part, samples, saved) and
               not is_of_one(samples, part, saved)
               for part in (inputs_of(inner) if is_stack(inner) else [inner]))


def _is_over_samples(node: Any, samples: int, saved: Saved) -> bool:
    if node is None:
        return False
    if is_linear(node):
        inputs = [other for other in inputs_of(node) if other is not None]
        return bool(inputs) and all(_is_over_samples(other, samples, saved)
                                    for other in inputs)
    shape = shape_of(node, saved)
    return (bool(shape) and 0 in dims_of(node, saved) and shape[0] > 0 and
            shape[0] % samples == 0)


def is_of_one(samples: int, node: Any, saved: Saved) -> bool:
    """Whether it is computed from an entry of the first dimension, as in a loop over
    samples."""
    for part in first_inputs(node):
        kind = kind_of(part)
        if kind in ("SelectBackward0", "UnbindBackward0"):
            shape = saved.shape_of(part, "self") or (samples,)
            return bool(part._saved_dim == 0 and shape[0] == samples and
                        depends_on_samples(part))
        if not matches(BY_ENTRY, kind) and not matches(PASSES, kind):
            break
    return False


def has_one_row(node: Any, saved: Saved) -> bool:
    """Whether it is a loss of one row, as of a model that is called for each sample."""
    shape = shape_of(node, saved)
    return bool(shape) and shape[0] == 1 and depends_on_samples(node)
