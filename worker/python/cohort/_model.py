"""The model of a job: its parameters and batch-norm layers as they are
registered, and checks that nothing changes them behind the server's back."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from cohort import (_batch_norm, _core, _devices, _errors, _kept,
                    _sequences, _statistics)
from cohort._graphs import has_indices, inputs_of, leaves_of, nodes_of
from cohort._optimizer import OptimizerPlan, Optimizers, place_of


class RegisteredModel:
    """A model whose weights the server holds.

    Args:
        model: its batch norm is converted in place.
        keep: see `cohort.join`.

    Raises:
        ConfigurationError: a parameter or layer that cannot be exchanged; the
            text names it.
    """

    def __init__(self, model: nn.Module, keep: _kept.Keep = ()) -> None:
        self.module = model
        _batch_norm.convert_batch_norm(model)
        self.sequences = _sequences.convert(model)
        self.layers = _batch_norm.layers_of(model)
        self.statistics = _statistics.MovingStatistics(
            [layer for _, layer in self.layers])
        self.channels = [_batch_norm.channels_of(layer)
                         for _, layer in self.layers]
        # Each parameter once, under its first name; those without elements have
        # nothing to exchange.
        self.names: list[str] = []
        self.parameters: list[nn.Parameter] = []
        # The numbers of those that the optimizers have, and of each.
        self.trained: list[int] = []
        self.trained_by: list[list[int]] = []
        for name, parameter in model.named_parameters():
            self._check(name, parameter)
            if not isinstance(parameter, nn.parameter.UninitializedParameter
                              ) and not parameter.numel():
                continue
            self.names.append(name)
            self.parameters.append(parameter)
        _batch_norm.check_layers(self.layers)
        # The modules, where they keep what they have, and what that was, to see a change.
        self.modules: dict[str, nn.Module] = {}
        # Those that are no batch norm.
        self._others: list[nn.Module] = []
        self._holders: list[dict[str, Any]] = []
        self._held: list[Any] = []
        self._note_structure()
        if not self.parameters:
            raise _errors.ConfigurationError("the model has no parameters")
        # As they are exchanged; made by `memory`.
        self._weights: _devices.HostWeights | None = None
        self._addresses: list[int] = []
        self.kept = _kept.Kept(model, [layer for _, layer in self.layers], keep)
        self._weight_versions: list[int] = []
        self._weight_prints: list[Any] = []

    @staticmethod
    def _check(name: str, parameter: nn.Parameter) -> None:
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise _errors.ConfigurationError(
                f"{name}: a lazy parameter has no shape yet; run the model once "
                "before cohort.join()")
        _devices.check(parameter.device, f"{name}: got a parameter")
        if parameter.dtype != torch.float32:
            way = ("keep its real and imaginary parts: torch.view_as_real()"
                   if parameter.is_complex() else "call model.float(), and compute "
                   "in half precision with torch.autocast")
            raise _errors.ConfigurationError(
                f"{name}: got {parameter.dtype}, want torch.float32; {way}")

    def check_optimizers(self, optimizers: Optimizers) -> None:
        """Notes which parameters the optimizers have: the others are never
        trained, as in torch. Raises ConfigurationError if one has a parameter of
        another model."""
        for position, optimizer in enumerate(optimizers):
            held = {id(parameter) for group in optimizer.param_groups
                    for parameter in group["params"] if parameter.numel()}
            numbers = [number for number, parameter in enumerate(self.parameters)
                       if id(parameter) in held]
            if len(numbers) < len(held):
                raise _errors.ConfigurationError(
                    f"{place_of(optimizers, position)}: got "
                    f"{len(held) - len(numbers)} parameters that are not in the "
                    "model; make it from the model's parameters, and pass as the "
                    "model a module that has all of them, such as "
                    "nn.ModuleList([discriminator, generator])")
            self.trained_by.append(numbers)
        self.trained = sorted(sum(self.trained_by, []))

    def optimizer_name(self, optimizers: Optimizers, position: int) -> str:
        """What errors call an optimizer, with names of its parameters."""
        numbers = self.trained_by[position]
        names = ", ".join(self.names[number] for number in numbers[:2])
        return (f"{place_of(optimizers, position)} ({names}"
                f"{', ...' if len(numbers) > 2 else ''})")

    def name_of_trained(self, parameters: Sequence[torch.Tensor]) -> str | None:
        """That of the first that the optimizers have."""
        known = {id(self.parameters[number]): self.names[number]
                 for number in self.trained}
        return next((known[id(parameter)] for parameter in parameters
                     if id(parameter) in known), None)

    def copy(self) -> dict[str, Any]:
        """The model's state_dict(), which later steps do not change."""
        return {name: value.detach().clone() if isinstance(value, torch.Tensor)
                else value for name, value in self.module.state_dict().items()}

    def specs(self, plan: OptimizerPlan) -> list["_core.ParameterSpec"]:
        """The parameters as they are registered."""
        specs = []
        trained = set(self.trained)
        for number, (name, parameter) in enumerate(
                zip(self.names, self.parameters)):
            spec = plan.rates.get(id(parameter), _core.ParameterSpec())
            spec.name = name
            spec.shape = list(parameter.shape)
            # It may be frozen and unfrozen at any step.
            spec.trainable = number in trained
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

    def initial_statistics(self) -> list["_core.LayerStatistics"]:
        """The moving statistics that the model holds."""
        return [_batch_norm.statistics_of(layer) for _, layer in self.layers]

    def is_of_parameters(self, x: torch.Tensor) -> bool:
        """Whether a tensor is computed from the model's parameters alone: a view
        of one, or all that its history leads to."""
        if _devices.storage_of(x) in map(_devices.storage_of, self.parameters):
            return True
        known = {id(parameter) for parameter in self.parameters}
        nodes = nodes_of([x])
        # An operand without history may be samples.
        if any(None in inputs_of(node) for node in nodes):
            return False
        # Neither may what chooses entries of a parameter.
        if any(map(has_indices, nodes)):
            return False
        leaves = leaves_of(x)
        return bool(leaves) and all(id(leaf) in known for leaf in leaves)

    # ---- checks

    def await_weights(self) -> None:
        """Called before the network may write weights."""
        assert self._weights is not None
        self._weights.wait()

    def take_weights(self) -> None:
        """The network has written weights; they are the model's now."""
        assert self._weights is not None
        self._weights.upload(range(len(self.parameters)))
        self.note_weights()

    def note_weights(self) -> None:
        """The weights are as they should be now."""
        self._weight_versions = [parameter._version
                                 for parameter in self.parameters]
        self._weight_prints = [_devices.fingerprint(parameter)
                               for parameter in self.parameters]

    def take_update(self, numbers: Sequence[int]) -> None:
        """The network has written weights, of which these have changed: a graph
        that has used the old ones is refused by autograd, as after
        optimizer.step()."""
        assert self._weights is not None
        self._weights.upload(numbers)
        for number in numbers:
            parameter = self.parameters[number]
            # A change of nothing, in place.
            parameter.detach().unsqueeze(0).narrow(0, 0, 0).zero_()
            self._weight_versions[number] = parameter._version
            self._weight_prints[number] = _devices.fingerprint(parameter)

    def modes(self) -> str:
        """A letter for each parameter and module: "f" of one that is frozen, "e" of one
        in evaluation mode. A batch norm in that mode does not meet."""
        return "".join([*("t" if parameter.requires_grad else "f"
                          for parameter in self.parameters),
                        *("t" if module.training else "e" for module in self._others)])

    def _note_structure(self) -> None:
        self.modules = dict(self.module.named_modules())
        layers = {id(layer) for _, layer in self.layers}
        self._others = [module for module in self.modules.values() if id(module) not in layers]
        self._holders = [holder for module in self.modules.values()
                         for holder in (module._parameters, module._modules)]
        self._held = [value for holder in self._holders
                      for value in holder.values()]

    def _check_structure(self) -> None:
        """Raises UsageError if the model computes with other parameters or batch
        norms than the server has. What it no longer has gets no gradients, as in
        torch."""
        held = [value for holder in self._holders for value in holder.values()]
        if len(held) == len(self._held) and all(
                map(operator.is_, held, self._held)):
            return
        known = set(map(id, self._held))
        for name, parameter in self.module.named_parameters():
            if id(parameter) not in known and (
                    parameter.requires_grad or name in self.names):
                raise _errors.UsageError(
                    f"{name}: a parameter that was not in the model when the run was "
                    "joined, so the server does not have it; give the model all its "
                    "layers before the optimizer is made and cohort.join() is called")
        modules = dict(self.module.named_modules())
        for name, layer in self.layers:
            now = modules.get(name, layer)
            if now is not layer and _batch_norm.is_batch_norm(now):
                raise _errors.UsageError(
                    f"{name}: got a {type(now).__name__} in place of the batch norm "
                    "that was there when the run was joined; keep that one, which "
                    "is over the samples of all workers, or change the model before "
                    "cohort.join()")
        self._note_structure()

    def check_weights(self, content: bool) -> None:
        """Raises UsageError if a weight was changed by hand since then, or the
        model has others.

        Args:
            content: compares the values of all, as changes by `.data` and NumPy
                leave no trace. Otherwise of those that torch has seen written: what
                was put in for a score may be out again.
        """
        self._check_structure()
        for name, parameter, address in zip(self.names, self.parameters,
                                            self._addresses):
            if parameter.data_ptr() != address:
                raise _errors.UsageError(
                    f"{name}: the parameter was moved, its .data was assigned, or "
                    "its layout in memory was changed, after the run was joined; "
                    "call model.to() before job.data() is iterated, and keep a "
                    "momentum encoder out of the model, in "
                    "cohort.join(keep=[encoder])")
        self.check_values(content)

    def check_values(self, content: bool = True) -> None:
        """The same, of the weights that are where they were: called before the
        network writes there for the last time, too, after which a model may be
        exported."""
        for name, parameter, version, printed, address in zip(
                self.names, self.parameters, self._weight_versions,
                self._weight_prints, self._addresses):
            if parameter.data_ptr() != address:
                continue
            if (content or parameter._version != version) and not _devices.same(
                    printed, _devices.fingerprint(parameter)):
                raise _errors.UsageError(
                    f"{name}: its values were changed in this process (by hand, by "
                    "another optimizer, or by a module that writes its weight), "
                    "but the server holds the weights and would overwrite them. "
                    "Change weights before cohort.join(); use the server's "
                    "--freeze, --clip_norm and --weight_decay. In place of clamping "
                    "the weights of a critic, add a gradient penalty to its loss, "
                    "or bound them where they are used, with "
                    "nn.utils.parametrize. Take out what was put in for a score "
                    "before the next batch, job.load() and job.state_dict(). Keep a "
                    "momentum encoder out of the model, in "
                    "cohort.join(keep=[encoder])")


def accumulator_of(parameter: nn.Parameter) -> object:
    """Autograd's node that adds to a parameter's gradient."""
    with torch.enable_grad():
        view = parameter.expand_as(parameter)
    assert view.grad_fn is not None
    return view.grad_fn.next_functions[0][0]
