"""Tensors of the script that workers have drawn without a seed: plain attributes of the
model's modules, and networks beside the model, such as a frozen one."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from cohort import _core, _devices, _errors, _operator


_ScriptModule: Any = torch.jit.ScriptModule  # type: ignore[attr-defined]


def _is_plain(value: Any) -> bool:
    return (type(value) is torch.Tensor and not value.requires_grad and
            value.layout is torch.strided and not value.is_quantized and
            not value.is_inference() and value.device.type != "meta")


def _digest_of(content: Any) -> float:
    """A number that is not 0."""
    return _devices.number_of(repr(content).encode()) or 1.0


class Unseeded:
    """The tensors of this process when its first body began. Only what that body has
    used counts: attributes that it has not assigned, and modules that it has called."""

    def __init__(self) -> None:
        self._begun = False
        self._known: set[int] = set()
        self._handles: list[Any] = []
        # By attribute, what it was, with its digest.
        self._attributes: list[tuple[str, dict[str, Any], str, torch.Tensor, int]] = []
        # Names and digests of what was used.
        self._used: list[tuple[str, int]] = []
        # The digest of all these; 0: there are none.
        self.number = 0.0

    def begin(self, model: nn.Module, beside: Iterable[nn.Module], known: set[int]
              ) -> None:
        """A body begins, where all workers meet. `known`: the ids of modules and tensors
        that are the model's, or kept."""
        if self._begun:
            return
        self._begun = True
        found = [(f"{prefix}.{name}" if prefix else name, vars(module), name, value)
                 for prefix, module in model.named_modules()
                 for name, value in vars(module).items() if _is_plain(value)]
        self._attributes = [(*one, digest) for one, digest in zip(
            found, _devices.digests([value for *_, value in found]))]
        self._known = known
        self._handles = [module.register_forward_pre_hook(self._note)
                         for module in beside if id(module) not in known and
                         not isinstance(module, _ScriptModule) and
                         self._tensors_of(module)]

    def _tensors_of(self, module: nn.Module) -> list[torch.Tensor]:
        return [tensor for part in (module._parameters, module._buffers)
                for tensor in part.values() if id(tensor) not in self._known and
                tensor is not None and tensor.layout is torch.strided and
                not tensor.is_quantized and not tensor.is_inference() and
                not isinstance(tensor, nn.parameter.UninitializedParameter)]

    def _note(self, module: nn.Module, inputs: Any) -> None:
        """A module beside the model is called."""
        if _operator.is_compiling():
            return
        self._used += [(type(module).__name__, digest) for digest in
                       _devices.digests(self._tensors_of(module))]

    def end(self) -> None:
        """The first body has computed its loss."""
        for handle in self._handles:
            handle.remove()
        self._used += [(name, digest) for name, holder, key, value, digest in
                       self._attributes if holder.get(key) is value]
        if self._handles or self._attributes:
            self.number = _digest_of(self._used) if self._used else 0.0
        self._handles, self._attributes = [], []

    def refuse_difference(self, worker: "_core.Worker") -> None:
        """All members meet here if their numbers differ. Raises ConfigurationError,
        unless they have used other tensors."""
        names = [name for name, _ in self._used]
        _, (spread,), _ = worker.meet("names beside the model", [_digest_of(names)])
        if spread > 0:
            # Such as of a network that rank 0 alone has called.
            self.number = 0.0
            return
        _, spreads, _ = worker.meet("tensors beside the model", [
            float(digest) for _, digest in self._used])
        different = [name for name, one in zip(names, spreads) if one > 0]
        raise _errors.ConfigurationError(
            f"{', '.join(dict.fromkeys(different))}: a tensor that is no parameter or "
            "buffer of the model, and that the training uses, differs between workers, "
            "as if each had drawn its own random numbers; call torch.manual_seed() "
            "with the same number on all workers before it is made, or make it a "
            "buffer of the model")
