"""Where a run looks into torch: batch norms that are called by hand, passes of
autograd that the script starts, batches that it reads beside the run's, and optimizers
that it makes.

While a process has a job, torch.batch_norm, through which all of torch's own
code goes, autograd's engine, Optimizer.add_param_group and a few methods are
replaced; after it they are torch's again.
"""

import contextlib
import functools
import itertools
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cohort import (_batch_norm, _errors, _graph_check, _operator, _passes,
                    _scaler)
from cohort._passes import Call, Moves, torch_batch_norm

if TYPE_CHECKING:
    from cohort._step import Step

_functional: Any = nn.functional
_jit_builtins: Any = torch.jit._builtins
_variable: Any = torch.autograd.Variable

# The step of this process's job.
_step: "weakref.ref[Step] | None" = None
_torch_verify_batch_size = _functional._verify_batch_size
_torch_engine = _variable._execution_engine
_optimizer: Any = torch.optim.Optimizer
_torch_add_param_group = _optimizer.add_param_group
# Releases before 2.0 do not export it.
_set_multithreading: Any = getattr(torch.autograd, "set_multithreading_enabled",
                                   contextlib.nullcontext)
# Operators below torch.batch_norm, where they are found.
_aten: Any = torch.ops.aten  # type: ignore[attr-defined]
# Those that always train.
_TRAINING_ONLY = ("_batch_norm_with_update", "_batch_norm_with_update_functional")
_OPERATORS = ("native_batch_norm", "_native_batch_norm_legit",
              "_native_batch_norm_legit_functional", "_batch_norm_impl_index",
              "cudnn_batch_norm", "miopen_batch_norm", *_TRAINING_ONLY)
_loader_iterator: Any = torch.utils.data.dataloader._BaseDataLoaderIter
_torch_next = _loader_iterator.__next__
_saved_hooks: Any = torch.autograd.graph.saved_tensors_hooks
_torch_enter_saved_hooks = _saved_hooks.__enter__
# What is replaced: where, its name, and what was there.
_replaced: list[tuple[Any, str, Any]] = []
# `with cohort.local()`: how many.
_local = 0


def _active() -> "Step | None":
    step = _step() if _step is not None else None
    return step if step is not None and step.is_served() else None


@contextlib.contextmanager
def local() -> Iterator[None]:
    """Batch norms called in here, other than the model's own layers, normalise
    by this worker's batch alone, whatever that does to the result."""
    global _local
    _local += 1
    try:
        yield
    finally:
        _local -= 1


def check_not_local(name: str) -> None:
    """Raises UsageError for a layer of the model within `local`."""
    if _local:
        raise _errors.UsageError(
            f"{name}: a layer of the model within cohort.local(); its statistics "
            "are the cohort's, so call it outside")


# ---- batch norm

def _batch_norm_door(input: torch.Tensor, weight: torch.Tensor | None,
                     bias: torch.Tensor | None,
                     running_mean: torch.Tensor | None,
                     running_var: torch.Tensor | None, training: bool,
                     momentum: float, eps: float, cudnn_enabled: bool
                     ) -> torch.Tensor:
    """Replaces torch.batch_norm."""
    step = _active()
    if step is not None and (_is_traced() or _passes.is_stand_in(input)):
        if training and step.trains() and not _local:
            raise _errors.UsageError(
                f"{caller()}: F.batch_norm within a graph of torch.compile or "
                "torch.export would normalise by this worker's batch alone; call "
                "it outside, or use a batch-norm module of the model")
    elif step is not None:
        served = _served(step, input, weight, bias, running_mean, running_var,
                         training, momentum, eps)
        if served is not None:
            return served
        if training:
            _torch_verify_batch_size(input.size())
    output = torch_batch_norm(input, weight, bias, running_mean, running_var,
                              training, momentum, eps, cudnn_enabled)
    if (step is not None and training and not _is_traced() and
            not _passes.is_stand_in(output)):
        _graph_check.accept(output)
    return output


