"""A batch-norm call for autograd: a function, and for compilers an operator
that they keep whole and in order."""

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from cohort import _passes, _sums

if TYPE_CHECKING:
    from cohort._step import Step

# Parts of torch that the releases before 2.4 do not have.
_newer: Any = torch
_aten: Any = _newer.ops.aten

_AnyFunction = TypeVar("_AnyFunction", bound=Callable[..., Any])

# Steps by their handle.
_STEPS: "weakref.WeakValueDictionary[int, Step]" = weakref.WeakValueDictionary()
_handles = itertools.count(1)


def new_handle(step: "Step") -> int:
    """A number for `step`, as long as that lives."""
    handle = next(_handles)
    _STEPS[handle] = step
    return handle


# All members of a call meet in its backward pass, whether or not a worker's loss
# depends on its output: the other members' losses do, through the moments that
# this one gave. So each call has a further output, its token, at which
# job.backward starts too. Autograd visits in reverse order of creation, so all
# members meet in one order. In a compiled graph, where nodes are created at once,
# each call also takes the token of the one before.


def is_call(node: Any) -> bool:
    """Whether a node of autograd's is that of calls which are not compiled."""
    return getattr(type(node), "_forward_cls", None) is _Function


def _dense(x: torch.Tensor) -> torch.Tensor:
    dense: torch.Tensor = x.contiguous(memory_format=_passes.format_of(x))
    return dense


