"""The losses of a step, looked at before they are differentiated."""

import math
from typing import TYPE_CHECKING, Any

import torch

from cohort import (_centred, _constants, _graph_check, _loss_check, _mixing_check, _nodes,
                    _sums, _terms)
from cohort._coefficients import Coefficients
from cohort._graphs import inputs_of

if TYPE_CHECKING:
    from cohort._step import Step

# A script with more kinds of losses is taken to make new ones all the time.
_KINDS_MAX = 20
# Functions of which most networks are made.
_PLAIN = frozenset(("AccumulateGrad", "ConvolutionBackward0", "AddmmBackward0",
                    "ReluBackward0", "TanhBackward0", "_FunctionBackward"))
# In place of how often a kind of losses was seen.
_DONE = -1


class LossWatch:
    """Refuses losses that are no means over this worker's samples.

    Attributes:
        shares, shares_by_sample: of the last loss; workers compare them. See
            _loss_check.
        constants: a number for those of the last loss; see _constants.
        centred: the same of those whose mean over the samples was taken off.
        factors: of its terms.
        has_saved_hooks: values that are kept for derivatives have some.
    """

    def __init__(self, step: "Step") -> None:
        self._step = step
        # How often kinds of losses, which are sets of functions, were seen before it
        # was known that they mix no samples, and that they are means over them; and how
        # often their constants were.
        self._unmixed: dict[frozenset[Any], int] = {}
        self._means: dict[frozenset[Any], int] = {}
        self._constants: dict[frozenset[Any], int] = {}
        self.shares: list[float] = []
        self.shares_by_sample: list[float] = []
        self.factors: list[float] = []
        self.constants = self.centred = 0.0
        self.has_saved_hooks = False

    def begin(self) -> None:
        """The losses of a backward pass follow."""
        self.centred = 0.0

    def check(self, loss: torch.Tensor, weight: float | None, reduction: str
              ) -> None:
        """Looks at a loss; arguments as of Job.backward.

        Raises:
            UsageError: it normalises by this worker's batch alone, trains a tensor
                beside the model, or mixes this worker's samples, and `weight` does
                not say that they weigh it; or if it is the first loss of its kind, so
                that a batch of other shape does not end the run: it is no mean over
                them.
        """
        step, nodes = self._step, _graph_check.check(loss)
        if step.batch.samples is not None and step.local is None:
            step.beside.check_leaves(nodes, int(step.batch.weight_of(step.done, None)))
        self._check_samples(loss, nodes, weight, reduction)
        if reduction == "sum":
            self.check_sum("job.backward()", loss)

    def _check_samples(self, loss: torch.Tensor, nodes: set[Any],
                       weight: float | None, reduction: str) -> None:
        step = self._step
        self.shares, self.shares_by_sample, self.factors = [], [], []
        self.constants = 0.0
        assignment, saved = step.assignment, step.tape.saved
        # Anything but a loss is refused later.
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or (
                step.batch.samples is None or assignment is None):
            return
        kind = frozenset(map(_signature, nodes))
        is_due = assignment.version == 0 or _is_due(kind, self._means)
        accumulate = step.batch.parts // max(1, assignment.batches)
        if weight is None and accumulate > 1 and reduction == "mean" and is_due:
            _loss_check.check_parts(loss, accumulate, saved)
        if not assignment.global_normalization or assignment.members < 2:
            return
        samples = max(1, step.batch.samples // step.batch.parts)
        # A loss with sums of the script's is made for several workers. In a void step they
        # are this worker's alone.
        has_sums = any(map(_sums.is_sum, {type(node): node for node in nodes}.values()))
        is_open = samples > 1 and not step.members.are_void()
        if weight != samples and is_open and not step.tape.differentiated:
            self._check_mixing(loss, nodes, kind, samples)
        if weight is not None:
            return
        if is_due and is_open and not has_sums:
            _loss_check.check_terms(
                loss, samples, reduction,
                Coefficients(loss, samples, saved, self.has_saved_hooks), saved)
            if not _terms.has_zero_factor(loss, saved):
                self._means[kind] = _DONE
        step.calls.check_together(samples)
        # After the first step more may be a fixed number, in a smaller batch that ends
        # an epoch.
        entries_max = (0.0 if has_sums else
                       math.inf if assignment.version == 0 else samples)
        self.shares, self.shares_by_sample = _loss_check.shares_in(
            loss, nodes, samples, entries_max, saved)
        if step.batch.samples:
            self.constants = _constants.number_of(
                _constants.find(nodes, samples, saved))
            self.factors = ([] if has_sums else
                            _terms.factors_in(loss, samples, reduction, saved))

    def _check_mixing(self, loss: torch.Tensor, nodes: set[Any], kind: frozenset[Any],
                      samples: int) -> None:
        saved = self._step.tape.saved
        operands = []
        # No kind is done: the script may centre them later.
        if _is_due(kind, self._constants):
            operands = list(_centred.find(nodes, samples, saved))
            # Of the first of several losses, too.
            self.centred = self.centred or _constants.number_of(
                filter(_centred.is_centred, operands))
        if not _is_due(kind, self._unmixed):
            return
        _mixing_check.check(loss, nodes, samples, saved, self.has_saved_hooks)
        if not _terms.has_zero_factor(loss, saved) and all(
                bool(one.any()) for one in operands):
            self._unmixed[kind] = _DONE

    def check_sum(self, what: str, total: torch.Tensor) -> None:
        """Raises UsageError for a sum over this worker's samples that has a penalty in
        it. Only in the run's first step, too."""
        step = self._step
        if (step.assignment is not None and step.assignment.version == 0 and
                step.assignment.members > 1 and isinstance(total, torch.Tensor) and
                total.numel() == 1):
            _loss_check.check_sum(what, total, step.batch.samples or 0, step.tape.saved)


def _signature(node: Any) -> tuple[Any, ...]:
    """The function of a node, and of most with those behind it, and what it is over."""
    kind = _nodes.kind_of(node)
    return (kind,) if kind in _PLAIN else (
        kind, getattr(node, "_saved_dim", None), *map(_nodes.kind_of, inputs_of(node)))


def _is_due(kind: frozenset[Any], seen: dict[frozenset[Any], int]) -> bool:
    """Whether a loss is to be looked at. One with a factor of 0, such as rewards that
    are all 0, says little: its kind is due when it was seen 1, 2, 4, 8 times and so on."""
    times = seen.get(kind, 0)
    if times == _DONE or kind not in seen and len(seen) == _KINDS_MAX:
        return False
    seen[kind] = times + 1
    return times & (times - 1) == 0
