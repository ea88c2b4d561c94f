"""A training script's side of a run."""

import atexit
import contextlib
import dataclasses
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from cohort import _batch_norm, _core, _data, _errors, _evaluation, _server
from cohort._model import RegisteredModel, accumulator_of
from cohort._optimizer import OptimizerPlan, plan_of
from cohort._schedulers import Schedulers
from cohort._signals import StopWatcher

_PHASES = {"data": 0, "forward": 1, "rendezvous": 2, "backward": 3, "push": 4,
           "wait": 5}

# What the generator of batches is doing, for batch norm and for checks.
_IDLE, _STEP, _COLLECT, _EVALUATE_BY_BATCH = range(4)


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What became of a step.

    Attributes:
        version: the version of the weights now; None if the step is void.
        verdict: "applied", "damped", "skipped" (a number was not finite),
            "dropped", "rejected_nonfinite", or "void": the step was given up,
            for example because a worker was lost, and its batch comes again.
        loss: this worker's mean loss; None if it had no weight.
        reason: why it was not applied; empty if it was.
    """
    version: int | None
    verdict: str
    loss: float | None
    reason: str


def _quiet_step(message: str) -> Callable[..., None]:
    def step(*args: Any, **kwargs: Any) -> None:
        raise _errors.UsageError(message)
    # Schedulers look for these, and warn without them.
    step._with_counter = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


class Job:
    """One worker of a run; made by `cohort.join`."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer,
                 schedulers: Schedulers, address: str,
                 embedded: "_server.EmbeddedServer | None",
                 options: Mapping[str, Any]) -> None:
        self._model = RegisteredModel(model)
        self._model.check_optimizer(optimizer)
        self._optimizer = optimizer
        self._schedulers = schedulers
        self._plan: OptimizerPlan = plan_of(optimizer, bool(schedulers))
        self._address = address
        self._embedded = embedded
        self._options = options
        self._pid = os.getpid()
        self._evaluator: _evaluation.Evaluator | None = None
        self._membership: "_core.Membership | None" = None
        self.worker: "_core.Worker" = None  # type: ignore[assignment]
        self._watcher: StopWatcher | None = None
        self._left = False
        self._finished = False
        # The iterable of own data has ended, and with it the run.
        self._data_ended = False
        self._epoch_limit: int | None = None
        self._initial_state = schedulers.save()
        self._state = self._initial_state
        # The step in progress.
        self._mode = _IDLE
        self._assignment: "_core.Assignment | None" = None
        self._batch_samples: int | None = None
        self._weight_sum = 0.0
        self._loss_sum = 0.0
        self._part = 0
        self._parts = 1
        self._passes = 0
        self._sending = False
        self._in_backward = False
        self._sent: dict[int, tuple[torch.Tensor, int]] = {}
        # Parameters that autograd adds to more than once in a backward pass
        # (checkpointing with reentry): final only when the pass is over. The
        # first pass finds them; None before it.
        self._late: set[int] | None = None
        self._seen: dict[int, int] = {}
        self._measures: dict[str, tuple[float, float]] = {}
        self._counts = (0, 0)
        self._counted = False
        self._hooks: list[Any] = []
        optimizer.step = _quiet_step(  # type: ignore[method-assign]
            "optimizer.step(): the server applies the optimizer; call job.step()")
        self._watch_gradients()
        for _, layer in self._model.layers:
            layer._cohort_step = self
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
        return None if self.worker is None else self.worker.version()

    @property
    def epoch(self) -> int:
        """The epoch of the batch in progress, from 0; 0 with own data."""
        return 0 if self._assignment is None else int(
            self._assignment.data_epoch)

    @property
    def finished(self) -> bool:
        """The run is over, or needs nothing more of this worker."""
        return self._finished

    # ---- for batch norm

    def layer_of(self, module: nn.Module) -> int:
        return self._model.numbers[id(module)]

    def normalises_by_batch(self, module: nn.Module) -> bool:
        if self._mode == _EVALUATE_BY_BATCH:
            return True
        return self._mode != _IDLE and module.training

    def recomputes(self) -> bool:
        return self._in_backward

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
            evaluate: a loss such as nn.CrossEntropyLoss(), whose batches are
                (inputs, labels); or a function of the model and a collated batch
                that returns a cohort.Evaluation.
            batch_size: samples a batch.
            ignore_index: labels that a loss ignores.
            collate_fn: as in torch.utils.data.DataLoader.
        """
        if self.worker is not None:
            raise _errors.UsageError(
                "job.evaluate_with(): the model is registered; call it before "
                "job.data() is iterated")
        score = (_evaluation.by_criterion(evaluate, ignore_index)
                 if isinstance(evaluate, nn.modules.loss._Loss) else evaluate)
        self._evaluator = _evaluation.Evaluator(
            dataset, score, collate_fn or torch.utils.data.default_collate,
            batch_size)

    def data(self, dataset: Any, batch_size: int | None = None, *,
             num_workers: int = 0, accumulate: int = 1, loop: bool = False,
             name: str | None = None,
             collate_fn: Callable[[list[Any]], Any] | None = None,
             **loader_options: Any) -> "Data":
        """The batches of this worker, until the run is over.

        Args:
            dataset: samples by number, with a length: the server cuts one
                permutation an epoch, so shuffling and sharding are its work. Or
                any iterable of batches, such as a DataLoader: own data, which
                the server does not number (it needs --max_steps).
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
        if accumulate < 1:
            raise _errors.UsageError(
                f"accumulate: got {accumulate}, want at least 1")
        for option in ("shuffle", "sampler", "batch_sampler", "drop_last"):
            if loader_options.pop(option, None):
                raise _errors.UsageError(
                    f"job.data({option}=...): the server decides which samples "
                    "make a batch; remove this argument")
        by_number = _data.is_map_style(dataset)
        if batch_size is None:
            batch_size = getattr(dataset, "batch_size", None) or 1
            if by_number:
                raise _errors.UsageError(
                    "job.data(): want batch_size, the samples of this worker in "
                    "a step")
        if batch_size < 1:
            raise _errors.UsageError(
                f"batch_size: got {batch_size}, want at least 1")
        options = dict(loader_options, num_workers=num_workers,
                       collate_fn=collate_fn)
        return Data(self, dataset, by_number, batch_size, accumulate, loop,
                    name or type(dataset).__name__, options)

    def epochs(self) -> Iterator[int]:
        """The run's epochs, for scripts that do something after each one.

        Within its body, the iterable of `job.data` ends with the epoch, and the
        model's moving statistics are then the server's.
        """
        epoch = 0
        while not self._finished:
            self._epoch_limit = epoch
            yield epoch
            if self.worker is not None and not self._finished:
                self.load()
            epoch += 1
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
                the samples of the batch. 0: nothing to learn from.
            reduction: "mean" or "sum": what `loss` is over `weight`.
            correct: labels that were predicted, for the live page.
            labels: of so many.
        """
        self._check_in_step("job.backward()")
        if self._passes > self._part:
            raise _errors.UsageError(
                "job.backward(): a second call in one step; add the losses and "
                "call it once, or cut the batch with job.data(accumulate=...)")
        if loss.dim() != 0 or not loss.requires_grad:
            raise _errors.UsageError(
                f"job.backward(): got a tensor of shape {tuple(loss.shape)}, "
                f"requires_grad {loss.requires_grad}, want a scalar loss that "
                "depends on the parameters")
        if reduction not in ("mean", "sum"):
            raise _errors.UsageError(
                f"reduction: got '{reduction}', want 'mean' or 'sum'")
        if weight is None:
            weight = self._batch_samples
            if weight is None:
                raise _errors.UsageError(
                    "job.backward(): the batch has no first tensor to count "
                    "samples in; pass weight=")
            if self._parts > 1:
                weight = (weight * (self._part + 1) // self._parts -
                          weight * self._part // self._parts)
        weight = float(weight)
        if not 0 <= weight < float("inf"):
            raise _errors.UsageError(
                f"weight: got {weight}, want a number of samples, labels or "
                "pixels")
        if self._passes == 0:
            self._model.check_buffers()
        self._passes += 1
        self._counts = (self._counts[0] + int(correct),
                        self._counts[1] + int(labels))
        scale = weight if reduction == "mean" else 1.0
        if weight > 0:
            self._loss_sum += float(loss.detach()) * scale
        self._weight_sum += weight
        last = self._part + 1 == self._parts
        if last:
            with self._phase("push"):
                self.worker.open_step(self._samples(), self._weight_sum,
                                      self._schedulers.rates())
        root = scale / self.worker.loss_reference() if weight > 0 else 0.0
        self._sending = last
        self._in_backward = True
        try:
            with self._phase("backward"):
                loss.backward(gradient=torch.full_like(loss, root))
                if last:
                    self._send_late()
        finally:
            self._in_backward = False
            self._sending = False

    def step(self) -> StepResult:
        """Ends the step: the server combines it with those of the other workers
        and sends new weights, which are then in the model.

        Returns:
            What became of it. A part of `accumulate` that is not the last has
            the verdict "part".
        """
        self._check_in_step("job.step()")
        if self._passes == self._part:
            raise _errors.UsageError(
                "job.step(): no gradients yet; call job.backward(loss) first")
        self._part += 1
        if self._part < self._parts:
            return StepResult(version=None, verdict="part", loss=None, reason="")
        self._check_gradients()
        self._schedulers.advance()
        state = self._schedulers.save()
        result = self._close(state)
        self._mode = _IDLE
        self._counted = result.verdict in ("applied", "damped", "skipped")
        if self._counted:
            self._state = state
        else:
            self._schedulers.load(self._state)
        self._model.clear_gradients()
        return result

    def report(self, weight: float = 1.0, **measures: float) -> None:
        """Adds measures of the step in progress to the live page, metrics and
        history: the mean over all workers, by `weight`.

        Call it between job.backward() and job.step().

        Args:
            weight: what each value is a mean over, such as samples.
            measures: values by name, at most 32 names a step.
        """
        self._check_in_step("job.report()")
        for name, value in measures.items():
            total, count = self._measures.get(name, (0.0, 0.0))
            self._measures[name] = (total + float(value) * weight,
                                    count + float(weight))

    # ---- the model

    def load(self) -> int:
        """Loads the newest weights and moving statistics into the model.

        Returns:
            Their version.
        """
        self._joined()
        if self._mode == _STEP:
            raise _errors.UsageError(
                "job.load(): a step is in progress; call job.step() first")
        try:
            pulled = self.worker.read(None, True, "")
        except _core.StatusError as error:
            _errors.raise_from(error)
        self._model.load_statistics(pulled.statistics)
        self._model.note_weights()
        if pulled.front_end_state:
            self._take_state(bytes(pulled.front_end_state))
        return int(pulled.version)

    def state_dict(self) -> dict[str, Any]:
        """The newest weights and moving statistics, with the names of
        `model.state_dict()`; copies, which later steps do not change."""
        if not self._left:
            self.load()
        return {name: value.detach().clone() if isinstance(value, torch.Tensor)
                else value
                for name, value in self._model.module.state_dict().items()}

    def leave(self, reason: str = "the script called leave()") -> None:
        """Leaves the run; the model keeps the weights that it has. Called at
        the script's end by itself."""
        if self._left or os.getpid() != self._pid:
            return
        self._left = True
        atexit.unregister(self._at_exit)
        for hook in self._hooks:
            hook.remove()
        for _, layer in self._model.layers:
            layer._cohort_step = None
        if self.worker is not None:
            if self._mode != _IDLE:
                self.worker.abandon_step(reason)
                self._mode = _IDLE
            with contextlib.suppress(_core.StatusError):
                self.worker.leave("done" if self._finished else reason,
                                  self._data_ended)
        if self._watcher is not None:
            self._watcher.close()
        if self._embedded is not None:
            self._embedded.close(self._finished)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()

    # ---- inside: joining

    def _at_exit(self) -> None:
        self.leave("the script has ended")

    def _join(self, batch_size: int, plan: "_core.RunPlan",
              dataset: Any) -> None:
        """Joins the run and registers the model; once."""
        options = self._options
        rank = options.get("rank")
        if rank is None and os.environ.get("COHORT_RANK"):
            rank = int(os.environ["COHORT_RANK"])
        threads = torch.get_num_threads()
        try:
            self.worker = _core.Worker(
                server=self._address, rank=-1 if rank is None else int(rank),
                batch_size=batch_size,
                server_timeout_s=float(options["server_timeout"]),
                fingerprint=f"torch {torch.__version__}, {threads} threads",
                description=f"{socket.gethostname()}, process {os.getpid()}",
                trace=options["trace"], ops_listen=options["ops_listen"],
                insecure=bool(options["insecure"]), threads=threads)
            self._watcher = StopWatcher(self._stop)
            self._membership = self.worker.join()
            if not plan.own_data:
                plan.dataset_digest = _data.digest_of(dataset,
                                                      self._membership.seed)
            self.worker.register(
                self._model.specs(self._plan), self._model.layer_specs(), plan,
                self._model.memory(), self._model.statistics())
        except _core.StatusError as error:
            self._ended_by(error)

    def _run_plan(self, dataset: Any, by_number: bool, batch_size: int,
                  name: str) -> "_core.RunPlan":
        plan = _core.RunPlan()
        plan.dataset = name
        plan.own_data = not by_number
        if by_number:
            plan.train_samples = len(dataset)
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

    def _watch_gradients(self) -> None:
        for number, parameter in enumerate(self._model.parameters):
            if not parameter.requires_grad:
                continue
            if hasattr(parameter, "register_post_accumulate_grad_hook"):
                self._hooks.append(parameter.register_post_accumulate_grad_hook(
                    lambda _, number=number: self._on_gradient(number)))
                continue
            node: Any = accumulator_of(parameter)
            handle = node.register_hook(
                lambda *_, number=number: self._on_gradient(number))
            self._hooks.append(_NodeHook(node, handle))

    # ---- inside: one step

    def _check_in_step(self, what: str) -> None:
        if self._mode == _STEP:
            return
        raise _errors.UsageError(
            f"{what}: no batch is in progress; iterate job.data() and call it "
            "once for each batch")

    def _samples(self) -> int:
        assert self._assignment is not None
        if self._assignment.end > self._assignment.begin or self._by_number:
            return int(self._assignment.end - self._assignment.begin)
        return int(self._batch_samples if self._batch_samples is not None
                   else round(self._weight_sum))

    def _on_gradient(self, number: int) -> None:
        if self._mode != _STEP:
            return
        if not self._in_backward:
            raise _errors.UsageError(
                "loss.backward(): call job.backward(loss, weight=...), which "
                "weights the loss and sends the gradients")
        if not self._sending:
            return
        if self._late is None or number in self._late:
            self._seen[number] = self._seen.get(number, 0) + 1
            return
        if number in self._sent:
            raise _errors.UsageError(
                f"{self._model.names[number]}: got a second gradient in this "
                "backward pass, but not in the first one; the gradient may have "
                "been sent. With torch.utils.checkpoint use use_reentrant=False")
        self._send(number)

    def _send_late(self) -> None:
        if self._late is None:
            self._late = {number for number, count in self._seen.items()
                          if count > 1}
        for number in sorted(self._seen, reverse=True):
            self._send(number)
        self._seen.clear()

    def _send(self, number: int) -> None:
        grad = self._model.parameters[number].grad
        assert grad is not None
        if grad.is_sparse:
            raise _errors.ConfigurationError(
                f"{self._model.names[number]}: got a sparse gradient, want a "
                "dense one; use sparse=False")
        self._sent[number] = (grad, grad._version)
        dense = grad if grad.is_contiguous() else grad.contiguous()
        self.worker.take_gradient(number, dense, dense.data_ptr())

    def _check_gradients(self) -> None:
        for number, (grad, version) in self._sent.items():
            now = self._model.parameters[number].grad
            if now is grad and grad._version == version:
                continue
            raise _errors.UsageError(
                f"{self._model.names[number]}: its gradient was changed after "
                "job.backward(), but it has been sent; clip with the server's "
                "--clip_norm (policy set clip_norm=1), and scale the loss instead "
                "of gradients")

    def _close(self, state: bytes) -> StepResult:
        loss = self._loss_sum / self._weight_sum if self._weight_sum else None
        measures, self._measures = self._measures, {}
        try:
            verdict = self.worker.close_step(
                loss_sum=self._loss_sum, correct=self._counts[0],
                labels=self._counts[1], front_end_state=state,
                measures=measures)
        except _core.StatusError as error:
            if _errors.code_of(error) in _errors.VOID:
                return StepResult(version=None, verdict="void", loss=loss,
                                  reason=str(error.args[1]))
            self._ended_by(error)
            raise
        self._model.note_weights()
        return StepResult(version=verdict.version, verdict=verdict.verdict,
                          loss=loss, reason=verdict.reason)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self.worker.enter_phase(_PHASES[name])
        try:
            yield
        finally:
            self.worker.leave_phase()

    # ---- inside: the loop

    _by_number = True

    def _next_assignment(self) -> "_core.Assignment | None":
        """The next one to compute; None if there is none any more."""
        if self._finished:
            return None
        self._raise_if_stopped()
        try:
            assignment = self.worker.next_assignment()
        except _core.StatusError as error:
            self._ended_by(error)
            raise
        if assignment.kind != "finished":
            return assignment
        self._finished = True
        self._conclude(assignment)
        return None

    def _conclude(self, assignment: "_core.Assignment") -> None:
        """The run needs nothing more: the model gets its last version."""
        with contextlib.suppress(_errors.CohortError):
            self.load()
        unfinished = bool(assignment.unfinished)
        self.leave(assignment.reason)
        if unfinished:
            _core.log("warning", f"left before the run was done: "
                      f"{assignment.reason}")
            raise _errors.Stopped(_errors.STOPPED_EXIT_CODE)

    def _ended_by(self, error: "_core.StatusError") -> None:
        """A call ended with a status that is final."""
        if _errors.code_of(error) == "CANCELLED":
            self._raise_if_stopped()
            # The server no longer needs this rank.
            self._finished = True
            self.leave(str(error.args[1]))
            return
        self.leave(str(error.args[1]))
        _errors.raise_from(error)

    def _stop(self, number: int) -> None:
        """On the watcher's thread. A step in progress ends by itself."""
        _core.log("info", f"signal {number}: finishing the step, then leaving")
        if self._mode == _IDLE and self.worker is not None:
            self.worker.request_stop()
            return
        timer = threading.Timer(5.0, self.worker.request_stop)
        timer.daemon = True
        timer.start()

    def _raise_if_stopped(self) -> None:
        if self._watcher is None or self._watcher.signal is None:
            return
        number = self._watcher.signal
        self.leave("stopped by a signal")
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise _errors.Stopped(_errors.STOPPED_EXIT_CODE)

    def _read_weights(self, assignment: "_core.Assignment") -> bool:
        """False if the assignment is void."""
        try:
            pulled = self.worker.read_weights(assignment)
        except _core.StatusError as error:
            if _errors.code_of(error) in _errors.VOID:
                return False
            self._ended_by(error)
            raise
        if pulled is not None:
            self._model.note_weights()
            self._take_state(bytes(pulled.front_end_state) or
                             self._initial_state)
        return True

    def _take_state(self, state: bytes) -> None:
        self._schedulers.load(state)
        self._state = state

    def _begin_step(self, assignment: "_core.Assignment", parts: int) -> None:
        self._model.check_weights()
        self._assignment = assignment
        self._mode = _STEP
        self._weight_sum = self._loss_sum = 0.0
        self._counts = (0, 0)
        self._part = self._passes = 0
        self._parts = parts
        self._sent = {}
        self._measures = {}
        self._model.clear_gradients()
        self._schedulers.begin_step(assignment.data_epoch)
        self._model.note_buffers()
        self.worker.begin_step(assignment)
        _data.seed_everything(_core.mix_seed(
            self._joined().seed, self.worker.version() or 0, self.rank))

    def _evaluate(self, assignment: "_core.Assignment") -> None:
        evaluator = self._evaluator
        assert evaluator is not None
        if not self._read_weights(assignment):
            return
        by_batch = assignment.statistics == "batch"
        positions: Sequence[int] = range(assignment.begin, assignment.end)
        try:
            self.worker.begin_step(assignment)
            if by_batch:
                order = _data.Order(self._joined().seed, len(evaluator.dataset))
                positions = order.indices(0, assignment.begin, assignment.end)
            else:
                pulled = self.worker.read(assignment.version, False,
                                          assignment.statistics)
                self._model.load_statistics(pulled.statistics)
            size = None
            if by_batch:
                size = self._batch_size * (
                    self.workers if assignment.global_normalization else 1)
            module = self._model.module
            training = module.training
            self._mode = _EVALUATE_BY_BATCH if by_batch else _IDLE
            try:
                module.eval()
                with torch.no_grad(), self._phase("forward"):
                    sums = evaluator.score(module, positions, size)
            finally:
                self._mode = _IDLE
                module.train(training)
            self.worker.report_evaluation(sums)
        except _core.StatusError as error:
            if _errors.code_of(error) not in _errors.VOID:
                self._ended_by(error)
                raise

    def _collect(self, assignment: "_core.Assignment", read: Any) -> None:
        """Precise statistics: moments of a batch in training mode."""
        if not self._read_weights(assignment):
            return
        batch = read(assignment)
        module = self._model.module
        training = module.training
        self.worker.begin_step(assignment)
        _data.seed_everything(_core.mix_seed(
            self._joined().seed, assignment.version, assignment.begin))
        self._mode = _COLLECT
        try:
            module.train()
            with torch.no_grad(), self._phase("forward"):
                inputs = batch[0] if isinstance(batch, (list, tuple)) else batch
                module(inputs)
        finally:
            self._mode = _IDLE
            module.train(training)
        try:
            self.worker.report_moments()
        except _core.StatusError as error:
            if _errors.code_of(error) not in _errors.VOID:
                self._ended_by(error)
                raise

    _batch_size = 1