# torch.jit.script takes it for the operator.
_jit_builtins._register_builtin(_batch_norm_door, "aten::batch_norm")


def _verify_door(size: list[int]) -> None:
    """Replaces torch's check for more than one value a channel: here the values
    of all workers count, and the server checks them."""
    # The compiler of torch.jit.script reads this branch alone.
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        _torch_verify_batch_size(size)
    elif _active() is None:
        _torch_verify_batch_size(size)


def _served(step: "Step", x: torch.Tensor, weight: torch.Tensor | None,
            bias: torch.Tensor | None, mean: torch.Tensor | None,
            variance: torch.Tensor | None, training: bool, momentum: float,
            epsilon: float) -> torch.Tensor | None:
    """The result, if the cohort normalises; None: torch does."""
    module = step.calls.current_module()
    layer = (step.model.statistics.layer_of(mean) if module is None else
             _batch_norm.number_of(module))
    # Code of a layer may normalise something else, such as an image at a time.
    if layer is None or x.shape[1] != step.model.channels[layer]:
        return _served_unregistered(step, x, weight, bias, mean, variance,
                                    training, momentum, epsilon)
    own = step.model.statistics.owns(layer, mean)
    if not step.calls.normalises(training=training):
        if not training and own:
            step.calls.note_read(layer)
        return None
    # Without moving statistics torch normalises by the batch in eval mode, too.
    # A pass without gradients is an evaluation, which never meets.
    if (module is not None and not module.training and mean is None and
            not step.calls.scores_by_batch() and
            not (step.trains() and torch.is_grad_enabled())):
        return None
    name = step.calls.layer_name(layer)
    check_not_local(name)
    step.calls.check_training_call(name)
    _batch_norm.check_input(name, x)
    moves = None
    if mean is not None and variance is not None:
        if not own:
            step.calls.check_foreign(f"{name} with other statistics", (mean, variance))
        tracked = step.calls.uncount(layer) if own else None
        given: float | None = float(momentum)
        if module is not None and getattr(module, "momentum", given) is None:
            given = None  # cumulative
        moves = Moves(mean, variance, tracked, given, own)
    return _operator.normalise(
        step, Call(layer, step.calls.site, float(epsilon), x, weight, bias, moves))


def _served_unregistered(
        step: "Step", x: torch.Tensor, weight: torch.Tensor | None,
        bias: torch.Tensor | None, mean: torch.Tensor | None,
        variance: torch.Tensor | None, training: bool, momentum: float,
        epsilon: float) -> torch.Tensor | None:
    """The same for a call of no registered layer."""
    if not training or _local or not step.calls.are_watched():
        return None
    where = caller()
    if mean is None or variance is None:
        if not step.trains() or step.model.is_of_parameters(x):
            return None
        raise _errors.UsageError(
            f"{where}: F.batch_norm without moving statistics would normalise by "
            "this worker's batch alone; use a batch-norm module of the model, one "
            "with moving statistics elsewhere (also in a teacher), or `with "
            "cohort.local():` if that is intended")
    step.calls.check_training_call(where)
    owner = _owner_of(mean)
    if owner is None and not step.beside.lasts(mean):
        raise _errors.UsageError(
            f"{where}: F.batch_norm with buffers that belong to no module would "
            "normalise by this worker's batch alone; use a batch-norm module, or "
            "`with cohort.local():` if that is intended")
    name = f"{type(owner).__name__} at {where}" if owner is not None else where
    _batch_norm.check_input(name, x)
    step.calls.check_foreign(name, (mean, variance))
    site = f"{name} {x.shape[1]} channels {x.dim()} dimensions"
    return _operator.normalise(
        step, Call(-1, site, float(epsilon), x, weight, bias,
                   Moves(mean, variance, None, float(momentum), False)))


