"""Learning-rate schedulers, the scale of float16 gradients, and numbers of modules: what
the server keeps with the weights."""

import gc
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler

from cohort import _errors, _scheduler_state
from cohort._attributes import Attributes
from cohort._optimizer import GroupNumbers, Optimizers
from cohort._plateau import Plateau, replace_step
from cohort._scaler import LossScale

STATE_BYTES_MAX = 64 << 10

_INSTEAD = ("pass the scheduler to cohort.join(schedulers=[...]), where it follows "
            "job.step() of its optimizer, or (epoch_schedulers=[...]), and remove "
            "this call")


def _schedulers_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The schedulers of an optimizer, which does not know them; without those
    that are attributes of another one, or in a list that is."""
    found = [item for item in gc.get_objects()
             if issubclass(type(item), _scheduler_state.KINDS)
             and getattr(item, "optimizer", None) is optimizer]
    inside = {id(part) for item in found for value in vars(item).values()
              for part in (value if isinstance(value, (list, tuple)) else [value])}
    return [item for item in found if id(item) not in inside]


class ScriptsScheduler:
    """A scheduler whose step() the script calls itself: once after each
    job.step(), or once after each epoch. These calls come after the state of a
    version was sent, so that state has the call that is due, and the next step
    checks that it was made.

    Args:
        scheduler: its step() is replaced until `detach`.
        check: raises an error if a rate was written by hand since job.step().
        advance: calls the function, as a scheduler's step.
    """

    def __init__(self, scheduler: Any, check: Callable[[], None],
                 advance: Callable[[Any], None]) -> None:
        self.scheduler = scheduler
        self._class = type(scheduler)
        self._check = check
        self._advance = advance
        # "step", "epoch" or "never"; empty until the first call, or the end of
        # the first epoch.
        self.when = ""
        # Since job.step().
        self._calls = 0
        self._may_call = False
        # It has been there from a version on at which a script that calls step()
        # by step has done so. What follows an epoch is then known at its end.
        self._sees_epoch = False
        # Since a state of the server's was loaded.
        self.calls_since_load = 0
        replace_step(scheduler, self._called)

    def detach(self) -> None:
        """The scheduler is the script's alone again."""
        self.scheduler.__class__ = self._class

    def _refuse(self, seen: str) -> None:
        raise _errors.UsageError(
            f"scheduler.step(): {self._class.__name__}: got {seen}; want one call "
            "without arguments after each job.step() that ends a step, or one after "
            "each epoch, in the body of `for epoch in job.epochs()` after the loop "
            "over the data, with --aggregation=sync. A schedule that begins later is "
            "a function of the step or epoch (LambdaLR, SequentialLR). Otherwise "
            f"{_INSTEAD}")

    def advance(self) -> None:
        """One call."""
        self._advance(lambda: self._class.step(self.scheduler))

    def _called(self, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            self._refuse("a call with arguments")
        if not self._may_call:
            self._refuse("a call before the end of the step")
        self._check()
        self.advance()
        self._calls += 1
        self.calls_since_load += 1

    def end_step(self) -> None:
        """The script may call step() now."""
        self._calls = 0
        self._may_call = True

    def refuse_one_loop(self) -> None:
        """An epoch has ended within one loop over the data. Raises UsageError if
        the script would have called step() after it."""
        if not self.when and self._calls == 0:
            raise _errors.UsageError(
                f"{type(self.scheduler).__name__}: an epoch has ended without a call "
                "of scheduler.step(), and the loop over job.data() continues "
                "through all epochs. Write `for epoch in job.epochs():` around it, "
                "with scheduler.step() behind it; or pass the scheduler to "
                "cohort.join(epoch_schedulers=[...]) and remove the call; or remove "
                "the scheduler if it is not used")

    def continue_step(self, turns: int, version: int | None) -> None:
        """A step begins after one that counts: checks the calls.

        Args:
            turns: epochs that have ended since.
            version: of the step; None: workers have separate steps, so the
                calls of one are not those of all.
        """
        calls = self._calls
        self._sees_epoch = self._sees_epoch or version == 1
        if not self.when and version is not None:
            if calls == 1 and turns == 1:
                self.when = "epoch"
            elif calls == 1 and version == 1:
                self.when = "step"
            elif calls == 0 and turns == 1:
                self.when = "never"
        if calls != {"step": 1, "epoch": turns}.get(self.when, 0):
            self._refuse(f"{calls} calls since the last step")

    def continue_locally(self, second: bool) -> None:
        """A local step begins after one of the same step: checks the calls.
        `second`: of the run."""
        if second and not self.when and self._calls == 1:
            self.when = "step"
        if self._calls != (self.when == "step"):
            self._refuse(f"{self._calls} calls since the last step")
        self._may_call = False

    def resume(self, turns: int, version: int | None) -> None:
        """A step begins with a state of the server's: makes the calls that are
        due.

        Raises:
            UsageError: it is not known whether one is.
        """
        # An epoch's last steps may have had no batch for this worker.
        if not self.when and self._sees_epoch and turns == 1:
            self.when = "epoch" if self._calls == 1 else "never"
        if self.when == "epoch":
            for _ in range(turns - self.calls_since_load):
                self.advance()
        elif not self.when and version:
            if turns > 0 or version == 1:
                raise _errors.UsageError(
                    f"{self._class.__name__}: this process continues at step "
                    f"{version}, after the script's first call of step(), so it "
                    "does not know whether the script calls it by step or by "
                    f"epoch; {_INSTEAD}")
            self._sees_epoch = True

    def begin_step(self) -> None:
        """From here to job.step() the script may not call step()."""
        self._may_call = False


class Schedulers:
    """The schedulers of a job, what they and the script may change of its
    optimizers, and the scale of its gradients.

    Args:
        optimizers: of one of the classes that the server knows.
        each_step: each is advanced with the steps of its optimizer.
        each_epoch: advanced once an epoch.
        scale: of gradients; None: they are not scaled.
        local: the optimizer makes local steps, which schedulers follow.

    Raises:
        ConfigurationError: a scheduler of another optimizer, or one that needs
            a measure (ReduceLROnPlateau), so that the script has to step it.
    """

    def __init__(self, optimizers: Optimizers,
                 each_step: Sequence[Any], each_epoch: Sequence[Any],
                 scale: LossScale | None = None, local: bool = False) -> None:
        self._optimizers = optimizers
        self.numbers = GroupNumbers(optimizers, local)
        # Local steps of all steps so far; None: steps have none.
        self.local_steps = 0 if local else None
        self.scale = scale
        # Numbers in modules; the run sets this.
        self.attributes: Attributes | None = None
        self._each_step = list(each_step)
        self._each_epoch = list(each_epoch)
        self._epoch = 0
        # Those that were not passed.
        self._scripts: ScriptsScheduler | None = None
        self.plateau: Plateau | None = None
        # The numbers after the last job.step(), and calls of its scheduler.
        self._kept: list[float] | None = None
        # The replaced methods of those that were passed, in their order.
        self._steps: list[Any] = []
        # Those whose step() is an error, and their classes.
        self._refused: list[tuple[Any, type]] = []
        for scheduler in (*self._each_step, *self._each_epoch):
            name = type(scheduler).__name__
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                raise _errors.ConfigurationError(
                    f"{name}: needs a measure, which job.step() does not have; do "
                    "not pass it, and call its step(measure) in the script, with a "
                    "number that is the same on all workers")
            of = getattr(scheduler, "optimizer", None)
            if not any(of is optimizer for optimizer in optimizers):
                raise _errors.ConfigurationError(
                    f"{name}: belongs to another optimizer than that passed to "
                    "cohort.join()")
            self._steps.append(scheduler.step)
            self._refuse_step(
                scheduler,
                "job.step() advances the schedulers that were passed to cohort.join(), "
                "so that a step that is repeated has the same rate; remove this call")

    def __bool__(self) -> bool:
        return bool(self._each_step or self._each_epoch)

    @property
    def by_epoch(self) -> bool:
        """Whether some are advanced once an epoch."""
        return bool(self._each_epoch)

    def find(self) -> None:
        """Looks for those that were not passed, whose step() the script calls."""
        passed = {id(item) for item in (*self._each_step, *self._each_epoch)}
        found = [item for optimizer in self._optimizers
                 for item in _schedulers_of(optimizer) if id(item) not in passed]
        plateaus = [item for item in found
                    if isinstance(item, lr_scheduler.ReduceLROnPlateau)]
        count = len(found) + len(passed)
        if len(plateaus) == 1:
            self.plateau = Plateau(plateaus[0], self.numbers, self._call_of_script)
            found.remove(plateaus[0])
        elif len(found) == 1 and not passed:
            self._scripts = ScriptsScheduler(found[0], self.check_kept,
                                             self._call_of_script)
            return
        for item in found:
            self._refuse_step(
                item, f"{type(item).__name__} is one of {count} schedulers; {_INSTEAD}. "
                "The script may step a scheduler that is the only one, and one "
                "ReduceLROnPlateau")

    def _refuse_step(self, scheduler: Any, why: str) -> None:
        self._refused.append((scheduler, type(scheduler)))
        replace_step(scheduler, _errors.refusing(f"scheduler.step(): {why}"))

    def detach(self) -> None:
        """The script calls step() alone again."""
        for scheduler, kind in reversed(self._refused):
            scheduler.__class__ = kind
        if self._scripts is not None:
            self._scripts.detach()
        if self.plateau is not None:
            self.plateau.detach()

    def _call_of_script(self, step: Any) -> None:
        self._advance(step)
        if self._kept is not None:
            self._kept = self.numbers.now()

    def check_kept(self) -> None:
        """Raises UsageError if the script has written a rate, or another number
        of the optimizer's groups, since job.step()."""
        if self._kept is None:
            return
        differing = self.numbers.differing(self._kept)
        if differing is None:
            return
        number, was, now = differing
        raise _errors.UsageError(
            f"{number} was changed from {was} to {now} between "
            "job.step() and the next batch, which a restarted process would not "
            "know; set it before job.backward(), at the beginning of the loop's "
            "body or of the body of `for epoch in job.epochs()`, as a function of "
            "job.step_number or job.epoch: not lr *= 0.5 after the loop, but lr = "
            "0.1 * 0.5 ** job.epoch in it. Or pass a scheduler to "
            "cohort.join(schedulers=...) or (epoch_schedulers=...)")

    def begin_step(self, epoch: int, version: int | None, continues: bool,
                   one_loop: bool) -> None:
        """A step of this epoch begins: epoch schedulers catch up.

        Args:
            epoch: of the step.
            version: of its weights, if all workers make the step together.
            continues: after a step of this process that counts, and not from a
                state of the server's.
            one_loop: the last epoch ended in the loop over the data that this
                step is in.
        """
        if self._scripts is not None:
            turns = epoch - self._epoch
            if turns > 0 and one_loop:
                self._scripts.refuse_one_loop()
            if continues:
                self._scripts.continue_step(turns, version)
            else:
                self._scripts.resume(turns, version)
        self.begin_again()
        while self._epoch < epoch:
            for advance in self._steps[len(self._each_step):]:
                self._advance(advance)
            self._epoch += 1

    def begin_again(self) -> None:
        """A step begins with the state of its first attempt."""
        self._kept = None
        if self._scripts is not None:
            self._scripts.begin_step()

    def begin_local_step(self, second: bool) -> None:
        """A local step begins that is not the first of its step. `second`: of the
        run."""
        self.check_kept()
        self._kept = None
        if self._scripts is not None:
            self._scripts.continue_locally(second)

    def skip_local_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Other workers have made a local step."""
        self.advance(optimizer)
        if self._scripts is not None and self._scripts.when == "step":
            self._scripts.advance()

    def advance(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has made a step: the schedulers that were passed follow."""
        for scheduler, advance in zip(self._each_step, self._steps):
            if scheduler.optimizer is optimizer:
                self._advance(advance)

    def finish(self, overflow: bool = False, local_steps: int = 0) -> bytes:
        """The step of all workers is computed. Returns the state for the server,
        which has the call that the script's scheduler is due after it.

        Args:
            overflow: its scaled gradients were not finite.
            local_steps: that it consists of.
        """
        if self.local_steps is not None:
            self.local_steps += local_steps
        if self.scale is not None:
            self.scale.update(overflow)
        state = self.save()
        if self._scripts is None or self._scripts.when != "step":
            return state
        self._scripts.advance()
        due = self.save()
        self.load(state)
        return due

    def end_step(self) -> None:
        """job.step() is over."""
        self._kept = self.numbers.now()
        if self._scripts is not None:
            self._scripts.end_step()

    def _advance(self, step: Any) -> None:
        # A scheduler warns unless its optimizer has counted a step.
        for optimizer in self._optimizers:
            optimizer._step_count = getattr(  # type: ignore[attr-defined]
                optimizer, "_step_count", 0) + 1
            optimizer._opt_called = True  # type: ignore[attr-defined]
        step()

    def resume(self, encoded: bytes, epoch: int) -> None:
        """Goes on to a state of `save` if it is of this epoch: what the script
        has written at the epoch's beginning is part of it."""
        if json.loads(encoded)["epoch"] == epoch:
            self.load(encoded)

    def _all(self) -> list[Any]:
        scripts = [] if self._scripts is None else [self._scripts.scheduler]
        return [*self._each_step, *self._each_epoch, *scripts]

    def save(self) -> bytes:
        """The state, for the server."""
        state = {
            "epoch": self._epoch,
            "numbers": self.numbers.now(),
            "schedulers": [_scheduler_state.save(scheduler)
                           for scheduler in self._all()]}
        if self._scripts is not None:
            state["when"] = self._scripts.when
        if self.scale is not None:
            state["scale"] = self.scale.save()
        if self.local_steps is not None:
            state["local_steps"] = self.local_steps
        if self.attributes is not None and (saved := self.attributes.save()):
            state["attributes"] = saved
        encoded = json.dumps(state, separators=(",", ":")).encode()
        if len(encoded) > STATE_BYTES_MAX:
            raise _errors.ConfigurationError(
                "the state of schedulers, and numbers in attributes of modules: got "
                f"{len(encoded)} bytes, want at most {STATE_BYTES_MAX}. A table that a "
                "schedule reads belongs in a global variable or a closure, "
                "LambdaLR(optimizer, lambda step: table[step]), not in an attribute")
        return encoded

    def load(self, encoded: bytes) -> None:
        """Goes back, or on, to a state of `save`."""
        if self._scripts is not None:
            self._scripts.calls_since_load = 0
        state = json.loads(encoded)
        schedulers = self._all()
        if len(state["schedulers"]) != len(schedulers):
            raise _errors.RunMismatchError(
                f"schedulers: got {len(schedulers)}, but the run has "
                f"{len(state['schedulers'])}; start all workers with the same "
                "program")
        if ("scale" in state) != (self.scale is not None):
            raise _errors.RunMismatchError(
                "cohort.join(scaler=...): some workers have an enabled GradScaler, "
                "others have none; start all workers with the same program")
        if self.scale is not None:
            self.scale.load(state["scale"])
        if self.local_steps is not None:
            self.local_steps = state.get("local_steps", 0)
        if self.attributes is not None:
            self.attributes.load(state.get("attributes", ()))
        self._epoch = state["epoch"]
        for scheduler, values in zip(schedulers, state["schedulers"]):
            _scheduler_state.load(scheduler, values)
        if self._scripts is not None:
            self._scripts.when = state.get("when", "")
        self.numbers.restore(state["numbers"])
        if self._kept is not None:
            self._kept = self.numbers.now()
