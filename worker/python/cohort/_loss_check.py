"""Losses that samples do not weigh rightly, found in their graphs: means over other
things than samples, plain sums, and what is no sum over samples."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from cohort import _errors
from cohort._graphs import Saved, has_indices, nodes_from, signed

# Values of the reduction that nodes of losses save.
_MEAN, _SUM = 1, 2

# Losses, means of all entries, and quotients.
_MEANS = re.compile(r"((Nll|Mse|SmoothL1|Huber|SoftMargin|Multi\w*Margin)Loss(2D)?|"
                    r"BinaryCrossEntropy(WithLogits)?)Backward\d|(Mean|Div)Backward0")
# Nodes whose output is a term, or terms, of the loss.
_PASSES = re.compile(r"(Add|Sub|Rsub|Neg|View|UnsafeView|ReshapeAlias|Squeeze|Unsqueeze|"
                     r"ToCopy|Clone|Alias)Backward\d")
_FACTORS = re.compile(r"(Mul|Div)Backward\d")
# Relative rounding of a number that a loss is divided by.
_ROUNDING = 1e-5
# Functions of one number, or from many to one, that are no sums.
_NONLINEAR = re.compile(
    r"(Sqrt|Rsqrt|Log|Log2|Log10|Log1P|Exp|Expm1|Pow|Abs|Clamp|ClampMin|ClampMax|Relu|"
    r"LeakyRelu|Elu|Softplus|Tanh|Sigmoid|Reciprocal|Maximum|Minimum|Norm|"
    r"LinalgVectorNorm|Dist|Std|Var|Max|Min|Amax|Amin|Median|Logsumexp|Prod)Backward\d")
# Functions whose output has as many entries, or rows of them, as its first input.
_BY_ENTRY = re.compile(r"(LogSoftmax|Pow|Abs|Sub|Add|Mul|Div|Neg|Log|Sqrt|Squeeze|Sum|"
                       r"Rsub)Backward\d")
# Functions that put samples and other dimensions into one.
_FLAT = re.compile(r"(View|UnsafeView|ReshapeAlias|Clone)Backward\d")
# From a mean to the mask of its entries, at most.
_STEPS_TO_MASK = 5

# For a script that means what was found.
OVERRIDE = "if it is meant so, or a mean over samples, pass weight=len(x)"


def kind_of(node: Any) -> str:
    """The name of its class."""
    return type(node).__name__


def _is_multiple(number: float, samples: int) -> bool:
    """Whether a sum divided by it is a mean over samples."""
    times = number / samples
    return math.isfinite(times) and round(times) >= 1 and (
        abs(times - round(times)) <= _ROUNDING * times)


@dataclasses.dataclass(frozen=True)
class _Share:
    """The weight of a mean's entries over the number of all of them, and the shape of
    these."""
    value: float
    shape: Sequence[int]
    of_labels: bool = False


def shares_in(loss: torch.Tensor, nodes: Iterable[Any], samples: int,
              entries_max: float, saved: Saved) -> list[float]:
    """Of each mean in a graph that leaves some entries out, such as ignored labels,
    those outside of a mask, or samples that the script has dropped, or weighs them by
    classes, the weight of the rest over the number of all; and tensors that terms of
    the loss are divided by. It is a mean over samples only if all workers have the
    same.

    Args:
        loss: of one element.
        nodes: of its graph.
        samples: in the batch.
        entries_max: a mean of more is not looked at for entries of which samples
            cannot have equally many.
        saved: what was looked at.
    """
    means = [node for node in nodes if _matches(_MEANS, kind_of(node)) and
             getattr(node, "_saved_reduction", _MEAN) == _MEAN]
    shares = [share for mean in means
              if (share := _share_of(mean, samples, entries_max, saved)) is not None]
    values = [] if _are_by_sample(shares, samples) else [
        share.value for share in shares]
    divisors = _divisors_in(loss, saved)
    if not 1 < samples <= len(divisors):
        values += divisors
    return sorted(value for value in values if value != 1)


def _are_by_sample(shares: Sequence[_Share], samples: int) -> bool:
    """Whether each mean may be of one sample: of each kind there are as many for each
    sample, or some have entries of which samples cannot have equally many."""
    if not 1 < samples <= len(shares) or any(
            share.of_labels and len(share.shape) > 1 and share.shape[0] == samples
            for share in shares):
        return False
    kinds = [(share.of_labels, share.shape[1:]) for share in shares]
    return any(math.prod(share.shape) % samples for share in shares) or all(
        kinds.count(kind) % samples == 0 for kind in kinds)


def _divisors_in(loss: torch.Tensor, saved: Saved) -> list[float]:
    """Tensors of one number that terms of a loss are divided by, such as the mean of a
    mask. (A sum over a number is a share.) Numbers of Python are mostly constants, and
    64 bits wide."""
    numbers = {factor.node: factor.number for term in _terms(loss, saved)
               for factor in term.factors
               if factor.divides and not _summed(factor.node.next_functions[0][0], saved)}
    return [float(number) for number in numbers.values() if number is not None and
            number.dtype in (torch.float32, torch.float16, torch.bfloat16)]


@functools.cache
def _matches(kinds: re.Pattern[str], kind: str) -> bool:
    return kinds.fullmatch(kind) is not None


def _share_of(mean: Any, samples: int, entries_max: float, saved: Saved
              ) -> _Share | None:
    """None: it has no mask, and no labels that may be ignored, and samples have equal
    parts in it."""
    node, of_labels, of_all = mean, False, False
    if kind_of(mean).startswith("Div"):
        node = _without_numbers(mean.next_functions[0][0], saved)
        shape = _summed(node, saved) if depends_on_samples(node) else ()
        divisor = saved.of(mean, "other") if shape else None
        if divisor is None or divisor.numel() != 1:
            return None
        # A sum over the number of samples, or of their entries, is a mean over them.
        by = float(divisor)
        of_all = _is_multiple(by, samples)
        value = 1.0 if of_all else by / max(1, math.prod(shape))
    else:
        target = saved.of(mean, "target")
        # Absent: its graph does not say how many numbers it is the mean of.
        shape = (getattr(mean, "_saved_self_sym_numel",
                         getattr(mean, "_saved_self_numel", 0)),
                 ) if target is None else target.shape
        entries = math.prod(shape)
        value = None
        if entries % samples and entries <= entries_max and depends_on_samples(mean):
            value = entries / samples
        of_labels = kind_of(mean).startswith("NllLoss")
        if of_labels:
            counted = saved.of(mean, "total_weight")
            if counted is not None:
                value = (value or 1) * float(counted) / max(1, entries)
    for _ in range(_STEPS_TO_MASK):
        node = node.next_functions[0][0] if node.next_functions else None
        mask = _mask_of(node, saved)
        if mask is not None:
            part = 1.0 if of_all else float(mask.float().mean())
            return _Share((1.0 if value is None else value) * part, mask.shape)
        if not _matches(_BY_ENTRY, kind_of(node)):
            break
    return None if value is None else _Share(value, shape, of_labels)


def _mask_of(node: Any, saved: Saved) -> torch.Tensor | None:
    """By which a node chooses entries; None: it does not."""
    chosen = {"IndexBackward0": "indices",
              "MaskedSelectBackward0": "mask"}.get(kind_of(node))
    masks = saved.of(node, chosen) if chosen else None
    for mask in masks if isinstance(masks, (tuple, list)) else [masks]:
        if mask is not None and mask.dtype == torch.bool:
            found: torch.Tensor = mask
            return found
    return None


def refuse_shares(shares: list[float]) -> NoReturn:
    """Raises UsageError: other workers have other `shares` in this step."""
    raise _errors.UsageError(
        "job.backward(): the loss is a mean over a part of the samples, labels or "
        "entries, or over class weights (a batch that was filtered, ignore_index=, a "
        "mask, F.cross_entropy(weight=), a divisor that depends on the batch), here "
        f"{', '.join(f'{share:.3g}' for share in shares) or '1'} of all, on other "
        "workers another part; pass as weight= to job.backward() what it is a mean "
        "over: len(x) that are left, (y != ignore_index).sum(), mask.sum(), or w[y].sum() "
        "with class weights; "
        f"{OVERRIDE}")


def check_terms(loss: torch.Tensor, samples: int, reduction: str, saved: Saved) -> None:
    """Raises UsageError for a loss that is no mean over this worker's samples, by
    its last operations.

    Args:
        loss: of one element.
        samples: of which it is made, at least 2. If there are as many functions as
            samples, each may be of one sample.
        reduction: over the samples, as the script says.
        saved: what was looked at.
    """
    terms = list(_terms(loss, saved))
    # In place of a loss, for a batch that has none.
    if all(any(factor.value == 0 and not factor.divides for factor in term.factors)
           for term in terms):
        return
    unlike = [kind_of(term.node) for term in terms if is_nonlinear(term.node)]
    if 0 < len(unlike) < samples:
        raise _errors.UsageError(
            f"job.backward(): the loss has {unlike[0].partition('Backward')[0].lower()}() "
            "of a number that is computed from all samples of this worker's batch, but "
            "of one process's batch it would be another number; put sums over the "
            "samples of all workers into it, by job.sum(t), as for Dice or a root of "
            f"a mean; {OVERRIDE}")
    if reduction == "sum":
        return
    # Those that nothing has divided by the number of samples.
    terms = [term for term in terms if not any(
        factor.value is None or factor.value and _is_multiple(1 / factor.value, samples)
        for factor in term.factors)]
    of_one = {term.node for term in terms if _is_of_one(samples, term.node)}
    in_loop = len(of_one) >= samples and len(of_one) % samples == 0
    chosen = [term for term in terms if _is_sum_of_chosen(samples, term, saved)]
    for term in terms:
        if not (in_loop and term.node in of_one) and not _is_sum_over(
                samples, term.node, saved) and not (
                    term in chosen and len(chosen) < samples):
            continue
        if any(factor.divides for factor in term.factors):
            times = math.prod(factor.value or 1 for factor in term.factors)
            raise _errors.UsageError(
                "job.backward(): the loss has a sum over this worker's samples times "
                f"{times:.3g}: a mean over a part of the samples, labels or entries, or no "
                "mean; pass what it is divided by, such as mask.sum(), as weight= to "
                "job.backward(), or if that is a constant, job.backward(job.sum(loss)) "
                f"for the sum over the samples of all workers; {OVERRIDE}")
        raise _errors.UsageError(
            "job.backward(): the loss has a sum over this worker's samples, but "
            "counts as a mean; pass reduction=\"sum\" for the mean over the "
            "samples of all workers, or job.backward(job.sum(loss)) for their "
            f"sum; {OVERRIDE}")


def check_sum(what: str, total: torch.Tensor, samples: int, saved: Saved) -> None:
    """Raises UsageError for a sum over samples that has a term of the weights alone,
    such as a penalty: the sum over the workers would count it once for each.

    Args:
        what: the call, for the error.
        total: of one element.
        samples: of which it is made. A term that is multiplied by as many counts
            once for each sample.
        saved: what was looked at.
    """
    of_samples = alone = False
    for term in _terms(total, saved):
        if depends_on_samples(term.node):
            of_samples = True
        elif all(factor.value not in (None, samples) for factor in term.factors):
            alone = True
    if of_samples and alone:
        raise _errors.UsageError(
            f"{what}: got a sum over samples with a term of the weights alone, such as a "
            "penalty, which would count once for each worker; write a mean: "
            "job.backward(loss / n + penalty, weight=n), or add it to the sum of all "
            "workers: job.backward(job.sum(loss) + penalty)")


def check_parts(loss: torch.Tensor, parts: int, saved: Saved) -> None:
    """Raises UsageError for a mean that is divided by the number of parts of a step,
    as in scripts that add up gradients by themselves."""
    last = _factor_of(loss.grad_fn, saved)
    # Half of a square is meant as often as not.
    if last is None or not last.divides or last.value is None or (
            abs(last.value * parts - 1) > _ROUNDING):
        return
    # It may be the mean of as many losses.
    if len(list(_terms(loss, saved))) != parts:
        raise _errors.UsageError(
            f"job.backward(): the loss is divided by {parts}, and "
            f"job.data(accumulate={parts}) has that many parts, which count by their "
            f"samples already; remove the division; {OVERRIDE}")


def _is_sum_over(samples: int, node: Any, saved: Saved) -> bool:
    shape = _summed(node, saved)
    if not shape or not depends_on_samples(node):
        return False
    inputs = _by_entry(node)
    if any(map(_is_mean_by_column, inputs)):
        return False
    return shape[0] == samples or len(shape) == 1 and shape[0] % samples == 0 and any(
        _matches(_FLAT, kind_of(part)) for part in inputs)


def _is_sum_of_chosen(samples: int, term: "_Term", saved: Saved) -> bool:
    """Whether it is a sum over entries that a mask of samples has chosen. (One over a
    number is a share.)"""
    return bool(_summed(term.node, saved)) and not any(
        factor.divides for factor in term.factors) and any(
            mask.dim() > 0 and len(mask) % samples == 0 and
            depends_on_samples(node.next_functions[0][0])
            for node in _by_entry(term.node)
            if (mask := _mask_of(node, saved)) is not None)


def _is_of_one(samples: int, node: Any) -> bool:
    """Whether it is computed from an entry of the first dimension, as in a loop over
    samples."""
    while node.next_functions and (node := node.next_functions[0][0]) is not None:
        kind = kind_of(node)
        if kind in ("SelectBackward0", "UnbindBackward0"):
            shape = getattr(node, "_saved_self_sym_sizes",
                            getattr(node, "_saved_self_sizes", (samples,)))
            return bool(node._saved_dim == 0 and shape[0] == samples)
        if not _matches(_BY_ENTRY, kind) and not _matches(_PASSES, kind):
            break
    return False


def _by_entry(node: Any) -> list[Any]:
    """The nodes that a node's entries come from, the last ones included."""
    found: list[Any] = []
    todo = [following for following, _ in node.next_functions]
    while todo:
        part = todo.pop()
        if part is None or part in found:
            continue
        found.append(part)
        if _matches(_BY_ENTRY, kind_of(part)):
            todo += [following for following, _ in part.next_functions]
    return found


