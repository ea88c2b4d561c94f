"""Constants of a loss that one process has once: weights of classes and of terms, and
factors of means over the samples, such as the shares of experts. Computed from a worker's
batch, they are others on each worker."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from cohort import _devices, _errors
from cohort._graphs import Saved, inputs_of, signed
from cohort._loss_check import OVERRIDE
from cohort._nodes import depends_on_samples, is_linear, kind_of, losses_in

_WEIGHTS = {"NllLossBackward0": "weight", "NllLoss2DBackward0": "weight",
            "BinaryCrossEntropyWithLogitsBackward0": "pos_weight"}
# The names of the operands that a product or quotient keeps.
_PRODUCTS = {"MulBackward0": ("self", "other"), "DotBackward0": ("self", "tensor"),
             "DivBackward0": (None, "other")}
_REDUCTIONS = ("MeanBackward1", "SumBackward1")
# Sums of so small numbers over the workers are known to less than a half.
_NUMBERS = 1 << 32


def find(nodes: Iterable[Any], samples: int, saved: Saved) -> Iterator[torch.Tensor]:
    """The constants of a loss.

    Args:
        nodes: of its graph.
        samples: in the batch.
        saved: what was looked at.
    """
    return (constant for node in nodes for constant in _constants_of(node, samples, saved))


def number_of(constants: Iterable[torch.Tensor]) -> float:
    """A number below 2^32 that stands for constants; 0: there are none."""
    # One that appears in several places is one.
    return _number_of(sorted(set(_devices.digests(list(constants)))))


def number_of_factors(factors: Sequence[float]) -> float:
    """The same for factors of terms."""
    return _number_of([f"{factor:.6g}" for factor in factors])


def _number_of(content: Sequence[object]) -> float:
    return _devices.number_of(repr(content).encode()) % (
        _NUMBERS - 1) + 1 if content else 0.0


def _constants_of(node: Any, samples: int, saved: Saved) -> Iterator[torch.Tensor]:
    kind = kind_of(node)
    if kind in _WEIGHTS:
        weights = saved.of(node, _WEIGHTS[kind])
        # Each sample may have one.
        if weights is not None and not (weights.dim() > 1 and len(weights) == samples):
            yield weights
    elif kind == "MmBackward0" and samples > 1:
        # What outputs are compared with, such as the texts of all images.
        left, right = inputs_of(node)
        if right is None and depends_on_samples(left):
            keys = saved.of(node, "mat2")
            if keys is not None and keys.shape[1] == samples:
                yield keys
        elif left is None and depends_on_samples(right):
            keys = saved.of(node, "self")
            if keys is not None and len(keys) == samples:
                yield keys
    elif kind in _PRODUCTS:
        for name, (own, _), (other, _) in zip(_PRODUCTS[kind], node.next_functions,
                                              reversed(node.next_functions)):
            if name is None or own is not None or other is None:
                continue
            rows, losses = _rows_of(other, saved), losses_in(other)
            if not (rows and rows % samples == 0 or losses):
                continue
            factor = saved.of(node, name)
            # A single number may be drawn, as for mixup; and of times and samples, the
            # mean over times leaves samples.
            if factor is not None and factor.numel() > 1 and (
                    factor.numel() == losses and losses % samples if losses else
                    rows == samples or len(factor) != samples):
                yield factor


def _rows_of(node: Any, saved: Saved) -> int:
    """Of a mean or sum over the first dimension that leaves a tensor; 0: it is none."""
    while is_linear(node):
        following = [other for other in inputs_of(node) if other is not None]
        if len(following) != 1:
            return 0
        node = following[0]
    if kind_of(node) not in _REDUCTIONS:
        return 0
    shape = saved.shape_of(node, "self")
    over = {signed(dim) % max(1, len(shape)) for dim in node._saved_dim}
    return shape[0] if len(shape) > 1 and 0 in over and depends_on_samples(node) else 0


def refuse_factors(factors: Sequence[float]) -> NoReturn:
    """Raises UsageError: other workers have other factors of terms in this step."""
    raise _errors.UsageError(
        "job.backward(): terms of the loss are multiplied by "
        f"{', '.join(f'{factor:.4g}' for factor in factors)}, and by other factors on "
        "other workers, where one process has one: a running average, weights of tasks, a "
        "counter, the number of samples; compute them from what all workers have, by "
        f"job.sum(), or from job.step_number; {OVERRIDE}")


def refuse_difference() -> NoReturn:
    """Raises UsageError: other workers have other constants in this step."""
    raise _errors.UsageError(
        "job.backward(): the loss has weights of classes (weight=, pos_weight=) or of "
        "terms, or a tensor that a mean over the samples is multiplied by (the shares of "
        "experts) or that outputs are compared with (detached keys), that differ between "
        "workers, because each computes them from its own batch; compute them from the "
        "samples of all workers, by job.sum() of counts or job.gather() of keys, or "
        "from the whole data set; with weights of classes weight=w[y].sum() is what a "
        f"mean is over; {OVERRIDE}")
