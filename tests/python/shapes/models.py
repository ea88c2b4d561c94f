"""What rows need of different versions of torch."""

from collections.abc import Mapping

import torch
from torch import nn


def apply_with(model: nn.Module, values: Mapping[str, torch.Tensor],
               x: torch.Tensor) -> torch.Tensor:
    """functional_call, which has moved."""
    if hasattr(torch, "func"):
        return torch.func.functional_call(model, dict(values), (x,))
    return torch.nn.utils.stateless.functional_call(model, dict(values), (x,))
