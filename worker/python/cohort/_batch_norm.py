"""Batch norm over the whole cohort: the modules of a model, converted in place,
with the moments of all workers in training mode."""

import copyreg
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd import forward_ad

from cohort import _core, _devices, _errors, _operator, _passes
from cohort._passes import TYPES, Call, Layer, Moves

_TorchBatchNorm = nn.modules.batchnorm._BatchNorm
_TorchNorm = nn.modules.batchnorm._NormBase


def _if_of_torch(function: Any) -> Any:
    """The function, unless a script has put its own in the place of torch's."""
    code = getattr(function, "__code__", None)
    return function if code is not None and (
        code.co_filename == nn.modules.batchnorm.__file__) else None


# torch's own code, which needs not be run.
_torch_forward = _if_of_torch(_TorchBatchNorm.forward)
_sync_forward = _if_of_torch(nn.SyncBatchNorm.forward)
_unpack_dual: Any = forward_ad.unpack_dual
_ScriptModule: Any = torch.jit.ScriptModule  # type: ignore[attr-defined]


if TYPE_CHECKING:
    _Before = nn.Module
else:
    _Before = object


class Converted(_Before):
    """The base of converted modules, in front of their class."""

    # The class that it was.
    _cohort_plain: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy, in memory or in a file, is a module of the class that it was:
        # it takes part in no step, and can be loaded without this package.
        state = {name: value for name, value in vars(self).items()
                 if not name.startswith("_cohort_")}
        plain = self._cohort_plain
        if issubclass(plain, nn.SyncBatchNorm):
            state.setdefault("process_group", None)
        # object.__new__(plain), in a form that pickle can write.
        return (copyreg._reconstructor, (plain, object, None),  # type: ignore
                state)


class _Cohort(Converted):
    """The same of batch norms."""

    # The step of the job that the module belongs to.
    _cohort_step: Any = None
    # The layer's number in the registered model.
    _cohort_layer: int

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        step = self._cohort_step
        if step is None:
            return super().forward(*args, **kwargs)
        direct = _is_direct(self)
        if direct and step.calls.normalises_by_batch(self):
            return _operator.normalise(step, call_of(self, *args, **kwargs))
        if direct and _operator.is_compiling():
            return super().forward(*args, **kwargs)
        if direct or isinstance(self, self._cohort_plain):
            return _run_own_code(step, self, super().forward, args, kwargs)
        return _run_own_code(step, self, functools.partial(
            self._cohort_plain.forward, self), args, kwargs)


def _is_direct(module: Layer) -> bool:
    """Whether a module's code is torch's own. The script may replace that of a
    class at any time."""
    forward = module._cohort_plain.forward
    return forward is not None and (forward is _torch_forward or
                                    forward is _sync_forward)


@_operator.not_compiled
def _run_own_code(step: Any, module: Layer, forward: Any, args: Any,
                  kwargs: Any) -> Any:
    """The module's own code; the doors know its calls of torch.batch_norm."""
    with step.calls.inside(module):
        return forward(*args, **kwargs)


def call_of(module: Layer, input: torch.Tensor) -> Call:
    """The training call that torch's own code would make.

    Raises:
        ValueError: the input has another shape than the layer.
        ConfigurationError: it has a type or device that cannot be used.
    """
    module._check_input_dim(input)
    step, layer = module._cohort_step, module._cohort_layer
    name = step.calls.layer_name(layer)
    if input.shape[1] != module.num_features:
        raise ValueError(f"{name}: got input with {input.shape[1]} channels, want "
                         f"{module.num_features}")
    check_input(name, input)
    # A compiled graph asks when it runs.
    moves = None if _operator.is_compiling() else step.calls.moves_of(layer)
    return Call(layer, step.calls.site, module.eps, input, module.weight,
                module.bias, moves)


def with_relu(module: nn.Module, x: Any) -> torch.Tensor | None:
    """relu(module(x)) in one pass over memory, with the same bits; None where
    that cannot be: then nothing has happened."""
    step = module._cohort_step if isinstance(module, _Cohort) else None
    if (step is None or type(x) is not torch.Tensor or
            not _devices.on_host(x.device) or not _is_direct(module) or
            not step.calls.normalises_by_batch(module)):
        return None
    call = call_of(module, x)
    call.relu = True
    return _operator.normalise(step, call)


def _is_transformed(x: torch.Tensor) -> bool:
    if _passes.are_transforms_active():
        return True
    return forward_ad._current_level >= 0 and (
        _unpack_dual(x).tangent is not None)


