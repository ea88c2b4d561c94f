"""Modules of the script beside the model, such as an average of its weights or a
teacher, and other tensors that it trains, whose state the server does not keep."""

import dataclasses
import gc
import importlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from cohort import _devices, _errors

# Its package deletes the name.
_optimizers: Any = importlib.import_module("torch.optim.optimizer")

# They are looked for again before these steps of the process, as a script may
# make them late. Looking takes tens of milliseconds.
_LOOKS = (0, 1, 2)


class ModulesBeside:
    """Notices which of them change in a step. A repeated step would change them
    twice, and a replacement of this process does not have them.

    Args:
        model: its modules and tensors are none of these.
        kept: gives the ids of what the script keeps, which is none of these.
    """

    def __init__(self, model: nn.Module, kept: Callable[[], set[int]]) -> None:
        self._model = model
        self._kept = kept
        self._own = {id(thing) for thing in (*model.modules(),
                                             *model.parameters())}
        self._shapes = {parameter.shape for parameter in model.parameters()}
        # By address: name, tensor, and its state when it was noted.
        self._tensors: dict[int, Watched] = {}
        self._modules: dict[int, "weakref.ref[nn.Module]"] = {}
        # Vectors that the script holds outside of modules.
        self._vectors: dict[int, "weakref.ref[torch.Tensor]"] = {}
        # By address, tensors that optimizers of the script have stepped, and in
        # which step first. Such an optimizer may be made at any time.
        self._trained: dict[int, tuple["weakref.ref[torch.Tensor]", int]] = {}
        # The same of tensors that losses depend on, with their content then.
        self._leaves: dict[int, tuple["weakref.ref[torch.Tensor]", int, Any]] = {}
        self._steps = 0
        # torch has it from 2.0 on.
        register = getattr(_optimizers, "register_optimizer_step_pre_hook", None)
        self._handle = register and register(self._on_optimizer)

    def detach(self) -> None:
        """Optimizers are the script's alone again."""
        if self._handle is not None:
            self._handle.remove()

    def _on_optimizer(self, optimizer: torch.optim.Optimizer, args: Any,
                      kwargs: Any) -> None:
        """An optimizer of the script is about to act. What it changes in one step
        alone, such as a perturbation of samples, is that step's; but not a copy of
        the model."""
        for group in optimizer.param_groups if self._steps else ():
            for tensor in group["params"]:
                if id(tensor) in self._own:
                    continue  # The model's own weights are compared.
                if (isinstance(tensor, nn.Parameter) and
                        id(tensor) not in self._tensors and
                        tensor.shape in self._shapes):
                    raise _errors.UsageError(trained_alone(_name_in(
                        tensor, optimizer)))
                known, step = self._trained.get(id(tensor), (None, 0))
                if known is None or known() is not tensor:
                    self._trained[id(tensor)] = weakref.ref(tensor), self._steps
                elif step < self._steps:
                    raise _errors.UsageError(trained_alone(_name_in(
                        tensor, optimizer)))

    def check_leaves(self, nodes: Iterable[Any], samples: int) -> None:
        """Raises UsageError if a loss depends on a tensor beside the model that the
        script changes from step to step, as if it trained it.

        Args:
            nodes: of the loss's graph.
            samples: in the batch; what has as many rows may be made of them.
        """
        for node in nodes:
            leaf = getattr(node, "variable", None)
            if leaf is None or leaf.shape[:1] == (samples,) or (
                    id(leaf) in self._own or id(leaf) in self._tensors):
                continue
            known, step, content = self._leaves.get(id(leaf), (None, 0, None))
            if known is not None and known() is leaf and step == self._steps:
                continue
            now = _devices.fingerprint(leaf)
            if known is not None and known() is leaf and id(leaf) not in self._kept() and (
                    not _devices.same(content, now)):
                raise _errors.UsageError(
                    f"a {type(leaf).__name__} of shape {tuple(leaf.shape)} that the loss "
                    "depends on has changed since the last step, but is in no optimizer "
                    "of the job, so each worker would train another one; make it an "
                    "nn.Parameter of the model before the optimizer is made, or if no "
                    "samples change it, use its detach() in the loss")
            self._leaves[id(leaf)] = weakref.ref(leaf), self._steps, now

    def known(self) -> set[int]:
        """The ids of modules and tensors that are the model's, or kept."""
        return self._kept() | self._own | set(map(id, self._model.buffers()))

    def _find(self) -> None:
        optimizers = []
        # Another module may register them, too.
        known = self.known()
        for thing in gc.get_objects():
            if type(thing) is torch.Tensor:
                if thing.dim() == 1:
                    self._vectors[id(thing)] = weakref.ref(thing)
            elif _is(thing, torch.optim.Optimizer):
                optimizers.append(thing)
            elif _is(thing, nn.Module) and id(thing) not in self._own:
                self._modules[id(thing)] = weakref.ref(thing)
                if id(thing) in known:
                    continue
                for name, tensor in _state_of(thing):
                    if id(tensor) not in known:
                        self._watch(f"{type(thing).__name__}.{name}", tensor,
                                    (weakref.ref(thing), name))
        # Last, as a module has a better name.
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for tensor in group["params"]:
                    if id(tensor) not in self._own:
                        self._watch(_name_in(tensor, optimizer), tensor)
                        self._tensors[id(tensor)].has_optimizer = True

    def _watch(self, name: str, tensor: torch.Tensor,
               place: "tuple[weakref.ref[nn.Module], str] | None" = None) -> None:
        self._tensors.setdefault(id(tensor), Watched(
            name, weakref.ref(tensor), place))

    def lasts(self, tensor: torch.Tensor) -> bool:
        """Whether a vector was there before the step, as moving statistics in
        the script's own hands are."""
        known = self._vectors.get(id(tensor))
        return known is not None and known() is tensor

    def modules(self) -> Iterator[nn.Module]:
        """The script's, but for the model's, kept ones included."""
        for reference in self._modules.values():
            module = reference()
            if module is not None:
                yield module

    def begin(self) -> None:
        """Called when a step begins."""
        if self._steps in _LOOKS:
            self._find()
        self._steps += 1
        self.note()

    def note(self) -> None:
        """Accepts all changes so far."""
        for watched in self._tensors.values():
            watched.note()

    def changed(self) -> "list[Watched]":
        """Those that have changed since then."""
        return [watched for watched in self._tensors.values()
                if watched.has_changed()]


