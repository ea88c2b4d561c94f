"""Batch norm over the whole cohort: torch's modules, with the moments of all
workers in training mode."""

from typing import Any, Protocol

import torch
from torch import nn

from cohort import _core, _errors

_TYPES = {torch.float32: "float32", torch.float64: "float64",
          torch.float16: "float16", torch.bfloat16: "bfloat16"}


class Step(Protocol):
    """The part of a job that batch norm needs while a step is computed."""

    worker: "_core.Worker"

    def layer_of(self, module: nn.Module) -> int:
        """The layer's number in the registered model."""

    def normalises_by_batch(self, module: nn.Module) -> bool:
        """Whether the call uses batch statistics of the cohort, rather than the
        module's own code."""

    def recomputes(self) -> bool:
        """Whether a forward call now repeats an earlier one (activation
        checkpointing)."""


def _format_of(x: torch.Tensor) -> torch.memory_format:
    """The dense layout in which the kernels read `x`."""
    if x.is_contiguous():
        return torch.contiguous_format
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


def _shape_of(x: torch.Tensor, layout: torch.memory_format) -> list[int]:
    """`x` as [outer, channels, inner], row-major."""
    channels = x.shape[1]
    if layout is torch.contiguous_format:
        inner = 1
        for extent in x.shape[2:]:
            inner *= extent
        return [x.shape[0], channels, inner]
    return [x.numel() // channels, channels, 1]


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class _BatchNormFunction(torch.autograd.Function):
    """Both passes of one call, by the C++ kernels and the rendezvous."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None,
                bias: torch.Tensor | None, step: Step, layer: int,
                epsilon: float) -> torch.Tensor:
        layout = _format_of(x)
        x = x.contiguous(memory_format=layout)
        y = torch.empty_like(x, memory_format=layout)
        affine = weight if weight is not None else bias
        affine_type = _TYPES[affine.dtype] if affine is not None else "float32"
        call = _core.NormCall(
            layer, epsilon, _shape_of(x, layout), _TYPES[x.dtype], x.data_ptr(),
            affine_type, _address(weight), _address(bias), y.data_ptr())
        if step.recomputes():
            ctx.call = step.worker.repeat(call)
        else:
            ctx.call = step.worker.forward([call])[0]
        ctx.save_for_backward(x, weight)
        ctx.step = step
        ctx.layout = layout
        ctx.affine_type = affine_type
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        dy = grads[0].to(x.dtype).contiguous(memory_format=ctx.layout)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x, memory_format=ctx.layout)
        gamma, beta = ctx.step.worker.backward(
            ctx.call, x.data_ptr(), dy.data_ptr(), ctx.affine_type,
            _address(weight), dx is not None, _address(dx))
        dweight = dbias = None
        if ctx.needs_input_grad[1]:
            dweight = torch.tensor(gamma, dtype=torch.float64).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            dbias = torch.tensor(beta, dtype=torch.float64).to(ctx.bias_dtype)
        return dx, dweight, dbias, None, None, None


def _normalise(module: "_CohortBatchNorm", x: torch.Tensor,
               step: Step) -> torch.Tensor:
    output: torch.Tensor = _BatchNormFunction.apply(
        x, module.weight, module.bias, step, step.layer_of(module), module.eps)
    return output


# A compiler must not look into it: calls are numbered as they are made, in the
# order of the model's own code.
if hasattr(torch, "compiler"):
    _normalise = torch.compiler.disable(_normalise)


class _CohortBatchNorm(nn.modules.batchnorm._BatchNorm):
    """What the three modules share."""

    _cohort_step: Step | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        step = self._cohort_step
        if step is None or not step.normalises_by_batch(self):
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        name = type(self).__name__
        if input.shape[1] != self.num_features:
            raise ValueError(f"{name}: got input with {input.shape[1]} channels, "
                             f"want {self.num_features}")
        if input.dtype not in _TYPES:
            raise _errors.ConfigurationError(
                f"{name}: got input of {input.dtype}, want float32, float64, "
                "float16 or bfloat16")
        if input.device.type != "cpu":
            raise _errors.ConfigurationError(
                f"{name}: got input on {input.device}, want the CPU: tensors on "
                "GPUs are not supported yet")
        return _normalise(self, input, step)


class BatchNorm1d(_CohortBatchNorm, nn.BatchNorm1d):
    """nn.BatchNorm1d over the batches of all workers.

    Input [n, channels] or [n, channels, length]; outside of a job, and in eval
    mode, it is nn.BatchNorm1d.
    """


class BatchNorm2d(_CohortBatchNorm, nn.BatchNorm2d):
    """nn.BatchNorm2d over the batches of all workers: [n, channels, h, w]."""


class BatchNorm3d(_CohortBatchNorm, nn.BatchNorm3d):
    """nn.BatchNorm3d over the batches of all workers: [n, channels, d, h, w]."""


class BatchNorm(_CohortBatchNorm):
    """In place of nn.SyncBatchNorm, for 2 to 5 dimensions."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if not 2 <= input.dim() <= 5:
            raise ValueError(f"got input with {input.dim()} dimensions, want 2 "
                             "to 5")


_CONVERTED: dict[type[nn.Module], type[_CohortBatchNorm]] = {
    nn.BatchNorm1d: BatchNorm1d, nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d, nn.SyncBatchNorm: BatchNorm}


def convert_batch_norm(model: nn.Module) -> nn.Module:
    """Turns every batch norm of `model` into the cohort's, in place.

    Modules keep their identity, parameters, buffers, hooks and names in the
    state dict, so references to them stay valid. `cohort.join` does this; call
    it yourself only to look at the result.

    Args:
        model: any module; SyncBatchNorm is converted too.

    Returns:
        `model`.

    Raises:
        ConfigurationError: a subclass of a batch norm, or a lazy one, whose
            code would be bypassed; the text names the module.
    """
    for name, module in model.named_modules():
        if isinstance(module, _CohortBatchNorm):
            continue
        if not isinstance(module, nn.modules.batchnorm._NormBase):
            continue
        if isinstance(module, nn.modules.instancenorm._InstanceNorm):
            continue
        target = _CONVERTED.get(type(module))
        if target is None:
            raise _errors.ConfigurationError(
                f"{name}: got a {type(module).__name__}, want nn.BatchNorm1d, 2d "
                "or 3d, or nn.SyncBatchNorm: run a lazy module once before "
                "joining, and replace a class of your own")
        module.__class__ = target
    return model


def layers_of(model: nn.Module) -> list[tuple[str, _CohortBatchNorm]]:
    """The batch-norm layers in module order, each once, under its first
    name."""
    return [(name, module) for name, module in model.named_modules()
            if isinstance(module, _CohortBatchNorm)]


def spec_of(name: str, module: _CohortBatchNorm) -> "_core.BatchNormSpec":
    """A layer as it is registered."""
    spec = _core.BatchNormSpec()
    spec.name = name
    spec.channels = module.num_features
    spec.epsilon = module.eps
    spec.momentum = module.momentum
    spec.affine = module.affine
    spec.track_statistics = module.track_running_stats
    return spec


def statistics_of(module: _CohortBatchNorm) -> "_core.LayerStatistics":
    """The moving statistics that a module holds; mean 0 and variance 1 if it
    keeps none."""
    statistics = _core.LayerStatistics()
    if module.running_mean is None or module.running_var is None:
        statistics.mean = [0.0] * module.num_features
        statistics.variance = [1.0] * module.num_features
        return statistics
    statistics.mean = module.running_mean.double().tolist()
    statistics.variance = module.running_var.double().tolist()
    if module.num_batches_tracked is not None:
        statistics.num_batches_tracked = int(module.num_batches_tracked)
    return statistics


def load_statistics(module: _CohortBatchNorm,
                    statistics: "_core.LayerStatistics") -> None:
    """Overwrites the module's moving statistics; no-op if it keeps none."""
    if module.running_mean is None or module.running_var is None:
        return
    with torch.no_grad():
        module.running_mean.copy_(torch.tensor(statistics.mean,
                                               dtype=torch.float64))
        module.running_var.copy_(torch.tensor(statistics.variance,
                                              dtype=torch.float64))
        if module.num_batches_tracked is not None:
            module.num_batches_tracked.fill_(statistics.num_batches_tracked)
