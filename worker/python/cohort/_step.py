"""The step in progress: its sums, its gradients, and what batch norm does in
it."""

import contextlib
import dataclasses
import enum
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from cohort import _core, _devices, _errors, _operator
from cohort._model import RegisteredModel, accumulator_of
from cohort._passes import Kept

# The phases of a step, as heartbeats, metrics and timeline name them.
_PHASES = {"data": 0, "forward": 1, "rendezvous": 2, "backward": 3, "push": 4,
           "wait": 5}


class Mode(enum.Enum):
    """The purpose for which the model is run."""
    # Nothing of the run's: modules are torch's own.
    IDLE = enum.auto()
    TRAIN = enum.auto()
    # Precise statistics: moments in training mode.
    COLLECT = enum.auto()
    # Evaluation by moving statistics that were loaded for it.
    SCORE = enum.auto()
    # Evaluation by the statistics of each batch.
    SCORE_BY_BATCH = enum.auto()


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of a step.

    Attributes:
        version: the version of the weights now; None if the step is void.
        verdict: "applied", "damped", "skipped" (a number was not finite),
            "dropped", "rejected_nonfinite"; "void": the step was given up, for
            example because a worker was lost, and its batch comes again; or
            "part": more parts of the step follow (`accumulate`).
        loss: this worker's mean loss; None if it had no weight.
        reason: why it was not applied; empty if it was.
    """
    version: int | None
    verdict: str
    loss: float | None = None
    reason: str = ""

    @property
    def counts(self) -> bool:
        """The batch is part of a version."""
        return self.verdict in ("applied", "damped", "skipped")


class _NodeHook:
    """A hook on an autograd node, which it keeps alive."""

    def __init__(self, node: Any, hook: Any) -> None:
        self._node = node
        self._handle = node.register_hook(hook)

    def remove(self) -> None:
        self._handle.remove()


class Step:
    """The step in progress of one model; the same object for all steps.

    Args:
        model: its gradients are watched, and its batch norm asks this object
            what to do.
    """

    def __init__(self, model: RegisteredModel) -> None:
        self._model = model
        # Set once the run is joined.
        self.worker: "_core.Worker" = None  # type: ignore[assignment]
        self.mode = Mode.IDLE
        self._pid = os.getpid()
        # The version of the weights when the server's moving statistics were
        # loaded; None: the module's are others.
        self._statistics_of: int | None = None
        self._in_forward = False
        self.handle = _operator.new_handle(self)
        self.assignment: "_core.Assignment | None" = None
        self._hooks: list[Any] = []
        # Parameters that autograd adds to more than once in a backward pass
        # (checkpointing with reentry): final only when the pass is over. The
        # first pass finds them; None before it.
        self._late: set[int] | None = None
        self._seen: dict[int, int] = {}
        self._in_backward = False
        self._sending = False
        # Of own data; 0: none.
        self.batch_digest = 0
        self._queue: _devices.GradientQueue | None = None
        self._begin(1, None)
        for number, parameter in enumerate(model.parameters):
            if parameter.requires_grad:
                self._watch(number, parameter)
        for _, layer in model.layers:
            layer._cohort_step = self

    def _watch(self, number: int, parameter: nn.Parameter) -> None:
        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            self._hooks.append(parameter.register_post_accumulate_grad_hook(
                lambda _: self._on_gradient(number)))
        else:
            self._hooks.append(_NodeHook(accumulator_of(parameter),
                                         lambda *_: self._on_gradient(number)))

    def detach(self) -> None:
        """The model is the script's alone again."""
        for hook in self._hooks:
            hook.remove()
        for _, layer in self._model.layers:
            layer._cohort_step = None
        self.mode = Mode.IDLE

    # ---- for batch norm

    def normalises_by_batch(self, module: nn.Module) -> bool:
        if self.mode is Mode.SCORE_BY_BATCH:
            return True
        return (self.mode in (Mode.TRAIN, Mode.COLLECT) and
                module.training)

    def recomputes(self) -> bool:
        return self._in_backward

    # ---- moving statistics

    def load_statistics(self, statistics: Sequence["_core.LayerStatistics"],
                        newest: bool) -> None:
        """Loads moving statistics into the model; `newest`: those that belong to
        its weights."""
        self._model.load_statistics(statistics)
        self._statistics_of = self.worker.version() if newest else None

    def refresh_statistics(self) -> None:
        """Loads the server's moving statistics, unless the model has those of its
        weights. No-op within a step, in a forked child and without a run.

        Raises:
            CohortError: the server did not answer.
        """
        if (self.mode is not Mode.IDLE or self.worker is None or
                os.getpid() != self._pid or self.worker.version() is None or
                self.worker.version() == self._statistics_of):
            return
        try:
            pulled = self.worker.read(None, False, "")
        except _errors.StatusError as error:
            if _errors.code_of(error) not in _errors.VOID | {"CANCELLED"}:
                _errors.raise_from(error)
            _core.log("warning", "the model keeps its moving statistics, which "
                      f"are older than its weights: {error.args[1]}")
            return
        self.load_statistics(pulled.statistics, newest=True)

    # ---- one step

    def _begin(self, parts: int, samples: int | None) -> None:
        self.parts = parts
        # Parts whose backward pass, and whose job.step(), has been called.
        self.passes = self.done = 0
        self._samples = samples
        self._weight = self._loss = 0.0
        self._correct = self._labels = 0
        self._measures: dict[str, tuple[float, float]] = {}
        self._sent: dict[int, tuple[torch.Tensor, int]] = {}
        self.forget_calls()

    def forget_calls(self) -> None:
        """No backward pass follows for the batch-norm calls so far."""
        self.kept: list[Kept] = []
        self.token = torch.zeros((), requires_grad=True)

    def begin(self, assignment: "_core.Assignment", parts: int,
              samples: int | None) -> None:
        """Starts to train the assignment.

        Args:
            assignment: the task.
            parts: forward and backward passes that make up the step.
            samples: in the batch of all parts; None if they cannot be counted.
        """
        self._begin(parts, samples)
        self.assignment = assignment
        self.mode = Mode.TRAIN
        self._model.clear_gradients()
        self._model.note_buffers()
        if self._queue is None:
            self._queue = _devices.GradientQueue(self._model.device,
                                                 self._deliver)
        self.worker.begin_step(assignment)

    def begin_forward(self) -> None:
        """The script computes a part's loss. From here on until `backward` time
        counts as the forward pass, what the script does besides included."""
        self._in_forward = True
        self.worker.enter_phase(_PHASES["forward"])

    def _end_forward(self) -> None:
        if self._in_forward:
            self._in_forward = False
            self.worker.leave_phase()

    def check_in_progress(self, what: str) -> None:
        """Raises UsageError unless a batch is being trained."""
        if self.mode is Mode.TRAIN:
            return
        raise _errors.UsageError(
            f"{what}: no batch is in progress; iterate job.data() and call it "
            "once for each batch")

    def check_trained(self) -> None:
        """Raises UsageError if a batch is being trained."""
        if self.mode is Mode.TRAIN:
            raise _errors.UsageError(
                "the batch was not trained: call job.backward(loss) and "
                "job.step() once for each batch, before the next one")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time in here counts as this phase."""
        self.worker.enter_phase(_PHASES[name])
        try:
            yield
        finally:
            self.worker.leave_phase()

    def _weight_of(self, weight: float | None) -> float:
        if weight is None:
            if self._samples is None:
                raise _errors.UsageError(
                    "job.backward(): the batch has no first tensor to count "
                    "samples in; pass weight=")
            weight = (self._samples * (self.done + 1) // self.parts -
                      self._samples * self.done // self.parts)
        weight = float(weight)
        if not 0 <= weight < float("inf"):
            raise _errors.UsageError(
                f"weight: got {weight}, want a number of samples, labels or "
                "pixels")
        return weight

    def _pushed_samples(self) -> int:
        assert self.assignment is not None
        if self.assignment.end > self.assignment.begin:
            return int(self.assignment.end - self.assignment.begin)
        return self._samples if self._samples is not None else round(self._weight)

    def backward(self, loss: torch.Tensor, weight: float | None,
                 reduction: str, rates: list[float]) -> None:
        """See Job.backward. `rates` are the learning rates of this step."""
        if self.passes > self.done:
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
        weight = self._weight_of(weight)
        if self.passes == 0:
            self._model.check_buffers()
        self.passes += 1
        self._end_forward()
        scale = weight if reduction == "mean" else 1.0
        self._weight += weight
        last = self.passes == self.parts
        if last:
            with self.phase("push"):
                self.worker.open_step(self._pushed_samples(), self._weight, rates,
                                      self.batch_digest)
        root = scale / self.worker.loss_reference() if weight > 0 else 0.0
        self._sending = last
        self._in_backward = True
        try:
            with self.phase("backward"):
                roots, gradients = [loss], [torch.full_like(loss, root)]
                if self.token.grad_fn is not None:
                    # Batch norms that this loss does not depend on.
                    roots.append(self.token)
                    gradients.append(torch.zeros(()))
                torch.autograd.backward(roots, gradients)
                if last:
                    self._send_late()
                    self._queue_of_step().finish()
        finally:
            self._in_backward = False
            self._sending = False
            self.forget_calls()
        if weight > 0:
            self._loss += float(loss.detach()) * scale

    def count(self, correct: int, labels: int) -> None:
        """Labels that were predicted, of so many."""
        self._correct += correct
        self._labels += labels

    def add_measure(self, name: str, value: float, weight: float) -> None:
        """A measure of the script's own."""
        total, count = self._measures.get(name, (0.0, 0.0))
        self._measures[name] = (total + value * weight, count + weight)

    def close(self, state: bytes) -> StepResult:
        """Sends the rest and waits for the verdict.

        Raises:
            StatusError: the run cannot go on for this worker.
        """
        loss = self._loss / self._weight if self._weight else None
        self.mode = Mode.IDLE
        self._model.await_weights()
        try:
            verdict = self.worker.close_step(
                loss_sum=self._loss, correct=self._correct, labels=self._labels,
                front_end_state=state, measures=self._measures)
        except _errors.StatusError as error:
            if _errors.code_of(error) in _errors.VOID:
                return StepResult(None, "void", loss, str(error.args[1]))
            raise
        finally:
            self._model.clear_gradients()
            self._sent = {}
        self._model.take_weights()
        return StepResult(verdict.version, verdict.verdict, loss, verdict.reason)

    def abandon(self, reason: str) -> None:
        """The step in progress, if there is one, is not sent."""
        if self.mode is Mode.TRAIN:
            self.worker.abandon_step(reason)
        if self._queue is not None:
            self._queue.clear()
        self._in_forward = False
        self.forget_calls()
        self.mode = Mode.IDLE

    # ---- gradients

    def _on_gradient(self, number: int) -> None:
        """Autograd has added to a parameter's gradient."""
        if self.mode is not Mode.TRAIN:
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
        if grad is None:
            return
        if grad.is_sparse:
            raise _errors.ConfigurationError(
                f"{self._model.names[number]}: got a sparse gradient, want a "
                "dense one; use sparse=False")
        self._sent[number] = (grad, grad._version)
        self._queue_of_step().add(number, grad)

    def _queue_of_step(self) -> _devices.GradientQueue:
        assert self._queue is not None
        return self._queue

    def _deliver(self, number: int, gradient: torch.Tensor) -> None:
        self.worker.take_gradient(number, gradient, gradient.data_ptr())

    def check_gradients(self) -> None:
        """Raises UsageError if a gradient was changed after it was sent."""
        for number, (grad, version) in self._sent.items():
            now = self._model.parameters[number].grad
            if now is grad and grad._version == version:
                continue
            raise _errors.UsageError(
                f"{self._model.names[number]}: its gradient was changed after "
                "job.backward(), but it has been sent; clip with the server's "
                "--clip_norm (cohortctl policy set --clip_norm=1), and scale the "
                "loss instead of gradients")
