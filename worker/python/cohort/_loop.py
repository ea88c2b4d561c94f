"""The loop over a worker's assignments, as an iterable of batches."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from cohort import _batches, _core, _data, _devices, _errors
from cohort._step import Mode

if TYPE_CHECKING:
    from cohort._job import Job


class Data:
    """The batches of one worker; see `Job.data`."""

    def __init__(self, job: "Job", dataset: Any, by_number: bool,
                 batch_size: int, declared: bool, accumulate: int, loop: bool,
                 name: str, options: dict[str, Any]) -> None:
        self._job = job
        self._dataset = dataset
        self._by_number = by_number
        self._batch_size = batch_size
        # The length that the script gives batches of its own.
        self._declared = batch_size if declared else None
        self._accumulate = accumulate
        self._loop = loop
        self._name = name
        self._options = options
        self._reader: _data.RangeReader | None = None
        self._own: _data.OwnBatches | None = None
        # Handed out and not begun, such as one of the next epoch.
        self._next: "_core.Assignment | None" = None
        # Since `next_epoch`.
        self._iterated = True

    @property
    def dataset(self) -> Any:
        """As passed to `Job.data`."""
        return self._dataset

    @property
    def batch_size(self) -> int:
        """Samples of this worker in a step."""
        return self._batch_size

    def __len__(self) -> int:
        """The steps of an epoch, if all workers of the cohort are there and have
        this one's batch size; where a step has several parts (`accumulate`, the
        server's --global_batch), these. For own data: the length of the iterable.

        Raises:
            TypeError: the run is not joined yet, so the number of workers is not
                known; or own data without a length.
        """
        if not self._by_number:
            return len(self._dataset) * self._accumulate
        membership = self._job._membership
        if membership is None:
            raise TypeError(
                "len(job.data(...)): the number of workers is not known before "
                "the run is joined; take it within `for epoch in job.epochs()`, "
                "or ask the server with cohort.steps(dataset, batch_size), which "
                "counts the steps of the whole run, for a schedule")
        together = membership.workers * self._batch_size
        step = membership.global_batch or together
        batches = max(1, -(-step // together))
        return -(-len(self._dataset) // step) * batches * self._accumulate

    def __bool__(self) -> bool:
        # Otherwise it would be asked for its length.
        return True

    def __iter__(self) -> Iterator[Any]:
        job = self._job
        self._iterated = True
        while (assignment := self._next_to_train()) is not None:
            if job._is_beyond(assignment.data_epoch):
                # The script may save the model, or score it.
                job.load()
                return
            self._next = None
            if job._read_weights(assignment):
                yield from self._train(assignment)
            if job.left:
                return

    def next_epoch(self) -> int | None:
        """The epoch of the batch that comes next; None if none comes."""
        if not self._iterated:
            raise _errors.UsageError(
                "job.epochs(): the body did not iterate what job.data() returned")
        assignment = self._next_to_train()
        if assignment is None:
            return None
        self._iterated = False
        return int(assignment.data_epoch)

    def _next_to_train(self) -> "_core.Assignment | None":
        """The next batch, after the other tasks that come before it; None if the
        run needs no more."""
        job = self._job
        if job.finished:
            return None
        self._start()
        job._step.check_trained()
        job._step.capture_statistics()
        while not job.finished:
            if self._next is None:
                self._next = job._next_assignment()
            assignment = self._next
            if assignment is None or assignment.kind == "train":
                return assignment
            self._next = None
            self._void_or_done(self._evaluate if assignment.kind == "evaluate"
                               else self._collect, assignment)
        return None

    def _start(self) -> None:
        job = self._job
        if job.left:
            raise _errors.UsageError("job.data(): the job has left its run")
        if job.worker is None:
            job._join(self._batch_size,
                      job._run_plan(self._dataset, self._by_number,
                                    self._batch_size, self._name),
                      self._dataset)
            if job.finished:
                return
        elif self._reader is None and self._own is None:
            raise _errors.UsageError(
                "job.data(): the run's data is that of the first call; iterate "
                "the same object again")
        seed = job._joined().seed
        if self._by_number and self._reader is None:
            order = _data.Order(seed, len(self._dataset))
            self._reader = _data.RangeReader(self._dataset, order, seed,
                                             self._options)
        elif not self._by_number and self._own is None:
            self._own = _data.OwnBatches(self._dataset, self._loop)

    def _read(self, assignment: "_core.Assignment") -> Any:
        with self._job._step.phase("data"):
            if self._own is not None:
                return self._own.next()
            assert self._reader is not None
            return self._reader.read((assignment.data_epoch, assignment.begin,
                                      assignment.end))

    def _train(self, assignment: "_core.Assignment") -> Iterator[Any]:
        job, step = self._job, self._job._step
        if self._own is not None and not self._settle(assignment):
            return
        try:
            batch = self._read(assignment)
        except StopIteration:
            job._end_of_data()
            return
        parts = self._accumulate * assignment.batches
        if self._own is None:
            samples, doubt = _batches.counted_samples(
                batch, assignment.end - assignment.begin)
        else:
            samples, doubt = self._own.samples(self._declared)
        job._begin_step(assignment, parts, samples, self._own, doubt)
        step.batch_digest = (0 if self._own is None else
                             self._own.digest(assignment.version))
        for part in range(parts):
            share = _batches.split(batch, part, parts, samples)
            step.begin_forward()
            yield share
            if job.left:
                return
            if step.done <= part:
                step.check_trained()

    def _settle(self, assignment: "_core.Assignment") -> bool:
        """Whether a batch of own data that was kept counts already. False if the
        assignment is void."""
        assert self._own is not None
        try:
            if self._job.worker.settle_last_push(assignment) != "repeat":
                self._own.counted()
        except _errors.StatusError as error:
            if _errors.code_of(error) not in _errors.VOID:
                self._job._ended_by(error)
            return False
        return True

    # ---- the other assignments

    def _void_or_done(self, execute: Any,
                      assignment: "_core.Assignment") -> None:
        """Executes an assignment that may become void meanwhile."""
        job = self._job
        if not job._read_weights(assignment):
            return
        modes = [(module, module.training)
                 for module in job._model.module.modules()]
        try:
            job.worker.begin_step(assignment)
            execute(assignment)
        except _errors.StatusError as error:
            if _errors.code_of(error) not in _errors.VOID:
                job._ended_by(error)
        finally:
            job._step.mode = Mode.IDLE
            job._step.forget_calls()
            if not job.left:
                job._step.load_statistics()
            # Layers that the script keeps in eval mode stay there.
            for module, training in modes:
                module.training = training

    def _evaluate(self, assignment: "_core.Assignment") -> None:
        job = self._job
        evaluator = job._evaluator
        assert evaluator is not None
        positions: Sequence[int] = range(assignment.begin, assignment.end)
        size = None
        if assignment.statistics == "batch":
            order = _data.Order(job._joined().seed, len(evaluator.dataset))
            positions = order.indices(0, assignment.begin, assignment.end)
            size = self._batch_size * (
                job.workers if assignment.global_normalization else 1)
            job._step.mode = Mode.SCORE_BY_BATCH
        else:
            pulled = job.worker.read(assignment.version, False,
                                     assignment.statistics)
            job._step.show_statistics(pulled)
            job._step.mode = Mode.SCORE
        module = job._model.module
        module.eval()
        with torch.no_grad(), job._step.phase("forward"):
            sums = evaluator.score(module, positions, size)
        job.worker.report_evaluation(sums)

    def _collect(self, assignment: "_core.Assignment") -> None:
        """Precise statistics: the moments of a batch in training mode."""
        job = self._job
        batch = self._read(assignment)
        _data.seed_everything(_core.mix_seed(
            job._joined().seed, assignment.version, assignment.begin))
        job._step.mode = Mode.COLLECT
        module = job._model.module
        module.train()
        with torch.no_grad(), job._step.phase("forward"):
            module(_devices.move(
                batch[0] if isinstance(batch, (list, tuple)) else batch,
                job._model.device))
        job.worker.report_moments()


def data_of(job: "Job", dataset: Any, batch_size: int | None, accumulate: int,
            loop: bool, name: str | None, options: dict[str, Any]) -> Data:
    """See `Job.data`. `options` are those of a DataLoader.

    Raises:
        UsageError: an argument that cannot be used.
    """
    if accumulate < 1:
        raise _errors.UsageError(f"accumulate: got {accumulate}, want at least 1")
    for option in ("shuffle", "sampler", "batch_sampler", "drop_last"):
        if options.pop(option, None):
            raise _errors.UsageError(
                f"job.data({option}=...): the server decides which samples make a "
                "batch; remove this argument")
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise _errors.UsageError(
            "job.data(): got an IterableDataset, want batches: "
            "torch.utils.data.DataLoader(dataset, batch_size=4), or with "
            "batch_size=None if it makes batches itself")
    by_number = _data.is_map_style(dataset)
    if batch_size is None:
        batch_size = getattr(dataset, "batch_size", None)
        if by_number:
            raise _errors.UsageError(
                "job.data(): want batch_size, the samples of this worker in a "
                "step")
    declared = batch_size is not None
    batch_size = 1 if batch_size is None else batch_size
    if batch_size < 1:
        raise _errors.UsageError(
            f"batch_size: got {batch_size}, want at least 1")
    return Data(job, dataset, by_number, batch_size, declared, accumulate, loop,
                name or type(dataset).__name__, options)
