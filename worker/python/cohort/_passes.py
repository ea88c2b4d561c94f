"""Both passes of one batch-norm call: moments of the local batch, their
rendezvous, and the arithmetic."""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from cohort import _core, _devices, _errors

if TYPE_CHECKING:
    from cohort._step import Step

# Operators that torch's stubs do not have.
_aten: Any = torch.ops.aten  # type: ignore[attr-defined]

# torch's own, whatever replaces it during a run.
torch_batch_norm = torch.batch_norm

# Transforms of torch.func, and of torch.autograd's vmap, which counts by itself.
_torch: Any = torch._C  # type: ignore[attr-defined]
_are_functorch_transforms_active: Any = getattr(
    _torch, "_are_functorch_transforms_active", bool)
_enter_vmap: Any = getattr(_torch, "_vmapmode_increment_nesting", int)
_leave_vmap: Any = getattr(_torch, "_vmapmode_decrement_nesting", int)

# A converted batch norm. Its attributes are those of classes that have no common
# base.
Layer = Any

TYPES = {torch.float32: "float32", torch.float64: "float64",
         torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclasses.dataclass
class Moves:
    """The moving statistics that a training call moves.

    Attributes:
        mean, variance: [channels], float32.
        tracked: number of batches, int64 []; None: the call does not count.
        momentum: weight of the batch; None: cumulative average.
        own: they are those of the registered layer, which the server keeps.
    """
    mean: torch.Tensor
    variance: torch.Tensor
    tracked: torch.Tensor | None
    momentum: float | None
    own: bool


@dataclasses.dataclass
class Call:
    """One call of a layer.

    Attributes:
        layer: its number in the registered model; -1: it is not registered.
        site: name of a call that is not registered, or the script's name.
        epsilon: added to the variance.
        x: [n, channels, ...], dense in the layout of `format_of`.
        weight, bias: scale and shift [channels], or None.
        moves: None: the call moves no statistics.
        relu: the output's negative elements are zeros; in host memory alone.
    """
    layer: int
    site: str
    epsilon: float
    x: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    moves: Moves | None
    relu: bool = False


@dataclasses.dataclass
class Kept:
    """The values of the forward pass that the backward pass needs.

    Attributes:
        call: for the rendezvous.
        epsilon: of the layer.
        mean, variance: [channels] of all workers, on the device; None if C++
            computes both passes.
    """
    call: "_core.KeptCall"
    epsilon: float
    mean: torch.Tensor | None = None
    variance: torch.Tensor | None = None


# Gradients of the input, the scale and the shift.
Gradients = tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]


def format_of(x: torch.Tensor) -> torch.memory_format:
    """The dense layout in which `x` is read, and its output written."""
    if x.is_contiguous():
        return torch.contiguous_format
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


@dataclasses.dataclass
class BackwardCall:
    """The backward pass of a call.

    Attributes:
        kept: of the forward pass.
        x, weight: as there.
        dy: gradient of the output, like `x`.
        path: which visit of the call it is.
        needs_dx: whether the input's is wanted. It alone needs a rendezvous.
        bias, relu: as there; without a ReLU the shift is not read.
    """
    kept: Kept
    x: torch.Tensor
    dy: torch.Tensor
    weight: torch.Tensor | None
    path: tuple[int, ...]
    needs_dx: bool
    bias: torch.Tensor | None = None
    relu: bool = False


def is_recorded() -> bool:
    """Whether make_fx records the operators that run now."""
    tracer = sys.modules.get("torch.fx.experimental.proxy_tensor")
    mode = getattr(tracer, "get_proxy_mode", None)
    return mode is not None and mode() is not None


def is_stand_in(x: Any) -> bool:
    """Whether code gets something in place of a tensor, from a tracer of torch or
    as a wrapper of the script's: it has no memory."""
    return type(x) is not torch.Tensor and (not isinstance(x, torch.Tensor) or any(
        kind.__name__ in ("FakeTensor", "FunctionalTensor")
        for kind in type(x).__mro__) or (
            type(x) is not torch.nn.Parameter and x.numel() > 0 and
            x.layout is torch.strided and x.data_ptr() == 0))