def _is_mean_by_column(node: Any) -> bool:
    """Whether it is a mean over samples, of several columns."""
    rank = len(getattr(node, "_saved_self_sym_sizes",
                       getattr(node, "_saved_self_sizes", ())))
    return kind_of(node) == "MeanBackward1" and any(
        signed(dim) % rank == 0 for dim in node._saved_dim)


@dataclasses.dataclass(frozen=True)
class _Factor:
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
class _Term:
    """A node whose output is a term of a loss, and what that is multiplied by."""
    node: Any
    factors: tuple[_Factor, ...]


def _factor_of(node: Any, saved: Saved) -> _Factor | None:
    """None: the node does not multiply by a number."""
    if not _matches(_FACTORS, kind_of(node)) or is_nonlinear(node):
        return None
    inputs = [following for following, _ in node.next_functions]
    number = None
    if None in inputs or len(inputs) == 1:
        number = saved.of(node, "self" if inputs[0] is None else "other")
    return _Factor(node, number if number is not None and number.numel() == 1 else None,
                   kind_of(node).startswith("Div"))


def _without_numbers(node: Any, saved: Saved) -> Any:
    """What a node multiplies by numbers."""
    while (factor := _factor_of(node, saved)) is not None and (
            factor.number is not None and not factor.divides):
        node = next(other for other, _ in node.next_functions if other is not None)
    return node