def check_input(name: str, x: torch.Tensor) -> None:
    """Raises ConfigurationError unless batch norm can be computed over `x`."""
    if not _operator.is_compiling() and (_passes.is_stand_in(x) or
                                         _passes.is_recorded()):
        raise _errors.ConfigurationError(
            f"{name}: got a training call with a {type(x).__name__} that has no "
            "memory or is being traced (torch.export, make_fx, FakeTensorMode, "
            "wrappers of tensors); call model.eval() first, trace after the run, "
            "or pass plain tensors")
    if not _operator.is_compiling() and _is_transformed(x):
        raise _errors.ConfigurationError(
            f"{name}: batch norm over all workers does not support torch.func's "
            "transforms (vmap, grad, jvp) or forward-mode derivatives; use "
            "torch.autograd.grad, or evaluation mode for these passes")
    if x.dtype not in TYPES:
        raise _errors.ConfigurationError(
            f"{name}: got input of {x.dtype}, want float32, float64, float16 "
            "or bfloat16")
    _devices.check(x.device, f"{name}: got input")


def moves_of(module: Layer, own: bool) -> Moves | None:
    """The moving statistics that a training call moves, as torch's own code
    chooses them; None: none."""
    if not module.track_running_stats or module.running_mean is None:
        return None
    return Moves(module.running_mean, module.running_var,
                 module.num_batches_tracked, module.momentum, own)


