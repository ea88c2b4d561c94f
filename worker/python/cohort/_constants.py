"""Constants of a loss that one process has once: weights of classes, and factors of means
over the samples, such as the shares of experts. Computed from a worker's batch, they
are others on each worker."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from cohort import _devices, _errors
from cohort._graphs import Saved, signed
from cohort._loss_check import OVERRIDE, depends_on_samples, kind_of

_WEIGHTS = {"NllLossBackward0": "weight", "NllLoss2DBackward0": "weight",
            "BinaryCrossEntropyWithLogitsBackward0": "pos_weight"}
# The names of both operands that a product keeps.
_PRODUCTS = {"MulBackward0": ("self", "other"), "DotBackward0": ("self", "tensor")}
# Functions of one tensor that keep its entries, up to a factor.
_PASSES = re.compile(r"(Neg|View|UnsafeView|ReshapeAlias|Squeeze|Unsqueeze|ToCopy|Clone|"
                     r"Alias|Mul|Div)Backward\d")
_REDUCTIONS = ("MeanBackward1", "SumBackward1")
# Sums of so small numbers over the workers are known to less than a half.
_NUMBERS = 1 << 32


def number_of(nodes: Iterable[Any], samples: int, saved: Saved) -> float:
    """A number below 2^32 that stands for the constants of a loss; 0: it has none.

    Args:
        nodes: of its graph.
        samples: in the batch.
        saved: what was looked at.
    """
    # One that appears in several places is one.
    digests = {digest for node in nodes for constant in _constants_of(node, samples, saved)
               for digest in _devices.digests([constant])}
    return _devices.number_of(repr(sorted(digests)).encode()) % (
        _NUMBERS - 1) + 1 if digests else 0.0


def _constants_of(node: Any, samples: int, saved: Saved) -> Iterator[torch.Tensor]:
    kind = kind_of(node)
    if kind in _WEIGHTS:
        weights = saved.of(node, _WEIGHTS[kind])
        # Each sample may have one.
        if weights is not None and not (weights.dim() > 1 and len(weights) == samples):
            yield weights
    elif kind in _PRODUCTS:
        for name, (own, _), (other, _) in zip(_PRODUCTS[kind], node.next_functions,
                                              reversed(node.next_functions)):
            rows = _rows_of(other) if own is None and other is not None else 0
            if not rows or rows % samples:
                continue
            factor = saved.of(node, name)
            # A single number may be drawn, as for mixup; and of times and samples, the
            # mean over times leaves samples.
            if factor is not None and factor.numel() > 1 and (
                    rows == samples or len(factor) != samples):
                yield factor


def _rows_of(node: Any) -> int:
    """Of a mean or sum over the first dimension that leaves a tensor; 0: it is none."""
    while _PASSES.fullmatch(kind_of(node)):
        following = [other for other, _ in node.next_functions if other is not None]
        if len(following) != 1:
            return 0
        node = following[0]
    if kind_of(node) not in _REDUCTIONS:
        return 0
    shape: Sequence[int] = getattr(node, "_saved_self_sym_sizes",
                                   getattr(node, "_saved_self_sizes", ()))
    over = {signed(dim) % max(1, len(shape)) for dim in node._saved_dim}
    return shape[0] if len(shape) > 1 and 0 in over and depends_on_samples(node) else 0


def refuse_difference() -> NoReturn:
    """Raises UsageError: other workers have others in this step."""
    raise _errors.UsageError(
        "job.backward(): the loss has weights of classes (weight=, pos_weight=), or a "
        "tensor that a mean over the samples is multiplied by (the shares of experts), "
        "that differ between workers, because each computes them from its own batch; "
        "compute them from the samples of all workers, by job.sum() of counts, or from "
        f"the whole data set; {OVERRIDE}")
