"""What calls of batch norm mean in the step in progress."""

import contextlib
import enum
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from cohort import _batch_norm, _doors, _errors, _operator, _statistics
from cohort._passes import Layer, Moves

if TYPE_CHECKING:
    from cohort._step import Step


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


class LayerCalls:
    """Answers batch norms, converted modules and those called by hand, that ask what
    to do.

    Attributes:
        site: the script's name of calls; see `name`.
        foreign: a module beside the model whose statistics have moved in this step,
            and cannot be put back.
    """

    def __init__(self, step: "Step") -> None:
        self._step = step
        self.site = ""
        self.foreign: str | None = None
        self._thread = threading.get_ident()
        # By layer: its calls with a single sample since the last loss.
        self._single: dict[int, int] = {}
        # Layers whose own code runs, innermost last, with their number of
        # batches before.
        self._running = threading.local()

    def begin(self) -> None:
        """A step begins, in this thread."""
        self.foreign = None
        self.resume()

    def resume(self) -> None:
        """The loop continues, in this thread."""
        self._thread = threading.get_ident()
        self._single = {}

    def count(self, layer: int, samples: int) -> None:
        """A training call of a registered layer."""
        if samples == 1 and layer >= 0:
            self._single[layer] = self._single.get(layer, 0) + 1

    def check_together(self, samples: int) -> None:
        """Raises UsageError if a layer was called once for each of these samples."""
        for layer, calls in self._single.items():
            if samples > 1 and calls % samples == 0:
                raise _errors.UsageError(
                    f"job.backward(): {self.layer_name(layer)} was called {calls} times "
                    f"with one sample, and the batch has {samples}: one process would "
                    "normalise each call by itself, and here the calls of all workers "
                    "meet; call the model once for the batch, or use GroupNorm, which "
                    "normalises samples one by one. If these are no samples of the "
                    "batch, pass job.backward(loss, weight=n), with the samples of this "
                    "worker")
        self._single = {}

    @contextlib.contextmanager
    def name(self, name: str) -> Iterator[None]:
        """See cohort.call."""
        before, self.site = self.site, name
        try:
            yield
        finally:
            self.site = before

    def layer_name(self, layer: int) -> str:
        """A registered layer's."""
        return self._step.model.layers[layer][0]

    def are_watched(self) -> bool:
        """Whether training calls belong to steps now."""
        return self._step.mode in (Mode.TRAIN, Mode.IDLE)

    # ---- how they normalise

    def normalises_alone(self) -> bool:
        """Whether each worker trains with the moments of its batch."""
        step = self._step
        return (step.trains() and step.assignment is not None and
                not step.assignment.global_normalization)

    def scores_by_batch(self) -> bool:
        """Whether evaluation normalises by batch, too."""
        return self._step.mode is Mode.SCORE_BY_BATCH

    def normalises(self, training: bool) -> bool:
        """Whether a call of a layer uses batch statistics of the cohort."""
        return self.scores_by_batch() or (
            training and self._step.mode is not Mode.SCORE)

    def normalises_by_batch(self, module: Layer) -> bool:
        """The same for a module, whose training calls must be in a step."""
        if _operator.is_compiling():
            return self._step.started and self.normalises(module.training)
        if not self._step.is_served() or not self.normalises(module.training):
            return False
        name = self.layer_name(_batch_norm.number_of(module))
        _doors.check_not_local(name)
        self.check_training_call(name)
        return True

    # ---- which are refused

    def check_training_call(self, name: str) -> None:
        """Raises UsageError unless a training call may be made now, here."""
        if self._step.mode is Mode.IDLE:
            self._step.updates.check_open(name)
            raise _errors.UsageError(
                f"{name}: a training call outside of a step would normalise by "
                "this worker's batch alone; move it between the beginning of the "
                "loop's body and job.step(), or call eval() first")
        if (not self._step.tape.recomputes() and
                threading.get_ident() != self._thread):
            raise _errors.UsageError(
                f"{name}: a training call outside the loop's thread, so the order "
                "of calls would depend on timing; make it in the loop's thread")

    def check_foreign(self, name: str, buffers: tuple[torch.Tensor, ...]
                      ) -> None:
        """Raises UsageError unless the cohort can normalise a module that is no
        part of the model, such as a teacher."""
        assignment = self._step.assignment
        if not assignment or not assignment.moves_statistics:
            raise _errors.UsageError(
                f"{name}: is not part of the model, and its statistics would differ "
                "between workers under this policy; use --aggregation=sync with "
                "global normalisation, eval(), or `with cohort.local():`")
        for buffer in buffers:
            if buffer.dtype != torch.float32 or not buffer.is_contiguous():
                raise _errors.UsageError(
                    f"{name}: got moving statistics of {buffer.dtype}, want "
                    "contiguous torch.float32")
        if not {id(buffer) for buffer in buffers} <= self._step.model.kept.ids():
            self.foreign = name

    # ---- the code of layers

    @contextlib.contextmanager
    def inside(self, module: Layer) -> Iterator[None]:
        """The layer's own code runs."""
        step = self._step
        if not step.is_served():
            yield
            return
        tracked = (getattr(module, "num_batches_tracked", None)
                   if module.training else None)
        running = self._running.__dict__.setdefault("stack", [])
        running.append((module, None if tracked is None else int(tracked)))
        # A repetition, and the moments of a batch that is not trained, count
        # nothing.
        unchanged = step.tape.recomputes() or not self.are_watched()
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

    # ---- moving statistics

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

    def moves_of(self, layer: int) -> Moves | None:
        """What a training call of a registered layer moves now."""
        model = self._step.model
        if not self._step.trains():
            return None
        name, module = model.layers[layer]
        moves = _batch_norm.moves_of(module, model.statistics.owns(
            layer, module.running_mean))
        if moves is not None and not moves.own:
            self.check_foreign(f"{name} with other statistics",
                               (moves.mean, moves.variance))
        return moves

    def note_read(self, layer: int) -> None:
        """An evaluation pass reads the layer's statistics.

        Raises:
            UsageError: there are none that belong to the weights now.
        """
        step = self._step
        if not (step.is_open() and self.are_watched()) or step.tape.recomputes():
            return
        step.model.statistics.adopt(layer)
        try:
            step.worker.note_read(layer)
        except _errors.StatusError as error:
            text = str(error.args[1])
            if step.local is not None:
                text = (
                    f"{self.layer_name(layer)}: an evaluation pass reads moving "
                    "statistics after a training call in the same step of the run, "
                    "whose local steps move them only at its end; evaluate after an "
                    "epoch, in the body of `for epoch in job.epochs()`, or directly "
                    "after a job.step() whose verdict was not 'local'")
            raise _errors.UsageError(text) from None