def batch_norm_together(layers: Sequence[nn.Module],
                        inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Calls batch norms that do not need each other's output, such as those of a
    residual block's two branches. In a job on the CPU all of them meet the other
    workers at once, so the step waits for the network once instead of once a
    layer; results are those of separate calls.

    Args:
        layers: batch norms.
        inputs: one a layer.

    Returns:
        The outputs, in the same order.
    """
    steps = [layer._cohort_step if isinstance(layer, _Cohort) and
             layer._cohort_step is not None and _is_direct(layer) and
             layer._cohort_step.calls.normalises_by_batch(layer) else None
             for layer in layers]
    step = steps[0] if steps else None
    if (step is None or any(other is not step for other in steps) or
            len(set(map(id, layers))) < len(layers) or
            _operator.is_compiling()):
        return [layer(x) for layer, x in zip(layers, inputs, strict=True)]
    return _operator.together(step, [call_of(layer, x) for layer, x in
                                     zip(layers, inputs, strict=True)])


# Tracers of torch keep the modules of torch's own as they are, by their module's
# name.

class BatchNorm1d(_Cohort, nn.BatchNorm1d):
    """nn.BatchNorm1d over the batches of all workers.

    Input [n, channels] or [n, channels, length]; outside of a job, and in eval
    mode, it is nn.BatchNorm1d.
    """
    _cohort_plain = nn.BatchNorm1d
    __module__ = nn.BatchNorm1d.__module__


class BatchNorm2d(_Cohort, nn.BatchNorm2d):
    """nn.BatchNorm2d over the batches of all workers: [n, channels, h, w]."""
    _cohort_plain = nn.BatchNorm2d
    __module__ = nn.BatchNorm2d.__module__


class BatchNorm3d(_Cohort, nn.BatchNorm3d):
    """nn.BatchNorm3d over the batches of all workers: [n, channels, d, h, w]."""
    _cohort_plain = nn.BatchNorm3d
    __module__ = nn.BatchNorm3d.__module__


class BatchNorm(_Cohort, _TorchBatchNorm):
    """In place of nn.SyncBatchNorm, for 2 to 5 dimensions."""
    _cohort_plain = nn.SyncBatchNorm
    __module__ = nn.SyncBatchNorm.__module__

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if not 2 <= input.dim() <= 5:
            raise ValueError(f"got input with {input.dim()} dimensions, want 2 "
                             "to 5")


@functools.cache
def converted(ours: type[Converted], plain: type[nn.Module]) -> type[nn.Module]:
    """The class of modules of the class `plain` that are converted to `ours`."""
    for known in (BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNorm):
        if known._cohort_plain is plain:
            return known
    return type(plain.__name__, (ours, plain),
                {"_cohort_plain": plain, "__module__": plain.__module__,
                 "__doc__": plain.__doc__})


def is_batch_norm(module: nn.Module) -> bool:
    """Whether the module keeps moving statistics as batch norm does: a batch
    norm of torch's, a subclass, or a module of the same buffers."""
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return False
    if isinstance(module, _TorchNorm):
        return True
    mean, variance = (module._buffers.get(name)
                      for name in ("running_mean", "running_var"))
    return (mean is not None and variance is not None and mean.dim() == 1 and
            mean.shape == variance.shape)


def convert_batch_norm(model: nn.Module) -> nn.Module:
    """Turns every batch norm of `model` into the cohort's, in place.

    Modules keep their identity, parameters, buffers, hooks and names in the
    state dict, so references to them stay valid. Subclasses keep their code.
    `cohort.join` does this; call it yourself only to look at the result.

    Args:
        model: any module; SyncBatchNorm is converted too.

    Returns:
        `model`.

    Raises:
        ConfigurationError: a lazy batch norm, or one in a scripted or traced
            module, whose code cannot be followed; the text names the module.
    """
    _check_scripted(model)
    for name, module in model.named_modules():
        if isinstance(module, (_Cohort, _ScriptModule)) or (
                not is_batch_norm(module)):
            continue
        if isinstance(module, nn.modules.lazy.LazyModuleMixin):
            raise _errors.ConfigurationError(
                f"{name}: got a {type(module).__name__}, which has no shape yet; "
                "run the model once before cohort.join()")
        plain: Any = type(module)
        module.__class__ = converted(_Cohort, plain)
    return model


def attach(layers: Sequence[tuple[str, Layer]], step: Any) -> None:
    """Calls of these layers are those of `step` from now on."""
    for number, (_, layer) in enumerate(layers):
        layer._cohort_step, layer._cohort_layer = step, number


def is_attached(layer: Layer) -> bool:
    """Whether the layer belongs to the step of a job."""
    return layer._cohort_step is not None


def number_of(layer: Layer) -> int:
    """The layer's number in the registered model."""
    return int(layer._cohort_layer)


def restore(layer: Layer) -> None:
    """Gives a converted module its class back."""
    for name in ("_cohort_step", "_cohort_layer"):
        layer.__dict__.pop(name, None)
    # SyncBatchNorm refuses the CPU.
    if not issubclass(layer._cohort_plain, nn.SyncBatchNorm):
        layer.__class__ = layer._cohort_plain


def _check_scripted(model: nn.Module) -> None:
    scripted = [(name, module) for name, module in model.named_modules()
                if isinstance(module, _ScriptModule)]
    found = [name for name, module in scripted if _has_batch_norm(module)]
    if not found:
        return
    # The layer itself, where a module around it is scripted, too.
    name = max(found, key=len) or "the model"
    raise _errors.ConfigurationError(
        f"{name}: got a scripted or traced module with batch norm, which would "
        "normalise each worker's batch by itself; join and train the model without "
        "torch.jit.script() or trace(), and export a copy after the run: "
        "torch.jit.script(copy.deepcopy(model))")


def _has_batch_norm(module: Any) -> bool:
    try:
        return "batch_norm" in str(module.inlined_graph)
    except (AttributeError, RuntimeError):  # it has no forward
        return False


def layers_of(model: nn.Module) -> list[tuple[str, Layer]]:
    """The batch-norm layers in module order, each once, under its first name; a
    model that is one layer is named after its class."""
    return [(name or type(module).__name__, module)
            for name, module in model.named_modules()
            if isinstance(module, _Cohort)]


def check_layers(layers: Sequence[tuple[str, Layer]]) -> None:
    """Raises ConfigurationError for moving statistics that cannot be kept."""
    owners: dict[int, str] = {}
    for name, layer in layers:
        for buffer in (layer.running_mean, layer.running_var):
            if buffer is None:
                continue
            if buffer.dtype != torch.float32 or not buffer.is_contiguous():
                raise _errors.ConfigurationError(
                    f"{name}: got moving statistics of {buffer.dtype}, want "
                    "contiguous torch.float32")
            owner = owners.setdefault(buffer.data_ptr(), name)
            if owner != name and buffer.numel():
                raise _errors.ConfigurationError(
                    f"{name}: shares its moving statistics with {owner}, which "
                    "would count each call of either twice; share the module, or "
                    "give each its own buffers")


def channels_of(module: Layer) -> int:
    """The number of channels of a layer."""
    mean = module.running_mean
    return int(module.num_features if mean is None else len(mean))


def spec_of(name: str, module: Layer) -> "_core.BatchNormSpec":
    """A layer as it is registered."""
    spec = _core.BatchNormSpec()
    spec.name = name
    spec.channels = channels_of(module)
    spec.epsilon = float(getattr(module, "eps", 1e-5))
    momentum = getattr(module, "momentum", 0.1)
    spec.momentum = None if momentum is None else float(momentum)
    spec.affine = getattr(module, "weight", None) is not None
    spec.track_statistics = module.running_mean is not None
    return spec


def statistics_of(module: Layer) -> "_core.LayerStatistics":
    """The moving statistics that a module holds; mean 0 and variance 1 if it
    keeps none."""
    statistics = _core.LayerStatistics()
    if module.running_mean is None or module.running_var is None:
        statistics.mean = [0.0] * module.num_features
        statistics.variance = [1.0] * module.num_features
        return statistics
    statistics.mean = module.running_mean.double().tolist()
    statistics.variance = module.running_var.double().tolist()
    tracked = getattr(module, "num_batches_tracked", None)
    if tracked is not None:
        statistics.num_batches_tracked = int(tracked)
    return statistics
