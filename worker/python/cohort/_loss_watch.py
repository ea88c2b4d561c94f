"""The losses of a step, looked at before they are differentiated."""

import math
from typing import TYPE_CHECKING, Any

import torch

from cohort import _graph_check, _loss_check
from cohort._mixing_check import MixingCheck

if TYPE_CHECKING:
    from cohort._step import Step


class LossWatch:
    """Refuses losses that are no means over this worker's samples.

    Attributes:
        shares: of the last loss; workers compare them. See _loss_check.
        mixing: whether losses mix samples.
        has_hooks: outputs of the script's have hooks, which a further pass would
            call.
    """

    def __init__(self, step: "Step") -> None:
        self._step = step
        self.shares: list[float] = []
        self.mixing = MixingCheck()
        self.has_hooks = False

    def check(self, loss: torch.Tensor, weight: float | None, reduction: str
              ) -> None:
        """Looks at a loss; arguments as of Job.backward.

        Raises:
            UsageError: it normalises by this worker's batch alone, trains a tensor
                beside the model, or mixes this worker's samples, and `weight` does
                not say that they weigh it; or in the run's first step, so that no
                later one ends it for a batch of other shape: it is no mean over them.
        """
        step, nodes = self._step, _graph_check.check(loss)
        if step.samples is not None and step.local is None:
            step.beside.check_leaves(nodes, int(step.weight_of(None)))
        self._check_samples(loss, nodes, weight, reduction)
        if reduction == "sum":
            self.check_sum("job.backward()", loss)

    def _check_samples(self, loss: torch.Tensor, nodes: set[Any],
                       weight: float | None, reduction: str) -> None:
        step, self.shares = self._step, []
        assignment, saved = step.assignment, step.tape.saved
        # Anything but a loss is refused later.
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or (
                step.samples is None or assignment is None):
            return
        accumulate = step.parts // max(1, assignment.batches)
        if (weight is None and accumulate > 1 and reduction == "mean" and
                assignment.version == 0):
            _loss_check.check_parts(loss, accumulate, saved)
        if not assignment.global_normalization or assignment.members < 2:
            return
        samples = max(1, step.samples // step.parts)
        is_void = step.members.are_void()
        # In a void step sums and gathers of the script are this worker's alone.
        if weight != samples and not (step.tape.sums or step.tape.differentiated or
                                      self.has_hooks or is_void):
            self.mixing.check(loss, nodes, samples, saved)
        if weight is not None:
            return
        if step.tape.sums:
            # It is made for several workers.
            entries_max = 0.0
        elif assignment.version == 0:
            entries_max = math.inf
            if not is_void:
                _loss_check.check_terms(loss, samples, reduction, saved)
        else:
            # More may be a fixed number, in a smaller batch that ends an epoch.
            entries_max = samples
        self.shares = _loss_check.shares_in(loss, nodes, samples, entries_max, saved)

    def check_sum(self, what: str, total: torch.Tensor) -> None:
        """Raises UsageError for a sum over this worker's samples that has a penalty in
        it. Only in the run's first step, too."""
        step = self._step
        if (step.assignment is not None and step.assignment.version == 0 and
                step.assignment.members > 1 and isinstance(total, torch.Tensor) and
                total.numel() == 1):
            _loss_check.check_sum(what, total, step.samples or 0, step.tape.saved)