def _terms(loss: torch.Tensor, saved: Saved) -> Iterator[_Term]:
    """Those whose sum the loss is."""
    todo = [_Term(loss.grad_fn, ())]
    seen = set()
    while todo:
        term = todo.pop()
        node = term.node
        if node is None or node in seen:
            continue
        seen.add(node)
        following = [other for other, _ in node.next_functions]
        factor = _factor_of(node, saved)
        if factor is not None:
            todo += [_Term(other, (*term.factors, factor)) for other in following]
        elif _matches(_PASSES, kind_of(node)):
            todo += [_Term(other, term.factors) for other in following]
        else:
            yield term


def factors_in(loss: torch.Tensor, samples: int, saved: Saved) -> list[float]:
    """The numbers that terms of a loss, or all that they are means or sums of, are
    multiplied by, ascending. Without integers and parts of 1, which may be numbers of
    samples, and without two whose sum is 1, which may be drawn, as for mixup."""
    terms = list(_terms(loss, saved))
    if 1 < samples <= len(terms):
        # Each may be of one sample.
        return []
    factors = {factor.node: factor.value for term in terms for factor in (
        *term.factors, *_factors_within(term.node, saved))}
    known = {value for value in factors.values() if value and not any(
        _is_multiple(abs(one), 1) for one in (value, 1 / value))}
    return sorted(value for value in known if not any(
        abs(value + other - 1) <= _ROUNDING for other in known))


