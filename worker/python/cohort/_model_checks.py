"""Models that train otherwise on several workers than in one process, found when
they join."""

import torch
from torch import nn

from cohort import _devices, _errors

# The storage of a tensor, by its device and address.
_Place = tuple[torch.device, int]


def check_model(model: nn.Module) -> None:
    """Raises ConfigurationError for parameters that share memory, and for layers
    whose gradient or weights depend on this worker's batch alone."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            _check_embedding(name or "model", module)
    _check_storages(model)


def _check_embedding(name: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
    kind = type(module).__name__
    if module.scale_grad_by_freq:
        raise _errors.ConfigurationError(
            f"{name}: got {kind}(scale_grad_by_freq=True), which divides gradients "
            "by how often an entry occurs in this worker's batch, not in the "
            "batches of all workers; leave it out")
    if module.max_norm is not None:
        raise _errors.ConfigurationError(
            f"{name}: got {kind}(max_norm={module.max_norm}), which changes "
            "weights in the forward pass, but the server holds them; leave it out, "
            "and limit the vectors that it returns: v * (max_norm / v.norm(dim=-1, "
            "keepdim=True)).clamp(max=1)")


def _check_storages(model: nn.Module) -> None:
    """Refuses two parameters with elements in common. Views of one flat buffer
    that do not overlap may share it."""
    sharing: dict[_Place, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        place = _place_of(parameter)
        if place is not None:
            sharing.setdefault(place, []).append((name, parameter))
    for parameters in sharing.values():
        if len(parameters) < 2:
            continue
        # By their first element, those that may overlap are neighbours.
        found = _overlap(sorted(parameters, key=lambda item: _range_of(item[1])))
        if found is not None:
            first, second = found
            raise _errors.ConfigurationError(
                f"{second}: shares memory with {first}, but the server would hold "
                "and train two separate weights; tie them by assigning the "
                "parameter itself (decoder.weight = encoder.weight) in place of "
                "its .data, or separate them with .data = .data.clone()")


def _place_of(parameter: nn.Parameter) -> _Place | None:
    """None: it has no memory yet, or memory of another kind."""
    if (isinstance(parameter, nn.parameter.UninitializedParameter) or
            parameter.layout != torch.strided or not parameter.numel()):
        return None
    address = _devices.storage_of(parameter)
    return (parameter.device, address) if address else None


def _range_of(parameter: nn.Parameter) -> tuple[int, int]:
    """The places of the first and the last element in the storage."""
    first = parameter.storage_offset()
    return first, first + sum((extent - 1) * stride for extent, stride in
                              zip(parameter.shape, parameter.stride()))


def _overlap(parameters: list[tuple[str, nn.Parameter]]
             ) -> tuple[str, str] | None:
    """Two parameters with a common element, of several in one storage that are
    sorted by their range."""
    for number, (name, parameter) in enumerate(parameters):
        _, last = _range_of(parameter)
        for other, candidate in parameters[number + 1:]:
            if _range_of(candidate)[0] > last:
                break
            if _have_common_elements(parameter, candidate):
                return name, other
    return None


def _have_common_elements(one: nn.Parameter, other: nn.Parameter) -> bool:
    """Whether there are some, where the ranges overlap. Columns of a matrix lie
    between each other, and have none."""
    if one.is_contiguous() and other.is_contiguous():
        return True
    taken = torch.zeros(max(_range_of(one)[1], _range_of(other)[1]) + 1,
                        dtype=torch.bool)
    _view_as(taken, one).fill_(True)
    return bool(_view_as(taken, other).any())


def _view_as(storage: torch.Tensor, like: nn.Parameter) -> torch.Tensor:
    view: torch.Tensor = storage.as_strided(like.shape, like.stride(),
                                            like.storage_offset())
    return view
