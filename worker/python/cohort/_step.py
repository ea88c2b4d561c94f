"""The step in progress: its sums, its gradients, and what batch norm does in
it."""

import contextlib
import dataclasses
import enum
import math
import os
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import nn

from cohort import (_batch_norm, _batches, _core, _devices, _doors, _errors,
                    _loss_check, _operator, _sequences, _statistics, _totals)
from cohort._beside import ModulesBeside
from cohort._gradients import Gradients
from cohort._graphs import Saved, has_functions, leaves_of, nodes_before, nodes_of
from cohort._local_steps import LocalSteps
from cohort._mixing_check import MixingCheck
from cohort._model import RegisteredModel
from cohort._optimizer import StepNumbers
from cohort._passes import Kept, Layer, Moves
from cohort._scaler import LossScale
from cohort._unseeded import Unseeded
from cohort._updates import Updates

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
        verdict: "applied", "damped", "skipped" (a number was not finite; with a
            GradScaler: at the present scale), "dropped", "rejected_nonfinite"; "void": the step was given up,
            because a worker was lost, or the server learnt the order of calls
            from it, or another worker's data ended; its batches come again;
            "part": more parts of the step follow (`accumulate`); or "local": the
            inner optimizer has made a local step, and the step of the run, with
            a verdict for all its batches, ends with a later one.
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


