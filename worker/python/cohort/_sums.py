"""Derivatives of any order. One primitive: S(t), the sum of t over the members,
whose derivative is S.

If autograd records the backward pass of a batch norm (create_graph=True), that
pass is made of differentiable operators, with count, mean and variance written
as functions of the input through S. Then every further derivative is right
without further formulas. The sums of the forward pass are known: they meet
again only as derivatives."""

from typing import TYPE_CHECKING, Any

import torch

from cohort import _devices, _passes
from cohort._passes import Kept

if TYPE_CHECKING:
    from cohort._step import Step

# Which sum of a recorded pass, in the path of its derivatives.
_OF_X, _OF_SQUARES, _OF_GRADIENTS, _OF_DERIVATIVE = range(4)


class _Sum(torch.autograd.Function):
    """S of [rows, channels]; one or two rows."""

    @staticmethod
    def forward(ctx: Any, step: "Step", kept: Kept, path: tuple[int, ...],
                index: int, local: torch.Tensor, known: torch.Tensor | None
                ) -> torch.Tensor:
        ctx.step, ctx.kept, ctx.path = step, kept, (*path, index)
        total: torch.Tensor = (_meet(step, kept, path, local) if known is None
                               else known.clone())
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore
        if _passes.meets_nobody:
            # One process has the samples of all workers there.
            return None, None, None, None, None, None
        _passes.check_not_batched(ctx.step, ctx.kept)
        path = ctx.step.tape.visit(ctx.kept, ctx.path)
        total = _total(ctx.step, ctx.kept, path, _OF_DERIVATIVE, gradient)
        return None, None, None, None, total, None


def is_sum(node: Any) -> bool:
    """Whether a node of autograd's is that of a sum over the members."""
    return getattr(type(node), "_forward_cls", None) is _Sum


def _meet(step: "Step", kept: Kept, path: tuple[int, ...], local: torch.Tensor
          ) -> torch.Tensor:
    """The sum over the members."""
    rows, channels = local.shape
    sums = torch.zeros(2, channels, dtype=torch.float64)
    sums[:rows] = step.finite(_devices.to_host(local.detach()).double())
    step.worker.meet_backward(kept.call, list(path), 0, channels,
                              sums.data_ptr())
    total: torch.Tensor = sums[:rows].to(local.dtype)
    return _devices.from_host(total, local.device)


def _total(step: "Step", kept: Kept, path: tuple[int, ...], index: int,
           local: torch.Tensor, known: torch.Tensor | None = None
           ) -> torch.Tensor:
    """S(local). `path` and `index` name it; `known`: its value, if it has met."""
    total: torch.Tensor = _Sum.apply(step, kept, path, index, local, known)
    if total.grad_fn is not None:
        step.tape.add_root(total)
    return total


def of_piece(step: "Step", kept: Kept, number: int, local: torch.Tensor,
             known: torch.Tensor | None) -> torch.Tensor:
    """S of two rows, for a call that is no batch norm and so has no separate backward
    pass. `number`: of this piece of it. `known`: its value, if the call is
    computed again."""
    path = (_OF_DERIVATIVE + number,) if number else ()
    total: torch.Tensor = _Sum.apply(step, kept, path, _OF_DERIVATIVE, local,
                                     known)
    if total.grad_fn is not None and not step.tape.recomputes():
        step.tape.add_root(total)
    return total


def _known(kept: Kept, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums of the forward pass, [1, channels] each: of x, and of squared
    differences from the mean."""
    moments = torch.empty(2, x.shape[1], dtype=torch.float64)
    kept.call.write_to(moments.data_ptr())
    moments.mul_(kept.call.count)
    of_x, of_squares = _passes.of_device(moments, x)
    return of_x.view(1, -1), of_squares.view(1, -1)


def recorded_backward(step: "Step", call: _passes.BackwardCall
                      ) -> _passes.Gradients:
    """The gradients of a call, as differentiable functions of x, dy and weight:

        mean = S(sum x) / N          r = 1 / sqrt(S(sum (x - mean)^2) / N + eps)
        dx = weight r (dy - (S(sum dy) + (x - mean) r^2 S(sum dy (x - mean))) / N)
    """
    kept, path = call.kept, call.path
    # Rounding grows with each derivative, so all of it is in float64.
    x, dy = call.x.double(), call.dy.double()
    dims = [0, *range(2, x.dim())]
    count = max(kept.call.count, 1)
    of_x, of_squares = _known(kept, x)
    mean = _total(step, kept, path, _OF_X, x.sum(dims).view(1, -1),
                  of_x)[0] / count
    centred = x - _passes.by_channel(mean, x)
    variance = _total(step, kept, path, _OF_SQUARES,
                      centred.square().sum(dims).view(1, -1),
                      of_squares)[0] / count
    r = (variance + kept.epsilon).rsqrt()
    sum_dy = dy.sum(dims)
    sum_dy_xmu = (dy * centred).sum(dims)
    if not call.needs_dx:
        return None, sum_dy_xmu * r, sum_dy
    sums = _total(step, kept, path, _OF_GRADIENTS,
                  torch.stack((sum_dy, sum_dy_xmu)))
    scale = r if call.weight is None else r * call.weight.to(r.dtype)
    dx = _passes.by_channel(scale, x) * (
        dy - (_passes.by_channel(sums[0], x) +
              centred * _passes.by_channel(r * r * sums[1], x)) / count)
    return dx.to(call.x.dtype), sum_dy_xmu * r, sum_dy
