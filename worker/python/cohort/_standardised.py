"""Constants of a loss that the script has standardised over this worker's batch, such as
advantages, targets or inputs. No derivative shows it, but their numbers do."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from cohort._graphs import Saved
from cohort._loss_check import kind_of

# By kind of node, the names of the operands that it keeps, in the order of its edges.
_OPERANDS: dict[str, Sequence[str | None]] = {
    "MulBackward0": ("self", "other"), "MmBackward0": ("self",),
    "AddmmBackward0": (None, "mat1"), "ConvolutionBackward0": ("input",),
    "MseLossBackward0": ("self", "target"), "SmoothL1LossBackward0": ("self", "target"),
    "HuberLossBackward0": ("self", "target")}
# Rounding errors of means of float32; and of deviations, which scripts add a small
# number to. By chance, a batch of a data set that is standardised as a whole comes as near
# the less often, the fewer values it has: then the second one is less.
_MEAN_MAX = 3e-6
_DEVIATION_MAX = 1e-3
_FEW = 1000


def find(node: Any, samples: int, saved: Saved) -> torch.Tensor | None:
    """A constant operand of autograd's node that is standardised over the samples."""
    names = _OPERANDS.get(kind_of(node), ())
    for name, (other, _) in zip(names, node.next_functions):
        one: torch.Tensor | None = (
            saved.of(node, name) if name is not None and other is None else None)
        if one is not None and is_standardised(one, samples):
            return one
    return None


def is_standardised(values: torch.Tensor, samples: int) -> bool:
    """Whether values have mean 0 and standard deviation 1 over this worker's samples:
    all of them, those of each channel, or those of each column.

    Args:
        values: [samples * n, ...].
        samples: at least 2.
    """
    if (not values.is_floating_point() or values.dim() == 0 or not values.numel() or
            len(values) % samples or values.layout is not torch.strided):
        return False
    values = values.detach()
    values = values if values.dtype == torch.float64 else values.float()
    # Labels of 1 and -1 may be balanced.
    sizes = values.abs()
    if bool((sizes == sizes.flatten()[0]).all()):
        return False
    every = tuple(range(values.dim()))
    # Each sample may be standardised by itself.
    return any(_are_standard(values, dims) and not (
        dims[1:] and _are_standard(values, dims[1:]))
        for dims in {every, (0, *every[2:]), (0,)})


def _are_standard(values: torch.Tensor, dims: tuple[int, ...]) -> bool:
    count = math.prod(values.shape[dim] for dim in dims)
    # Two values are always as far from their mean.
    if count < 3:
        return False
    variance, mean = torch.var_mean(values, dims, unbiased=False)
    varied: torch.Tensor = variance.gt(0)
    deviation = variance[varied].sqrt()
    most = _DEVIATION_MAX * min(1.0, _FEW / count)
    return bool(varied.any()) and bool((mean[varied].abs() <= _MEAN_MAX).all()) and any(
        # With and without Bessel's correction.
        bool(((deviation * scale - 1).abs() <= most).all())
        for scale in (1.0, (count / (count - 1)) ** 0.5))
