"""The gradients of a step: observed while autograd adds to them, and sent as
soon as they are final."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from cohort import _devices, _errors, _linear_hooks, _passes
from cohort._model import RegisteredModel, accumulator_of


class _NodeHook:
    """A hook on an autograd node, which it keeps alive."""

    def __init__(self, node: Any, hook: Any) -> None:
        self._node = node
        self._handle = node.register_hook(hook)

    def remove(self) -> None:
        self._handle.remove()


@dataclasses.dataclass(frozen=True)
class _Noted:
    """A gradient as it was."""
    grad: torch.Tensor
    version: int
    printed: Any

    @classmethod
    def of(cls, grad: torch.Tensor) -> "_Noted":
        # Others have no memory, and are refused when they are sent.
        printed = (None if grad.is_sparse or _passes.is_stand_in(grad)
                   else _devices.fingerprint(grad))
        return cls(grad, grad._version, printed)

    def is_of(self, grad: torch.Tensor | None) -> bool:
        """Whether torch has seen no change since."""
        return grad is self.grad and grad._version == self.version

    def is_still(self, grad: torch.Tensor | None) -> bool:
        """Whether there was none."""
        return self.is_of(grad) and _devices.same(
            self.printed, _Noted.of(self.grad).printed)


class Gradients:
    """Watches the parameters that the optimizer has.

    Args:
        model: their owner.
        deliver: called with a parameter's number and its gradient in host
            memory.
        in_step: whether a batch is being trained.
    """

    def __init__(self, model: RegisteredModel,
                 deliver: Callable[[int, torch.Tensor], None],
                 in_step: Callable[[], bool]) -> None:
        self._model = model
        self._deliver = deliver
        self._in_step = in_step
        self._hooks: list[Any] = []
        self._watched: set[int] = set()
        # Parameters that autograd adds to once in a backward pass. The others
        # (checkpointing with reentry) are final only when the pass is over, and
        # so is what had no pass yet.
        self._once: set[int] = set()
        self._seen: dict[int, int] = {}
        # Gradients that were handed over, by number; and what they were then.
        self._sent: dict[int, torch.Tensor] = {}
        self._noted: dict[int, _Noted] = {}
        # Gradients of the last step, which stay with the parameters.
        self._left: dict[int, _Noted] = {}
        # Those of the step's earlier parts.
        self._held: dict[int, _Noted] = {}
        self._queue: _devices.GradientQueue | None = None
        # job.backward() computes them, and sends them.
        self.expected = False
        self.sending = False
        # They are the optimizer's own in a local step, not parts of a sum.
        self.local = False
        self._counts = True

    def watch(self) -> None:
        """Parameters may be frozen and unfrozen, and get hooks, at any time.

        Raises:
            UsageError: a parameter has a hook that would change its gradient
                after it was sent.
        """
        for number in self._model.trained:
            parameter = self._model.parameters[number]
            if parameter.requires_grad and number not in self._watched:
                self._watched.add(number)
                self._watch(number, parameter)
            if self.local:
                continue
            late = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
            if len(late) > (number in self._watched):
                raise _errors.UsageError(
                    f"{self._model.names[number]}: has a hook of "
                    "register_post_accumulate_grad_hook(), which would get this "
                    "worker's share of the gradient; use the server's --clip_norm, "
                    "or register_hook() with a linear function")
            _linear_hooks.surround(self._model.names[number], parameter)

    def _watch(self, number: int, parameter: nn.Parameter) -> None:
        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            self._hooks.append(parameter.register_post_accumulate_grad_hook(
                lambda _: self._on_gradient(number)))
        else:
            self._hooks.append(_NodeHook(accumulator_of(parameter),
                                         lambda *_: self._on_gradient(number)))

    def detach(self) -> None:
        """Stops watching."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Called when a step begins."""
        self.watch()
        self._sent, self._noted = {}, {}
        self._held = {}

    def prepare(self) -> None:
        """Called before the step's first backward pass. Gradients of the last
        step are released. Those that the script has set to 0 stay: a parameter
        that the pass does not reach has then a gradient of 0, as in torch.

        Raises:
            UsageError: the script has set a gradient to something else, or some to 0
                and others not.
        """
        self._release(range(len(self._model.parameters)))
        self._left = {}

    def _release(self, numbers: Sequence[int]) -> None:
        left = {number for number, noted in self._left.items()
                if noted.is_still(self._model.parameters[number].grad)}
        trained = set(self._model.trained).intersection(numbers)
        # The script sets gradients to 0, or drops them.
        zeroes = not trained.intersection(self._left) <= left
        for number in numbers:
            parameter = self._model.parameters[number]
            if parameter.grad is None:
                continue
            if number in left and not (zeroes and number in trained):
                parameter.grad = None
            elif bool(parameter.grad.any()):
                raise _errors.UsageError(
                    f"{self._model.names[number]}: has a gradient before "
                    "job.backward()" + (
                        ", that of the last step, while others were set to 0"
                        if number in left else "") +
                    "; call optimizer.zero_grad(), and add other terms to the loss "
                    "instead")

    def _present(self) -> dict[int, _Noted]:
        known = {**self._left, **self._noted}
        return {number: known[number] if number in known and
                known[number].is_of(parameter.grad) else _Noted.of(parameter.grad)
                for number, parameter in enumerate(self._model.parameters)
                if parameter.grad is not None}

    # ---- updates: those of one of several optimizers, which are sent at its step

    def prepare_update(self, numbers: Sequence[int], first: bool) -> None:
        """Called before a backward pass of an update: as `prepare`, for the
        parameters of one optimizer. Between two passes of an update zero_grad()
        drops what the first has added, as in torch.

        Args:
            numbers: of its parameters.
            first: no pass of the update was before.

        Raises:
            UsageError: a gradient was changed in another way.
        """
        if first:
            self._release(numbers)
            return
        for number in numbers:
            grad, before = self._model.parameters[number].grad, self._noted.get(number)
            if grad is None or before is not None and before.is_still(grad):
                continue
            if bool(grad.any()):
                raise _errors.UsageError(
                    f"{self._model.names[number]}: has a gradient that "
                    "job.backward() has not computed, or that was changed since; "
                    "call optimizer.zero_grad(), and add what else the parameters "
                    "should learn to the loss")

    def end_pass(self, numbers: Sequence[int]) -> None:
        """Called after a backward pass of an update."""
        self._sent = {}
        for number in numbers:
            grad = self._model.parameters[number].grad
            if grad is not None:
                self._sent[number] = grad
        self._note()

    def send_update(self, numbers: Sequence[int]) -> None:
        """Sends the gradients of an update."""
        self._counts = True
        for number in reversed(numbers):
            self._send(number)
        if self._queue is not None:
            self._queue.finish()

    def send(self, differences: Mapping[int, torch.Tensor]) -> None:
        """Sends these in place of gradients."""
        queue = _devices.GradientQueue(self._model.device, self._deliver)
        for number in sorted(differences, reverse=True):
            queue.add(number, differences[number])
        queue.finish()

    def hold(self) -> None:
        """Called after the pass of a part that another one follows."""
        self._held = self._present()

    def resume(self) -> None:
        """Called before the pass of a later part: optimizer.zero_grad() at the
        beginning of the loop's body drops no part of the step.

        Raises:
            UsageError: a gradient was changed in another way.
        """
        for number, held in self._held.items():
            parameter = self._model.parameters[number]
            if parameter.grad is None:
                parameter.grad = held.grad
            if not held.is_still(parameter.grad):
                raise _errors.UsageError(
                    f"{self._model.names[number]}: its gradient was changed between "
                    "two parts of a step, which would lose the first; remove the "
                    "change, or use optimizer.zero_grad(set_to_none=True)")

    def clear(self) -> None:
        """Called when the step is over, or an update of it."""
        self._left = self._present()
        self._sent, self._noted = {}, {}
        if self._queue is not None:
            self._queue.clear()

    def _on_gradient(self, number: int) -> None:
        """Called when autograd has added to a parameter's gradient."""
        if not self._in_step():
            return
        if not self.expected:
            raise _errors.UsageError(
                "loss.backward(): call job.backward(loss, weight=...), which "
                "weights the loss and sends the gradients; for gradients with "
                "respect to inputs, call torch.autograd.grad(job.share(loss), x)")
        if not self.sending:
            return
        if number not in self._once:
            self._seen[number] = self._seen.get(number, 0) + 1
            return
        if number in self._sent:
            raise _errors.UsageError(
                f"{self._model.names[number]}: got a second gradient in this "
                "backward pass, unlike in the first pass; the first one may have "
                "been sent already. With torch.utils.checkpoint pass "
                "use_reentrant=False")
        self._send(number)

    def unscale(self, scale: float) -> str:
        """Divides gradients that were not sent by the scale of the loss. Returns
        the name of the first that is not finite; empty: all are."""
        # As torch rounds it.
        inverse = float(torch.tensor(1 / scale, dtype=torch.float64).float())
        bad = ""
        for number in reversed(self._model.trained):
            grad = self._model.parameters[number].grad
            # What cannot be sent is refused then.
            if grad is None or _passes.is_stand_in(grad) or grad.is_sparse:
                continue
            with torch.no_grad():
                grad.mul_(inverse)
            if not bad and not bool(torch.isfinite(grad).all()):
                bad = self._model.names[number]
        return bad

    def finish(self, counts: bool = True) -> None:
        """Called when the pass is over: sends the rest.

        Args:
            counts: if false, nothing is sent, and the parameters are as those
                without a gradient, which no optimizer updates.
        """
        self._counts = counts
        self._once |= {number for number, count in self._seen.items()
                       if count == 1}
        self._seen.clear()
        # Among them those of earlier parts of the step alone.
        for number in reversed(self._model.trained):
            if number not in self._sent:
                self._send(number)
        self._note()
        if self._queue is not None:
            self._queue.finish()

    def _note(self) -> None:
        self._noted = {number: _Noted.of(grad) for number, grad in self._sent.items()}

    def _send(self, number: int) -> None:
        grad = self._model.parameters[number].grad
        if grad is None:
            return
        if _passes.is_stand_in(grad):
            raise _errors.ConfigurationError(
                f"{self._model.names[number]}: got a gradient of type "
                f"{type(grad).__name__}, which has no memory; make the loss of "
                "plain tensors")
        if grad.is_sparse:
            raise _errors.ConfigurationError(
                f"{self._model.names[number]}: got a sparse gradient, want a "
                "dense one; use sparse=False")
        self._sent[number] = grad
        if not self._counts:
            return
        if self._queue is None:
            self._queue = _devices.GradientQueue(self._model.device,
                                                 self._deliver)
        self._queue.add(number, grad)

    def check(self, numbers: Sequence[int] | None = None) -> None:
        """Raises UsageError if a gradient was changed after it was sent, or
        written without a change: what clips a sum may leave shares alone.

        Args:
            numbers: of the parameters; None: all.
        """
        for number in self._model.trained if numbers is None else numbers:
            now, sent = self._model.parameters[number].grad, self._noted.get(number)
            if now is None if sent is None else sent.is_still(now):
                continue
            raise _errors.UsageError(
                f"{self._model.names[number]}: its gradient was changed after "
                "job.backward(), but it has been sent; clip with the server's "
                "--clip_norm (cohortctl policy set --clip_norm=1), scale the loss "
                "instead of gradients, freeze with requires_grad_(False), leave a "
                "batch out with weight=0, and measure with "
                "torch.linalg.vector_norm: clip_grad_norm_ changes gradients "
                "whatever its limit")
