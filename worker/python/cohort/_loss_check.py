"""Losses that samples do not weigh rightly, found in their graphs: means over other
things than samples, plain sums, and what is no sum over samples."""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from cohort import _errors
from cohort._graphs import has_indices, nodes_from, saved

# Values of the reduction that nodes of losses save.
_MEAN, _SUM = 1, 2

# Losses, means of all entries, and quotients.
_MEANS = re.compile(r"((Nll|Mse|SmoothL1|Huber|SoftMargin|Multi\w*Margin)Loss(2D)?|"
                    r"BinaryCrossEntropy(WithLogits)?)Backward\d|(Mean|Div)Backward0")
# Nodes whose output is a term, or terms, of the loss.
_PASSES = re.compile(r"(Add|Sub|Rsub|Neg|View|UnsafeView|ReshapeAlias|Squeeze|Unsqueeze|"
                     r"ToCopy|Clone|Alias)Backward\d")
_FACTORS = re.compile(r"(Mul|Div)Backward\d")
# Functions of one number, or from many to one, that are no sums.
_NONLINEAR = re.compile(
    r"(Sqrt|Rsqrt|Log|Log2|Log10|Log1P|Exp|Expm1|Pow|Abs|Clamp|ClampMin|ClampMax|Relu|"
    r"LeakyRelu|Elu|Softplus|Tanh|Sigmoid|Reciprocal|Maximum|Minimum|Norm|"
    r"LinalgVectorNorm|Dist|Std|Var|Max|Min|Amax|Amin|Median|Logsumexp|Prod)Backward\d")
# Functions whose output has as many entries, or rows of them, as its first input.
_BY_ENTRY = re.compile(r"(LogSoftmax|Pow|Abs|Sub|Add|Mul|Div|Neg|Log|Sqrt|Squeeze|Sum|"
                       r"Rsub)Backward\d")
# From a mean to the mask of its entries, at most.
_STEPS_TO_MASK = 5

_OVERRIDE = "if it is meant so, or a mean over samples, pass weight=len(x)"


def _kind(node: Any) -> str:
    return type(node).__name__


def shares_in(nodes: Iterable[Any], samples: int, entries_max: float) -> list[float]:
    """Of each mean in a graph that leaves some entries out, such as ignored labels,
    those outside of a mask, or samples that the script has dropped, or weighs them by
    classes, the weight of the rest over the number of all. It is a mean over samples
    only if all workers have the same.

    Args:
        nodes: of the graph.
        samples: in the batch; as many such means, or more, may be of one sample each.
        entries_max: a mean of more is not looked at for entries of which samples
            cannot have equally many.
    """
    means = [node for node in nodes if _is_mean(_kind(node)) and
             getattr(node, "_saved_reduction", _MEAN) == _MEAN]
    shares = [share for mean in means
              if (share := _share_of(mean, samples, entries_max)) is not None]
    if 1 < samples <= len(shares):
        return []
    return sorted(share for share in shares if share != 1)


@functools.cache
def _is_mean(kind: str) -> bool:
    return _MEANS.fullmatch(kind) is not None


def _share_of(mean: Any, samples: int, entries_max: float) -> float | None:
    """None: it has no mask, and no labels that may be ignored, and samples have equal
    parts in it."""
    share = None
    entries = _entries_of(mean)
    if entries % samples and entries <= entries_max and _depends_on_samples(mean):
        share = entries / samples
    if _kind(mean).startswith("NllLoss"):
        counted = saved(mean, "total_weight")
        if counted is not None:
            share = (share or 1) * float(counted) / max(1, entries)
    elif _kind(mean).startswith("Div"):
        shape = _summed(mean.next_functions[0][0])
        divisor = saved(mean, "other") if shape else None
        if divisor is None or divisor.numel() != 1:
            return None
        # A sum over the number of samples, or of their entries, is a mean over them.
        by = float(divisor)
        return None if by % samples == 0 else by / math.prod(shape)
    node = mean
    for _ in range(_STEPS_TO_MASK):
        node = node.next_functions[0][0] if node.next_functions else None
        chosen = {"IndexBackward0": "indices",
                  "MaskedSelectBackward0": "mask"}.get(_kind(node))
        masks = saved(node, chosen) if chosen else None
        for mask in masks if isinstance(masks, (tuple, list)) else [masks]:
            if mask is not None and mask.dtype == torch.bool:
                return (1.0 if share is None else share) * float(mask.float().mean())
        if not _BY_ENTRY.fullmatch(_kind(node)):
            break
    return share