def _name_in(tensor: torch.Tensor, optimizer: torch.optim.Optimizer) -> str:
    return (f"{type(tensor).__name__} of shape {tuple(tensor.shape)} in a "
            f"{type(optimizer).__name__}")


def trained_alone(name: str) -> str:
    """The text of an error."""
    return (f"{name}: another optimizer of the script trains it with this worker's "
            "gradients only. Make it part of the model and the optimizer that "
            "join, or train it in a separate run")


@dataclasses.dataclass
class Watched:
    """A tensor of a module; not kept alive.

    Attributes:
        place: the module and name under which the script may assign another one;
            None: it is in no module.
        counted: torch counts its changes, so that its values need no look.
        printed: what its values were.
        found: what `has_changed` has found; `note` follows, or another look.
    """
    name: str
    tensor: "weakref.ref[torch.Tensor]"
    place: "tuple[weakref.ref[nn.Module], str] | None" = None
    has_optimizer: bool = False
    counted: bool = False
    noted: tuple[int, ...] | None = None
    noted_gradient: tuple[int, int] | None = None
    printed: Any = None
    found: Any = None

    def note(self) -> None:
        """Accepts all changes so far."""
        self.noted, self.noted_gradient = self._state(), self._gradient()
        self.printed = self._print() if self.found is None else self.found
        self.found = None

    def has_changed(self) -> bool:
        """Whether it has since."""
        state, self.found = self._state(), None
        if state is None or self.noted is None:
            return False
        if state != self.noted:
            # Addresses may be those of a tensor that is gone.
            self.counted |= (state[0] == self.noted[0] and state[1] != self.noted[1])
            return True
        if self.counted:
            return False
        self.found = self._print()
        return not _devices.same(self.printed, self.found)

    def is_trained(self) -> bool:
        """Of one that has changed: whether an optimizer of the script has it, or it
        has a new gradient."""
        return self.has_optimizer or self._gradient() not in (
            None, self.noted_gradient)

    def _now(self) -> torch.Tensor | None:
        if self.place is None:
            return self.tensor()
        module, name = self.place[0](), self.place[1]
        return None if module is None else dict(_state_of(module)).get(name)

    def _gradient(self) -> tuple[int, int] | None:
        """A value that changes with its gradient; None: it has none."""
        tensor = self._now()
        grad = (tensor.grad if tensor is not None and tensor.is_leaf else None)
        return None if grad is None else (grad._version, grad.data_ptr())

    def _state(self) -> tuple[int, ...] | None:
        """A value that changes with each change that torch counts; None: it is
        gone."""
        tensor = self._now()
        return None if tensor is None else (
            id(tensor), tensor._version, tensor.data_ptr())

    def _print(self) -> Any:
        """A value that changes with its bits, if they need a look."""
        tensor = self._now()
        if tensor is None or self.counted or not _has_bits(tensor):
            return ()
        return _devices.fingerprint(tensor)


def _has_bits(tensor: torch.Tensor) -> bool:
    # Subclasses may have no memory, or that of other tensors.
    return type(tensor) in (torch.Tensor, nn.Parameter) and (
        tensor.layout is torch.strided and tensor.device.type in ("cpu", "cuda") and
        not tensor.is_quantized)


def _is(thing: Any, kind: type) -> bool:
    # isinstance() would run code of proxies.
    return issubclass(type(thing), kind)


def _state_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of this module without its children."""
    parts = (getattr(module, "_parameters", {}), getattr(module, "_buffers", {}))
    for part in parts:
        for name, tensor in part.items():
            if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
                yield name, tensor

