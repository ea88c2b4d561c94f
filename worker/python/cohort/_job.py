"""A training script's side of a run."""

import atexit
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from cohort import (_after_step, _core, _data, _errors, _evaluation,
                    _graph_check, _loop, _server)
from cohort._model import RegisteredModel
from cohort._optimizer import OptimizerPlan, plan_of
from cohort._optimizer_watch import OptimizerWatch
from cohort._schedulers import Schedulers
from cohort._signals import StopWatcher
from cohort._step import Mode, Step, StepResult

if TYPE_CHECKING:
    from cohort._join import Joining
    from cohort._server import EmbeddedServer


# The kind of statistics, and of weights, that --ema_decay keeps.
_AVERAGE = "average"


class Job:
    """One worker of a run; made by `cohort.join`."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer,
                 schedulers: Schedulers, joining: "Joining",
                 embedded: "EmbeddedServer | None") -> None:
        self._model = RegisteredModel(model)
        self._model.check_optimizer(optimizer)
        self._schedulers = schedulers
        self._plan: OptimizerPlan = plan_of(optimizer, bool(schedulers))
        self._watch = OptimizerWatch(optimizer, bool(schedulers))
        # Those of the step in progress, as they were sent.
        self._rates: list[float] = []
        self._joining = joining
        self._embedded = embedded
        self._pid = os.getpid()
        self._evaluator: _evaluation.Evaluator | None = None
        self._data: "_loop.Data | None" = None
        self._membership: "_core.Membership | None" = None
        # Set once the run is joined.
        self.worker: "_core.Worker" = None  # type: ignore[assignment]
        self._batch_size = 1
        self._final_version: int | None = None
        self._last_averages: dict[str, Any] | None = None
        self._watcher: StopWatcher | None = None
        self._left = False
        self._finished = False
        # The iterable of own data has ended, and with it the run.
        self._data_ended = False
        self._epoch_limit: int | None = None
        self._initial_state = schedulers.save()
        self._state = self._initial_state
        self._last: StepResult | None = None
        self._own: "_data.OwnBatches | None" = None
        self._doubt = ""  # see `_begin_step`
        self._step = Step(self._model)
        self._after_step = _after_step.AfterStep(self._step, model)
        atexit.register(self._at_exit)

    # ---- what is known of the run

    def _joined(self) -> "_core.Membership":
        if self._membership is None:
            raise _errors.UsageError(
                "the job joins its run when job.data() is iterated; this is not "
                "known before")
        return self._membership

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return int(self._joined().rank)

    @property
    def workers(self) -> int:
        """The number of workers when this one joined."""
        return int(self._joined().workers)

    @property
    def run_name(self) -> str:
        """The run's name, as on the live page."""
        return str(self._joined().run_name)

    @property
    def version(self) -> int | None:
        """The version of the weights in the model; None before the first."""
        return self._final_version if self.worker is None else (
            self.worker.version())

    @property
    def epoch(self) -> int:
        """The epoch of the batch in progress, from 0; 0 with own data."""
        assignment = self._step.assignment
        if assignment is not None:
            return int(assignment.data_epoch)
        return self._epoch_limit or 0

    @property
    def finished(self) -> bool:
        """The run is over, or needs nothing more of this worker."""
        return self._finished

    @property
    def left(self) -> bool:
        """The worker has left the run."""
        return self._left

    # ---- data

    def evaluate_with(self, dataset: Any,
                      evaluate: Callable[..., Any], *,
                      batch_size: int = 64, ignore_index: int = -100,
                      collate_fn: Callable[[list[Any]], Any] | None = None
                      ) -> None:
        """Scores the test set when the server asks for it, after each epoch.

        Call it before `job.data` is iterated; all workers need the same test
        set.

        Args:
            dataset: test samples by number, with a length.
            evaluate: a loss such as nn.CrossEntropyLoss() or F.cross_entropy,
                whose batches are (inputs, labels); or a function of the model and
                a collated batch that returns a cohort.Evaluation.
            batch_size: samples a batch.
            ignore_index: labels that a loss ignores; by default the loss's own.
            collate_fn: as in torch.utils.data.DataLoader.
        """
        if self.worker is not None:
            raise _errors.UsageError(
                "job.evaluate_with(): the model is registered; call it before "
                "job.data() is iterated")
        # A criterion may have a number of its own.
        if ignore_index == -100:
            ignore_index = getattr(evaluate, "ignore_index", ignore_index)
        is_loss = isinstance(evaluate, nn.Module) or (
            getattr(evaluate, "__module__", None) == "torch.nn.functional")
        score = (_evaluation.by_criterion(evaluate, ignore_index) if is_loss else
                 lambda model, batch, _: evaluate(model, batch))
        self._evaluator = _evaluation.Evaluator(
            dataset, score, collate_fn or torch.utils.data.default_collate,
            batch_size)

    def data(self, dataset: Any, batch_size: int | None = None, *,
             num_workers: int = 0, accumulate: int = 1, loop: bool = False,
             name: str | None = None,
             collate_fn: Callable[[list[Any]], Any] | None = None,
             **loader_options: Any) -> "_loop.Data":
        """The batches of this worker, until the run is over.

        Args:
            dataset: samples by number, with a length: the server cuts one
                permutation an epoch, so shuffling and sharding are its work. Or
                any iterable of batches, such as a DataLoader: own data, which
                the server does not number (it needs --max_steps). A list has
                samples; pass iter() of a list of batches.
            batch_size: samples of this worker in a step; with own data, how many
                a batch has about.
            num_workers: loader processes.
            accumulate: parts that a batch is cut into; each is a forward and
                backward pass, and job.step() acts after the last.
            loop: own data starts over when it ends.
            name: of the data set, on the live page.
            collate_fn: as in torch.utils.data.DataLoader.
            loader_options: further options of DataLoader: pin_memory,
                worker_init_fn, prefetch_factor, timeout,
                multiprocessing_context.

        Returns:
            An iterable of collated batches. Each must be followed by
            job.backward(loss) and job.step().
        """
        data = _loop.data_of(
            self, dataset, batch_size, accumulate, loop, name,
            dict(loader_options, num_workers=num_workers, collate_fn=collate_fn))
        if self._data is None or self.worker is None:
            self._data = data
        return data

    def epochs(self) -> Iterator[int]:
        """The run's epochs, for scripts that do something after each one.

        Call `job.data` before, and iterate its result in the body: it ends with
        the epoch, and the model has then the server's moving statistics. A
        worker that joins later begins at the epoch of the run. An epoch whose
        loop was left early comes again, with its rest.
        """
        try:
            while not self._finished:
                if self._data is None:
                    raise _errors.UsageError(
                        "job.epochs(): the job has no data; call data = "
                        "job.data(...) before this loop, and iterate `data` in "
                        "its body")
                first = self.worker is None
                epoch = self._data.next_epoch()
                if epoch is None:
                    return
                if first:
                    # The body may look at the model before it trains.
                    self.load()
                self._epoch_limit = epoch
                yield epoch
                if self._left:
                    return
        finally:
            self._epoch_limit = None

    # ---- a step

    def backward(self, loss: torch.Tensor, weight: float | None = None, *,
                 reduction: str = "mean", correct: int = 0,
                 labels: int = 0) -> None:
        """Computes the gradients and sends them while they are computed.

        The step's loss is the mean over all workers, weighted by `weight`, so
        batches may differ in size.

        Args:
            loss: a scalar: the mean over what `weight` counts, or its sum.
            weight: samples, labels or valid pixels behind the loss; by default
                the samples of the batch. In own data a batch of `batch_size`
                samples shows how they are counted; without it all tensors must
                have one length. 0: a mean over nothing, so there is nothing to
                learn from; a sum still counts.
            reduction: "mean" or "sum": what `loss` is over `weight`.
            correct: labels that were predicted, for the live page.
            labels: of so many.
        """
        self._step.check_in_progress("job.backward()")
        self._check_samples("job.backward", weight)
        _graph_check.check(loss)
        self._model.check_weights(content=False)
        self._rates = self._schedulers.rates()
        self._step.backward(loss, weight, reduction, self._rates)
        self._step.count(int(correct), int(labels))

    def step(self, closure: None = None) -> StepResult:
        """Ends the step: the server combines it with those of the other workers
        and sends new weights, which are then in the model.

        Returns:
            What became of it.
        """
        if closure is not None:
            raise _errors.UsageError(
                "job.step(): got a closure; compute the loss and call "
                "job.backward(loss) before")
        step = self._step
        step.check_in_progress("job.step()")
        self._model.check_weights(content=True)
        self._watch.check()
        if step.passes == step.done:
            raise _errors.UsageError(
                "job.step(): no gradients yet; call job.backward(loss) first")
        step.done += 1
        if step.done < step.parts:
            step.end_part()
            return StepResult(version=None, verdict="part")
        step.gradients.check()
        self._model.buffers.check()
        if self._schedulers.rates() != self._rates:
            raise _errors.UsageError(
                "job.step(): a learning rate was changed after job.backward(), which "
                "has sent the rates of this step; change it before")
        self._schedulers.advance()
        state = self._schedulers.save()
        try:
            self._last = step.close(state)
        except _errors.StatusError as error:
            self._ended_by(error)
            self._last = StepResult(None, "void", reason=str(error.args[1]))
        if self._last.counts:
            self._state = state
            # Here, as the script may leave its loop after this call.
            if self._own is not None:
                self._own.counted()
            self._after_step.run()
        else:
            self._schedulers.load(self._state)
        return self._last

    def after_step(self, function: Callable[[], Any]) -> None:
        """Calls `function` once for each version that this worker's steps
        become part of, with the new weights and moving statistics in the model:
        the place for an average of the weights. job.step() does it before it
        returns; a void step does not.

        State that the function keeps is this process's: a replacement of it
        begins without.
        """
        self._after_step.add(function)

    def _check_samples(self, what: str, weight: float | None) -> None:
        """Raises UsageError if the default weight is in doubt."""
        if weight is None and self._doubt:
            raise _errors.UsageError(f"{what}(): {self._doubt}")

    def share(self, loss: torch.Tensor, weight: float | None = None
              ) -> torch.Tensor:
        """A mean over this worker's samples as its share of the mean over all:
        loss x own weight / weight of all workers. For gradients that the script
        takes itself with torch.autograd.grad, which are those of the sum of what
        the workers pass; job.backward weights by itself.

        Args:
            loss: a mean over what `weight` counts.
            weight: by default the samples of the batch.
        """
        self._step.check_in_progress("job.share()")
        self._check_samples("job.share", weight)
        return self._step.share(loss, weight, self.workers)

    def report(self, weight: float = 1.0, **measures: float) -> None:
        """Adds measures of the step in progress to the live page, metrics and
        history: the mean over all workers, by `weight`.

        Call it between job.backward() and job.step().

        Args:
            weight: what each value is a mean over, such as samples.
            measures: values by name, at most 32 names a step. One that is not
                finite is left out of the mean, with a warning in the server's
                log.
        """
        self._step.check_in_progress("job.report()")
        for name, value in measures.items():
            self._step.add_measure(name, float(value), float(weight))

    # ---- the model

    def load(self) -> int:
        """Loads the newest weights and moving statistics into the model.

        Returns:
            Their version.
        """
        return self._read("")

    def _read(self, kind: str) -> int:
        """Loads the newest weights, with the statistics of this kind."""
        self._joined()
        if self._step.mode is Mode.TRAIN:
            raise _errors.UsageError(
                "a step is in progress; call job.step() first")
        self._model.await_weights()
        try:
            pulled = self.worker.read(None, True, kind)
        except _errors.StatusError as error:
            _errors.raise_from(error)
        self._model.take_weights()
        if kind:
            self._step.show_statistics(pulled)
        else:
            self._step.load_statistics()
        if pulled.front_end_state:
            self._take_state(bytes(pulled.front_end_state))
        return int(pulled.version)

    def state_dict(self, averaged: bool = False) -> dict[str, Any]:
        """The newest weights and moving statistics, with the names of
        `model.state_dict()`; copies, which later steps do not change.

        Args:
            averaged: their moving averages instead, which the server keeps with
                --ema_decay. After the run: those of its last version.
        """
        if averaged:
            return self._averages()
        if not self._left:
            self.load()
        return self._copy_of_model()

    def _copy_of_model(self) -> dict[str, Any]:
        return {name: value.detach().clone() if isinstance(value, torch.Tensor)
                else value
                for name, value in self._model.module.state_dict().items()}

    def _averages(self) -> dict[str, Any]:
        if not self._left:
            self._read(_AVERAGE)
            averages = self._copy_of_model()
            self.load()
            return averages
        if self._last_averages is None:
            raise _errors.UsageError(
                "job.state_dict(averaged=True): got a run without averages, or "
                "one that was left before its end; start the server with "
                "--ema_decay=0.999")
        return dict(self._last_averages)

    def leave(self, reason: str = "the script called leave()") -> None:
        """Leaves the run; the model keeps the weights that it has, and gets the
        moving statistics that belong to them. Called at the script's end by
        itself."""
        if not self._left and os.getpid() == self._pid:
            self._step.abandon(reason)
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        """The same with the statistics that the model has."""
        if self._left or os.getpid() != self._pid:
            return
        self._left = True
        if self._finished and self._membership is not None:
            _server.finished_runs[self._joining.address] = str(
                self._membership.run_id)
        atexit.unregister(self._at_exit)
        if self.worker is not None:
            self._step.abandon(reason)
            with contextlib.suppress(_errors.StatusError):
                # Others' void steps have it as their reason.
                self.worker.leave("its data has ended" if self._data_ended else
                                  "done" if self._finished else reason,
                                  self._data_ended)
            # Ends its connections and completes the timeline.
            self._final_version = self.worker.version()
            self.worker = None  # type: ignore[assignment]
            self._step.worker = None  # type: ignore[assignment]
        self._step.detach()
        self._watch.detach()
        self._after_step.detach()
        if self._watcher is not None:
            self._watcher.close()
        if self._embedded is not None:
            self._embedded.close(self._finished)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self.leave()
        else:
            self._leave("the script has raised an exception")

    # ---- inside: joining

    def _at_exit(self) -> None:
        self._leave("the script has ended")

    def _join(self, batch_size: int, plan: "_core.RunPlan",
              dataset: Any) -> None:
        """Joins the run and registers the model; once."""
        self._watch.check()
        address = self._joining.address
        finished = _server.finished_runs.get(address)
        try:
            self.worker = self._joining.connect(self._model, batch_size)
            self._step.worker = self.worker
            self._watcher = StopWatcher(self._stop)
            self._membership = self.worker.join()
            if self._membership.run_id == finished:
                self._refuse_second(address, "it is over")
            if not plan.own_data:
                plan.dataset_digest = _data.digest_of(dataset,
                                                      self._membership.seed)
            self.worker.register(
                self._model.specs(self._plan), self._model.layer_specs(), plan,
                self._model.memory(), self._model.initial_statistics())
            self._model.statistics.attach(self.worker)
            self._after_step.joined(int(self._membership.version))
        except _errors.StatusError as error:
            if finished is not None:
                self._raise_if_stopped()
                self._refuse_second(address, str(error.args[1]))
            self._ended_by(error)

    def _refuse_second(self, address: str, why: str) -> NoReturn:
        self._leave("its process has finished this run")
        raise _server.second_join(address, why) from None

    def _run_plan(self, dataset: Any, by_number: bool, batch_size: int,
                  name: str) -> "_core.RunPlan":
        plan = _core.RunPlan()
        plan.dataset = name
        plan.own_data = not by_number
        if by_number:
            plan.train_samples = len(dataset)
        elif self._schedulers.by_epoch:
            raise _errors.ConfigurationError(
                "cohort.join(epoch_schedulers=...): the server counts no epochs of "
                "own data, so these would never advance; pass schedulers= over steps")
        if self._evaluator is not None:
            plan.test_samples = len(self._evaluator.dataset)
            if not by_number:
                raise _errors.ConfigurationError(
                    "job.evaluate_with(): the server counts no epochs of own "
                    "data, so there is no time to evaluate; score the model in "
                    "the script")
        plan.loss_reference = float(batch_size)
        plan.loss = "of the training script"
        plan.rates_by_workers = bool(self._schedulers)
        plan.optimizer = self._plan.settings
        return plan

    # ---- inside: the loop

    def _next_assignment(self) -> "_core.Assignment | None":
        """The next one to compute; None if there is none any more."""
        if self._finished:
            return None
        self._raise_if_stopped()
        try:
            assignment = self.worker.next_assignment()
        except _errors.StatusError as error:
            self._ended_by(error)
            return None
        if assignment.kind != "finished":
            return assignment
        self._finished = True
        _core.log("info", f"the run is over: {assignment.reason}")
        self._conclude(assignment)
        return None

    def _conclude(self, assignment: "_core.Assignment") -> None:
        """The run needs nothing more: the model gets its last version."""
        # Most runs have no averages.
        with contextlib.suppress(_errors.CohortError):
            self._read(_AVERAGE)
            self._last_averages = self._copy_of_model()
        with contextlib.suppress(_errors.CohortError):
            self.load()
        self._leave(assignment.reason)
        if assignment.failed:
            raise _errors.TrainingError(f"the run failed: {assignment.reason}")
        if assignment.unfinished:
            _core.log("warning", f"left before the run was done: "
                      f"{assignment.reason}")
            raise _errors.Stopped(_core.ExitCode.LEFT.value)

    def _ended_by(self, error: _errors.StatusError) -> None:
        """A call ended with a status that is final."""
        if _errors.code_of(error) == "CANCELLED":
            self._raise_if_stopped()
            # The server no longer needs this rank.
            self._finished = True
            self._leave(str(error.args[1]))
            return
        self._leave(str(error.args[1]))
        _errors.raise_from(error)

    def _stop(self, number: int, patience: bool) -> bool:
        """On the watcher's thread. Returns whether it is enough for now: a step
        in progress may end by itself."""
        worker = self.worker
        if worker is None:
            return True
        if patience:
            _core.log("info", f"signal {number}: finishing the step, then leaving")
            if self._step.mode is Mode.TRAIN:
                return False
        worker.request_stop()
        return True

    def _raise_if_stopped(self) -> None:
        if self._watcher is None or self._watcher.signal is None:
            return
        number = self._watcher.signal
        self._leave("stopped by a signal")
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise _errors.Stopped(_core.ExitCode.LEFT.value)

    def _read_weights(self, assignment: "_core.Assignment") -> bool:
        """False if the assignment is void."""
        # Values that are about to be overwritten are compared now.
        self._model.check_weights(
            content=self.worker.version() != assignment.version)
        self._model.await_weights()
        try:
            pulled = self.worker.read_weights(assignment)
        except _errors.StatusError as error:
            if _errors.code_of(error) not in _errors.VOID:
                self._ended_by(error)
            return False
        if pulled is not None:
            self._model.take_weights()
            self._take_state(bytes(pulled.front_end_state) or
                             self._initial_state)
        self._step.load_statistics()
        return True

    def _take_state(self, state: bytes) -> None:
        self._schedulers.load(state)
        self._state = state

    def _is_beyond(self, epoch: int) -> bool:
        """The batch belongs to the epoch after the one of `epochs`."""
        return self._epoch_limit is not None and epoch > self._epoch_limit

    def _begin_step(self, assignment: "_core.Assignment", parts: int,
                    samples: int | None, own: "_data.OwnBatches | None",
                    doubt: str) -> None:
        """Args: see Step.begin; and `own`, where the batch comes from; `doubt`:
        why the number of samples may be wrong."""
        self._after_step.check(self._last)
        self._schedulers.begin_step(assignment.data_epoch)
        self._last = None
        self._own, self._doubt = own, doubt
        self._step.begin(assignment, parts, samples)
        self._after_step.begin()
        _data.seed_everything(_core.mix_seed(
            self._joined().seed, self.worker.version() or 0, self.rank))

    def _end_of_data(self) -> None:
        """The iterable of own data has ended: so does the run."""
        self._data_ended = True
        with contextlib.suppress(_errors.CohortError):
            self.load()
        self._finished = True
        self._leave("the data has ended")