def _factors_within(node: Any, saved: Saved) -> Iterator[_Factor]:
    """Those of all that a node adds up, or is the mean of."""
    if kind_of(node) in ("SumBackward0", "MeanBackward0"):
        node = node.next_functions[0][0]
        while (factor := _factor_of(node, saved)) is not None and (
                factor.number is not None):
            yield factor
            node = next(other for other, _ in node.next_functions if other is not None)


def is_linear(node: Any) -> bool:
    """Whether its output has the entries of its inputs, up to factors and terms."""
    return _matches(_PASSES, kind_of(node)) or _matches(_FACTORS, kind_of(node))


def is_nonlinear(node: Any) -> bool:
    """Whether it is a function of something computed from samples that is no sum."""
    kind = kind_of(node)
    if _matches(_FACTORS, kind):
        # A factor may be no tensor.
        first, second = [other for other, _ in (*node.next_functions, (None, 0))][:2]
        return second is not None and depends_on_samples(second) and (
            kind.startswith("Div") or first is not None and depends_on_samples(first))
    return _matches(_NONLINEAR, kind) and depends_on_samples(node)


def depends_on_samples(node: Any) -> bool:
    """Whether it is computed from more than parameters and numbers."""
    for part in nodes_from([node]):
        if not isinstance(getattr(part, "variable", None), (nn.Parameter, type(None))):
            return True
        if has_indices(part) or not _matches(_BY_ENTRY, kind_of(part)) and any(
                following is None for following, _ in part.next_functions):
            return True
    return False


def _summed(node: Any, saved: Saved) -> Sequence[int]:
    """The shape of what a node adds up to a number; empty: it does not."""
    shape: Sequence[int] = ()
    if kind_of(node) == "SumBackward0":
        shape = getattr(node, "_saved_self_sym_sizes",
                        getattr(node, "_saved_self_sizes", ()))
    elif kind_of(node) == "DotBackward0":
        one = saved.of(node, "tensor" if node.next_functions[1][0] is None else "self")
        shape = () if one is None else one.shape
    elif getattr(node, "_saved_reduction", None) == _SUM:
        target = saved.of(node, "target")
        shape = () if target is None else target.shape
    return shape