def _is_traced() -> bool:
    """Whether a compiler runs this code with stand-ins for tensors."""
    guards = sys.modules.get("torch._guards")
    context = getattr(guards, "TracingContext", None)
    return context is not None and context.try_get() is not None


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def caller() -> str:
    """The nearest line outside of torch and of this package, without its file's
    folder: the same on all machines."""
    for frame in _frames():
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package in ("torch", "cohort", "contextlib"):
            continue
        owner = frame.f_locals.get("self")
        prefix = f"{type(owner).__name__}." if isinstance(owner, nn.Module) else ""
        return f"{prefix}{frame.f_code.co_name}:{frame.f_lineno}"
    return "?"


def _owner_of(buffer: torch.Tensor) -> nn.Module | None:
    """The module on the stack that has this buffer."""
    for frame in _frames():
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            for module in owner.modules():
                if any(held is buffer for held in module._buffers.values()):
                    return module
    return None


class _Operator:
    """Replaces an operator that torch.batch_norm calls, or one of its overloads.
    Code of torch takes it for the operator, such as compilers in their tables."""

    def __init__(self, name: str, operator: Any) -> None:
        self._name, self._operator = name, operator

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._operator)

    def __eq__(self, other: object) -> bool:
        return bool(self._operator == getattr(other, "_operator", other))

    def __hash__(self) -> int:
        return hash(self._operator)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._operator, name)
        if name not in self._operator_overloads() or _is_of_torch(
                sys._getframe(1)):
            return value
        return _Operator(f"{self._name}.{name}", value)

    def _operator_overloads(self) -> list[str]:
        overloads = getattr(self._operator, "overloads", None)
        return overloads() if callable(overloads) else []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        step = _active()
        if step is None or not self._is_training(args, kwargs):
            return self._operator(*args, **kwargs)
        if step.trains() and not _local:
            raise _errors.UsageError(
                f"{caller()}: {self._name}() would normalise by this worker's "
                "batch alone; call F.batch_norm with a module's buffers, or use "
                "`with cohort.local():` if that is intended")
        outputs = self._operator(*args, **kwargs)
        if not _is_traced():
            _graph_check.accept(outputs[0] if isinstance(outputs, tuple)
                                else outputs)
        return outputs

    def _is_training(self, args: Any, kwargs: Any) -> bool:
        if self._name.partition(".")[0] in _TRAINING_ONLY:
            return True
        # `training` is the first flag of each of them.
        flags = (value for value in args if isinstance(value, bool))
        return bool(kwargs.get("training", next(flags, False)))


def _is_of_torch(frame: FrameType) -> bool:
    """Or below a door, where torch's C++ looks operators up."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in ("torch", "cohort")


# ---- autograd

class _Engine:
    """Replaces autograd's engine."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_torch_engine, name)

    def run_backward(self, tensors: Any, gradients: Any, keep_graph: bool,
                     create_graph: bool, inputs: Any, *args: Any, **kwargs: Any
                     ) -> Any:
        step = _active()
        if step is None:
            return _torch_engine.run_backward(tensors, gradients, keep_graph,
                                              create_graph, inputs, *args,
                                              **kwargs)
        # On a thread of each device, calls of several devices would meet in an
        # order that depends on timing.
        watched = (step.tape.pass_over(tensors, inputs, keep_graph or create_graph,
                                       create_graph)
                   if step.trains() else contextlib.nullcontext())
        with _set_multithreading(False), watched:
            return _torch_engine.run_backward(tensors, gradients, keep_graph,
                                              create_graph, inputs, *args,
                                              **kwargs)


@contextlib.contextmanager
def passes_unseen(leaves: Sequence[torch.Tensor]) -> Iterator[None]:
    """Passes to these leaves in here visit no call of the script's, and call no hook of
    its tensors."""
    door = _variable._execution_engine
    step = _active()
    tensors = [*leaves, *(tensor for hooked in (step.tape.hooked if step else ())
                          if (tensor := hooked()) is not None)]
    hooks = [(found, dict(found)) for tensor in tensors
             if (found := tensor._backward_hooks)]
    kept = [(tensor, tensor.grad) for tensor in tensors if tensor.retains_grad]
    _variable._execution_engine = _torch_engine
    for found, _ in hooks:
        found.clear()
    try:
        with _set_multithreading(False):
            yield
    finally:
        _variable._execution_engine = door
        for found, before in hooks:
            found.update(before)
        for tensor, gradient in kept:
            tensor.grad = gradient


