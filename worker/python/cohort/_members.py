"""The members of a step: whether they meet, and what they must have alike."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import torch

from cohort import _constants, _devices, _errors, _loss_check, _mixing_check
from cohort._unseeded import Unseeded

if TYPE_CHECKING:
    from cohort._step import Step


class Members:
    """The workers whose batches make up the step in progress.

    Attributes:
        order_digest: of the epoch's order of samples, if a sampler decides it.
    """

    def __init__(self, step: "Step") -> None:
        self._step = step
        self._unseeded = Unseeded()
        self.order_digest = b""

    def begin(self) -> None:
        """The loop's body begins."""
        step = self._step
        assert step.assignment is not None
        if step.assignment.global_normalization:
            self._unseeded.begin(step.model.module, step.beside.modules(),
                                 step.beside.known())

    def are_void(self) -> bool:
        """Whether the step is known to be void."""
        return bool(self._step.worker.is_void())

    def ranks(self) -> list[int]:
        """Theirs, ascending."""
        assert self._step.assignment is not None
        return list(self._step.assignment.ranks)

    def check_alone(self, where: str) -> None:
        """Raises UsageError if the step has members that would read the same data as
        this one, beside the run's own."""
        assignment = self._step.assignment
        if assignment is not None and assignment.members > 1:
            raise _errors.UsageError(
                f"{where}: reads a second DataLoader in the body of the loop over "
                "job.data(), whose samples would be the same on all workers, and others "
                "after a restart; pass job.data() one data set that has the samples of both "
                "(a, b[i % len(b)]), or batches of both as own data: "
                "job.data(zip(first, second), batch_size=n), with another seed on each rank. "
                "To score the model, call model.eval() first")

    def check_meet(self, what: str) -> None:
        """Raises UsageError if members do not meet under this policy."""
        assert self._step.assignment is not None
        if not self._step.assignment.global_normalization:
            self._refuse_to_meet(what)

    def check_met(self, what: str, met: int) -> None:
        """The same, if a meeting of `met` members did not have all of them. With
        --min_pushes it may have fewer than were assigned, but not in groups."""
        assignment = self._step.assignment
        assert assignment is not None
        if met != assignment.members and not (
                assignment.moves_statistics or self.are_void()):
            self._refuse_to_meet(what)

    def _refuse_to_meet(self, what: str) -> NoReturn:
        raise _errors.UsageError(
            f"{what}: under this policy the workers do not synchronise in every "
            "step, so values over all of them are not known; want "
            "--aggregation=sync and --normalization=global without groups and local "
            "steps, or one mean with job.backward(loss, weight=...)")

    def share(self, loss: torch.Tensor, weight: float | None, workers: int
              ) -> torch.Tensor:
        """See Job.share. `workers` are those of the cohort."""
        step = self._step
        own = step.batch.weight_of(step.done, weight)
        assert step.assignment is not None
        if step.local is not None:
            # A local step has this worker's samples alone.
            mean: torch.Tensor = loss.mul(float(own > 0))
            return mean
        alone = workers == 1 and not step.assignment.global_normalization
        if not alone:
            self.check_meet("job.share()")
        (total,), _, met = step.worker.meet("job.share", [own])
        if not alone:
            self.check_met("job.share()", met)
        share: torch.Tensor = loss.mul(own / total if total > 0 else 0.0)
        return share

    def sum_weights(self, site: str, own: list[float]) -> tuple[list[float], int]:
        """The sums of the members' weights, and how many members there are.

        Raises:
            ConfigurationError: other members have other rates or numbers of the
                optimizer, another order of samples, or another state of the model
                or beside it.
            UsageError: samples do not weigh the loss rightly.
        """
        step, kept, losses = self._step, self._step.model.kept, self._step.losses
        self._unseeded.end()
        # With what to do if members have others.
        alike: list[tuple[float, Callable[[], None]]] = [
            (_number_of(step.model.modes()), self._refuse_modes),
            (kept.digest, lambda: kept.refuse_difference(step.worker)),
            (self._unseeded.number,
             lambda: self._unseeded.refuse_difference(step.worker)),
            (_number_of(self.order_digest), self._refuse_orders),
            (_number_of(step.numbers), self._refuse_numbers)]
        # One of the two must be alike.
        shares = [_number_of(losses.shares), _number_of(losses.shares_by_sample)]
        # Some workers may have a loss without, or with fewer factors.
        some = (losses.constants, losses.centred,
                _constants.number_of_factors(losses.factors))
        sums, spreads, met = step.worker.meet(
            site, [*own, *(number for number, _ in alike), *shares,
                   float(len(losses.factors)), *some, *(float(number > 0) for number in some)])
        for spread, (_, refuse) in zip(spreads[len(own):], alike):
            if spread > 0:
                refuse()
        after = len(own) + len(alike) + len(shares)
        if all(spread > 0 for spread in spreads[after - len(shares):after]):
            _loss_check.refuse_shares(losses.shares)
        # Sums are rounded.
        count, *totals = map(round, sums[after:])
        have = totals[len(some):]
        others, centred, factors = (
            number > 0 and total != number * many
            for number, total, many in zip(some, totals, have))
        _, have_centred, have_factors = have
        # Those of one worker may be so by chance.
        if centred and 2 * have_centred > met:
            _mixing_check.refuse_centred()
        if others:
            _constants.refuse_difference()
        if factors and count == len(losses.factors) * have_factors:
            _constants.refuse_factors(losses.factors)
        assert step.assignment is not None
        if not self.are_void():
            kept.refuse_some(int(met), int(step.assignment.members))
        return list(sums[:len(own)]), int(met)

    def _refuse_modes(self) -> NoReturn:
        modes = self._step.model.modes()
        raise _errors.ConfigurationError(
            "job.backward(): in this step the model has other parameters frozen "
            "(requires_grad), or other modules in evaluation mode, than on other "
            f"workers; here {modes.count('f')} parameters are frozen and "
            f"{modes.count('e')} modules in evaluation mode. Do so on all workers "
            "alike, and call model.train() after a score on rank 0")

    def _refuse_orders(self) -> NoReturn:
        raise _errors.ConfigurationError(
            "job.data(sampler=...): this worker's sampler yields different "
            "samples in this epoch from the others'; make it depend on the "
            "epoch and the data set only, for example by using the same "
            "weights on all workers")

    def _refuse_numbers(self) -> NoReturn:
        numbers = self._step.numbers
        raise _errors.ConfigurationError(
            "job.backward(): this worker has learning rates "
            f"{numbers.rates or 'as at the join'} and other numbers "
            f"{numbers.changed or 'as at the join'}, and other workers "
            "have different ones in this step; compute them from numbers that "
            "all workers share, such as job.step_number and the steps of the "
            "whole run (cohort.steps), not from a counter, which misses steps "
            "in which the worker has no batch, or from the length of a "
            "worker's loader")


def _number_of(what: object) -> float:
    return _devices.number_of(repr(what).encode())