def are_transforms_active() -> bool:
    """Whether torch runs this code with stand-ins for tensors."""
    if _are_functorch_transforms_active():
        return True
    try:
        return bool(_enter_vmap() > 1)
    finally:
        _leave_vmap()


def check_not_batched(step: "Step", kept: Kept) -> None:
    """Raises ConfigurationError in a backward pass for several gradients at once:
    it would have to meet the other workers once for each."""
    if are_transforms_active():
        _, layer, site, _ = kept.call.key
        name = step.calls.layer_name(layer) if layer >= 0 else site
        raise _errors.ConfigurationError(
            f"{name}: an exchange between all workers does not support passes with "
            "is_grads_batched=True, which jacobian and hessian make with "
            "vectorize=True; leave it out: each row is then a separate pass")


# Backward passes visit calls and sums, and compute nothing there.
meets_nobody = False


@contextlib.contextmanager
def without_meetings() -> Iterator[None]:
    """The gradient of a call's input is that of its output in here, and sums have none.
    Which entries are zeros is then known of what is below."""
    global meets_nobody
    meets_nobody = True
    try:
        yield
    finally:
        meets_nobody = False


def forward(step: "Step", calls: list[Call]) -> list[tuple[torch.Tensor, Kept]]:
    """Normalises batches by the moments of all workers.

    Args:
        step: the step in progress.
        calls: that do not need each other's output. In host memory they meet in
            one request.

    Returns:
        For each the output, like its input; and what its backward pass needs.
    """
    if all(_devices.on_host(call.x.device) for call in calls):
        outputs = _forward_on_host(step, calls)
    else:
        outputs = [_forward_on_device(step, call) for call in calls]
    for y, kept in outputs:
        # Where workers meet, the server looks at what all have.
        if kept.call.count == 1 and step.calls.normalises_alone():
            raise ValueError("Expected more than 1 value per channel when "
                             f"training, got input size {tuple(y.shape)}")
    return outputs


def backward(step: "Step", calls: list[BackwardCall]) -> list[Gradients]:
    """The gradients of calls, which meet as in `forward`."""
    if all(call.kept.mean is None for call in calls):
        return _backward_on_host(step, calls)
    return [_backward_on_device(step, call) for call in calls]


def _extents(x: torch.Tensor) -> list[int]:
    """The extents that all calls of a meeting have in common."""
    return list(x.shape[2:])


def _momentum(moves: Moves) -> float:
    """For C++: NaN stands for the cumulative average."""
    return math.nan if moves.momentum is None else moves.momentum


def _update(moves: Moves | None) -> "_core.BufferUpdate":
    """The same for C++, in host memory."""
    if moves is None:
        return _core.BufferUpdate(0, 0, 0, 0.0, False)
    return _core.BufferUpdate(
        moves.mean.data_ptr(), moves.variance.data_ptr(),
        _address(moves.tracked), _momentum(moves), moves.own)


# ---- in host memory, by the C++ kernels