def _hook_door(method: Any) -> Any:
    """Replaces a method by which a tensor gets a hook, which further passes must not
    call."""
    @functools.wraps(method)
    def door(tensor: torch.Tensor, *args: Any) -> Any:
        step = _active()
        if step is not None and tensor.grad_fn is not None:
            step.tape.hooked.append(weakref.ref(tensor))
        return method(tensor, *args)
    return door


def _saved_hooks_door(hooks: Any) -> None:
    """Replaces the method by which values that are kept for derivatives get hooks."""
    step = _active()
    if step is not None:
        step.losses.has_saved_hooks = True
    _torch_enter_saved_hooks(hooks)


# ---- data

def _loader_door(reader: Any) -> Any:
    """Replaces the method by which a DataLoader gives a batch."""
    step = _active()
    if step is not None and step.in_body and torch.is_grad_enabled() and (
            step.model.module.training):
        step.members.check_alone(caller())
    return _torch_next(reader)


# ---- gradient scalers

def _scaler_door(name: str, method: Any) -> Any:
    """Replaces a method of GradScaler: its factor would stay in the gradients, or
    change them after they were sent."""
    @functools.wraps(method)
    def door(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        step = _active()
        if step is not None and scaler.is_enabled() and (
                step.trains() or step.scale is not None and step.scale.is_of(scaler)):
            raise _errors.UsageError(f"GradScaler.{name}(): {_scaler.INSTEAD}")
        return method(scaler, *args, **kwargs)
    return door


def _replace_scaler_methods() -> None:
    kinds = list(_scaler.CLASSES)
    for kind in kinds:  # grows
        kinds += [derived for derived in kind.__subclasses__()
                  if derived not in kinds]
        for name in ("scale", "unscale_", "step", "update"):
            if name in vars(kind):
                _replace(kind, name, _scaler_door(name, vars(kind)[name]))


# ---- optimizers

def _group_door(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """Replaces Optimizer.add_param_group, by which every optimizer is made."""
    _torch_add_param_group(optimizer, group)
    step = _step() if _step is not None else None
    name = step and step.model.name_of_trained(optimizer.param_groups[-1]["params"])
    if name:
        raise _errors.UsageError(
            f"{type(optimizer).__name__}: a new optimizer of {name}, which the run "
            "trains, would never be used: the server applies the one that was passed "
            "to cohort.join() until the run is over, or job.leave(). Change its groups "
            "(group[\"lr\"] = ...) at the beginning of the loop's body; an optimizer "
            "that begins again, such as for a second phase, needs a second run")


# ---- for the time of a run

def _replace(place: Any, name: str, door: Any) -> None:
    _replaced.append((place, name, getattr(place, name)))
    setattr(place, name, door)


def open_doors(step: "Step") -> None:
    """Makes batch norms and passes of this process those of `step`."""
    global _step
    _step = weakref.ref(step)
    for place, name in ((_aten, "batch_norm"), *itertools.product((torch, _aten), _OPERATORS)):
        if hasattr(place, name):
            _replace(place, name, _Operator(name, getattr(place, name)))
    _replace(torch, "batch_norm", _batch_norm_door)
    _replace(_functional, "_verify_batch_size", _verify_door)
    _replace(_variable, "_execution_engine", _Engine())
    _replace(_optimizer, "add_param_group", _group_door)
    for name in ("register_hook", "retain_grad"):
        _replace(torch.Tensor, name, _hook_door(getattr(torch.Tensor, name)))
    _replace(_saved_hooks, "__enter__", _saved_hooks_door)
    _replace(_loader_iterator, "__next__", _loader_door)
    _replace_scaler_methods()


def close_doors(step: "Step") -> None:
    """Restores torch's own code."""
    global _step
    if _step is None or _step() is not step:
        return
    _step = None
    while _replaced:
        setattr(*_replaced.pop())
