"""A worker's state in its run, which the job and its loop share."""

import atexit
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from cohort import (_after_step, _attributes, _core, _data, _errors, _evaluation, _kept,
                    _local_steps, _normalizer, _rules, _sampler, _server)
from cohort._batches import Counted
from cohort._model import RegisteredModel
from cohort._optimizer import Optimizers, StepNumbers, place_of, plan_of
from cohort._optimizer_watch import OptimizerWatch
from cohort._schedulers import Schedulers
from cohort._signals import StopWatcher
from cohort._step import Step, StepResult
from cohort._updates import Updates


class Run:
    """A worker's state, from `cohort.join` until it has left the run.

    Args:
        model: its batch norm is converted in place.
        optimizers: of the model's parameters.
        schedulers: of the optimizers.
        reached: the run's server.
        connect: makes a worker that has not joined yet, of a batch size.
        stopped_exit_code: of a script that was stopped or drained; None: that
            of the table.
        keep, buffers: see `cohort.join`.
        local: of the inner optimizer.
    """

    def __init__(self, model: nn.Module, optimizers: Optimizers,
                 schedulers: Schedulers, reached: _server.Reached,
                 connect: "Callable[[RegisteredModel, int, int], _core.Worker]",
                 stopped_exit_code: int | None,
                 keep: "_kept.Keep" = (),
                 buffers: Mapping[str, str] | None = None,
                 local: _local_steps.Options = _local_steps.Options()) -> None:
        self.model = RegisteredModel(model, keep)
        self.kept = self.model.kept
        self.model.check_optimizers(optimizers)
        self.schedulers = schedulers
        # The inner optimizer, with its name; None: the server applies them.
        self.local: _local_steps.LocalSteps | None = None
        self._local_optimizer = ""
        if local.steps:
            self._plan = _local_steps.plan_with_outer(local, optimizers[0])
            self._local_optimizer = _local_steps.text_of(local, optimizers[0])
            self.local = _local_steps.LocalSteps(self.model, optimizers[0],
                                                 local.keep_inner)
        else:
            self._plan = plan_of(optimizers, bool(schedulers))
        self._watches = [
            OptimizerWatch(optimizer, place_of(optimizers, position),
                           schedulers.numbers, self.local is not None)
            for position, optimizer in enumerate(optimizers)]
        self._reached = reached
        self._connect = connect
        self._stopped_exit_code = (
            int(_core.ExitCode.LEFT.value) if stopped_exit_code is None
            else stopped_exit_code)
        self._pid = os.getpid()
        self.evaluator: _evaluation.Evaluator | None = None
        self.score: _evaluation.Score | None = None
        # Set once the run is joined.
        self.membership: "_core.Membership | None" = None
        self._watcher: StopWatcher | None = None
        self._final_version: int | None = None
        # Averages of the last version, if the server has kept any.
        self.last_averages: dict[str, Any] | None = None
        # They are in the model until the next load().
        self._shows_averages = False
        # The worker has left the run; and after a signal, it shall not wait for
        # the end of the step.
        self.left = self._stops_now = False
        # The run is over, or needs nothing more of this worker.
        self.finished = False
        # The iterable of own data has ended, and with it the run.
        self._data_ended = False
        # The epoch that `Job.epochs` is in; batches of the next one wait.
        self.epoch_limit: int | None = None
        # The schedulers' state when the run was joined, and as it was last taken
        # from the server or when the last step began; and the version that they
        # stand at.
        self._initial_state = self._state = schedulers.save()
        self._state_version: int | None = None
        # The numbers of the optimizers that the step in progress was opened with.
        self._sent: list[float] = []
        # The version at which the last step began.
        self._begun: int | None = None
        self._last: StepResult | None = None
        # Handed out and not begun, such as one of the next epoch.
        self.waiting: "_core.Assignment | None" = None
        # The data set with which the first loop over job.data() has joined.
        self.data: Any = None
        # Set by the loop, if the batches are the script's own.
        self.own: _data.OwnBatches | None = None
        # Set once the run is joined, if a sampler decides the order of epochs.
        self.sampled: _sampler.SampledOrder | None = None
        self._rules = _rules.Rules(self.kept, buffers or {})
        self._normalizers = _normalizer.Normalizers(self, self.kept)
        self.step = Step(self.model, schedulers.scale, Updates(
            optimizers, [self.model.optimizer_name(optimizers, position)
                         for position in range(len(optimizers))]), self.local)
        self.after_step = _after_step.AfterStep(self.step)
        self._attributes = schedulers.attributes = _attributes.Attributes(
            lambda: {**dict(self.kept.named_modules()), **self.model.modules},
            self.step.beside.modules)
        atexit.register(self.end)

    @property
    def worker(self) -> "_core.Worker":
        """The connection to the run; None before it is joined, and after."""
        return self.step.worker

    def joined(self) -> "_core.Membership":
        """The membership. Raises UsageError before the run is joined."""
        if self.membership is None:
            raise _errors.UsageError(
                "job.rank, job.workers, job.step_number, job.run_name, job.load(): "
                "the job joins its run when job.data() is iterated, and these are "
                "not known before; use them in the loop's body, or in that of `for "
                "epoch in job.epochs()`. Before it the environment has COHORT_RANK "
                "in processes of cohortctl run, and RANK in those of torchrun")
        return self.membership

    @property
    def version(self) -> int | None:
        """See Job.version."""
        return self._final_version if self.worker is None else (
            self.worker.version())

    @property
    def repeats(self) -> bool:
        """The last step does not count, and comes again."""
        return self._last is not None and not self._last.counts

    # ---- joining and leaving

    def join(self, dataset: Any, by_number: bool, batch_size: int,
             batch_size_max: int, name: str, sampler: Any) -> None:
        """Joins the run and registers the model; once."""
        plan = self._run_plan(dataset, by_number, batch_size, name)
        if sampler is not None:
            plan.train_samples = len(sampler)
        self._check_optimizers()
        self.schedulers.find()
        if self.schedulers.plateau is not None:
            self.kept.follow_plateau(self.schedulers.plateau)
        self._initial_state = self._state = self.schedulers.save()
        address = self._reached.address
        finished = _server.finished_runs.get(address)
        try:
            worker = self._connect(self.model, batch_size, batch_size_max)
            self.step.worker = worker
            self._watcher = StopWatcher(self._stop)
            self.membership = worker.join()
            if self.membership.run_id == finished:
                self._refuse_second(address, "it is over")
            if sampler is not None:
                self.sampled = _sampler.SampledOrder(sampler,
                                                     self.membership.seed)
            if by_number:
                plan.dataset_digest = _data.digest_of(
                    dataset, self.membership.seed, self.sampled)
            worker.register(
                self.model.specs(self._plan), self.model.layer_specs(), plan,
                self.model.memory(), self.model.initial_statistics())
            self.model.statistics.attach(worker)
            self.after_step.joined(int(self.membership.version))
        except _errors.StatusError as error:
            if finished is not None:
                self._raise_if_stopped()
                self._refuse_second(address, str(error.args[1]))
            self.ended_by(error)

    def _refuse_second(self, address: str, why: str) -> NoReturn:
        self.leave("its process has finished this run")
        raise _server.second_join(address, why) from None

    def _run_plan(self, dataset: Any, by_number: bool, batch_size: int,
                  name: str) -> "_core.RunPlan":
        plan = _core.RunPlan()
        plan.dataset = name
        plan.own_data = not by_number
        if by_number:
            plan.train_samples = len(dataset)
        elif self.schedulers.by_epoch:
            raise _errors.ConfigurationError(
                "cohort.join(epoch_schedulers=...): the server counts no epochs of "
                "own data, so these would never advance; pass schedulers= over steps")
        if self.evaluator is not None:
            plan.test_samples = len(self.evaluator.dataset)
            plan.awaits_scores = True
            self.evaluator.check(self.model.module)
            if not by_number:
                raise _errors.ConfigurationError(
                    "job.evaluate_with(): the server counts no epochs of own "
                    "data, so there is no time to evaluate; score the model in "
                    "the script")
        plan.loss_reference = float(batch_size)
        plan.loss = "of the training script"
        plan.rates_by_workers = self._plan.rates_by_workers
        plan.optimizer = self._plan.settings
        plan.local_optimizer = self._local_optimizer
        return plan

    def is_here(self) -> bool:
        """This process, not a fork of it, has the run and has not left it."""
        return not self.left and os.getpid() == self._pid

    def end(self, error: BaseException | None = None) -> None:
        """The script ends, or `with job:` by an error."""
        if error is not None:
            _errors.note_uncaught(error)
        reason, refused = _errors.end_of_script()
        self.leave(reason, refused and self.step.assignment is not None)

    def leave(self, reason: str, refused: bool = False) -> None:
        """See Job.leave. `refused`: the run cannot continue with such a script."""
        if not self.is_here():
            return
        self.left = True
        if self.finished and self.membership is not None:
            _server.finished_runs[self._reached.address] = str(
                self.membership.run_id)
        atexit.unregister(self.end)
        if self.worker is not None:
            self.step.abandon(reason)
            with contextlib.suppress(_errors.StatusError):
                # Others' void steps have it as their reason.
                if self._data_ended:
                    self.worker.leave("its data has ended",
                                      _core.Departure.DATA_ENDED)
                elif refused and not self.finished:
                    self.worker.leave(reason, _core.Departure.REFUSED)
                else:
                    self.worker.leave("done" if self.finished else reason,
                                      _core.Departure.LEAVES)
            # Ends its connections and completes the timeline.
            self._final_version = self.worker.version()
            self.step.worker = None  # type: ignore[assignment]
        self.step.detach()
        for watch in self._watches:
            watch.detach(bool(self._final_version))
        self.schedulers.detach()
        self._normalizers.detach()
        if self._watcher is not None:
            self._watcher.close()
        if self._reached.own is not None:
            self._reached.own.close(self.finished)

    def _conclude(self, assignment: "_core.Assignment") -> None:
        """The run needs nothing more: the model gets its last version."""
        self.finished = True
        _core.log("info", f"the run is over: {assignment.reason}")
        if not assignment.failed:
            self.model.check_values()
        # Most runs have no averages.
        with contextlib.suppress(_errors.CohortError):
            self.load(averaged=True)
            self.last_averages = self.model.copy()
        with contextlib.suppress(_errors.CohortError):
            self.load()
        self._give_last()
        self.leave(assignment.reason)
        if assignment.failed:
            raise _errors.TrainingError(f"the run failed: {assignment.reason}")
        if assignment.unfinished:
            _core.log("warning", f"left before the run was done: "
                      f"{assignment.reason}")
            raise _errors.Stopped(self._stopped_exit_code)

    def begin_again(self, epoch: int, earlier: int) -> NoReturn:
        """The server continues from a checkpoint of an earlier epoch than that of the
        loop. What the script does at the end of that one, such as the step of a
        scheduler, is undone, and its loop would not come there again."""
        text = (f"the server continues from a checkpoint of epoch {earlier}, and this "
                f"script is in the loop over epoch {epoch}")
        _core.log("warning", f"{text}; this process ends, so that the one that replaces "
                  "it begins there")
        self.leave(text)
        raise _errors.Stopped(self._stopped_exit_code)

    def end_of_data(self) -> None:
        """The iterable of own data has ended: so does the run."""
        self._data_ended = True
        self.model.check_values()
        with contextlib.suppress(_errors.CohortError):
            self.load()
        self._give_last()
        self.finished = True
        self.leave("the data has ended")

    def _give_last(self) -> None:
        """Another run may continue from the checkpoint of this version."""
        with contextlib.suppress(_errors.StatusError):
            self.kept.give_last(self.worker)

    def ended_by(self, error: _errors.StatusError,
                 void: frozenset[str] = frozenset()) -> None:
        """A call ended with a status that is final, unless `void` has it."""
        code = _errors.code_of(error)
        if code in void:
            return
        if code == "CANCELLED":
            self._raise_if_stopped()
            # The server no longer needs this rank.
            self.finished = True
            self.leave(str(error.args[1]))
            return
        self.leave(str(error.args[1]))
        _errors.raise_from(error)

    def _stop(self, number: int, patience: bool) -> bool:
        """On the watcher's thread. Returns whether it is enough for now: a step
        in progress may end by itself."""
        worker = self.worker
        if worker is None:
            return True
        if patience:
            _core.log("info", f"signal {number}: leaving after the step in progress, if there is one")
            if self.step.is_open() or self.step.closes:
                return False
        worker.request_stop()
        self._stops_now = True
        return True

    def end_if_stopped(self) -> None:
        """Called between local steps: the rest of a step may take long."""
        if self._stops_now:
            self._raise_if_stopped()

    def _raise_if_stopped(self) -> None:
        if self._watcher is None or self._watcher.signal is None:
            return
        number = self._watcher.signal
        self._give_last()
        self.leave("stopped by a signal")
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise _errors.Stopped(self._stopped_exit_code)

    # ---- assignments

    def next_assignment(self) -> "_core.Assignment | None":
        """The next one to compute; None if there is none any more."""
        if self.finished:
            return None
        self._raise_if_stopped()
        try:
            assignment = self.worker.next_assignment()
        except _errors.StatusError as error:
            self.ended_by(error)
            return None
        if assignment.kind in ("train", "finished"):
            self.score = _evaluation.Score.of(assignment.score)
        if assignment.kind == "train" and assignment.global_normalization:
            self.after_step.check_missed(self._last, int(assignment.version))
        if assignment.kind != "finished":
            return assignment
        self._conclude(assignment)
        return None

    def read_weights(self, assignment: "_core.Assignment") -> bool:
        """False if the assignment is void."""
        # Values that are about to be overwritten are compared now.
        self.model.check_weights(
            content=self.worker.version() != assignment.version)
        self.model.await_weights()
        try:
            pulled = self.worker.read_weights(assignment)
        except _errors.StatusError as error:
            self.ended_by(error, _errors.VOID)
            return False
        if pulled is not None:
            self.model.take_weights()
            # Where workers have separate steps, what the script has written
            # is this worker's.
            if self.schedulers or self._begun is None or assignment.members > 0:
                self._take_state(bytes(pulled.front_end_state) or
                                 self._initial_state, int(pulled.version))
        self.step.load_statistics()
        return True

    def load(self, averaged: bool = False) -> int:
        """See Job.load; `averaged`: the averages that --ema_decay keeps. Statistics
        that the script has written stay. Raises UsageError if it has written weights,
        which would get lost."""
        self.joined()
        if self.step.is_open():
            raise _errors.UsageError(
                "job.load(), job.state_dict(): a step is in progress; call "
                "job.step() before" + (
                    ", with last=True where the step ends"
                    if self.step.updates.several else
                    ", until its verdict is another than 'local'"
                    if self.step.local is not None else ""))
        pulled = None
        while pulled is None:
            if self.left:
                return self._final_version or 0
            self.model.check_values()
            self.model.await_weights()
            try:
                pulled = self.worker.read(None, True,
                                          "average" if averaged else "")
            except _errors.StatusError as error:
                if _errors.code_of(error) not in _errors.VOID or self.finished:
                    _errors.raise_from(error)
                # The step that waits is repeated.
                if self.waiting is None:
                    self.check_rates_kept()
                self.waiting = self.next_assignment()
        if not self._shows_averages:
            self.step.capture_statistics()
        self._shows_averages = averaged
        self.model.take_weights()
        if averaged:
            self.model.statistics.show(pulled)
        else:
            self.step.load_statistics()
            self.kept.warn_if_behind(int(pulled.version))
        if pulled.front_end_state:
            self._take_state(bytes(pulled.front_end_state), int(pulled.version))
        return int(pulled.version)

    def _take_state(self, state: bytes, version: int) -> None:
        # The state at its own version has what the script did after the step.
        if version != self._state_version:
            self.schedulers.load(state)
            self._state, self._state_version = state, version

    def begin_step(self, assignment: "_core.Assignment", batch: Counted) -> bool:
        """See Step.begin. False if the assignment is void."""
        _errors.forget_refusal()
        if self._begun is None and self._state is not self._initial_state:
            # Before `kept`, whose rates are those of the step's beginning.
            self.schedulers.resume(self._state, int(assignment.data_epoch))
        try:
            self.kept.begin(self.worker, assignment, int(self.joined().rank))
        except _errors.StatusError as error:
            self.ended_by(error, _errors.VOID)
            return False
        self.after_step.check(self._last)
        again = self.repeats and self._begun == assignment.version
        self._begin_rates(assignment)
        self._last = None
        self.step.begin(assignment, batch)
        if again:
            self._attributes.put_back()
        else:
            self._attributes.note()
        self._normalizers.begin()
        self._rules.begin()
        self._seed()
        return True

    def _seed(self, number: int = 0) -> None:
        """`number`: of the local step."""
        membership = self.joined()
        seed = _core.mix_seed(membership.seed, self.worker.version() or 0,
                              int(membership.rank))
        _data.seed_everything(_core.mix_seed(seed, number) if number else seed)

    def check_local(self, assignment: "_core.Assignment") -> None:
        """Raises ConfigurationError if server and script do not agree on whether
        steps have local ones."""
        count = len(assignment.local_steps)
        if (count > 0) == (self.local is not None):
            return
        raise _errors.ConfigurationError(
            f"cohort.join(): the server has --local_steps={count}, which the script "
            "does not expect; pass local_steps= to cohort.join(), and the server's "
            "optimizer as outer=, or set --local_steps=0" if count else
            "cohort.join(local_steps=...): the server has no local steps: a flag "
            "such as --local_steps or --optimizer, or a change of the policy, takes "
            "precedence over the script; remove it, start the server with "
            "--local_steps=N, or leave local_steps= out")

    def begin_local_step(self, batch: Counted) -> None:
        """The batch of a local step is there."""
        local, step = self.local, self.step
        assert local is not None and step.assignment is not None
        if local.made > 0:
            self.schedulers.begin_local_step(
                local.made == 1 and int(step.assignment.version) == 0)
        step.begin_local_step(batch)
        self._seed(local.index)

    def _begin_rates(self, assignment: "_core.Assignment") -> None:
        """Schedulers and rates as they are at the beginning of this step, in its
        first attempt and in later ones, and in a replacement of this process."""
        schedulers, last = self.schedulers, self._last
        if last is not None and not last.counts and (
                self._begun == assignment.version):
            schedulers.load(self._state)
            schedulers.begin_again()
        else:
            schedulers.begin_step(
                assignment.data_epoch,
                assignment.version if assignment.members > 0 else None,
                last is not None and last.counts and
                last.version == self._state_version,
                one_loop=self._begun is not None and self.epoch_limit is None)
            self._state = schedulers.save()
        self._begun = int(assignment.version)

    def numbers(self) -> StepNumbers:
        """The optimizer's numbers in the step in progress, as its opening has them.

        Raises:
            UsageError: they were changed since the first job.backward().
        """
        numbers = self.schedulers.numbers
        if self.step.local is not None:
            # They are the inner optimizer's, which is here.
            return StepNumbers([], [])
        differing = (numbers.differing(self._sent)
                     if self.step.passes > 0 else None)
        if differing is not None:
            number, was, now = differing
            raise _errors.UsageError(
                f"{number} was changed from {was} to {now} after job.backward(), "
                "which has sent the numbers of this step; change it before the "
                "first job.backward() of a step")
        self._sent = numbers.now()
        return numbers.of_step(self._plan.rates_by_workers)

    def check_rates_kept(self) -> None:
        """Raises UsageError if the script has written a rate since job.step()."""
        if not self.step.trains():
            self.schedulers.check_kept()

    def _check_optimizers(self) -> None:
        for watch in self._watches:
            watch.check()

    def end_update(self, optimizer: int, last: bool | None) -> StepResult:
        """See Job.step, of one of several optimizers."""
        step = self.step
        self.model.check_weights(content=True)
        self._check_optimizers()
        step.updates.check_step(optimizer)
        self.numbers()
        step.gradients.check(self.model.trained_by[optimizer])
        self._rules.sync(step)
        ends = step.updates.ends_step(optimizer, last)
        step.send_update(optimizer, continues=not ends)
        self.schedulers.advance(step.updates.optimizers[optimizer])
        if ends:
            return self._end_step()
        step.end_update(optimizer)
        return StepResult(version=None, verdict="part")

    def end_updates(self) -> None:
        """The script asks for the next batch, and may have stepped some optimizers:
        these were the step's."""
        step = self.step
        if step.trains() and step.updates.done > 0 and step.updates.of is None:
            self.model.check_weights(content=True)
            self._check_optimizers()
            step.numbers = self.numbers()
            self._rules.sync(step)
            step.send_update(0, continues=False)
            self._end_step()
        step.updates.ended = ""

    def end_step(self) -> StepResult:
        """See Job.step."""
        step = self.step
        self.model.check_weights(content=True)
        self._check_optimizers()
        if step.passes == step.done:
            raise _errors.UsageError(
                "job.step(): no gradients yet; call job.backward(loss) first")
        self.numbers()
        self._rules.sync(step)
        step.done += 1
        if step.done < step.batch.parts:
            # Its calls are numbered by themselves.
            self.worker.begin_part()
            return StepResult(version=None, verdict="part")
        if step.local is not None:
            return self._end_local_step()
        step.gradients.check()
        self.schedulers.advance(step.updates.optimizers[0])
        return self._end_step()

    def _end_local_step(self) -> StepResult:
        step, local = self.step, self.local
        assert local is not None
        last = local.is_last()
        result = step.end_local_step()
        self.schedulers.advance(step.updates.optimizers[0])
        if last:
            return self.end_local_steps()
        self.schedulers.end_step()
        return result

    def skip_local_step(self) -> None:
        """Others have samples for it, and their schedulers follow."""
        self.step.skip_local_step()
        self.schedulers.skip_local_step(self.step.updates.optimizers[0])

    def end_local_steps(self) -> StepResult:
        """No further batch comes for the step."""
        step, local = self.step, self.local
        assert local is not None
        while local.range is not None:
            self.skip_local_step()
        step.push_local_steps()
        result = self._end_step()
        local.ended(result.counts)
        return result

    def _end_step(self) -> StepResult:
        step = self.step
        assert step.assignment is not None
        self._normalizers.sync()
        if step.assignment.members > 0 and step.local is None:
            self._attributes.end()
        state = self.schedulers.finish(step.overflow,
                                       len(step.assignment.local_steps))
        try:
            self.kept.check(self.worker, step.assignment,
                            scored=self.evaluator is not None)
            self._last = step.close(state)
        except _errors.StatusError as error:
            self.ended_by(error)
            self._last = StepResult(None, "void", reason=str(error.args[1]))
        if self._last.counts:
            self._state_version = self._last.version
            # Here, as the script may leave its loop after this call.
            if self.own is not None:
                self.own.counted()
            assert self._last.version is not None
            self.kept.counted(self._last.version)
            self.after_step.run()
        else:
            self.schedulers.load(self._state)
            self._state_version = self._begun
        self.schedulers.end_step()
        return self._last