class _NodeHook:
    """A hook on an autograd node, which it keeps alive."""

    def __init__(self, node: object, handle: Any) -> None:
        self._node = node
        self._handle = handle

    def remove(self) -> None:
        self._handle.remove()


class Data:
    """The batches of one worker; see `Job.data`."""

    def __init__(self, job: Job, dataset: Any, by_number: bool, batch_size: int,
                 accumulate: int, loop: bool, name: str,
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
        self._order: _data.Order | None = None
        self._own: _data.OwnBatches | None = None
        # Handed out, but of the epoch after the one that was asked for.
        self._next: "_core.Assignment | None" = None

    def _start(self) -> None:
        job = self._job
        if job._left:
            raise _errors.UsageError("job.data(): the job has left its run")
        if job.worker is None:
            job._by_number = self._by_number
            job._batch_size = self._batch_size
            job._join(self._batch_size,
                      job._run_plan(self._dataset, self._by_number,
                                    self._batch_size, self._name),
                      self._dataset)
        elif self._reader is None and self._own is None:
            raise _errors.UsageError(
                "job.data(): the run's data is that of the first call; iterate "
                "the same object again")
        if self._reader is None and self._by_number:
            self._order = _data.Order(job._joined().seed, len(self._dataset))
            self._reader = _data.RangeReader(
                self._dataset, self._order, job._joined().seed, self._options)
        if self._own is None and not self._by_number:
            self._own = _data.OwnBatches(self._dataset, self._loop)

    def _read(self, assignment: "_core.Assignment") -> Any:
        with self._job._phase("data"):
            if self._own is not None:
                return self._own.next()
            assert self._reader is not None
            return self._reader.read((assignment.data_epoch, assignment.begin,
                                      assignment.end))

    def __iter__(self) -> Iterator[Any]:
        job = self._job
        if job._finished:
            return
        self._start()
        while True:
            if self._next is None:
                self._next = job._next_assignment()
            assignment = self._next
            if assignment is None:
                return
            if assignment.kind == "train":
                limit = job._epoch_limit
                if limit is not None and assignment.data_epoch > limit:
                    return
            self._next = None
            if assignment.kind == "evaluate":
                job._evaluate(assignment)
            elif assignment.kind == "collect_moments":
                job._collect(assignment, self._read)
            elif job._read_weights(assignment):
                yield from self._train(assignment)

    def _train(self, assignment: "_core.Assignment") -> Iterator[Any]:
        job = self._job
        try:
            batch = self._read(assignment)
        except StopIteration:
            job._data_ended = True
            with contextlib.suppress(_errors.CohortError):
                job.load()
            job._finished = True
            job.leave()
            return
        job._batch_samples = _data.samples_in(batch)
        job._begin_step(assignment, self._accumulate)
        for part in range(self._accumulate):
            yield _data.split(batch, part, self._accumulate)
            if job._left:
                return
            if job._mode == _STEP and job._part <= part:
                raise _errors.UsageError(
                    "the batch was not trained: call job.backward(loss) and "
                    "job.step() once for each batch, before the next one")
        if self._own is not None and job._counted:
            self._own.counted()


def join(model: nn.Module, optimizer: torch.optim.Optimizer, *,
         schedulers: Sequence[Any] = (), epoch_schedulers: Sequence[Any] = (),
         server: str | None = None, rank: int | None = None,
         serve: Mapping[str, Any] | None = None, server_timeout: float = 300.0,
         trace: str = "", ops_listen: str = "", insecure: bool = False,
         log_level: str = "info") -> Job:
    """Makes this process a worker of a run.

    The model's batch norm becomes the cohort's, in place. The run is joined,
    and the model registered, when `job.data` is first iterated. After that the
    weights, the optimizer's state and the moving statistics are the server's.

    Args:
        model: float32 parameters on the CPU. Its present values are the run's
            initial ones if this is the lowest rank of a new run.
        optimizer: torch.optim.SGD, Adam or AdamW, or cohort.LARS. The server
            (with --optimizer=auto, its default) takes class, rates, decay and
            groups.
        schedulers: schedulers of the optimizer, advanced by each job.step().
        epoch_schedulers: the same, advanced at the end of each epoch.
        server: HOST:PORT; by default COHORT_SERVER, or a server of this
            process's own if it is alone.
        rank: this worker's number; by default COHORT_RANK, or the lowest that
            is vacant.
        serve: flags of the server of its own, such as {"epochs": 3}; not read if
            COHORT_SERVER names another.
        server_timeout: seconds to wait for an unreachable server.
        trace: file for the timeline of this worker.
        ops_listen: HOST:PORT for Prometheus metrics of this worker.
        insecure: allow plaintext there on an address that others can reach.
        log_level: "debug", "info", "warning" or "error".

    Raises:
        ConfigurationError: the model or optimizer cannot be used, or there is
            no server; the text says what to do.
        UsageError: the model has joined a run.
    """
    for _, layer in _batch_norm.layers_of(model):
        if layer._cohort_step is not None:
            raise _errors.UsageError(
                "cohort.join(): this model belongs to a job; call leave() on "
                "that first")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise _errors.ConfigurationError(
            f"optimizer: got {type(optimizer).__name__}, want a "
            "torch.optim.Optimizer of the model's parameters")
    _core.start_log(log_level)
    planned = Schedulers(optimizer, schedulers, epoch_schedulers)
    address, embedded = _server.address_of(server, serve or {})
    return Job(model, optimizer, planned, address, embedded,
               {"rank": rank, "server_timeout": server_timeout, "trace": trace,
                "ops_listen": ops_listen, "insecure": insecure})

