"""The model of a job: its parameters and batch-norm layers as they are
registered, and checks that nobody changes them behind the server's back."""

from collections.abc import Sequence

import torch
from torch import nn

from cohort import _batch_norm, _core, _devices, _errors
from cohort._optimizer import OptimizerPlan


class RegisteredModel:
    """A model whose weights the server holds.

    Args:
        model: its batch norm is converted in place.

    Raises:
        ConfigurationError: a parameter or layer that cannot be exchanged; the
            text names it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.module = model
        _batch_norm.convert_batch_norm(model)
        self.layers = _batch_norm.layers_of(model)
        for number, (_, layer) in enumerate(self.layers):
            layer._cohort_layer = number
        # Each parameter once, under its first name.
        self.names: list[str] = []
        self.parameters: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            self._check(name, parameter)
            self.names.append(name)
            self.parameters.append(parameter)
        if not self.parameters:
            raise _errors.ConfigurationError("the model has no parameters")
        # As they are exchanged; made by `memory`.
        self._weights: _devices.HostWeights | None = None
        self._addresses: list[int] = []
        statistics = {id(buffer) for _, layer in self.layers
                      for buffer in layer.buffers()}
        self._other_buffers = [
            (name, buffer) for name, buffer in model.named_buffers()
            if id(buffer) not in statistics]
        self._buffer_versions: list[int] = []
        self._weight_versions: list[int] = []

    @staticmethod
    def _check(name: str, parameter: nn.Parameter) -> None:
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise _errors.ConfigurationError(
                f"{name}: a lazy parameter has no shape yet; run the model once "
                "before cohort.join()")
        _devices.check(parameter.device, f"{name}: got a parameter")
        if parameter.dtype != torch.float32:
            raise _errors.ConfigurationError(
                f"{name}: got {parameter.dtype}, want torch.float32; compute in "
                "half precision with torch.autocast")
        if not parameter.is_contiguous():
            raise _errors.ConfigurationError(
                f"{name}: got strides {parameter.stride()}, want a contiguous "
                "parameter; call model.to(memory_format=torch.contiguous_format)")

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises ConfigurationError unless the optimizer has every trainable
        parameter, and no other."""
        held = {id(parameter) for group in optimizer.param_groups
                for parameter in group["params"]}
        for name, parameter in zip(self.names, self.parameters):
            if parameter.requires_grad and id(parameter) not in held:
                raise _errors.ConfigurationError(
                    f"{name}: the optimizer does not have this parameter; add it "
                    "to a group, or call requires_grad_(False) on it")
            held.discard(id(parameter))
        if held:
            raise _errors.ConfigurationError(
                f"the optimizer has {len(held)} parameters that are not in the "
                "model; make it from the model's parameters")

    def specs(self, plan: OptimizerPlan) -> list["_core.ParameterSpec"]:
        """The parameters as they are registered."""
        specs = []
        for name, parameter in zip(self.names, self.parameters):
            spec = _core.ParameterSpec()
            spec.name = name
            spec.shape = list(parameter.shape)
            spec.trainable = parameter.requires_grad
            rates = plan.rates.get(id(parameter))
            if rates is not None:
                spec.rate_multiplier = rates.rate_multiplier
                spec.decay_multiplier = rates.decay_multiplier
                spec.decay_exempt = rates.decay_exempt
                spec.rate_group = rates.group
            specs.append(spec)
        return specs

    def layer_specs(self) -> list["_core.BatchNormSpec"]:
        """The batch-norm layers as they are registered."""
        return [_batch_norm.spec_of(name, layer) for name, layer in self.layers]

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        where: torch.device = self.parameters[0].device
        return where

    def memory(self) -> list[int]:
        """The address of each parameter's elements in host memory. From now on
        the network reads and writes there."""
        for name, parameter in zip(self.names, self.parameters):
            self._check(name, parameter)
            if parameter.device != self.device:
                raise _errors.ConfigurationError(
                    f"{name}: got a parameter on {parameter.device} and others "
                    f"on {self.device}, want one device; call model.to(device)")
        self._weights = _devices.HostWeights(self.parameters)
        self._addresses = [parameter.data_ptr() for parameter in self.parameters]
        return [host.data_ptr() for host in self._weights.host]

    def statistics(self) -> list["_core.LayerStatistics"]:
        """The moving statistics that the model holds."""
        return [_batch_norm.statistics_of(layer) for _, layer in self.layers]

    def load_statistics(
            self, statistics: Sequence["_core.LayerStatistics"]) -> None:
        """Overwrites the moving statistics."""
        for (_, layer), values in zip(self.layers, statistics):
            _batch_norm.load_statistics(layer, values)

    def clear_gradients(self) -> None:
        """Releases all gradients; the next backward pass makes new ones."""
        for parameter in self.parameters:
            parameter.grad = None

    # ---- checks

    def await_weights(self) -> None:
        """Called before the network may write weights."""
        assert self._weights is not None
        self._weights.wait()

    def take_weights(self) -> None:
        """The network has written weights; they are the model's now."""
        assert self._weights is not None
        self._weights.upload()
        self._weight_versions = [parameter._version
                                 for parameter in self.parameters]

    def check_weights(self) -> None:
        """Raises UsageError if a weight was changed by hand since then."""
        for name, parameter, version, address in zip(
                self.names, self.parameters, self._weight_versions,
                self._addresses):
            if parameter.data_ptr() != address:
                raise _errors.UsageError(
                    f"{name}: the parameter was moved after the run was joined; "
                    "call model.to() before job.data() is iterated, and load "
                    "weights with load_state_dict()")
            if parameter._version != version:
                raise _errors.UsageError(
                    f"{name}: its values were changed by hand, but the server "
                    "holds the weights and would overwrite them; change weights "
                    "before cohort.join(), or use the server's --freeze, "
                    "--clip_norm and --weight_decay")

    def note_buffers(self) -> None:
        """A forward pass begins."""
        self._buffer_versions = [buffer._version
                                 for _, buffer in self._other_buffers]

    def check_buffers(self) -> None:
        """Raises UsageError if the forward pass wrote a buffer that is not a
        batch norm's."""
        for (name, buffer), version in zip(self._other_buffers,
                                           self._buffer_versions):
            if buffer._version != version:
                raise _errors.UsageError(
                    f"{name}: the forward pass writes this buffer, but it is not "
                    "exchanged, so the workers' copies would differ; make it a "
                    "parameter, or compute it without writing")


def accumulator_of(parameter: nn.Parameter) -> object:
    """Autograd's node that adds to a parameter's gradient."""
    with torch.enable_grad():
        view = parameter.expand_as(parameter)
    assert view.grad_fn is not None
    return view.grad_fn.next_functions[0][0]
