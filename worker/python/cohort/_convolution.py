"""Convolutions whose gradients are computed apart.

What is below a convolution needs the gradient of its input alone. That of its weight is
computed while a batch norm below waits for the other workers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cohort import _operator, _order
from cohort._graphs import inputs_of

if TYPE_CHECKING:
    from cohort._step import Step

# Parts of torch that its stubs do not have.
_torch: Any = torch
_aten = _torch.ops.aten
# Nodes between a convolution and the batch norm below, such as a ReLU, at most.
_NODES_MAX = 6


class _Call:
    """One convolution.

    Attributes:
        x: [n, channels, ...], the input.
        numbers: stride, padding and dilation, one a dimension each.
        groups: of channels.
        y: the output, between the two functions.
    """

    def __init__(self, x: torch.Tensor, numbers: Sequence[list[int]], groups: int
                 ) -> None:
        self.x = x
        self.numbers = numbers
        self.groups = groups
        self.y: torch.Tensor | None = None

    def gradients(self, dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor,
                  bias: list[int] | None, which: list[bool]) -> Any:
        """Those of input, weight and bias that are wanted, by torch's own operator."""
        return _aten.convolution_backward(
            dy, x, weight, bias, *self.numbers, False, [0] * len(self.numbers[0]),
            self.groups, which)


class _Weight(torch.autograd.Function):
    """The part of the weight and bias. The output has the output's shape, and no
    memory; its gradient is the output's."""

    @staticmethod
    def forward(ctx: Any, call: _Call, compute: Callable[..., torch.Tensor],
                weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        call.y = compute(call.x, weight, bias, *call.numbers, call.groups)
        ctx.call = call
        ctx.bias = None if bias is None else list(bias.shape)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(call.x, weight)
        del call.x  # autograd keeps it
        part: torch.Tensor = call.y.new_empty(()).expand(call.y.shape)
        return part

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:  # type: ignore
        if dy is None:
            return None, None, None, None
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:4]
        _, by_weight, by_bias = ctx.call.gradients(dy, x, weight, ctx.bias,
                                                   [False, *wanted])
        return None, None, by_weight, by_bias


class _Input(torch.autograd.Function):
    """The part of the input. `part` is the output of _Weight."""

    @staticmethod
    def forward(ctx: Any, call: _Call, weight: list[torch.Tensor], x: torch.Tensor,
                part: torch.Tensor) -> torch.Tensor:
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight[0])
        y, call.y = call.y, None
        assert y is not None
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor | None) -> Any:  # type: ignore
        if dy is None:
            return None, None, None, None
        x, weight = ctx.saved_tensors
        by_input, _, _ = ctx.call.gradients(dy, x, weight, None, [True, False, False])
        return None, None, by_input, dy


def is_apart(node: Any) -> bool:
    """Whether a node of autograd's is that of such a convolution."""
    return getattr(type(node), "_forward_cls", None) is _Input


def apart(step: "Step", compute: Callable[..., torch.Tensor], x: torch.Tensor,
          weight: torch.Tensor, bias: torch.Tensor | None, numbers: Sequence[Any],
          groups: int) -> torch.Tensor | None:
    """A convolution, with gradients apart; None where that hides nothing, or is not
    the same: then nothing has happened.

    Args:
        step: the step in progress.
        compute: torch's function.
        x, weight, bias, groups: its arguments.
        numbers: stride, padding, dilation.
    """
    dims = weight.dim() - 2 if type(weight) is nn.Parameter else 0
    if (type(x) is not torch.Tensor or x.dim() != dims + 2 or not x.requires_grad or
            not weight.requires_grad or x.dtype != weight.dtype or
            any(isinstance(one, str) for one in numbers) or
            not step.calls.waits_later() or
            _torch.is_autocast_enabled(x.device.type)):
        return None
    number = _number_below(x)
    if number is None:
        return None
    call = _Call(x, [[one] * dims if isinstance(one, int) else
                     list(one) * (dims if len(one) == 1 else 1)
                     for one in numbers], groups)
    part = _Weight.apply(call, compute, weight, bias)
    _order.move(part, number)
    # In a list, or it would wait for this function.
    y: torch.Tensor = _Input.apply(call, [weight], x, part)
    return y


def _number_below(x: torch.Tensor) -> int | None:
    """That of nodes behind the batch norm below; None: there is none near."""
    todo = [x.grad_fn]
    for _ in range(_NODES_MAX):
        if not todo:
            break
        node = todo.pop(0)
        if node is not None and _operator.is_call(node):
            return _order.number_behind(node)
        if node is not None:
            todo += inputs_of(node)
    return None
