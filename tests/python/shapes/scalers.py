"""Gradient scalers on the CPU, for which torch has one from 2.3 on."""

import math
from typing import Any
from unittest import mock

import numpy
import torch

_NEWER: Any = getattr(torch.amp, "GradScaler", None)


def of_a_script(**options: Any) -> Any:
    """As a script makes it; enabled also where torch finds no GPU."""
    if _NEWER is not None:
        return _NEWER("cpu", **options)
    with mock.patch("torch.cuda.amp.grad_scaler.amp_definitely_not_available",
                    lambda: False):
        return torch.cuda.amp.GradScaler(**options)


class _Followed:
    """What torch documents of GradScaler, whose scale is a float32."""

    def __init__(self, init_scale: float = 65536.0, growth_factor: float = 2.0,
                 backoff_factor: float = 0.5, growth_interval: int = 2000) -> None:
        self._scale = init_scale
        self._factors = growth_factor, backoff_factor
        self._interval = growth_interval
        self._good = 0
        self._found = False

    def get_scale(self) -> float:
        return self._scale

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self._scale

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for group in optimizer.param_groups
                     for p in group["params"] if p.grad is not None]
        self._found = not all(math.isfinite(float(g.abs().max()))
                              for g in gradients)
        for gradient in gradients:
            gradient /= self._scale
        if not self._found:
            optimizer.step()

    def update(self) -> None:
        self._good = 0 if self._found else self._good + 1
        grow, back_off = self._factors
        with numpy.errstate(over="ignore"):
            if self._found:
                self._scale = float(numpy.float32(self._scale * back_off))
            elif self._good == self._interval:
                grown = float(numpy.float32(self._scale * grow))
                self._scale = self._scale if math.isinf(grown) else grown
                self._good = 0


def single_process(**options: Any) -> Any:
    """That of one process: torch's own, where it runs."""
    return (of_a_script(**options)
            if _NEWER is not None or not options.get("enabled", True)
            else _Followed(**options))


class NarrowBackward(torch.autograd.Function):
    """The range of float16 in the backward pass, without its rounding."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (gradient,) = gradients
        return gradient.masked_fill(gradient.abs() > 65504, math.inf)