def _shape_of(x: torch.Tensor) -> list[int]:
    """`x` as [outer, channels, inner], row-major."""
    channels = x.shape[1]
    if x.is_contiguous():
        inner = 1
        for extent in x.shape[2:]:
            inner *= extent
        return [x.shape[0], channels, inner]
    return [x.numel() // channels, channels, 1]


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _affine_type(weight: torch.Tensor | None,
                 bias: torch.Tensor | None = None) -> str:
    affine = weight if weight is not None else bias
    return TYPES[affine.dtype] if affine is not None else "float32"


def _forward_on_host(step: "Step",
                     calls: list[Call]) -> list[tuple[torch.Tensor, Kept]]:
    outputs = [torch.empty_like(call.x) for call in calls]
    asked = [_core.NormCall(
        call.layer, call.site, call.epsilon, _shape_of(call.x),
        _extents(call.x), TYPES[call.x.dtype], call.x.data_ptr(),
        _affine_type(call.weight, call.bias), _address(call.weight),
        _address(call.bias), call.relu, y.data_ptr(), _update(call.moves))
        for call, y in zip(calls, outputs)]
    if step.tape.recomputes():
        kept = [step.worker.repeat(call) for call in asked]
    else:
        kept = step.worker.forward(asked)
    return [(y, Kept(saved, call.epsilon))
            for y, saved, call in zip(outputs, kept, calls)]


def _backward_on_host(step: "Step", calls: list[BackwardCall]) -> list[Gradients]:
    results = [torch.empty_like(call.x) if call.needs_dx else None
               for call in calls]
    affine = [torch.empty(2, call.x.shape[1], dtype=torch.float64)
              for call in calls]
    for call in calls:
        call.dy = step.finite(call.dy)
    step.worker.backward([_core.NormGradient(
        call.kept.call, list(call.path), _shape_of(call.x), TYPES[call.x.dtype],
        call.x.data_ptr(), call.dy.data_ptr(), _affine_type(call.weight),
        _address(call.weight), _address(call.bias), call.relu, _address(own),
        call.needs_dx, _address(dx))
        for call, dx, own in zip(calls, results, affine)])
    return [(dx, gamma, beta) for dx, (gamma, beta) in zip(results, affine)]


# ---- on a device, by torch's kernels

# Devices may compute a batch again with other rounding.
_TOLERANCE = 1e-3


def wide(x: torch.Tensor) -> torch.Tensor:
    """`x` in a type that sums can be computed in."""
    if x.dtype in (torch.float32, torch.float64):
        return x
    widened: torch.Tensor = x.float()
    return widened


def _wide(x: torch.Tensor) -> torch.Tensor:
    """The same for torch's kernels: CUDA's widen while they read."""
    return x if x.device.type == "cuda" else wide(x)


def of_device(moments: Any, x: torch.Tensor) -> torch.Tensor:
    """Rows in host memory as they are used with `x`."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return _devices.from_host(moments.to(dtype), x.device)


def by_channel(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[channels] as it broadcasts over `x`."""
    shaped: torch.Tensor = values.view([1, -1] + [1] * (x.dim() - 2))
    return shaped


class _Fetched:
    """Copies of a call's moments, and of the statistics that it moves, in host
    memory; one copy and one wait.

    Attributes:
        moments: float64 [2, channels]: mean and sum of squared differences.
        update: for C++; the moved statistics are in these copies.
    """

    def __init__(self, call: Call, count: int) -> None:
        self._moves = call.moves
        channels = call.x.shape[1]
        rows = []
        if count:
            local = torch.batch_norm_update_stats(_wide(call.x), None, None, 0.0)
            rows += [row.double() for row in local]
        if call.moves is not None:
            rows += [call.moves.mean.double(), call.moves.variance.double()]
            if call.moves.tracked is not None:
                rows.append(call.moves.tracked.double().view(1))
        host = (_devices.to_host(torch.cat(rows)) if rows
                else torch.zeros(0, dtype=torch.float64))
        self.moments = torch.zeros(2, channels, dtype=torch.float64)
        if count:
            self.moments = host[:2 * channels].view(2, channels).clone()
            self.moments[1] *= count
            host = host[2 * channels:]
        self.update = _update(None)
        if call.moves is None:
            return
        self._statistics = host[:2 * channels].view(2, channels).float()
        self._tracked = host[2 * channels:].long()
        self.update = _core.BufferUpdate(
            self._statistics.data_ptr(), self._statistics[1].data_ptr(),
            self._tracked.data_ptr() if len(self._tracked) else 0,
            _momentum(call.moves), call.moves.own)

    def store(self) -> None:
        """C++ has moved the copies: so do the statistics."""
        moves = self._moves
        if moves is None:
            return
        device = moves.mean.device
        with torch.no_grad():
            mean, variance = _devices.from_host(self._statistics, device)
            moves.mean.copy_(mean)
            moves.variance.copy_(variance)
            if moves.tracked is not None:
                moves.tracked.fill_(int(self._tracked))


def _forward_on_device(step: "Step", call: Call) -> tuple[torch.Tensor, Kept]:
    x = call.x
    channels = x.shape[1]
    count = x.numel() // channels
    fetched = _Fetched(call, count)
    if step.tape.recomputes():
        met = step.worker.recall(call.layer, count, channels,
                                 fetched.moments.data_ptr(), _TOLERANCE)
    else:
        met = step.worker.meet(call.layer, call.site, call.epsilon, count,
                               channels, _extents(x),
                               fetched.moments.data_ptr(), fetched.update)
        fetched.store()
    moments = torch.empty(2, channels, dtype=torch.float64)
    met.write_to(moments.data_ptr())
    mean, variance = of_device(moments, x)
    kept = Kept(met, call.epsilon, mean, variance)
    if not count:
        return torch.empty_like(x), kept
    y = torch_batch_norm(_wide(x), call.weight, call.bias, mean, variance, False,
                         0.0, call.epsilon, torch.backends.cudnn.enabled)
    return y.to(x.dtype).contiguous(memory_format=format_of(x)), kept


def _backward_on_device(step: "Step", call: BackwardCall) -> Gradients:
    kept, x, dy = call.kept, call.x, call.dy
    assert kept.mean is not None and kept.variance is not None
    channels = x.shape[1]
    count = x.numel() // channels
    invstd = kept.variance.add(kept.epsilon).rsqrt()
    dgamma = dbeta = torch.zeros_like(kept.mean)
    if count:
        # As in evaluation mode, where scale and shift have these gradients. CPUs
        # read the variance, CUDA reads mean and invstd as those saved.
        _, dgamma, dbeta = _aten.native_batch_norm_backward(
            _wide(dy), _wide(x), torch.ones_like(invstd), kept.mean,
            kept.variance, kept.mean, invstd, False, kept.epsilon,
            [False, True, True])
    if not call.needs_dx:
        return None, dgamma, dbeta
    # The second sum is over dy (x - mean).
    sums = torch.zeros(2, channels, dtype=torch.float64)
    if count:
        sums = step.finite(_devices.to_host(torch.stack((
            dbeta, dgamma / invstd))).double())
    step.worker.meet_backward(kept.call, list(call.path), count, channels,
                              sums.data_ptr())
    if not count:
        return torch.empty_like(x), dgamma, dbeta
    mean_dy, mean_dy_xmu = of_device(sums / max(kept.call.count, 1), x)
    dx = _input_gradient(kept.mean, invstd, x, dy, call.weight, mean_dy,
                         mean_dy_xmu)
    return dx, dgamma, dbeta


def _input_gradient(mean: torch.Tensor, invstd: torch.Tensor, x: torch.Tensor,
                    dy: torch.Tensor, weight: torch.Tensor | None,
                    mean_dy: torch.Tensor, mean_dy_xmu: torch.Tensor
                    ) -> torch.Tensor:
    """gamma invstd (dy - mean_dy - (x - mean) invstd^2 mean_dy_xmu)."""
    if weight is not None:
        weight = weight.to(mean.dtype)
    if x.device.type == "cuda":
        # One pass. It divides sums by a count, which these are already.
        once = torch.ones(1, dtype=torch.int32, device=x.device)
        fused: torch.Tensor = _aten.batch_norm_backward_elemt(
            dy, x, mean, invstd, weight, mean_dy, mean_dy_xmu, once)
        return fused
    scale = invstd if weight is None else invstd * weight
    dx: torch.Tensor = (_wide(x) - by_channel(mean, x)).mul_(
        by_channel(-invstd * invstd * mean_dy_xmu, x))
    dx += _wide(dy)
    dx -= by_channel(mean_dy, x)
    dx = dx.mul_(by_channel(scale, x)).to(x.dtype)
    return dx
