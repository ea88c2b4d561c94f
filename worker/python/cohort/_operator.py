"""A batch-norm call for autograd: a function, and for compilers an operator
that they keep whole and in order."""

import itertools
import weakref
from typing import Any

import torch

from cohort import _passes
from cohort._passes import Step

# Parts of torch that the releases before 2.4 do not have.
_newer: Any = torch

# Steps by their handle.
_STEPS: "weakref.WeakValueDictionary[int, Step]" = weakref.WeakValueDictionary()
_handles = itertools.count(1)


def new_handle(step: Step) -> int:
    """A number for `step`, as long as that lives."""
    handle = next(_handles)
    _STEPS[handle] = step
    return handle


# All workers must meet in the same order, and all of them in each meeting, whether
# or not a worker's loss depends on the call's output: the other workers' does,
# through the moments that this one gave. So each call takes the token of the one
# before and returns its own, and the backward pass starts at the loss and at the
# last token. Its order is then the opposite of the calls', compiled or not.


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, x: torch.Tensor,
                weight: torch.Tensor | None, bias: torch.Tensor | None,
                step: Step, layer: int, epsilon: float
                ) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.contiguous(memory_format=_passes.format_of(x))
        y, ctx.kept = _passes.forward(step, layer, epsilon, x, weight, bias)
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        ctx.step = step
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y, torch.zeros_like(token)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        x, weight = ctx.saved_tensors
        needs_dx, needs_dweight, needs_dbias = ctx.needs_input_grad[1:4]
        dy = grads[0]
        used = dy is not None
        dy = torch.zeros_like(x) if dy is None else dy.to(x.dtype)
        dx, gamma, beta = _passes.backward(
            ctx.step, ctx.kept, x,
            dy.contiguous(memory_format=_passes.format_of(x)), weight, needs_dx)
        if not used:
            # Nor by any other worker: the parameters have no gradient.
            if dx is not None and not dx.any():
                dx = None
            needs_dweight = needs_dbias = False
        return (torch.zeros(()), dx,
                gamma.to(weight.dtype) if needs_dweight else None,
                beta.to(ctx.bias_dtype) if needs_dbias else None,
                None, None, None)


def _eager(step: Step, layer: int, epsilon: float, x: torch.Tensor,
           weight: torch.Tensor | None, bias: torch.Tensor | None
           ) -> torch.Tensor:
    y, token = _Function.apply(_token_before(step, x, weight, bias), x, weight,
                               bias, step, layer, epsilon)
    if token.requires_grad and not step.recomputes():
        step.token = token
    return y  # type: ignore[no-any-return]


def _token_before(step: Step, x: torch.Tensor, weight: torch.Tensor | None,
                  bias: torch.Tensor | None) -> torch.Tensor:
    """What the call takes: detached, if it has no backward pass of its own here."""
    differentiable = (x.requires_grad or
                      (weight is not None and weight.requires_grad) or
                      (bias is not None and bias.requires_grad))
    if differentiable and not step.recomputes():
        return step.token
    return step.token.detach()


# ---- for compilers: two operators, which keep numbers instead of objects

def _forward(token: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None,
             bias: torch.Tensor | None, handle: int, layer: int, epsilon: float
             ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    step = _STEPS[handle]
    y, kept = _passes.forward(
        step, layer, epsilon,
        x.contiguous(memory_format=_passes.format_of(x)), weight, bias)
    number = len(step.kept)
    step.kept.append(kept)
    return y, torch.tensor(number), torch.zeros_like(token)


def _fake_forward(token: torch.Tensor, x: torch.Tensor,
                  weight: torch.Tensor | None, bias: torch.Tensor | None,
                  handle: int, layer: int, epsilon: float
                  ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (torch.empty_like(x, memory_format=_passes.format_of(x)),
            torch.empty((), dtype=torch.int64), torch.empty_like(token))


def _backward(token: torch.Tensor, dy: torch.Tensor, x: torch.Tensor,
              weight: torch.Tensor | None, number: torch.Tensor, handle: int,
              needs_dx: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor,
                                       torch.Tensor]:
    step = _STEPS[handle]
    layout = _passes.format_of(x)
    dx, gamma, beta = _passes.backward(
        step, step.kept[int(number)], x.contiguous(memory_format=layout),
        dy.to(x.dtype).contiguous(memory_format=layout), weight, needs_dx)
    return (dx if dx is not None else x.new_empty(0), gamma.double(),
            beta.double(), torch.zeros_like(token))


def _fake_backward(token: torch.Tensor, dy: torch.Tensor, x: torch.Tensor,
                   weight: torch.Tensor | None, number: torch.Tensor, handle: int,
                   needs_dx: bool) -> tuple[torch.Tensor, torch.Tensor,
                                            torch.Tensor, torch.Tensor]:
    channel = x.new_empty(x.shape[1], dtype=torch.float64)
    return (torch.empty_like(x, memory_format=_passes.format_of(x)) if needs_dx
            else x.new_empty(0), channel, torch.empty_like(channel),
            torch.empty_like(token))


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    _, x, weight, bias, handle, _, _ = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.handle = handle
    ctx.bias_dtype = None if bias is None else bias.dtype


def _differentiate(ctx: Any, dy: torch.Tensor | None, _: Any,
                   token: torch.Tensor | None) -> Any:
    x, weight, number = ctx.saved_tensors
    needs_dx, needs_dweight, needs_dbias = ctx.needs_input_grad[1:4]
    dx, gamma, beta, token = _newer.ops.cohort.batch_norm_backward(
        torch.zeros(()) if token is None else token,
        torch.zeros_like(x) if dy is None else dy, x, weight, number, ctx.handle,
        needs_dx)
    return (token, dx if needs_dx else None,
            gamma.to(weight.dtype) if needs_dweight else None,
            beta.to(ctx.bias_dtype) if needs_dbias else None, None, None, None)


def _define_operators() -> None:
    define = _newer.library.custom_op
    forward = define("cohort::batch_norm", _forward, mutates_args=())
    forward.register_fake(_fake_forward)
    forward.register_autograd(_differentiate, setup_context=_keep)
    define("cohort::batch_norm_backward", _backward,
           mutates_args=()).register_fake(_fake_backward)


def _eager_or_compiled(step: Step, layer: int, epsilon: float, x: torch.Tensor,
                       weight: torch.Tensor | None, bias: torch.Tensor | None
                       ) -> torch.Tensor:
    if not _newer.compiler.is_compiling():
        return _eager(step, layer, epsilon, x, weight, bias)
    y, _, token = _newer.ops.cohort.batch_norm(
        _token_before(step, x, weight, bias), x, weight, bias, step.handle,
        layer, epsilon)
    if token.requires_grad:
        step.token = token
    return y  # type: ignore[no-any-return]


# Batch norm over the cohort; arguments as of `_passes.forward`.
normalise = _eager
if hasattr(torch.library, "custom_op"):
    _define_operators()
    normalise = _eager_or_compiled
elif hasattr(torch, "compiler"):
    # Compilers do not look into it: one graph ends at each call.
    normalise = _newer.compiler.disable(_eager)
