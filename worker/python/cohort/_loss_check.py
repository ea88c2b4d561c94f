"""Losses that samples do not weigh rightly, found in their graphs: means over other
things than samples, plain sums, and what is no sum over samples."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch

from cohort import _errors
from cohort._coefficients import Coefficients
from cohort._graphs import Saved, first_inputs, inputs_of, walk
from cohort._nodes import (
    BY_ENTRY, MEAN, chooses_rows, depends_on_samples, entries_of, has_one_row,
    is_linear, is_mean_by_column, is_nonlinear, is_of_losses, is_of_one,
    is_square_of_norm, is_stack, kind_of, mask_of, matches, shape_of, summed)
from cohort._terms import ROUNDING, Term, is_multiple, terms_of

# Losses, means of all entries, and quotients.
_MEANS = re.compile(r"((Nll|Mse|SmoothL1|Huber|SoftMargin|Multi\w*Margin)Loss(2D)?|"
                    r"BinaryCrossEntropy(WithLogits)?)Backward\d|(Mean|Div)Backward0")
# From a mean to the mask of its entries, at most.
_STEPS_TO_MASK = 5

# For a script that means what was found.
OVERRIDE = "if it is meant so, or a mean over samples, pass weight=len(x)"


@dataclasses.dataclass(frozen=True)
class _Share:
    """The weight of a mean's entries over the number of all of them, and the shape of
    these.

    Attributes:
        by_sample: the same over the number of samples, if a sum is divided by a multiple
            of them.
    """
    value: float
    shape: Sequence[int]
    of_labels: bool = False
    by_sample: float | None = None


def shares_in(loss: torch.Tensor, nodes: Iterable[Any], samples: int,
              entries_max: float, saved: Saved) -> tuple[list[float], list[float]]:
    """Of each mean in a graph that leaves some entries out, such as ignored labels,
    those outside of a mask, or samples that the script has dropped, or weighs them by
    classes, the weight of the rest over the number of all; and tensors that terms of
    the loss are divided by. It is a mean over samples only if all workers have the
    same. Both by entries, and by samples where these may be what it is divided by:
    then one of the two must be the same.

    Args:
        loss: of one element.
        nodes: of its graph.
        samples: in the batch.
        entries_max: a mean of more is not looked at for entries of which samples
            cannot have equally many.
        saved: what was looked at.
    """
    means = [node for node in nodes if matches(_MEANS, kind_of(node)) and
             getattr(node, "_saved_reduction", MEAN) == MEAN or
             is_mean_by_column(node, saved)]
    shares = [share for mean in means
              if (share := _share_of(mean, samples, entries_max, saved)) is not None]
    if _are_by_sample(shares, samples):
        shares = []
    divisors = _divisors_in(loss, saved)
    if 1 < samples <= len(divisors):
        divisors = []
    by_entry, by_sample = (sorted(value for value in (*values, *divisors) if value != 1)
                           for values in ([share.value for share in shares],
                                          [share.value if share.by_sample is None else
                                           share.by_sample for share in shares]))
    return by_entry, by_sample


def _are_by_sample(shares: Sequence[_Share], samples: int) -> bool:
    """Whether each mean may be of one sample: of each kind there are as many for each
    sample, or some have entries of which samples cannot have equally many."""
    if not 1 < samples <= len(shares) or all(
            share.by_sample is not None and share.shape[:1] == (samples,)
            for share in shares) or any(
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
    numbers = {factor.node: factor.number for term in terms_of(loss, saved)
               for factor in term.factors
               if factor.divides and not summed(factor.node.next_functions[0][0], saved)}
    return [float(number) for number in numbers.values() if number is not None and
            number.dtype in (torch.float32, torch.float16, torch.bfloat16)]


def _share_of(mean: Any, samples: int, entries_max: float, saved: Saved
              ) -> _Share | None:
    """None: it has no mask, and no labels that may be ignored, and samples have equal
    parts in it."""
    node, of_labels = mean, False
    shape: Sequence[int] = ()
    value: float | None = None
    by_sample: float | None = None
    if kind_of(mean).startswith("Div"):
        node = next((part for part in walk([mean.next_functions[0][0]], lambda part: (
            inputs_of(part) if is_linear(part) and not matches(_MEANS, kind_of(part))
            else [])) if summed(part, saved) and depends_on_samples(part)), mean)
        shape = summed(node, saved)
        divisor = saved.of(mean, "other") if shape else None
        if divisor is None or divisor.numel() != 1:
            return None
        # A sum over the number of samples, or of their entries, is a mean over them.
        by = float(divisor)
        by_sample = by / samples if is_multiple(by, samples) else None
        value = by / max(1, math.prod(shape))
    elif is_mean_by_column(mean, saved):
        # Time may come first, unless rows are chosen.
        rows = shape_of(mean, saved)[0]
        if rows % samples and rows <= entries_max and chooses_rows(mean):
            value = rows / samples
    else:
        target = saved.of(mean, "target")
        # Absent: its graph does not say how many numbers it is the mean of.
        shape = (getattr(mean, "_saved_self_sym_numel",
                         getattr(mean, "_saved_self_numel", 0)),
                 ) if target is None else target.shape
        entries = math.prod(shape)
        if target is None and is_of_losses(mean, samples, saved):
            # Tasks are as many on all workers.
            value = float(entries) if is_stack(entries_of(mean)) else None
        elif entries % samples and entries <= entries_max and depends_on_samples(mean):
            value = entries / samples
        of_labels = kind_of(mean).startswith("NllLoss")
        if of_labels:
            counted = saved.of(mean, "total_weight")
            if counted is not None:
                value = (value or 1) * float(counted) / max(1, entries)
    for inner in itertools.islice(first_inputs(node), _STEPS_TO_MASK):
        mask = mask_of(inner, saved)
        if mask is not None:
            return _Share((1.0 if value is None else value) * float(mask.float().mean()),
                          mask.shape, by_sample=by_sample)
        if not matches(BY_ENTRY, kind_of(inner)):
            break
    return None if value is None else _Share(value, shape, of_labels, by_sample)


def refuse_shares(shares: list[float]) -> NoReturn:
    """Raises UsageError: other workers have other `shares` in this step."""
    raise _errors.UsageError(
        "job.backward(): the loss is a mean over a part of the samples, labels or "
        "entries, or over class weights (a batch that was filtered, ignore_index=, a "
        "mask, F.cross_entropy(weight=), a divisor that depends on the batch), here "
        f"{', '.join(f'{share:.3g}' for share in shares) or '1'} of all, on other "
        "workers another part; pass as weight= to job.backward() what it is a mean "
        "over: len(x) that are left, (y != ignore_index).sum(), mask.sum(), or w[y].sum() "
        "with class weights; with several means job.backward([(a, n), (b, m)]); "
        f"{OVERRIDE}")


def check_terms(loss: torch.Tensor, samples: int, reduction: str,
                coefficients: Coefficients, saved: Saved) -> None:
    """Raises UsageError for a loss that is no mean over this worker's samples, by
    its last operations.

    Args:
        loss: of one element.
        samples: of which it is made, at least 2. If there are as many functions as
            samples, each may be of one sample.
        reduction: over the samples, as the script says.
        coefficients: those of the loss.
        saved: what was looked at.
    """
    terms = list(terms_of(loss, saved))
    # In place of a loss, for a batch that has none.
    if all(any(factor.value == 0 and not factor.divides for factor in term.factors)
           for term in terms):
        return
    unlike = [kind_of(term.node) for term in terms if is_nonlinear(term.node) and not (
        is_square_of_norm(term.node) and _is_divided(term, samples))]
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
    left = [term for term in terms if not _is_divided(term, samples)]
    of_one = {term.node for term in left if is_of_one(samples, term.node, saved) or
              has_one_row(term.node, saved)}
    in_loop = len(of_one) >= samples and len(of_one) % samples == 0
    for term in left:
        if not (in_loop and term.node in of_one or coefficients.are_of_sum(term, terms)):
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
            "samples of all workers, job.backward(job.sum(loss)) for their sum, or what a "
            "tensor in it is divided by, such as w.sum() in (w / w.sum() * each).sum(), as "
            f"weight=; {OVERRIDE}")


def _is_divided(term: Term, samples: int) -> bool:
    """By the number of samples, or a number that is not known."""
    return any(factor.value is None or factor.value and is_multiple(
        1 / factor.value, samples) for factor in term.factors)


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
    for term in terms_of(total, saved):
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
    terms = list(terms_of(loss, saved))
    # Half of a square is meant as often as not. It may be the mean of as many losses.
    if len(terms) != parts and all(any(
            factor.divides and factor.value is not None and
            abs(factor.value * parts - 1) <= ROUNDING for factor in term.factors)
            for term in terms):
        raise _errors.UsageError(
            f"job.backward(): the loss is divided by {parts}, and "
            f"job.data(accumulate={parts}) has that many parts, which count by their "
            f"samples already; remove the division; {OVERRIDE}")
