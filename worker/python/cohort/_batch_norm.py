"""Batch norm over the whole cohort: torch's modules, with the moments of all
workers in training mode."""

import copyreg
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import nn

from cohort import _core, _devices, _errors, _operator
from cohort._passes import TYPES, Call, Step


class _CohortBatchNorm(nn.modules.batchnorm._BatchNorm):
    """The common part of the three modules."""

    _cohort_step: Step | None = None
    # The layer's number in the registered model.
    _cohort_layer: int

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if not mode and self._cohort_step is not None:
            self._cohort_step.refresh_statistics()
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy, in memory or in a file, is torch's own module: it takes part in
        # no step, and can be loaded without this package.
        state = {name: value for name, value in vars(self).items()
                 if not name.startswith("_cohort_")}
        plain = _PLAIN[type(self)]
        if plain is nn.SyncBatchNorm:
            state.setdefault("process_group", None)
        # object.__new__(plain), in a form that pickle can write.
        return (copyreg._reconstructor, (plain, object, None),  # type: ignore
                state)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        step = self._cohort_step
        if step is None or not step.normalises_by_batch(self):
            return super().forward(input)
        return _operator.normalise(step, self._call(input))

    def _call(self, x: torch.Tensor) -> Call:
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        name = type(self).__name__
        if x.shape[1] != self.num_features:
            raise ValueError(f"{name}: got input with {x.shape[1]} channels, want "
                             f"{self.num_features}")
        if x.dtype not in TYPES:
            raise _errors.ConfigurationError(
                f"{name}: got input of {x.dtype}, want float32, float64, float16 "
                "or bfloat16")
        _devices.check(x.device, f"{name}: got input")
        return Call(self._cohort_layer, self.eps, x, self.weight, self.bias)


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
    steps = [layer._cohort_step if isinstance(layer, _CohortBatchNorm) and
             layer._cohort_step is not None and
             layer._cohort_step.normalises_by_batch(layer) else None
             for layer in layers]
    step = steps[0] if steps else None
    if step is None or any(other is not step for other in steps) or (
            _operator.is_compiling()):
        return [layer(x) for layer, x in zip(layers, inputs, strict=True)]
    return _operator.together(step, [layer._call(x) for layer, x in
                                     zip(layers, inputs, strict=True)])


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
_PLAIN = {ours: torchs for torchs, ours in _CONVERTED.items()}


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
