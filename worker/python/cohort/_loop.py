"""The loop over a worker's assignments, as an iterable of batches."""

import inspect
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch

from cohort import (_attributes, _batches, _core, _data, _devices, _errors,
                    _sampler)
from cohort._batches import Counted
from cohort._layer_calls import Mode
from cohort._run import Run

_LOADER_OPTIONS = inspect.signature(torch.utils.data.DataLoader).parameters.keys()

# Iterations of a run that is over, after which the script will not end by itself; and
# how often the later ones of them look at the model.
_EMPTY_MAX = 1 << 20
_EMPTY_LOOKS = 1 << 10
_LOOP = ("to train several epochs of them pass job.data(..., loop=True), start the "
         "server with --max_steps, and write one loop over the data")
_SCORE = ("to score the model iterate a DataLoader of the script's own, or use "
          "job.evaluate_with()")


def _influences(run: Run) -> dict[str, Sequence[float]]:
    """What training depends on."""
    return {"a number of the optimizer": run.schedulers.numbers.now(),
            "requires_grad": [parameter.requires_grad
                              for parameter in run.model.parameters],
            "model.train() or eval()": [module.training
                                        for module in run.model.module.modules()]}


def _end_with_thread(run: Run, thread: threading.Thread) -> None:
    """If an error of the package ends the thread, it ends the worker and the script,
    whose main thread may wait for this one."""
    previous = threading.excepthook

    def hook(caught: Any) -> None:
        previous(caught)
        error, main = caught.exc_value, threading.main_thread().ident
        if caught.thread is thread and isinstance(error, _errors.CohortError):
            run.leave(f"{type(error).__name__}: {error}",
                      refused=isinstance(error, _errors.UsageError))
            if main is not None:
                signal.pthread_kill(main, signal.SIGINT)

    threading.excepthook = hook