def _like(dy: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """The gradient of a call's output, as `x` lies in memory."""
    if dy is None:
        return torch.zeros_like(x)
    like: torch.Tensor = dy.to(x.dtype).contiguous(
        memory_format=_passes.format_of(x))
    return like


class _Function(torch.autograd.Function):
    """Calls that do not need each other's output. After the first two arguments:
    x, weight and bias of each; returns the token and the outputs."""

    @staticmethod
    def forward(ctx: Any, step: "Step", calls: list[_passes.Call],
                *tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        for number, call in enumerate(calls):
            x, weight, bias = tensors[3 * number:3 * number + 3]
            assert x is not None
            call.x, call.weight, call.bias = _dense(x), weight, bias
        outputs = _passes.forward(step, calls)
        ctx.step = step
        ctx.kept = [kept for _, kept in outputs]
        ctx.bias_dtypes = [call.bias.dtype if call.bias is not None else None
                           for call in calls]
        ctx.set_materialize_grads(False)
        # A ReLU's output is read where a pass is recorded. The operator that
        # takes it keeps it anyway, as torch's ReLU would.
        ctx.save_for_backward(*(
            tensor for call, (y, _) in zip(calls, outputs)
            for tensor in (call.x, call.weight, call.bias,
                           y if call.relu else None)))
        for call in calls:  # autograd keeps what it needs
            del call.x, call.weight, call.bias
        return (torch.zeros(()), *(y for y, _ in outputs))

    @staticmethod
    def backward(ctx: Any, *token_and_grads: torch.Tensor | None) -> Any:
        grads = token_and_grads[1:]
        if _passes.meets_nobody:
            return (None, None, *(part for dy in grads for part in (dy, None, None)))
        saved = ctx.saved_tensors
        step: "Step" = ctx.step
        for kept in ctx.kept:
            _passes.check_not_batched(step, kept)
        calls = []
        for number, (kept, dy) in enumerate(zip(ctx.kept, grads)):
            x, weight, bias, y = saved[4 * number:4 * number + 4]
            output_grad = _like(dy, x)
            # Autograd records the pass if derivatives of its result are wanted.
            if y is not None and torch.is_grad_enabled():
                output_grad = _aten.threshold_backward(output_grad, y, 0)
                y = None
            calls.append(_passes.BackwardCall(
                kept, x, output_grad, weight, step.tape.visit(kept, ()),
                ctx.needs_input_grad[2 + 3 * number], bias, y is not None))
        if torch.is_grad_enabled():
            gradients = [_sums.recorded_backward(step, call) for call in calls]
        else:
            gradients = _passes.backward(step, calls)
        result: list[torch.Tensor | None] = []
        for number, (dx, gamma, beta) in enumerate(gradients):
            needs = ctx.needs_input_grad[3 + 3 * number:5 + 3 * number]
            if grads[number] is None:
                # Nor may another worker use the output: then nothing has a
                # gradient.
                needs = False, False
                if dx is not None and not dx.any():
                    dx = None
            weight = calls[number].weight
            result += [dx,
                       gamma.to(weight.dtype) if needs[0] and weight is not None
                       else None,
                       beta.to(ctx.bias_dtypes[number]) if needs[1] else None]
        return (None, None, *result)


def together(step: "Step", calls: list[_passes.Call]) -> list[torch.Tensor]:
    """Batch norm over the cohort, of calls that do not need each other's output;
    see `_passes.forward`."""
    if torch.is_grad_enabled() and not step.tape.recomputes():
        for call in calls:
            step.calls.count(call.layer, len(call.x))
    token, *outputs = _Function.apply(
        step, calls, *(tensor for call in calls
                       for tensor in (call.x, call.weight, call.bias)))
    if token.grad_fn is not None and not step.tape.recomputes():
        step.tape.add_root(token)
    return list(outputs)


def is_compiling() -> bool:
    """Whether a compiler looks at this call."""
    return hasattr(torch, "compiler") and bool(_newer.compiler.is_compiling())


def not_compiled(function: _AnyFunction) -> _AnyFunction:
    """Compilers do not look into `function`: a graph ends at each call."""
    if not hasattr(torch, "compiler"):
        return function
    disabled: _AnyFunction = _newer.compiler.disable(function)
    return disabled


def _eager(step: "Step", call: _passes.Call) -> torch.Tensor:
    return together(step, [call])[0]


# ---- for compilers: two operators, which keep numbers instead of objects

def _forward(token: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None,
             bias: torch.Tensor | None, handle: int, layer: int, site: str,
             epsilon: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    step = _STEPS[handle]
    # What the module says when the graph runs, not when it was compiled.
    (y, kept), = _passes.forward(
        step, [_passes.Call(layer, site, epsilon, _dense(x), weight, bias,
                            step.calls.moves_of(layer))])
    number = len(step.tape.kept)
    step.tape.kept.append(kept)
    return y, torch.tensor(number), torch.zeros_like(token)


def _fake_forward(token: torch.Tensor, x: torch.Tensor,
                  weight: torch.Tensor | None, bias: torch.Tensor | None,
                  handle: int, layer: int, site: str, epsilon: float
                  ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (torch.empty_like(x, memory_format=_passes.format_of(x)),
            torch.empty((), dtype=torch.int64), torch.empty_like(token))


def _backward(token: torch.Tensor, dy: torch.Tensor, x: torch.Tensor,
              weight: torch.Tensor | None, number: torch.Tensor, handle: int,
              needs_dx: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor,
                                       torch.Tensor]:
    step = _STEPS[handle]
    x = _dense(x)
    kept = step.tape.kept[int(number)]
    (dx, gamma, beta), = _passes.backward(
        step, [_passes.BackwardCall(kept, x, _like(dy, x), weight,
                                    step.tape.visit(kept, ()), needs_dx)])
    # Results that share memory are refused.
    return (dx if dx is not None else x.new_empty(0), gamma.double(),
            beta.double().clone(), torch.zeros_like(token))


def _fake_backward(token: torch.Tensor, dy: torch.Tensor, x: torch.Tensor,
                   weight: torch.Tensor | None, number: torch.Tensor, handle: int,
                   needs_dx: bool) -> tuple[torch.Tensor, torch.Tensor,
                                            torch.Tensor, torch.Tensor]:
    channel = x.new_empty(x.shape[1], dtype=torch.float64)
    return (torch.empty_like(x, memory_format=_passes.format_of(x)) if needs_dx
            else x.new_empty(0), channel, torch.empty_like(channel),
            torch.empty_like(token))


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    _, x, weight, bias, handle, _, _, _ = inputs
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
            beta.to(ctx.bias_dtype) if needs_dbias else None, None, None, None,
            None)


def _define_operators() -> None:
    define = _newer.library.custom_op
    forward = define("cohort::batch_norm", _forward, mutates_args=())
    forward.register_fake(_fake_forward)
    forward.register_autograd(_differentiate, setup_context=_keep)
    define("cohort::batch_norm_backward", _backward,
           mutates_args=()).register_fake(_fake_backward)


def _eager_or_compiled(step: "Step", call: _passes.Call) -> torch.Tensor:
    if not is_compiling():
        return _eager(step, call)
    x, weight, bias = call.x, call.weight, call.bias
    chained = (x.requires_grad or
               (weight is not None and weight.requires_grad) or
               (bias is not None and bias.requires_grad))
    y, _, token = _newer.ops.cohort.batch_norm(
        step.tape.token if chained else step.tape.token.detach(), x, weight, bias,
        step.handle, call.layer, call.site, call.epsilon)
    if token.requires_grad:
        step.tape.token = token
    return y  # type: ignore[no-any-return]


# Batch norm over the cohort: one call.
normalise = _eager
if hasattr(torch.library, "custom_op"):
    _define_operators()
    normalise = _eager_or_compiled
else:
    normalise = not_compiled(_eager)
