"""The step in progress, from its assignment to its verdict."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import torch

from cohort import (_batch_norm, _core, _devices, _doors, _errors, _operator,
                    _sequences)
from cohort._batches import Counted
from cohort._beside import ModulesBeside
from cohort._gradients import Gradients
from cohort._layer_calls import LayerCalls, Mode
from cohort._local_steps import LocalSteps
from cohort._loss_watch import LossWatch
from cohort._members import Members
from cohort._model import RegisteredModel
from cohort._optimizer import StepNumbers
from cohort._scaler import LossScale
from cohort._tape import Tape
from cohort._updates import Updates

# The phases of a step, as heartbeats, metrics and timeline name them.
_PHASES = {"data": 0, "forward": 1, "rendezvous": 2, "backward": 3, "push": 4,
           "wait": 5}


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of a step.

    Attributes:
        version: the version of the weights now; None if the step is void.
        verdict: "applied", "damped", "skipped" (a number was not finite; with a
            GradScaler: at the present scale), "dropped", "rejected_nonfinite";
            "void": the step was given up, because a worker was lost, or the server
            learnt the order of calls from it, or another worker's data ended; its
            batches come again; "part": more parts of the step follow (`accumulate`);
            or "local": the inner optimizer has made a local step, and the step of the
            run, with a verdict for all its batches, ends with a later one.
        loss: this worker's mean loss, after the last local step that of all of
            them; None if it had no weight.
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


@dataclasses.dataclass
class Measures:
    """What the script says of a step, for the live page.

    Attributes:
        correct, labels: labels that were predicted, of so many.
        sums: by name, of values times their weights, and of weights.
    """
    correct: int = 0
    labels: int = 0
    sums: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)

    def add(self, name: str, value: float, weight: float) -> None:
        """Adds to the mean of a measure."""
        total, count = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = (total + value * weight, count + weight)


class Step:
    """The step in progress of one model; the same object for all steps.

    Args:
        model: its gradients are watched, and its batch norm asks `calls` what to do.
        scale: of gradients; None: they are not scaled.
        updates: of the job's optimizers.
        local: of the inner optimizer; None: steps have no local ones.

    Attributes:
        worker: the connection to the run; None before it is joined, and after.
        assignment: the step's.
        mode: what the model is run for.
        closes: the push is being sent, or its verdict is on its way.
        in_body: the script's loop over the data is in progress, and its body runs.
        started: the process has had weights of the run: from now on training calls
            belong to steps.
        batch: that of all parts, or of the local step in progress.
        passes, done: parts whose backward pass, and whose job.step(), was called.
        numbers: the optimizer's, as they were sent.
        overflow: a scaled gradient was not finite; from the last part's backward pass
            on, that of any member.
        measures: of the script's own.
        batch_digest: of the script's own batch; 0: none.
    """

    def __init__(self, model: RegisteredModel, scale: LossScale | None,
                 updates: Updates, local: LocalSteps | None = None) -> None:
        self.model = model
        self.scale = scale
        self.updates = updates
        self._local = local
        self.worker: "_core.Worker" = None  # type: ignore[assignment]
        self.assignment: "_core.Assignment | None" = None
        self.mode = Mode.IDLE
        self.closes = False
        self._pid = os.getpid()
        self.in_body = self.started = False
        self._in_forward = False
        self.batch_digest = 0
        self.handle = _operator.new_handle(self)
        self.tape = Tape(model.parameters)
        self.calls = LayerCalls(self)
        self.members = Members(self)
        self.losses = LossWatch(self)
        self.beside = ModulesBeside(model.module, model.kept.ids)
        self._begin(Counted(1))
        self.gradients = Gradients(model, self._deliver, self.trains)
        _batch_norm.attach(model.layers, self)
        _doors.open_doors(self)

    def detach(self) -> None:
        """The model is the script's alone again."""
        self.gradients.detach()
        self.model.statistics.detach()
        for _, layer in self.model.layers:
            _batch_norm.restore(layer)
        _sequences.restore(self.model.sequences)
        _doors.close_doors(self)
        self.beside.detach()
        self.mode = Mode.IDLE

    def is_served(self) -> bool:
        """Whether this process computes for a run; a forked child does not."""
        return (self.worker is not None and self.started and
                os.getpid() == self._pid)

    def trains(self) -> bool:
        """Whether a batch is being trained."""
        return self.mode is Mode.TRAIN

    @property
    def local(self) -> LocalSteps | None:
        """The local steps of the step in progress, also between two of them; None:
        it has none."""
        return self._local if self._local and self._local.is_open else None

    def is_open(self) -> bool:
        """Whether a step is in progress."""
        return self.mode is Mode.TRAIN or self.local is not None

    # ---- scaled gradients

    def finite(self, gradient: torch.Tensor) -> torch.Tensor:
        """`gradient`; zeros if it is scaled and not finite. The server would skip
        the step because of it, and keep the moving statistics, which in torch
        have moved."""
        if (self.scale is None or not self.tape.in_backward or
                bool(torch.isfinite(gradient).all())):
            return gradient
        self.overflow = True
        return torch.zeros_like(gradient)

    def _unscale(self, scale: LossScale) -> None:
        """Unscales the gradients, and agrees with the other members on whether
        they are finite."""
        value = scale.value
        bad = self.gradients.unscale(value)
        self.overflow = self.overflow or bool(bad)
        if self.overflow:
            where = bad or "a batch norm's output"
            _core.log("info", f"GradScaler: the gradient of {where} is not finite at "
                      f"scale {value}; all workers skip the step")
        (found, _), (_, spread), met = self.worker.meet(
            "GradScaler", [float(self.overflow),
                           _devices.number_of(repr(scale.save()).encode())])
        self.members.check_met("a GradScaler", int(met))
        if spread > 0:
            raise _errors.ConfigurationError(
                f"cohort.join(scaler=...): this worker's scale is {value}, or "
                "changes by another rule than on the others; create the scaler "
                "with the same arguments on all workers")
        self.overflow = found > 0

    # ---- moving statistics

    def load_statistics(self) -> None:
        """The model gets the statistics that belong to its weights."""
        self.model.statistics.load()
        self.started = True

    def capture_statistics(self) -> None:
        """Notes what the script has written between two steps, at the loop's next
        turn."""
        self.calls.resume()
        if self.started and self.mode is Mode.IDLE:
            self.model.statistics.capture()

    # ---- one step

    def _begin(self, batch: Counted) -> None:
        self.batch = batch
        self.passes = self.done = 0
        self.numbers = StepNumbers([], [])
        self._weight = self._loss = 0.0
        # The weight of all members and parts.
        self._total = 1.0
        self.measures = Measures()
        self.overflow = False
        self.tape.begin()

    def begin(self, assignment: "_core.Assignment", batch: Counted) -> None:
        """Starts to train the assignment with a batch."""
        self._begin(batch)
        self.assignment = assignment
        self.mode = Mode.TRAIN
        self.closes = False
        self.calls.begin()
        self.updates.begin()
        self.gradients.local = bool(assignment.local_steps)
        self.gradients.begin()
        self.worker.begin_step(assignment)
        self.beside.begin()
        self.members.begin()
        if self._local is not None:
            self._local.begin(assignment.local_steps,
                              float(assignment.local_rate_factor))

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
        self.updates.check_open(what)
        raise _errors.UsageError(
            f"{what}: no batch is in progress; iterate job.data() and call it "
            "once for each batch; for several steps with one batch, iterate over "
            "batches of the script's own that come several times")

    def check_trained(self) -> None:
        """Raises UsageError if a batch is being trained."""
        if self.mode is not Mode.TRAIN:
            return
        if self.passes > self.done:
            of = self.updates.of
            with_it = "" if of is None else f" with {self.updates.names[of]}"
            raise _errors.UsageError(
                f"job.data(): the batch was not trained: job.backward(){with_it} "
                "was called, and job.step() was not. Call it before the next batch, "
                "also where the body continues early or catches an exception; to add "
                "up gradients, use job.data(accumulate=...)")
        raise _errors.UsageError(
            "job.data(): the batch was not trained: job.backward() was not "
            "called. Call it and job.step() for each batch. One that is left out, "
            "such as with `continue` or after an exception, needs "
            "job.backward(out.sum() * 0, weight=0) and job.step(), so that other "
            "workers do not wait. For epochs of fewer batches do not take one more and "
            "`break`, and do not zip() with fewer of something: pass job.data(sampler="
            "RandomSampler(dataset, num_samples=n)). To look at a sample, take it from "
            "the data set; to read ahead, pass num_workers= in place of a prefetcher")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time in here counts as this phase."""
        self.worker.enter_phase(_PHASES[name])
        try:
            yield
        finally:
            self.worker.leave_phase()

    def _pushed_samples(self, weight: float) -> int:
        """`weight`: stands for the number of samples where that is not known."""
        assert self.assignment is not None
        if self.assignment.end > self.assignment.begin:
            return int(self.assignment.end - self.assignment.begin)
        return self.batch.samples if self.batch.samples is not None else round(weight)

    def backward(self, loss: torch.Tensor, weight: float | None,
                 reduction: str, numbers: StepNumbers) -> None:
        """See Job.backward. `numbers` are the optimizer's in this step."""
        loss = self._check_loss(loss, reduction, numbers)
        given = weight is not None
        weight = self.batch.weight_of(self.done, weight)
        self._prepare()
        expected = weight * self.batch.parts if given else float(self.batch.samples or 0)
        scale = weight if reduction == "mean" else 1.0
        self._weight += weight
        if self.local is not None:
            self._differentiate_locally(
                loss, self.local.factor(weight, expected, reduction))
            if weight > 0:
                own = float(loss.detach()) * scale
                self.local.loss += own
                self._loss += own
            return
        if self.passes == 0:
            self._total = self._total_weight(expected)
        # A sum counts even where this worker has nothing of its weight.
        self._differentiate([(loss, scale / self._total)], self._weight)
        if scale > 0:
            self._loss += float(loss.detach()) * scale

    def backward_each(self, pairs: list[tuple[torch.Tensor, float]],
                      reduction: str, numbers: StepNumbers) -> None:
        """The same for losses with a weight each."""
        what = f"job.backward() of {len(pairs)} losses"
        losses = [self._check_loss(loss, reduction, numbers) for loss, _ in pairs]
        weights = [self.batch.weight_of(self.done, weight) for _, weight in pairs]
        self.members.check_meet(what)
        if self.batch.parts > 1:
            raise _errors.UsageError(
                f"{what}: got part {self.done} of {self.batch.parts} of the step, want a "
                "step of one part: each loss is divided by its weight in all "
                "parts, and later parts are not known yet; leave out accumulate=, "
                "or combine the losses into one and call job.backward(loss, "
                "weight=...)")
        self._prepare()
        self._differentiate(self._each_root(what, losses, weights, reduction),
                            weights[0])

    def _each_root(self, what: str, losses: list[torch.Tensor],
                   weights: list[float], reduction: str
                   ) -> list[tuple[torch.Tensor, float]]:
        """The gradients at losses that have a weight each. The step's loss grows
        by their sum."""
        totals, met = self.members.sum_weights(what, weights)
        self.members.check_met(what, met)
        # Each member's loss is as many times its part of the union's as there
        # are members, and weighs 1.
        self._weight, self._total = 1.0, float(met)
        roots = [(weight if reduction == "mean" else 1.0) / total if total > 0
                 else 0.0 for weight, total in zip(weights, totals)]
        self._loss += sum(float(loss.detach()) * root * met
                          for loss, root in zip(losses, roots) if root > 0)
        return list(zip(losses, roots))

    # ---- local steps

    def begin_local_step(self, batch: Counted) -> None:
        """Starts to train the batch of one."""
        assert self.local is not None
        if self.local.index > 0:
            self.worker.begin_part()
        self.local.weight = self.local.loss = 0.0
        self.mode = Mode.TRAIN
        self.calls.resume()
        self.passes = self.done = 0
        self.batch = batch
        self.tape.clear()
        self.gradients.watch()

    def _differentiate_locally(self, loss: torch.Tensor, factor: float) -> None:
        """The backward pass of a part of a local step. No other member meets it."""
        assert self.local is not None
        self._end_forward()
        self.passes += 1
        with self._backward_pass():
            self.tape.run([(loss, factor)], alone=True)
        if self.passes < self.batch.parts:
            self.gradients.hold()
        else:
            self.local.end_passes()

    def end_local_step(self) -> StepResult:
        """The inner optimizer acts on the gradients."""
        local = self.local
        assert local is not None
        local.samples += (round(local.weight) if self.batch.samples is None
                          else self.batch.samples)
        with self.phase("backward"):
            local.step()
        self.gradients.clear()
        self.tape.clear()
        self.mode = Mode.IDLE
        return StepResult(None, "local",
                          local.loss / local.weight if local.weight else None)

    def skip_local_step(self) -> None:
        """This worker has no samples for it: its parts have no calls."""
        assert self.local is not None
        for _ in range(self.batch.parts - (self.local.index == 0)):
            self.worker.begin_part()
        self.local.index += 1

    def push_local_steps(self) -> None:
        """Puts the weights back and sends what they have changed by."""
        local = self.local
        assert local is not None
        self.batch = dataclasses.replace(self.batch, samples=local.samples)
        samples = self._pushed_samples(0)
        differences = local.differences(samples / self.worker.loss_reference())
        self.closes = True
        local.put_back()
        with self.phase("push"):
            self.worker.open_step(
                samples, self._weight, float(samples if self._weight else 0), [], [],
                self.batch_digest, 0, False)
            self.gradients.send(differences)

    # ---- updates of several optimizers

    def backward_update(self, optimizer: int,
                        pairs: list[tuple[torch.Tensor, float | None]],
                        reduction: str, numbers: StepNumbers) -> None:
        """The same for one of several optimizers: adds to the gradients of its
        parameters, and of no others. They leave at its job.step()."""
        what = "job.backward() of several optimizers"
        losses = [self._check_loss(loss, reduction, numbers) for loss, _ in pairs]
        weights = [self.batch.weight_of(self.done, weight) for _, weight in pairs]
        self.members.check_meet(what)
        if self.batch.parts > 1:
            raise _errors.UsageError(
                f"{what}: got part {self.done} of {self.batch.parts} of the step, want a "
                "step of one part; leave accumulate= and the server's "
                "--global_batch out, or call job.backward() several times before "
                "job.step()")
        if self.tape.token.grad_fn is not None:
            raise _errors.UsageError(
                f"{what}: got a compiled module, whose graph has batch norm's calls "
                "in one chain through all updates; leave torch.compile out")
        trained = self.model.trained_by[optimizer]
        self.gradients.watch()
        self.gradients.prepare_update(trained, self.updates.begin_pass(optimizer))
        roots = self._each_root(what, losses, weights, reduction)
        self._end_forward()
        self.passes += 1
        inputs = [parameter for parameter in
                  (self.model.parameters[number] for number in trained)
                  if parameter.requires_grad]
        with self._backward_pass(inputs):
            if inputs:
                self.tape.run(roots, inputs)
            self.gradients.end_pass(trained)

    def send_update(self, optimizer: int, continues: bool) -> None:
        """Opens the update of an optimizer and sends its gradients, if it has
        any."""
        assert self.assignment is not None
        self._end_forward()
        if self.passes == 0:
            self._weight, self._total = 1.0, float(self.assignment.members)
        with self.phase("push"):
            self.worker.open_step(
                self._pushed_samples(self.batch.samples or 1), self._weight,
                self._weight * self.worker.loss_reference() / self._total,
                self.numbers.rates, self.numbers.changed, self.batch_digest,
                optimizer, continues)
            if self.passes > 0:
                self.gradients.send_update(self.model.trained_by[optimizer])

    def end_update(self, optimizer: int) -> None:
        """Waits for the weights that it makes, from which the next update is
        computed."""
        self.model.await_weights()
        if self.worker.end_update():
            self.model.take_update(self.model.trained_by[optimizer])
        self.gradients.clear()
        self.updates.end()
        self.passes = 0
        # Other losses than this optimizer's depend on them only through what
        # the script has kept.
        self.tape.drop_roots()
        self.begin_forward()

    def _check_loss(self, loss: torch.Tensor, reduction: str,
                    numbers: StepNumbers) -> torch.Tensor:
        """A loss as a scalar.

        Raises:
            UsageError: there is no such loss, or none is due.
        """
        self.numbers = numbers
        if self.passes > self.done and not self.updates.several:
            raise _errors.UsageError(
                "job.backward(): a second call in one step; add the losses and "
                "call it once, or cut the batch with job.data(accumulate=...)")
        if not isinstance(loss, torch.Tensor):
            raise _errors.UsageError(
                f"job.backward(): got a {type(loss).__name__}, want the loss as a "
                "tensor that depends on the parameters, not its value")
        if loss.numel() == 1:
            loss = loss.reshape(())
        if loss.dim() != 0 or not loss.requires_grad:
            raise _errors.UsageError(
                f"job.backward(): got a tensor of shape {tuple(loss.shape)}, "
                f"requires_grad {loss.requires_grad}, want a scalar loss that "
                "depends on the parameters; for a batch with nothing to learn "
                "from, such as one without objects, pass out.sum() * 0 with "
                "weight=0")
        if reduction not in ("mean", "sum"):
            raise _errors.UsageError(
                f"reduction: got '{reduction}', want 'mean' or 'sum'")
        return loss

    def _prepare(self) -> None:
        """A backward pass follows."""
        self.gradients.watch()
        if self.passes == 0:
            self.gradients.prepare()
            if self.scale is not None:
                self.members.check_meet("a GradScaler, which bfloat16 does without")
        else:
            self.gradients.resume()

    def _differentiate(self, losses: list[tuple[torch.Tensor, float]],
                       samples: float) -> None:
        """The backward pass, from these gradients at the losses.

        Args:
            samples: stands for their number where that is not known.
        """
        self._end_forward()
        self.passes += 1
        last = self.passes == self.batch.parts
        if last:
            with self.phase("push"):
                self.worker.open_step(
                    self._pushed_samples(samples), self._weight,
                    self._weight * self.worker.loss_reference() / self._total,
                    self.numbers.rates, self.numbers.changed, self.batch_digest,
                    0, False)
        gradients, scale = self.gradients, self.scale
        # Scaled ones are sent when all are known to be finite.
        gradients.sending = last and scale is None
        with self._backward_pass():
            if scale is not None:
                losses = [(loss, factor * scale.value) for loss, factor in losses]
            self.tape.run(losses)
            if last:
                if scale is not None:
                    self._unscale(scale)
                gradients.finish(not self.overflow)
            else:
                gradients.hold()

    @contextlib.contextmanager
    def _backward_pass(self, inputs: list[torch.Tensor] | None = None
                       ) -> Iterator[None]:
        """A pass of job.backward(). `inputs`: it goes to these alone, and what it does
        not visit is kept for the passes of other optimizers."""
        self.gradients.expected = self.tape.in_backward = True
        try:
            with self.phase("backward"):
                yield
        finally:
            self.gradients.expected = self.tape.in_backward = False
            self.gradients.sending = False
            if inputs is None:
                self.tape.clear()
            else:
                self.tape.drop_visited(inputs)

    def _total_weight(self, own: float) -> float:
        """What the loss of one process would be a mean over: the weight of all
        members. Where they do not all meet, a number that is the same for all, so
        that the server weighs them rightly: it divides by what they have sent.

        Args:
            own: the weight of this member's step, by its first part.

        Raises:
            ConfigurationError, UsageError: as of Members.sum_weights.
        """
        assert self.assignment is not None
        reference = float(self.worker.loss_reference())
        if self.assignment.global_normalization:
            (total,), met = self.members.sum_weights("job.backward", [own])
            if met == self.assignment.members:
                return total or reference
        return reference * max(1, int(self.assignment.members))

    def close(self, state: bytes) -> StepResult:
        """Sends the rest and waits for the verdict.

        Raises:
            StatusError: the run cannot continue for this worker.
        """
        loss = self._loss / self._weight if self._weight else None
        self.model.statistics.fetch()
        self.closes = True
        self.mode = Mode.IDLE
        self.model.await_weights()
        try:
            verdict = self.worker.close_step(
                loss_sum=self._loss, correct=self.measures.correct,
                labels=self.measures.labels, front_end_state=state,
                measures=self.measures.sums)
        except _errors.StatusError as error:
            if _errors.code_of(error) in _errors.VOID:
                self.load_statistics()
                return StepResult(None, "void", loss, str(error.args[1]))
            raise
        finally:
            self.closes = False
            self.gradients.clear()
            self.tape.clear()
        if verdict.verdict == "skipped" and self.updates.done > 0:
            # The updates are taken back.
            with contextlib.suppress(_errors.StatusError):
                self.worker.read(None, True, "")
        self.model.take_weights()
        self.load_statistics()
        if self.overflow and verdict.verdict == "applied":
            return StepResult(verdict.version, "skipped", loss,
                              "GradScaler: gradients were not finite")
        return StepResult(verdict.version, verdict.verdict, loss, verdict.reason)

    def abandon(self, reason: str) -> None:
        """The step in progress, if there is one, is not sent."""
        if self.is_open():
            if self.local is not None:
                self.local.put_back()
            self.worker.abandon_step(reason)
            self.load_statistics()
        self.gradients.clear()
        self._in_forward = False
        self.tape.clear()
        self.mode = Mode.IDLE

    def _deliver(self, number: int, gradient: torch.Tensor) -> None:
        self.worker.take_gradient(number, gradient, gradient.data_ptr())