def _entries_of(mean: Any) -> int:
    """How many numbers it is the mean of; 0: its graph does not say."""
    target = saved(mean, "target")
    if target is not None:
        return int(target.numel())
    return int(getattr(mean, "_saved_self_sym_numel",
                       getattr(mean, "_saved_self_numel", 0)))


def refuse_shares(shares: list[float]) -> NoReturn:
    """Raises UsageError: other workers have other `shares` in this step."""
    raise _errors.UsageError(
        "job.backward(): the loss is a mean over a part of the samples, labels or "
        "entries, or over class weights (a batch that was filtered, ignore_index=, a "
        "mask, F.cross_entropy(weight=)), here "
        f"{', '.join(f'{share:.3g}' for share in shares) or '1'} of all, on other "
        "workers another part; pass as weight= to job.backward() what it is a mean "
        "over: len(x) that are left, (y != ignore_index).sum(), mask.sum(), or w[y].sum() "
        "with class weights; "
        f"{_OVERRIDE}")


def check_terms(loss: torch.Tensor, samples: int, reduction: str) -> None:
    """Raises UsageError for a loss that is no mean over this worker's samples, by
    its last operations.

    Args:
        samples: of which it is made. Of a single one, or if there are as many
            functions as samples, each may be of one sample.
        reduction: over the samples, as the script says.
    """
    if samples == 1:
        return
    terms = list(_terms(loss))
    unlike = [_kind(node) for node, _ in terms if _is_nonlinear(node)]
    if 0 < len(unlike) < samples:
        raise _errors.UsageError(
            f"job.backward(): the loss has {unlike[0].partition('Backward')[0].lower()}() "
            "of a number that is computed from all samples of this worker's batch, but "
            "of one process's batch it would be another number; put sums over the "
            "samples of all workers into it, by job.sum(t), as for Dice or a root of "
            f"a mean; {_OVERRIDE}")
    for node, scaled in terms:
        shape = () if scaled or reduction == "sum" else _summed(node)
        if shape and shape[0] == samples and not _is_mean_by_column(node):
            raise _errors.UsageError(
                "job.backward(): the loss has a sum over this worker's samples, but "
                "counts as a mean; pass reduction=\"sum\" for the mean over the "
                "samples of all workers, or job.backward(job.sum(loss)) for their "
                f"sum; {_OVERRIDE}")


def _is_mean_by_column(node: Any) -> bool:
    """Whether it adds up a mean over samples."""
    return _kind(node.next_functions[0][0]).startswith("Mean")


def _terms(loss: torch.Tensor) -> Iterator[tuple[Any, bool]]:
    """The nodes whose sum the loss is, and whether each is multiplied."""
    todo = [(loss.grad_fn, False)]
    seen = set()
    while todo:
        node, scaled = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        following = [other for other, _ in node.next_functions]
        if _PASSES.fullmatch(_kind(node)):
            todo += [(other, scaled) for other in following]
        elif _FACTORS.fullmatch(_kind(node)) and not _is_nonlinear(node):
            todo += [(other, True) for other in following]
        else:
            yield node, scaled


def _is_nonlinear(node: Any) -> bool:
    following = [other for other, _ in node.next_functions]
    if _FACTORS.fullmatch(_kind(node)):
        by_samples = [other is not None and _depends_on_samples(other)
                      for other in following]
        return len(by_samples) > 1 and by_samples[1] and (
            by_samples[0] or _kind(node).startswith("Div"))
    return bool(_NONLINEAR.fullmatch(_kind(node))) and _depends_on_samples(node)


def _depends_on_samples(node: Any) -> bool:
    """Whether it is computed from more than parameters and numbers."""
    for part in nodes_from([node]):
        if not isinstance(getattr(part, "variable", None), (nn.Parameter, type(None))):
            return True
        if has_indices(part) or not _BY_ENTRY.fullmatch(_kind(part)) and any(
                following is None for following, _ in part.next_functions):
            return True
    return False


def _summed(node: Any) -> Sequence[int]:
    """The shape of what a node adds up to a number; empty: it does not."""
    shape: Sequence[int] = ()
    if _kind(node) == "SumBackward0":
        shape = getattr(node, "_saved_self_sym_sizes",
                        getattr(node, "_saved_self_sizes", ()))
    elif getattr(node, "_saved_reduction", None) == _SUM:
        target = saved(node, "target")
        shape = () if target is None else target.shape
    return shape
