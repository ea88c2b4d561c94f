"""Arithmetic across the samples of a batch, found in the graph of a loss: means that a
function follows, and products of samples with samples. They have this worker's samples
only, and one process has those of all."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from cohort import _errors
from cohort._graphs import Saved, signed
from cohort._loss_check import OVERRIDE, depends_on_samples, is_nonlinear, kind_of

# Functions over some dimensions: sums, and others. A function of such a sum is no sum.
_SUMS = re.compile(r"(Mean|Sum)Backward1")
_OTHERS = re.compile(r"(Var|Std|VarMean|StdMean|LinalgVectorNorm|Logsumexp|Amax|Amin|Max|"
                     r"Min|Softmax|LogSoftmax|Logcumsumexp)Backward0|(Norm|Prod)Backward1")
# Products of two matrices, with the names by which nodes save these.
_PRODUCTS = {"MmBackward0": ("self", "mat2"), "BmmBackward0": ("self", "mat2"),
             "CdistBackward0": ("x1", "x2"), "EuclideanDistBackward0": ("x1", "x2")}
# Linear functions of their inputs, if no factor is computed from samples.
_LINEAR = re.compile(r"(Add|Sub|Rsub|Neg|Mul|Div|Mean|Sum|View|UnsafeView|ReshapeAlias|"
                     r"Squeeze|Unsqueeze|Expand|ToCopy|Clone|Alias|Select|Slice|Unbind|"
                     r"Stack|Cat|Transpose|Permute|T|Index|Dot)Backward\d")
# Where the samples are the first dimension of what goes in.
_LAYERS = re.compile(r"(Addmm|Mm|Bmm|Baddbmm|Convolution|Embedding)Backward\d")


def check(loss: torch.Tensor, nodes: Iterable[Any], samples: int, saved: Saved) -> None:
    """Raises UsageError for a loss that is computed across samples.

    Args:
        loss: of one element.
        nodes: of its graph.
        samples: in the batch.
        saved: what was looked at.
    """
    if samples == 1:
        return
    found = sorted((node for node in nodes if _is_across(node, samples, saved)),
                   key=kind_of)
    linear: set[Any] | None = None
    for node in found:
        kind = kind_of(node)
        if _SUMS.fullmatch(kind):
            linear = _linear_of(loss) if linear is None else linear
            if node in linear:
                continue
        if depends_on_samples(node):
            raise _errors.UsageError(
                f"job.backward(): the loss depends on {kind.partition('Backward')[0].lower()}"
                f"() across the samples of this worker's batch (a dimension of {samples}, "
                "or a multiple), but one process has those of all workers there; use "
                "job.sum() for sums over all samples and job.gather() for all of them "
                "(SimCLR, CLIP, Dice, variances), and a batch-norm module to normalise; "
                f"{OVERRIDE}")


def _is_across(node: Any, samples: int, saved: Saved) -> bool:
    kind = kind_of(node)
    if kind in _PRODUCTS:
        return _is_product(node, samples, saved)
    sums = _SUMS.fullmatch(kind)
    if not sums and not _OTHERS.fullmatch(kind):
        return False
    dims = node._saved_dim
    shape = _shape_of(node, saved)
    if dims is None or not shape:
        return False
    # An empty list stands for all.
    over_first = any(signed(dim) % len(shape) == 0 for dim in (
        dims if isinstance(dims, tuple) else (dims,))) or dims == ()
    return over_first and bool(
        shape[0] == samples or sums and len(shape) == 2 and shape[0] % samples == 0
    ) and _has_samples_first(node)


def _shape_of(node: Any, saved: Saved) -> Sequence[int]:
    """The shape of its input, or of its output."""
    return _shape_as(node, "self", saved) or _shape_as(node, "result", saved)


def _shape_as(node: Any, name: str, saved: Saved) -> Sequence[int]:
    """That of what a node saves, or whose sizes it saves; empty: neither."""
    for attribute in (f"_saved_{name}_sym_sizes", f"_saved_{name}_sizes"):
        if hasattr(node, attribute):
            shape: Sequence[int] = getattr(node, attribute)
            return shape
    one = saved.of(node, name)
    return () if one is None else tuple(one.shape)


def _is_product(node: Any, samples: int, saved: Saved) -> bool:
    """Whether it multiplies samples with samples: similarities, or covariances."""
    if any(following is None for following, _ in node.next_functions):
        return False
    first, second = (_shape_as(node, name, saved) for name in _PRODUCTS[kind_of(node)])
    if len(first) < 2 or len(second) < 2 or math.prod(first[:-2]) != 1:
        return False
    distances = _PRODUCTS[kind_of(node)][0] == "x1"
    similar = first[-2] == second[-2 if distances else -1] and first[-2] % samples == 0
    return (similar or not distances and first[-1] == samples) and all(
        depends_on_samples(following) for following, _ in node.next_functions)


def _linear_of(loss: torch.Tensor) -> set[Any]:
    """The nodes that the loss is a linear function of."""
    found: set[Any] = set()
    todo = [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in found:
            continue
        found.add(node)
        if _LINEAR.fullmatch(kind_of(node)) and not is_nonlinear(node):
            todo += [following for following, _ in node.next_functions]
    return found


def _has_samples_first(node: Any) -> bool:
    """Whether its first dimension may be the samples: none was put there, and they were
    not taken apart."""
    while node.next_functions and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
        kind = kind_of(node)
        if kind in ("StackBackward0", "SelectBackward0", "UnbindBackward0"):
            return bool(node._saved_dim != 0)
        if kind == "TBackward0" or kind == "TransposeBackward0" and 0 in (
                node._saved_dim0, node._saved_dim1) or (
                    kind == "PermuteBackward0" and node._saved_dims[0] != 0):
            return False
        if _LAYERS.fullmatch(kind):
            break
    return True
