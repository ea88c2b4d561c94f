"""The loop over a worker's assignments, as an iterable of batches."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from cohort import _core, _data, _devices, _errors
from cohort._step import Mode

if TYPE_CHECKING:
    from cohort._job import Job


class Data:
    """The batches of one worker; see `Job.data`."""

    def __init__(self, job: "Job", dataset: Any, by_number: bool,
                 batch_size: int, accumulate: int, loop: bool, name: str,
                 options: dict[str, Any]) -> None:
        self._job = job
        self._dataset = dataset
        self._by_number = by_number
        self._batch_size = batch_size
        self._accumulate = accumulate
        self._loop = loop
        self._name = name
        self._options = options
        self._reader: _data.RangeReader | None = None
        self._own: _data.OwnBatches | None = None
        # Handed out, but of the epoch after the one that was asked for.
        self._next: "_core.Assignment | None" = None

    def __iter__(self) -> Iterator[Any]:
        job = self._job
        if job.finished:
            return
        self._start()
        while not job.finished:
            if self._next is None:
                self._next = job._next_assignment()
            assignment = self._next
            if assignment is None:
                return
            if assignment.kind == "train" and job._is_beyond(
                    assignment.data_epoch):
                return
            self._next = None
            if assignment.kind == "evaluate":
                self._void_or_done(self._evaluate, assignment)
            elif assignment.kind == "collect_moments":
                self._void_or_done(self._collect, assignment)
            elif job._read_weights(assignment):
                yield from self._train(assignment)

    def _start(self) -> None:
        job = self._job
        if job._left:
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
        job._begin_step(assignment, self._accumulate, _data.samples_in(batch))
        for part in range(self._accumulate):
            yield _data.split(batch, part, self._accumulate)
            if job._left:
                return
            if step.mode is Mode.TRAIN and step.done <= part:
                raise _errors.UsageError(
                    "the batch was not trained: call job.backward(loss) and "
                    "job.step() once for each batch, before the next one")
        if self._own is not None and job._last is not None and job._last.counts:
            self._own.counted()

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
        module = job._model.module
        training = module.training
        try:
            job.worker.begin_step(assignment)
            execute(assignment)
        except _errors.StatusError as error:
            if _errors.code_of(error) not in _errors.VOID:
                job._ended_by(error)
        finally:
            job._step.mode = Mode.IDLE
            job._step.forget_calls()
            module.train(training)

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
            job._model.load_statistics(pulled.statistics)
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
