"""A batch norm and a ReLU that follow each other in an nn.Sequential take one
pass over memory instead of two, forward and backward, with the same bits."""

from typing import Any

import torch
from torch import nn

from cohort import _batch_norm, _operator

# In a Sequential nothing else sees the batch norm's output. In other modules
# only a trace of their code would tell, which holds for one path through it.
_forward: Any = nn.Sequential.forward
_iter: Any = nn.Sequential.__iter__
_relu_forward: Any = nn.ReLU.forward

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks",
          "_backward_pre_hooks")


def _has_hooks(module: Any) -> bool:
    return any(getattr(module, name, None) for name in _HOOKS)


def _is_watched(module: nn.Module) -> bool:
    """Whether the script sees calls of the module, or has replaced its code."""
    return _has_hooks(module) or "forward" in vars(module)


def _is_relu(module: nn.Module) -> bool:
    return (type(module) is nn.ReLU and nn.ReLU.forward is _relu_forward and
            not _is_watched(module))


def _are_calls_watched() -> bool:
    """Whether the script sees the calls of all modules."""
    return any(getattr(torch.nn.modules.module, f"_global{name}", None)
               for name in _HOOKS)


class _Sequence(_batch_norm.Converted):
    """The base of converted nn.Sequentials. Which modules go together is decided
    at each call, as a script may change them at any time."""

    def forward(self, input: Any) -> Any:
        if _operator.is_compiling() or _are_calls_watched():
            return super().forward(input)
        modules = list(self._modules.values())
        done = False
        for module, following in zip(modules, [*modules[1:], None]):
            if done:  # with the batch norm before
                done = False
                continue
            assert module is not None
            if (following is not None and _is_relu(following) and
                    not _is_watched(module)):
                output = _batch_norm.with_relu(module, input)
                if output is not None:
                    input, done = output, True
                    continue
            input = module(input)
        return input


def _has_pair(module: nn.Sequential) -> bool:
    parts = list(module)
    return any(isinstance(norm, _batch_norm.Converted) and type(relu) is nn.ReLU
               for norm, relu in zip(parts, parts[1:]))


def convert(model: nn.Module) -> list[nn.Module]:
    """Converts, in place, each nn.Sequential of the model in which a ReLU follows
    a converted batch norm, and returns them."""
    found: list[nn.Module] = []
    for module in model.modules():
        plain: Any = type(module)
        if isinstance(module, _Sequence):  # by a join that failed
            found.append(module)
        elif (isinstance(module, nn.Sequential) and plain.forward is _forward and
              plain.__iter__ is _iter and _has_pair(module)):
            made: Any = _batch_norm.converted(_Sequence, plain)
            module.__class__ = made
            found.append(module)
    return found


def restore(modules: list[nn.Module]) -> None:
    """Gives converted modules their class back."""
    for module in modules:
        plain: Any = getattr(module, "_cohort_plain", None)
        if plain is not None:
            module.__class__ = plain