class Data:
    """The batches of one worker; see `Job.data`.

    Raises:
        UsageError: an argument that cannot be used.
    """

    def __init__(self, run: Run, dataset: Any, batch_size: int | None,
                 batch_size_max: int | None, accumulate: int, loop: bool, name: str | None, sampler: Any,
                 options: dict[str, Any]) -> None:
        if accumulate < 1:
            raise _errors.UsageError(f"accumulate: got {accumulate}, want at least 1")
        in_order = options.get("shuffle") is False and sampler is None
        for option in ("shuffle", "batch_sampler", "drop_last"):
            if options.pop(option, None):
                raise _errors.UsageError(
                    f"job.data({option}=...): the server decides which samples make a "
                    "batch; remove this argument (sampler= gives their order)")
        unknown = sorted(options.keys() - _LOADER_OPTIONS)
        if unknown:
            raise _errors.UsageError(
                f"job.data({unknown[0]}=...): neither it nor torch's DataLoader has "
                "this argument; remove or correct it")
        if isinstance(dataset, torch.utils.data.IterableDataset):
            raise _errors.UsageError(
                "job.data(): got an IterableDataset, want batches: "
                "torch.utils.data.DataLoader(dataset, batch_size=4), or with "
                "batch_size=None if it makes batches itself")
        by_number = _data.is_map_style(dataset)
        if options.get("collate_fn") and not by_number:
            raise _errors.UsageError(
                "job.data(collate_fn=...): got batches of the script's own, which are "
                "made already; pass it to the DataLoader that makes them")
        if sampler is not None:
            _sampler.check_sampler(sampler)
            if not by_number:
                raise _errors.UsageError(
                    "job.data(sampler=...): got batches of the script's own, want a "
                    "data set; pass the sampler to the DataLoader that makes them")
        elif in_order and by_number:
            sampler = torch.utils.data.SequentialSampler(dataset)
        if batch_size is None:
            batch_size = getattr(dataset, "batch_size", None)
            if by_number:
                raise _errors.UsageError(
                    "job.data(): batch_size is missing: the samples of this worker "
                    "in a step")
        if batch_size is not None and batch_size < 1:
            raise _errors.UsageError(
                f"batch_size: got {batch_size}, want at least 1")
        if batch_size_max is not None and not by_number:
            raise _errors.UsageError(
                "job.data(batch_size_max=...): got batches of the script's own, whose "
                "size the server does not choose; leave it out, or pass a data set")
        if batch_size_max is not None and batch_size_max < (batch_size or 1):
            raise _errors.UsageError(
                f"batch_size_max: got {batch_size_max}, want at least {batch_size}, "
                "the batch size")
        self._run = run
        self._dataset = dataset
        self._by_number = by_number
        self._sampler = sampler
        self._batch_size = 1 if batch_size is None else batch_size
        self._batch_size_max = batch_size_max or 0
        # The length that the script states for own data.
        self._declared = batch_size
        self._accumulate = accumulate
        self._loop = loop
        self._name = name or type(dataset).__name__
        # Options of the script's DataLoader.
        self._options = options
        self._thread = threading.current_thread()
        # Beside the main one, the last thread that has iterated it.
        self._other: threading.Thread | None = None
        self._reader: _data.RangeReader | None = None
        self._own: _data.OwnBatches | None = None
        # Since `next_epoch`.
        self._iterated = True
        # The loop over the data has not come to its end.
        self._left = False
        # Iterations since the run is over.
        self._empty = 0
        # The caller knows that one loop goes through all epochs.
        self._knows_epochs = False
        # The epoch, and what training depends on, when a loop came to the end of its
        # epoch or of the run.
        self._at_end: tuple[int | None, dict[str, Sequence[float]]] | None = None

    @property
    def dataset(self) -> Any:
        """As passed to `Job.data`."""
        return self._dataset

    @property
    def batch_size(self) -> int:
        """Samples of this worker in a step."""
        return self._batch_size

    @property
    def num_workers(self) -> int:
        """As passed to `Job.data`."""
        return int(self._options.get("num_workers") or 0)

    @property
    def pin_memory(self) -> bool:
        """As passed to `Job.data`."""
        return bool(self._options.get("pin_memory"))

    @property
    def collate_fn(self) -> Any:
        """As passed to `Job.data`; torch's by default."""
        return (self._options.get("collate_fn") or
                torch.utils.data.default_collate)

    @property
    def drop_last(self) -> bool:
        """Each sample counts."""
        return False

    @property
    def sampler(self) -> NoReturn:
        """Raises AttributeError, so that other packages find none."""
        raise AttributeError(
            "job.data(...).sampler: there is none, as the server shuffles each epoch by "
            "itself; remove sampler.set_epoch(epoch)")

    def __len__(self) -> int:
        """The steps of an epoch, if all workers of the cohort are there and have
        this one's batch size; where a step has several parts (`accumulate`, the
        server's --global_batch), these. For own data: the length of the iterable.

        Raises:
            UsageError: the run is not joined yet, so the number of workers is not
                known; or own data without a length.
        """
        if not self._by_number:
            try:
                return len(self._dataset) * self._accumulate
            except TypeError as error:
                raise _errors.NoLengthError(
                    f"len(job.data(...)): own data: {error}; pass an iterable with a "
                    "length, or use the server's --max_steps, which ends the run"
                ) from error
        membership = self._run.membership
        if membership is None:
            raise _errors.NoLengthError(
                "len(job.data(...)): the number of workers is not known before the "
                "run is joined; call len() within `for epoch in job.epochs()`, or, "
                "for a schedule, ask the server for the steps of the whole run "
                "with cohort.steps(dataset, batch_size)")
        together = membership.workers * self._batch_size
        step = membership.global_batch or together
        batches = max(1, -(-step // together))
        samples = len(self._dataset if self._sampler is None else self._sampler)
        return -(-samples // step) * batches * self._accumulate

    def __bool__(self) -> bool:
        # Otherwise it would be asked for its length.
        return True

    def __iter__(self) -> Iterator[Any]:
        run = self._run
        self._iterated = True
        thread = threading.current_thread()
        if thread not in (threading.main_thread(), self._other):
            self._other = thread
            _end_with_thread(run, thread)
        self._check_again()
        if self._empty:
            return
        self._left = True
        yield from self._batches()
        self._left = False
        if run.finished or run.epoch_limit is not None:
            self._at_end = run.epoch_limit, _influences(run)

    def _check_again(self) -> None:
        """Raises UsageError for a loop that would have no batches, where one
        process has some."""
        run = self._run
        if not torch.is_grad_enabled():
            raise _errors.UsageError(
                "job.data(): iterated within torch.no_grad(), but its batches are "
                f"for training, once each; {_SCORE}. Moving statistics for an average "
                "of weights: cohort-server --bn_statistics=after")
        if self._at_end is None:
            return
        epoch, before = self._at_end
        if run.epoch_limit is not None and epoch == run.epoch_limit:
            raise _errors.UsageError(
                "job.data(): a second loop over the data in one epoch, whose batches "
                f"have been trained; {_SCORE}")
        if not run.finished:
            return
        if self._own is not None and not self._loop:
            raise _errors.UsageError(
                "job.data(): a second loop over batches of the script's own, which have "
                f"ended, and with them the run; {_LOOP}")
        self._empty += 1
        looks = self._empty < _EMPTY_LOOKS or self._empty % _EMPTY_LOOKS == 0
        for what, now in (_influences(run) if looks else {}).items():
            if now != before[what]:
                raise _errors.UsageError(
                    f"job.data(): the run is over, so this loop has no batches, and {what} "
                    "has changed since the last one. One loop goes through all epochs: "
                    "write `for epoch in job.epochs():` around it for what depends on the "
                    f"epoch; {_SCORE}")
        if self._empty == 1:
            _core.log("warning", "job.data(): the run is over, so this loop has no "
                      "batches: the first one went through all epochs. Write `for "
                      "epoch in job.epochs():` around it if anything depends on the "
                      "epoch; and `while not job.finished:` around next()")
        if self._empty > _EMPTY_MAX:
            raise _errors.UsageError(
                f"job.data(): the run is over, and the data was iterated {_EMPTY_MAX} "
                "times since; a loop such as `while True:` around it never ends: "
                "write `while not job.finished:`, or leave it out, as one loop over "
                "the data goes through all epochs")

    def _batches(self) -> Iterator[Any]:
        run = self._run
        epoch: int | None = None
        while (assignment := self._next_to_train()) is not None:
            limit = run.epoch_limit
            if limit is not None and assignment.data_epoch > limit:
                # The script may save the model, or score it.
                run.load()
                return
            if limit is not None and assignment.data_epoch < limit:
                run.begin_again(limit, int(assignment.data_epoch))
            if epoch not in (None, assignment.data_epoch) and (
                    not self._knows_epochs):
                self._knows_epochs = True
                _core.log("info", f"epoch {epoch} has ended, and the loop over "
                          "job.data() continues through all epochs; for what "
                          "follows each one: `for epoch in job.epochs():` around it")
            epoch = int(assignment.data_epoch)
            run.waiting = None
            run.check_local(assignment)
            if run.step.local is not None or run.read_weights(assignment):
                yield from (self._train_locally(assignment)
                            if assignment.local_steps else self._train(assignment))
            if run.left:
                return

    def next_epoch(self) -> int | None:
        """The epoch of the batch that comes next; None if none comes."""
        if not self._iterated:
            raise _errors.UsageError(
                "job.epochs(): the body did not iterate what job.data() returned")
        if not self._by_number and not self._loop:
            raise _errors.UsageError(
                "job.epochs(): got batches of the script's own, of which the server "
                f"counts no epochs; write one loop over the data alone; {_LOOP}")
        self._run.check_rates_kept()
        epoch = self.coming_epoch()
        if self._left and epoch is not None and epoch == self._run.epoch_limit and (
                not self._run.repeats):
            raise _errors.UsageError(
                f"job.epochs(): the loop over the data was left before the end of epoch "
                f"{epoch} (break, islice, zip), whose other samples would come next; in "
                "one process a new epoch would begin. For epochs of n samples pass "
                "job.data(sampler=torch.utils.data.RandomSampler(dataset, num_samples=n"
                ")); to stop early, leave both loops")
        self._iterated = epoch is None
        # A server that continues from a checkpoint may give an epoch again.
        self._at_end = None if epoch is not None else self._at_end
        return epoch

    def check_rates_kept(self) -> None:
        """Raises UsageError if the script has written a rate since job.step()."""
        self._run.check_rates_kept()

    def coming_epoch(self) -> int | None:
        """The same, for a loop over all epochs at once."""
        self._knows_epochs = True
        assignment = self._next_to_train()
        return None if assignment is None else int(assignment.data_epoch)

    def _next_to_train(self) -> "_core.Assignment | None":
        """The next batch, after the other tasks that come before it; None if the
        run needs no more."""
        run = self._run
        # A loop over epochs of the script's own continues, without batches.
        if run.finished and (run.data is None or run.data is self._dataset):
            return None
        self._start()
        if threading.current_thread() is not self._thread:
            self._refuse_thread()
        run.end_updates()
        if run.finished:
            return None
        run.step.check_trained()
        if run.waiting is None:
            run.check_rates_kept()
        if run.step.local is not None:
            # The loop was left within a step, and entered again.
            return run.step.assignment
        run.step.capture_statistics()
        while not run.finished:
            if run.waiting is None:
                run.waiting = run.next_assignment()
            assignment = run.waiting
            if assignment is None or assignment.kind == "train":
                return assignment
            run.waiting = None
            self._void_or_done(self._evaluate if assignment.kind == "evaluate"
                               else self._collect, assignment)
        return None

    def _start(self) -> None:
        run = self._run
        if run.finished or (run.worker is not None and self._reader is None and
                            self._own is None):
            raise _errors.UsageError(
                "job.data(): the run's data is that of the first call; iterate "
                "the same object again, and test data with a DataLoader of the "
                "script's own")
        if run.left:
            raise _errors.UsageError("job.data(): the job has left its run")
        if run.worker is None:
            run.data = self._dataset
            run.join(self._dataset, self._by_number, self._batch_size,
                     self._batch_size_max, self._name, self._sampler)
            if run.finished:
                return
        if self._by_number and self._reader is None:
            seed = run.joined().seed
            order = run.sampled or _data.Order(seed, len(self._dataset))
            self._reader = _data.RangeReader(self._dataset, order, seed,
                                             self._options)
        elif not self._by_number and self._own is None:
            self._own = run.own = _data.OwnBatches(self._dataset, self._loop)

    def _refuse_thread(self) -> NoReturn:
        raise _errors.UsageError(
            "job.data(): iterated in another thread than the one that called it, but a "
            "batch begins a step, which job.step() ends before the next one; iterate it "
            "where the model is trained. To read ahead: job.data(num_workers=2), or own "
            "data that a thread reads ahead: job.data(iter(Prefetcher(loader)))")

    def _read(self, assignment: "_core.Assignment",
              positions: tuple[int, int] | None = None) -> Any:
        """`positions`: those of the assignment, unless they are given."""
        with self._run.step.phase("data"):
            if self._own is not None:
                return self._own.next()
            assert self._reader is not None
            begin, end = positions or (assignment.begin, assignment.end)
            return self._reader.read((assignment.data_epoch, begin, end))

    def _counted(self, batch: Any, parts: int, positions: tuple[int, int]
                 ) -> Counted:
        begin, end = positions
        samples, doubt = (self._own.samples(self._declared)
                          if self._own is not None else
                          _batches.counted_samples(batch, end - begin))
        return Counted(parts, samples, doubt, begin if end > begin else None)

    def _train(self, assignment: "_core.Assignment") -> Iterator[Any]:
        run, step = self._run, self._run.step
        if self._own is not None and not self._settle(assignment):
            return
        try:
            batch = self._read(assignment)
        except StopIteration:
            run.end_of_data()
            return
        parts = self._accumulate * assignment.batches
        counted = self._counted(batch, parts, (assignment.begin, assignment.end))
        if not run.begin_step(assignment, counted):
            return
        self._note_digests(assignment)
        yield from self._parts(batch, counted)

    def _note_digests(self, assignment: "_core.Assignment") -> None:
        run = self._run
        run.step.batch_digest = (0 if self._own is None else
                                 self._own.digest(assignment.version))
        run.step.members.order_digest = (b"" if run.sampled is None else
                                 run.sampled.digest())

    def _parts(self, batch: Any, counted: Counted) -> Iterator[Any]:
        run, step, parts = self._run, self._run.step, counted.parts
        for part in range(parts):
            share = _batches.split(batch, part, parts, counted.samples, counted.first)
            step.begin_forward()
            step.in_body = True
            try:
                yield share
            finally:
                step.in_body = False
            if run.left:
                return
            if step.done <= part < parts - 1:
                step.check_trained()

    def _train_locally(self, assignment: "_core.Assignment") -> Iterator[Any]:
        """The batches of the local steps that are not made yet."""
        run, step = self._run, self._run.step
        parts = self._accumulate * assignment.batches
        if step.local is None:
            if self._own is not None and not self._settle(assignment):
                return
            if not run.begin_step(assignment, Counted(parts)):
                return
        while (local := step.local) is not None and (
                positions := local.range) is not None:
            run.end_if_stopped()
            if self._own is None and positions[0] == positions[1]:
                run.skip_local_step()
                continue
            try:
                batch = self._read(assignment, positions)
            except StopIteration:
                if local.made > 0:
                    # The local steps so far count.
                    run.end_local_steps()
                else:
                    step.abandon("its data has ended")
                    run.end_of_data()
                return
            if local.made == 0:
                self._note_digests(assignment)
            counted = self._counted(batch, parts, positions)
            run.begin_local_step(counted)
            yield from self._parts(batch, counted)
            if run.left:
                return
            step.check_trained()

    def _settle(self, assignment: "_core.Assignment") -> bool:
        """Whether a batch of own data that was kept counts already. False if the
        assignment is void."""
        assert self._own is not None
        self._own.rewind()
        try:
            if self._run.worker.settle_last_push(assignment):
                self._own.counted()
        except _errors.StatusError as error:
            self._run.ended_by(error, _errors.VOID)
            return False
        return True

    # ---- the other assignments

    def _void_or_done(self, execute: Any,
                      assignment: "_core.Assignment") -> None:
        """Executes an assignment, which may become void before its end."""
        run, step = self._run, self._run.step
        if not run.read_weights(assignment):
            return
        kept = run.kept.copied()
        try:
            run.worker.begin_step(assignment)
            with _attributes.unchanged(run.model.module):
                execute(assignment)
        except _errors.StatusError as error:
            run.ended_by(error, _errors.VOID)
        finally:
            step.mode = Mode.IDLE
            step.tape.clear()
            run.kept.put_back(kept)
            if not run.left:
                step.load_statistics()

    def _evaluate(self, assignment: "_core.Assignment") -> None:
        run, step = self._run, self._run.step
        evaluator = run.evaluator
        assert evaluator is not None
        positions: Sequence[int] = range(assignment.begin, assignment.end)
        size = None
        if assignment.statistics == "batch":
            order = _data.Order(run.joined().seed, len(evaluator.dataset))
            positions = order.indices(0, assignment.begin, assignment.end)
            size = self._batch_size * (
                run.joined().workers if assignment.global_normalization else 1)
            step.mode = Mode.SCORE_BY_BATCH
        else:
            pulled = run.worker.read(assignment.version, False,
                                     assignment.statistics)
            run.model.statistics.show(pulled)
            step.mode = Mode.SCORE
        module = run.model.module
        module.eval()
        with torch.no_grad(), step.phase("forward"):
            sums = evaluator.score(module, positions, size)
        run.worker.report_evaluation(sums)

    def _collect(self, assignment: "_core.Assignment") -> None:
        """Precise statistics: the moments of a batch in training mode."""
        run, step = self._run, self._run.step
        batch = self._read(assignment)
        _data.seed_everything(_core.mix_seed(
            run.joined().seed, assignment.version, assignment.begin))
        step.mode = Mode.COLLECT
        module = run.model.module
        module.train()
        with torch.no_grad(), step.phase("forward"):
            module(_devices.move(
                batch[0] if isinstance(batch, (list, tuple)) else batch,
                run.model.device))
        run.worker.report_moments()