class Step:
    """The step in progress of one model; the same object for all steps.

    Args:
        model: its gradients are watched, and its batch norm asks this object
            what to do.
        scale: of gradients; None: they are not scaled.
        updates: of the job's optimizers.
        local: of the inner optimizer; None: steps have no local ones.
    """

    def __init__(self, model: RegisteredModel, scale: LossScale | None,
                 updates: Updates, local: LocalSteps | None = None) -> None:
        self._model = model
        self._scale = scale
        self.updates = updates
        self._local = local
        # Set once the run is joined.
        self.worker: "_core.Worker" = None  # type: ignore[assignment]
        self.mode = Mode.IDLE
        # The step's push is being sent, or its verdict is on its way.
        self.closes = False
        self._pid = os.getpid()
        # The process has had weights of the run: from now on training calls
        # belong to steps.
        self._started = False
        self._thread = threading.get_ident()
        # Layers whose own code runs, innermost last, with their number of
        # batches before.
        self._running = threading.local()
        # Passes of autograd in progress, and whether the outermost is the script's.
        self._depth = 0
        self._of_script = False
        self._warned_of_shares = False
        # The script's name of calls; see `call`.
        self.call_name = ""
        # The graph of the loss may have derivatives, which sum over samples.
        self._differentiated = False
        # Outputs of the script's have hooks, which a further pass would call.
        self._has_hooks = False
        self._mixing = MixingCheck()
        # What moved in this step and cannot be put back.
        self._foreign: str | None = None
        self.beside = ModulesBeside(model.module, model.kept.ids)
        self._unseeded = Unseeded()
        self._in_forward = False
        self.handle = _operator.new_handle(self)
        self.assignment: "_core.Assignment | None" = None
        self._in_backward = False
        # Digest of the script's own batch; 0: none.
        self.batch_digest = 0
        # Digest of the epoch's order, if a sampler decides it.
        self.order_digest = b""
        self._begin(1, None, "")
        self.gradients = Gradients(model, self._deliver, self.trains)
        _batch_norm.attach(model.layers, self)
        _doors.open_doors(self)

    def detach(self) -> None:
        """The model is the script's alone again."""
        self.gradients.detach()
        self._model.statistics.detach()
        for _, layer in self._model.layers:
            _batch_norm.restore(layer)
        _sequences.restore(self._model.sequences)
        _doors.close_doors(self)
        self.beside.detach()
        self.mode = Mode.IDLE

    # ---- for batch norm

    def is_served(self) -> bool:
        """Whether this process computes for a run; a forked child does not."""
        return (self.worker is not None and self._started and
                os.getpid() == self._pid)

    def is_watched(self) -> bool:
        """Whether training calls belong to steps now."""
        return self.mode in (Mode.TRAIN, Mode.IDLE)

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

    def normalises_alone(self) -> bool:
        """Whether each worker trains with the moments of its batch."""
        return (self.mode is Mode.TRAIN and self.assignment is not None and
                not self.assignment.global_normalization)

    def scores_by_batch(self) -> bool:
        """Whether evaluation normalises by batch, too."""
        return self.mode is Mode.SCORE_BY_BATCH

    def normalises(self, training: bool) -> bool:
        """Whether a call of a layer uses batch statistics of the cohort."""
        if self.mode is Mode.SCORE_BY_BATCH:
            return True
        return training and self.mode is not Mode.SCORE

    def normalises_by_batch(self, module: Layer) -> bool:
        """The same for a module, whose training calls must be in a step."""
        if _operator.is_compiling():
            return self._started and self.normalises(module.training)
        if not self.is_served() or not self.normalises(module.training):
            return False
        name = self.layer_name(_batch_norm.number_of(module))
        _doors.check_not_local(name)
        self.check_training_call(name)
        return True

    def check_training_call(self, name: str) -> None:
        """Raises UsageError unless a training call may be made now, here."""
        if self.mode is Mode.IDLE:
            self.updates.check_open(name)
            raise _errors.UsageError(
                f"{name}: a training call outside of a step would normalise by "
                "this worker's batch alone; move it between the beginning of the "
                "loop's body and job.step(), or call eval() first")
        if self._depth == 0 and threading.get_ident() != self._thread:
            raise _errors.UsageError(
                f"{name}: a training call outside the loop's thread, so the order "
                "of calls would depend on timing; make it in the loop's thread")

    def name_of_trained(self, parameters: list[torch.Tensor]) -> str | None:
        """That of the first that the job's optimizers have."""
        known = {id(self._model.parameters[number]): number
                 for number in self._model.trained}
        return next((self._model.names[known[id(parameter)]]
                     for parameter in parameters if id(parameter) in known), None)

    def layer_name(self, layer: int) -> str:
        """A registered layer's."""
        return self._model.layers[layer][0]

    @contextlib.contextmanager
    def inside(self, module: Layer) -> Iterator[None]:
        """The layer's own code runs."""
        if not self.is_served():
            yield
            return
        tracked = (getattr(module, "num_batches_tracked", None)
                   if module.training else None)
        running = self._running.__dict__.setdefault("stack", [])
        running.append((module, None if tracked is None else int(tracked)))
        # A repetition, and the moments of a batch that is not trained, count
        # nothing.
        unchanged = self.recomputes() or self.mode not in (Mode.TRAIN, Mode.IDLE)
        try:
            with (_statistics.uncounted(tracked) if unchanged
                  else contextlib.nullcontext()):
                yield
        finally:
            running.pop()

    def current_module(self) -> Layer | None:
        """The layer whose own code runs."""
        stack = self._running.__dict__.get("stack")
        return stack[-1][0] if stack else None

    def uncount(self, layer: int) -> torch.Tensor | None:
        """The layer's number of batches, as it was before its code counted this
        call; None if it did not count it."""
        stack = self._running.__dict__.get("stack")
        if not stack or _batch_norm.number_of(stack[-1][0]) != layer:
            return None
        module, before = stack[-1]
        tracked: torch.Tensor | None = getattr(module, "num_batches_tracked",
                                               None)
        if tracked is None or before is None or int(tracked) != before + 1:
            return None
        tracked.fill_(before)
        return tracked

    def layer_of(self, mean: torch.Tensor | None) -> int | None:
        """The registered layer whose moving mean this is."""
        return self._model.statistics.layer_of(mean)

    def owns(self, layer: int, mean: torch.Tensor | None) -> bool:
        """Whether `mean` is that of the layer, which the server keeps."""
        return self._model.statistics.owns(layer, mean)

    def moves_of(self, layer: int) -> Moves | None:
        """What a training call of a layer moves now."""
        if self.mode is not Mode.TRAIN:
            return None
        name, module = self._model.layers[layer]
        moves = _batch_norm.moves_of(module, self.owns(layer,
                                                       module.running_mean))
        if moves is not None and not moves.own:
            self.check_foreign(f"{name} with other statistics",
                               (moves.mean, moves.variance))
        return moves

    def note_read(self, layer: int) -> None:
        """An evaluation pass reads the layer's statistics.

        Raises:
            UsageError: there are none that belong to the weights now.
        """
        if not (self.is_open() and self.is_watched()) or self.recomputes():
            return
        self._model.statistics.adopt(layer)
        try:
            self.worker.note_read(layer)
        except _errors.StatusError as error:
            text = str(error.args[1])
            if self.local is not None:
                text = (
                    f"{self.layer_name(layer)}: an evaluation pass reads moving "
                    "statistics after a training call in the same step of the run, "
                    "whose local steps move them only at its end; evaluate after an "
                    "epoch, in the body of `for epoch in job.epochs()`, or directly "
                    "after a job.step() whose verdict was not 'local'")
            raise _errors.UsageError(text) from None

    def channels_of(self, layer: int) -> int:
        """The number of channels of a registered layer."""
        return self._model.channels[layer]

    def lasts(self, buffer: torch.Tensor) -> bool:
        """Whether a tensor of the script has been there before the step."""
        return self.beside.lasts(buffer)

    def check_foreign(self, name: str, buffers: tuple[torch.Tensor, ...]
                      ) -> None:
        """Raises UsageError unless the cohort can normalise a module that is no
        part of the model, such as a teacher."""
        if not self.assignment or not self.assignment.moves_statistics:
            raise _errors.UsageError(
                f"{name}: is not part of the model, and its statistics would differ "
                "between workers under this policy; use --aggregation=sync with "
                "global normalisation, eval(), or `with cohort.local():`")
        for buffer in buffers:
            if buffer.dtype != torch.float32 or not buffer.is_contiguous():
                raise _errors.UsageError(
                    f"{name}: got moving statistics of {buffer.dtype}, want "
                    "contiguous torch.float32")
        if not {id(buffer) for buffer in buffers} <= self._model.kept.ids():
            self._foreign = name

    def foreign_module(self) -> str | None:
        """A module beside the model whose statistics have moved in this step."""
        return self._foreign

    def is_of_parameters(self, x: torch.Tensor) -> bool:
        """Whether a tensor is computed from parameters alone."""
        return self._model.is_of_parameters(x)

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """See cohort.call."""
        before, self.call_name = self.call_name, name
        try:
            yield
        finally:
            self.call_name = before

    # ---- scaled gradients

    def is_scaled_by(self, scaler: Any) -> bool:
        """Whether this is the GradScaler that the script passed to join."""
        return self._scale is not None and self._scale.is_of(scaler)

    def finite(self, gradient: torch.Tensor) -> torch.Tensor:
        """`gradient`; zeros if it is scaled and not finite. The server would skip
        the step because of it, and keep the moving statistics, which in torch
        have moved."""
        if (self._scale is None or not self._in_backward or
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
        self.check_met("a GradScaler", int(met))
        if spread > 0:
            raise _errors.ConfigurationError(
                f"cohort.join(scaler=...): this worker's scale is {value}, or "
                "changes by another rule than on the others; create the scaler "
                "with the same arguments on all workers")
        self.overflow = found > 0

    # ---- passes of autograd

    def recomputes(self) -> bool:
        """Whether a forward call now repeats an earlier one."""
        return self._depth > 0

    def add_root(self, root: torch.Tensor) -> None:
        """An output at which `backward` starts, too."""
        self._roots.append(root)

    def visit(self, kept: Kept, path: tuple[int, ...]) -> tuple[int, ...]:
        """The path of the next visit of what has this path. Visits are numbered
        apart by whether the pass is the script's and whether autograd records
        it, so that passes of members which differ never meet."""
        kind = 2 * torch.is_grad_enabled() + self._of_script
        key = (kept.call.key, path, kind)
        number = self._visits.get(key, 0)
        self._visits[key] = number + 1
        visit = 4 * number + kind
        return () if not path and not visit else (*path, visit)

    def note_hook(self) -> None:
        """The script has given an output a hook."""
        self._has_hooks = True

    def note_saved_hooks(self) -> None:
        """There are hooks for values that are kept for derivatives."""
        self._mixing.has_saved_hooks = True

    @contextlib.contextmanager
    def pass_over(self, tensors: Any, inputs: Any, keeps: bool) -> Iterator[None]:
        """Autograd visits the graph of `tensors`, and keeps it or not."""
        if self.mode is not Mode.TRAIN:
            yield
            return
        of_script = self._depth == 0 and not self._in_backward
        seen: set[Any] = set()
        if self._depth > 0 and self._roots:
            self._check_nested(tensors)
        if of_script:
            self._of_script = True
            self._note_shares(inputs)
            self._differentiated = self._differentiated or keeps
            if self._roots and not keeps:
                seen = nodes_of(tensors)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if of_script:
                self._of_script = False
                self._freed |= seen

    def _check_nested(self, tensors: Any) -> None:
        """A pass within a pass, such as that of a checkpoint with reentry, must
        visit other calls."""
        if not nodes_of(tensors) & {root.grad_fn for root in self._roots}:
            return
        raise _errors.UsageError(
            "torch.autograd in the backward pass of a custom autograd function: it "
            "would go through a batch norm that the function's forward pass has "
            "called, and job.backward() goes through it too; call the batch norm "
            "outside of the function, or again in its backward pass")

    def _note_shares(self, inputs: Any) -> None:
        if self._warned_of_shares or not inputs:
            return
        known = {id(parameter) for parameter in self._model.parameters}
        if any(id(tensor) in known for tensor in inputs):
            self._warned_of_shares = True
            _core.log("info", "gradients that the script computes with "
                      "torch.autograd are this worker's shares: their sum over the "
                      "workers is the gradient of one process with all batches")

    # ---- sums of the script's

    def is_void(self) -> bool:
        """Whether the step is known to be void."""
        return bool(self.worker.step_status()[0] != "OK")

    def ranks(self) -> list[int]:
        """Those of the members, ascending."""
        assert self.assignment is not None
        return list(self.assignment.ranks)

    def check_meets(self, what: str) -> None:
        """Raises UsageError if members do not meet under this policy."""
        assert self.assignment is not None
        if not self.assignment.global_normalization:
            self._refuse_to_meet(what)

    def check_met(self, what: str, met: int) -> None:
        """The same, if a meeting of `met` members did not have all of them. With
        --min_pushes it may have fewer than were assigned, but not in groups."""
        assert self.assignment is not None
        if met != self.assignment.members and not (
                self.assignment.moves_statistics or self.is_void()):
            self._refuse_to_meet(what)

    def _refuse_to_meet(self, what: str) -> NoReturn:
        raise _errors.UsageError(
            f"{what}: under this policy the workers do not synchronise in every "
            "step, so values over all of them are not known; want "
            "--aggregation=sync and --normalization=global without groups and local "
            "steps, or one mean with job.backward(loss, weight=...)")

    @_operator.not_compiled
    def sum(self, tensor: torch.Tensor, name: str | None) -> torch.Tensor:
        """See Job.sum."""
        self.check_sum("job.sum()", tensor)
        return _totals.sum_of(self, tensor, name)

    @_operator.not_compiled
    def gather(self, tensor: torch.Tensor, name: str | None, rank: int
               ) -> torch.Tensor:
        """See Job.gather."""
        return _totals.gather(self, tensor, name, rank)

    # ---- moving statistics

    def show_statistics(self, pulled: "_core.Pulled") -> None:
        """The model gets statistics of another kind for an evaluation."""
        self._model.statistics.show(pulled)

    def load_statistics(self) -> None:
        """The model gets the statistics that belong to its weights."""
        self._model.statistics.load()
        self._started = True

    def capture_statistics(self) -> None:
        """Notes what the script has written between two steps, at the loop's next
        turn."""
        self._thread = threading.get_ident()
        if self._started and self.mode is Mode.IDLE:
            self._model.statistics.capture()

    # ---- one step

    def _begin(self, parts: int, samples: int | None, doubt: str) -> None:
        self.parts = parts
        # Parts whose backward pass, and whose job.step(), has been called.
        self.passes = self.done = 0
        self._samples, self._doubt = samples, doubt
        # Of the optimizer, as they were sent.
        self.numbers = StepNumbers([], [])
        self._weight = self._loss = 0.0
        # The weight of all members and parts.
        self._total = 1.0
        self._shares: list[float] = []
        self._correct = self._labels = 0
        self._measures: dict[str, tuple[float, float]] = {}
        # A scaled gradient was not finite; from the last part's backward pass on,
        # that of any member.
        self.overflow = False
        self._visits: dict[Any, int] = {}
        # See _totals.
        self.rows: dict[int, list[int]] = {}
        self.forget_calls()

    def forget_calls(self) -> None:
        """No backward pass follows for the batch-norm calls so far."""
        self.kept: list[Kept] = []
        self.sums: list[_totals.Call] = []
        self._roots: list[torch.Tensor] = []
        # Nodes whose values a pass of the script has released.
        self._freed: set[Any] = set()
        # Values kept by nodes of the losses so far.
        self._saved = Saved()
        self.token = torch.zeros((), requires_grad=True)

    def begin(self, assignment: "_core.Assignment", parts: int,
              samples: int | None, doubt: str) -> None:
        """Starts to train the assignment.

        Args:
            assignment: the task.
            parts: forward and backward passes that make up the step.
            samples: in the batch of all parts; None if they cannot be counted.
            doubt: why that number may be wrong, or empty.
        """
        self._begin(parts, samples, doubt)
        self.assignment = assignment
        self.mode = Mode.TRAIN
        self.closes = False
        self._thread = threading.get_ident()
        self._foreign = None
        self.updates.begin()
        self.gradients.local = bool(assignment.local_steps)
        self.gradients.begin()
        self.worker.begin_step(assignment)
        self.beside.begin()
        if assignment.global_normalization:
            self._unseeded.begin(self._model.module, self.beside.modules(),
                                 self.beside.known())
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

    def check_samples(self, what: str, weight: float | None) -> None:
        """Raises UsageError if the default weight is in doubt."""
        if weight is None and self._doubt:
            raise _errors.UsageError(f"{what}(): {self._doubt}")

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
            "the data set")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time in here counts as this phase."""
        self.worker.enter_phase(_PHASES[name])
        try:
            yield
        finally:
            self.worker.leave_phase()

    def note_loss(self, loss: torch.Tensor, nodes: set[Any], weight: float | None,
                  reduction: str) -> None:
        """Looks at the graph of a loss.

        Raises:
            UsageError: it mixes this worker's samples, and `weight` does not say that
                they weigh it; or in the run's first step, so that no later one ends
                it for a batch of other shape: without `weight` it is no mean over
                them.
        """
        self._shares = []
        assignment = self.assignment
        # Anything but a loss is refused later.
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or (
                self._samples is None or assignment is None):
            return
        saved = self._saved
        accumulate = self.parts // max(1, assignment.batches)
        if (weight is None and accumulate > 1 and reduction == "mean" and
                assignment.version == 0):
            _loss_check.check_parts(loss, accumulate, saved)
        if not assignment.global_normalization or assignment.members < 2:
            return
        samples = max(1, self._samples // self.parts)
        # In a void step sums and gathers of the script are this worker's alone.
        if weight != samples and not (self.sums or self._differentiated or
                                      self._has_hooks or self.is_void()):
            self._mixing.check(loss, nodes, samples, saved)
        if weight is not None:
            return
        if self.sums:
            # It is made for several workers.
            entries_max = 0.0
        elif assignment.version == 0:
            entries_max = math.inf
            if not self.is_void():
                _loss_check.check_terms(loss, samples, reduction, saved)
        else:
            # More may be a fixed number, in a smaller batch that ends an epoch.
            entries_max = samples
        self._shares = _loss_check.shares_in(loss, nodes, samples, entries_max, saved)

    def check_leaves(self, nodes: set[Any]) -> None:
        """Raises UsageError if the script trains a tensor beside the model by hand."""
        if self._samples is not None and self.local is None:
            self.beside.check_leaves(nodes, int(self._weight_of(None)))

    def check_sum(self, what: str, total: torch.Tensor) -> None:
        """Raises UsageError for a sum over this worker's samples that has a penalty in
        it. Only in the run's first step, too."""
        assignment = self.assignment
        if (assignment is not None and assignment.version == 0 and
                assignment.members > 1 and isinstance(total, torch.Tensor) and
                total.numel() == 1):
            _loss_check.check_sum(what, total, self._samples or 0, self._saved)

    def _weight_of(self, weight: float | None) -> float:
        if weight is None:
            if self._samples is None:
                raise _errors.UsageError(
                    "job.backward(): the number of samples in the batch is not "
                    "clear; pass weight=")
            weight = len(range(self._samples)[_batches.part_of(
                self.done, self.parts, self._samples, self.first)])
        weight = float(weight)
        if not 0 <= weight < float("inf"):
            raise _errors.UsageError(
                f"weight: got {weight}, want a number of samples, labels or "
                "pixels")
        return weight

    @property
    def first(self) -> int | None:
        """The number of the assignment's first sample in the epoch; None if the
        samples have none."""
        assert self.assignment is not None
        local = self.local
        begin, end = (self.assignment.begin, self.assignment.end)
        if local is not None and local.range is not None:
            begin, end = local.range
        return int(begin) if end > begin else None

    def samples_of_part(self, what: str) -> float:
        """Of this worker. Raises UsageError if they cannot be counted."""
        if self._samples is None or self._doubt:
            raise _errors.UsageError(
                f"{what}: {self._doubt or 'the number of samples is not clear'}; want "
                "job.data(batch_size=...) and batches whose tensors have that length")
        return self._weight_of(None)

    def _pushed_samples(self, weight: float) -> int:
        """`weight`: stands for the number of samples where that is not known."""
        assert self.assignment is not None
        if self.assignment.end > self.assignment.begin:
            return int(self.assignment.end - self.assignment.begin)
        return self._samples if self._samples is not None else round(weight)

    def backward(self, loss: torch.Tensor, weight: float | None,
                 reduction: str, numbers: StepNumbers) -> None:
        """See Job.backward. `numbers` are the optimizer's in this step."""
        loss = self._check_loss(loss, reduction, numbers)
        given = weight is not None
        weight = self._weight_of(weight)
        self._prepare()
        expected = weight * self.parts if given else float(self._samples or 0)
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
        weights = [self._weight_of(weight) for _, weight in pairs]
        self.check_meets(what)
        if self.parts > 1:
            raise _errors.UsageError(
                f"{what}: got part {self.done} of {self.parts} of the step, want a "
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
        totals, met = self._meet_weights(what, weights)
        self.check_met(what, met)
        # Each member's loss is as many times its part of the union's as there
        # are members, and weighs 1.
        self._weight, self._total = 1.0, float(met)
        roots = [(weight if reduction == "mean" else 1.0) / total if total > 0
                 else 0.0 for weight, total in zip(weights, totals)]
        self._loss += sum(float(loss.detach()) * root * met
                          for loss, root in zip(losses, roots) if root > 0)
        return list(zip(losses, roots))

    # ---- local steps

    def begin_local_step(self, samples: int | None, doubt: str) -> None:
        """Starts to train the batch of one; arguments as of `begin`."""
        assert self.local is not None
        if self.local.index > 0:
            self.worker.begin_part()
        self.local.weight = self.local.loss = 0.0
        self.mode = Mode.TRAIN
        self._thread = threading.get_ident()
        self.passes = self.done = 0
        self._samples, self._doubt = samples, doubt
        self.forget_calls()
        self.gradients.watch()

    def _differentiate_locally(self, loss: torch.Tensor, factor: float) -> None:
        """The backward pass of a part of a local step. No other member meets it."""
        assert self.local is not None
        self._end_forward()
        self.passes += 1
        self.gradients.expected = self._in_backward = True
        try:
            with self.phase("backward"):
                self._visit([(loss, factor)], alone=True)
        finally:
            self.gradients.expected = self._in_backward = False
            self.forget_calls()
        if self.passes < self.parts:
            self.gradients.hold()
        else:
            self.local.end_passes()

    def end_local_step(self) -> StepResult:
        """The inner optimizer acts on the gradients."""
        local = self.local
        assert local is not None
        local.samples += (round(local.weight) if self._samples is None
                          else self._samples)
        with self.phase("backward"):
            local.step()
        self.gradients.clear()
        self.forget_calls()
        self.mode = Mode.IDLE
        return StepResult(None, "local",
                          local.loss / local.weight if local.weight else None)

    def skip_local_step(self) -> None:
        """This worker has no samples for it: its parts have no calls."""
        assert self.local is not None
        for _ in range(self.parts - (self.local.index == 0)):
            self.worker.begin_part()
        self.local.index += 1

    def push_local_steps(self) -> None:
        """Puts the weights back and sends what they have changed by."""
        local = self.local
        assert local is not None
        self._samples = local.samples
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
        weights = [self._weight_of(weight) for _, weight in pairs]
        self.check_meets(what)
        if self.parts > 1:
            raise _errors.UsageError(
                f"{what}: got part {self.done} of {self.parts} of the step, want a "
                "step of one part; leave accumulate= and the server's "
                "--global_batch out, or call job.backward() several times before "
                "job.step()")
        if self.token.grad_fn is not None:
            raise _errors.UsageError(
                f"{what}: got a compiled module, whose graph has batch norm's calls "
                "in one chain through all updates; leave torch.compile out")
        trained = self._model.trained_by[optimizer]
        self.gradients.watch()
        self.gradients.prepare_update(trained, self.updates.begin_pass(optimizer))
        roots = self._each_root(what, losses, weights, reduction)
        self._end_forward()
        self.passes += 1
        inputs = [parameter for parameter in
                  (self._model.parameters[number] for number in trained)
                  if parameter.requires_grad]
        self.gradients.expected = self._in_backward = True
        try:
            with self.phase("backward"):
                if inputs:
                    self._visit(roots, inputs)
            self.gradients.end_pass(trained)
        finally:
            self.gradients.expected = self._in_backward = False
            # Autograd has released the nodes of this pass; others are kept for
            # the passes of other optimizers.
            visited = nodes_before(self._roots, inputs)
            self._roots = [root for root in self._roots
                           if root.grad_fn not in visited]

    def send_update(self, optimizer: int, continues: bool) -> None:
        """Opens the update of an optimizer and sends its gradients, if it has
        any."""
        assert self.assignment is not None
        self._end_forward()
        if self.passes == 0:
            self._weight, self._total = 1.0, float(self.assignment.members)
        with self.phase("push"):
            self.worker.open_step(
                self._pushed_samples(self._samples or 1), self._weight,
                self._weight * self.worker.loss_reference() / self._total,
                self.numbers.rates, self.numbers.changed, self.batch_digest,
                optimizer, continues)
            if self.passes > 0:
                self.gradients.send_update(self._model.trained_by[optimizer])

    def end_update(self, optimizer: int) -> None:
        """Waits for the weights that it makes, from which the next update is
        computed."""
        self._model.await_weights()
        if self.worker.end_update():
            self._model.take_update(self._model.trained_by[optimizer])
        self.gradients.clear()
        self.updates.end()
        self.passes = 0
        # Other losses than this optimizer's depend on them only through what
        # the script has kept.
        self._roots = []
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
            if self._scale is not None:
                self.check_meets("a GradScaler, which bfloat16 does without")
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
        last = self.passes == self.parts
        if last:
            with self.phase("push"):
                self.worker.open_step(
                    self._pushed_samples(samples), self._weight,
                    self._weight * self.worker.loss_reference() / self._total,
                    self.numbers.rates, self.numbers.changed, self.batch_digest,
                    0, False)
        gradients, scale = self.gradients, self._scale
        # Scaled ones are sent when all are known to be finite.
        gradients.sending = last and scale is None
        gradients.expected = self._in_backward = True
        try:
            with self.phase("backward"):
                if scale is not None:
                    losses = [(loss, factor * scale.value)
                              for loss, factor in losses]
                self._visit(losses)
                if last:
                    if scale is not None:
                        self._unscale(scale)
                    gradients.finish(not self.overflow)
                else:
                    gradients.hold()
        finally:
            gradients.expected = self._in_backward = False
            gradients.sending = False
            self.forget_calls()

    def _total_weight(self, own: float) -> float:
        """What the loss of one process would be a mean over: the weight of all
        members. Where they do not all meet, a number that is the same for all, so
        that the server weighs them rightly: it divides by what they have sent.

        Args:
            own: the weight of this member's step, by its first part.

        Raises:
            ConfigurationError: other members have other rates or numbers of the
                optimizer, or another order
                of samples.
        """
        assert self.assignment is not None
        reference = float(self.worker.loss_reference())
        if self.assignment.global_normalization:
            (total,), met = self._meet_weights("job.backward", [own])
            if met == self.assignment.members:
                return total or reference
        return reference * max(1, int(self.assignment.members))

    def _meet_weights(self, site: str, own: list[float]
                      ) -> tuple[list[float], int]:
        """The sums of the members' weights, and how many members there are.

        Raises:
            ConfigurationError: other members have other rates or numbers of the
                optimizer, or another order
                of samples.
            UsageError: samples do not weigh the loss rightly.
        """
        kept, unseeded = self._model.kept, self._unseeded
        unseeded.end()
        modes = self._model.modes()
        sums, spreads, met = self.worker.meet(site, [
            *own, kept.digest, _devices.number_of(repr(self.numbers).encode()),
            _devices.number_of(self.order_digest), _devices.number_of(repr(self._shares).encode()),
            unseeded.number, _devices.number_of(modes.encode())])
        state, numbers, orders, shares, drawn, others = (
            spread > 0 for spread in spreads[len(own):])
        if others:
            raise _errors.ConfigurationError(
                "job.backward(): in this step the model has other parameters frozen "
                "(requires_grad), or other modules in evaluation mode, than on other "
                f"workers; here {modes.count('f')} parameters are frozen and "
                f"{modes.count('e')} modules in evaluation mode. Do so on all workers "
                "alike, and call model.train() after a score on rank 0")
        if state:
            kept.refuse_difference(self.worker)
        if drawn:
            unseeded.refuse_difference(self.worker)
        if orders:
            raise _errors.ConfigurationError(
                "job.data(sampler=...): this worker's sampler yields different "
                "samples in this epoch from the others'; make it depend on the "
                "epoch and the data set only, for example by using the same "
                "weights on all workers")
        if numbers:
            raise _errors.ConfigurationError(
                "job.backward(): this worker has learning rates "
                f"{self.numbers.rates or 'as at the join'} and other numbers "
                f"{self.numbers.changed or 'as at the join'}, and other workers "
                "have different ones in this step; compute them from numbers that "
                "all workers share, such as job.step_number and the steps of the "
                "whole run (cohort.steps), not from a counter, which misses steps "
                "in which the worker has no batch, or from the length of a "
                "worker's loader")
        if shares:
            _loss_check.refuse_shares(self._shares)
        assert self.assignment is not None
        if not self.is_void():
            kept.refuse_some(int(met), int(self.assignment.members))
        return list(sums[:len(own)]), int(met)

    def _visit(self, losses: list[tuple[torch.Tensor, float]],
               inputs: list[torch.Tensor] | None = None,
               alone: bool = False) -> None:
        """The backward pass, from these gradients at the losses; to `inputs`
        alone, if they are given. `alone`: no other member needs it."""
        further = [] if alone else self._further_roots()
        # Functions of the script, and checkpoints with reentry, may call layers
        # in their backward pass. Other derivatives of a mean over nothing are
        # infinite or no numbers, and 0 times them would be none. So there only
        # what others need is visited.
        roots: list[tuple[torch.Tensor, float]] = []
        left_out = []
        for loss, factor in losses:
            if factor > 0 or has_functions(loss):
                roots.append((loss, factor))
            else:
                left_out.append(loss)
        roots += [(root, 0.0) for root in further]
        if roots:
            torch.autograd.backward(
                [root for root, _ in roots],
                [torch.full_like(root, factor) for root, factor in roots],
                inputs=inputs)
        wanted = None if inputs is None else {id(leaf) for leaf in inputs}
        for leaf in (leaf for loss in left_out for leaf in leaves_of(loss)):
            if leaf.grad is None and (wanted is None or id(leaf) in wanted):
                leaf.grad = torch.zeros_like(leaf)

    def _further_roots(self) -> list[torch.Tensor]:
        """Outputs of calls that the loss may not depend on, but other members'
        losses do. One behind which a pass of the script has released values
        cannot be visited again."""
        roots = [root for root in (*self._roots, self.token)
                 if root.grad_fn is not None]
        if self._freed:
            roots = [root for root in roots
                     if not nodes_of([root]) & self._freed]
        return roots

    def share(self, loss: torch.Tensor, weight: float | None,
              workers: int) -> torch.Tensor:
        """See Job.share. `workers` are those of the cohort."""
        own = self._weight_of(weight)
        assert self.assignment is not None
        if self.local is not None:
            # A local step has this worker's samples alone.
            mean: torch.Tensor = loss.mul(float(own > 0))
            return mean
        alone = workers == 1 and not self.assignment.global_normalization
        if not alone:
            self.check_meets("job.share()")
        (total,), _, met = self.worker.meet("job.share", [own])
        if not alone:
            self.check_met("job.share()", met)
        share: torch.Tensor = loss.mul(own / total if total > 0 else 0.0)
        return share

    def end_part(self) -> None:
        """A part of the step is over; its calls are numbered by themselves."""
        self.worker.begin_part()

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
            StatusError: the run cannot continue for this worker.
        """
        loss = self._loss / self._weight if self._weight else None
        self._model.statistics.fetch()
        self.closes = True
        self.mode = Mode.IDLE
        self._model.await_weights()
        try:
            verdict = self.worker.close_step(
                loss_sum=self._loss, correct=self._correct, labels=self._labels,
                front_end_state=state, measures=self._measures)
        except _errors.StatusError as error:
            if _errors.code_of(error) in _errors.VOID:
                self.load_statistics()
                return StepResult(None, "void", loss, str(error.args[1]))
            raise
        finally:
            self.closes = False
            self.gradients.clear()
            self.forget_calls()
        if verdict.verdict == "skipped" and self.updates.done > 0:
            # The updates are taken back.
            with contextlib.suppress(_errors.StatusError):
                self.worker.read(None, True, "")
        self._model.take_weights()
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
        self.forget_calls()
        self.mode = Mode.IDLE

    def _deliver(self, number: int, gradient: torch.Tensor) -> None:
        self.worker.take_gradient(number, gradient, gradient.data_ptr())
