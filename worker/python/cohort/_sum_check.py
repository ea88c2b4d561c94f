"""Sums over samples that a worker has added to something else, which the sum over
the workers would count once for each."""

import torch

from cohort import _errors, _loss_check
from cohort._graphs import Saved


def check(what: str, total: torch.Tensor, samples: int, saved: Saved) -> None:
    """Raises UsageError for a sum over samples that has a term of the weights alone,
    such as a penalty.

    Args:
        what: the call, for the error.
        total: of one element.
        samples: of which it is made. A term that is multiplied by as many counts
            once for each sample.
        saved: what was looked at.
    """
    of_samples, alone = False, False
    for term in _loss_check._terms(total, saved):
        if _loss_check.depends_on_samples(term.node):
            of_samples = True
        elif all(factor.value not in (None, samples) for factor in term.factors):
            alone = True
    if of_samples and alone:
        raise _errors.UsageError(
            f"{what}: got a sum over samples with a term of the weights alone, such as a "
            "penalty, which would count once for each worker; write a mean: "
            "job.backward(loss / n + penalty, weight=n), or add it to the sum of all "
            "workers: job.backward(job.sum(loss) + penalty)")
