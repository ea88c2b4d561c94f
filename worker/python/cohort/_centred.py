"""Constants of a loss that the script has centred or standardised over this worker's
batch, such as advantages, targets or inputs. No derivative shows it, but their numbers
do."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from cohort._graphs import Saved
from cohort._nodes import kind_of

# By kind of node, the names of the operands that it keeps, in the order of its edges.
_OPERANDS: dict[str, Sequence[str | None]] = {
    "MulBackward0": ("self", "other"), "MmBackward0": ("self",),
    "AddmmBackward0": (None, "mat1"), "ConvolutionBackward0": ("input",),
    "MvBackward0": ("self", "vec"), "DotBackward0": ("self", "tensor"),
    "BmmBackward0": ("self", "mat2"),
    # Labels have the second edge, and weights none.
    "BinaryCrossEntropyBackward0": ("self", "weight"),
    "BinaryCrossEntropyWithLogitsBackward0": ("self", "weight"),
    "MseLossBackward0": ("self", "target"), "SmoothL1LossBackward0": ("self", "target"),
    "HuberLossBackward0": ("self", "target")}
# Rounding errors of means of float32, by the deviation and by the greatest value; and of
# deviations, which scripts add a small number to.
_MEAN_MAX = 1e-5
_CONSTANT_MAX = 1e-7
_DEVIATION_MAX = 1e-3
# By chance, a batch of a data set that is standardised as a whole comes as near the less
# often, the fewer values it has: then the second one is less.
_FEW = 1000
# Values on a lattice of fewer steps, such as labels, may have the mean 0 by chance. A step
# is one of these parts of the smallest distance.
_STEPS_MAX = 32
_FRACTIONS = torch.arange(1.0, 7.0, dtype=torch.float64)
_LATTICE_MAX = 1e-4
# Answers to one question, or steps of one trajectory.
_PART_MAX = 10000


def find(nodes: Iterable[Any], samples: int, saved: Saved) -> Iterator[torch.Tensor]:
    """The constant operands of autograd's nodes whose first dimension, or that after
    times, may be this worker's samples."""
    for node in nodes:
        for name, (other, _) in zip(_OPERANDS.get(kind_of(node), ()),
                                    node.next_functions):
            one: torch.Tensor | None = (
                saved.of(node, name) if name is not None and other is None else None)
            if one is not None and kind_of(node) == "BmmBackward0":
                # As einsum puts vectors into matrices.
                one = one.squeeze()
            if one is not None and (
                    one.is_floating_point() and one.dim() > 0 and one.numel() > 0 and
                    samples in (math.gcd(len(one), samples), *one.shape[1:2]) and
                    one.layout is torch.strided):
                yield one


def is_centred(values: torch.Tensor) -> bool:
    """Whether values have mean 0 over the samples, but not over parts of them: all
    values, those of each channel, or those of each column. Those that are the same on
    all workers, such as a wavelet, only look so, and so may those of one of several
    workers.

    Args:
        values: [samples * n, ...].
    """
    values = values.detach()
    values = values if values.dtype == torch.float64 else values.float()
    # Labels of 1 and -1 may be balanced.
    sizes = values.abs()
    if bool((sizes == sizes.flatten()[0]).all()):
        return False
    every = tuple(range(values.dim()))
    return any(_have_mean_0(values, dims) and _is_no_chance(values, dims) and not
               _are_parts_centred(values, dims)
               for dims in {every, (0, *every[2:]), (0,)})


def _columns(values: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """[what is not in dims, what is in them]"""
    count = math.prod(values.shape[dim] for dim in dims)
    columns: torch.Tensor = values.movedim(
        dims, tuple(range(-len(dims), 0))).reshape(-1, count)
    return columns


def _have_mean_0(values: torch.Tensor, dims: tuple[int, ...]) -> bool:
    deviations, means = torch.std_mean(_columns(values, dims), dim=1, unbiased=False)
    near = _MEAN_MAX * deviations + _CONSTANT_MAX * values.abs().max()
    return bool((means.abs() <= near).all())


def _are_parts_centred(values: torch.Tensor, dims: tuple[int, ...]) -> bool:
    """Each sample may be centred by itself, and so may be the answers to one question."""
    return bool(dims[1:] and _have_mean_0(values, dims[1:])) or any(
        _have_mean_0(values.reshape(-1, part, *values.shape[1:]),
                     tuple(dim + 1 for dim in dims))
        for part in range(2, min(len(values), _PART_MAX)) if len(values) % part == 0)


def _is_no_chance(values: torch.Tensor, dims: tuple[int, ...]) -> bool:
    columns = _columns(values, dims)
    count = columns.shape[1]
    deviations = columns.std(1, unbiased=False)
    varied = deviations > 0
    # Two values are always as far from their mean.
    if count < 3 or not bool(varied.any()):
        return False
    most = _DEVIATION_MAX * min(1.0, _FEW / count)
    # With and without Bessel's correction.
    return any(bool(((deviations[varied] * scale - 1).abs() <= most).all())
               for scale in (1.0, (count / (count - 1)) ** 0.5)) or not _may_balance(
                   columns[varied][0])


def _may_balance(values: torch.Tensor) -> bool:
    """Whether they are on a lattice, as labels are, or each has its negative."""
    ordered = values.double().unique()
    width = ordered[-1] - ordered[0]
    if len(ordered) <= _STEPS_MAX:
        gaps = ordered.diff()
        gaps = gaps[gaps > _MEAN_MAX * width]
        steps = gaps / gaps.min() * _FRACTIONS[:, None]
        on_lattice = ((steps - steps.round()).abs() < _LATTICE_MAX).all(1) & (
            steps.sum(1) <= _STEPS_MAX)
        if bool(on_lattice.any()):
            return True
    return bool(((ordered + ordered.flip(0)).abs() <= _MEAN_MAX * width).all())
