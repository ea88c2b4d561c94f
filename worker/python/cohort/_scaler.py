"""The scale of float16 gradients: one for all workers, kept with the version."""

import math
from typing import Any

import torch

from cohort import _errors

# The classes that scripts make, and derive theirs from.
CLASSES: tuple[Any, ...] = tuple(
    kind for kind in (getattr(torch.cuda.amp, "GradScaler", None),
                      getattr(getattr(torch, "amp", None), "GradScaler", None))
    if kind is not None)

INSTEAD = ("pass the scaler to cohort.join(scaler=...); then job.backward(loss) "
           "scales the loss and unscales the gradients, and job.step() does what "
           "scaler.step(optimizer) and scaler.update() do: remove these calls, "
           "scaler.scale() and scaler.unscale_(). Or use bfloat16, without a scaler")


class LossScale:
    """The state of a script's GradScaler, which moves by torch's rule.

    Args:
        scaler: is enabled; the script reads it as before.
    """

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler

    def is_of(self, scaler: Any) -> bool:
        """Whether this is the scaler that was passed."""
        return scaler is self._scaler

    @property
    def value(self) -> float:
        """The present scale."""
        return float(self._scaler.get_scale())

    def update(self, overflow: bool) -> None:
        """Moves the scale after a step, as GradScaler.update() does.

        Args:
            overflow: a gradient of some worker was not finite.

        Raises:
            ConfigurationError: no scale is small enough.
        """
        state = self.save()
        scale, steps = state["scale"], state["_growth_tracker"] + 1
        if overflow:
            scale, steps = _rounded(scale * state["backoff_factor"]), 0
        elif steps == state["growth_interval"]:
            grown = _rounded(scale * state["growth_factor"])
            scale, steps = grown if math.isfinite(grown) else scale, 0
        if scale == 0:
            raise _errors.ConfigurationError(
                "GradScaler: gradients were not finite at any scale down to 0; "
                "look for NaN or infinity in the loss, the samples or the weights")
        self.load(state | {"scale": scale, "_growth_tracker": steps})

    def save(self) -> dict[str, Any]:
        """The state, of numbers."""
        state: dict[str, Any] = self._scaler.state_dict()
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Goes to a state of `save`."""
        self._scaler.load_state_dict(state)


def loss_scale_of(scaler: Any) -> LossScale | None:
    """Of what a script passes to cohort.join; None: gradients are not scaled.

    Raises:
        ConfigurationError: it is no GradScaler, or has another rule.
    """
    if scaler is None:
        return None
    kind = type(scaler)
    if not isinstance(scaler, CLASSES):
        raise _errors.ConfigurationError(
            f"cohort.join(scaler=...): got a {kind.__name__}, want a "
            "torch.amp.GradScaler or torch.cuda.amp.GradScaler")
    rule = getattr(kind.update, "__module__", "")
    if rule.partition(".")[0] != "torch":
        raise _errors.ConfigurationError(
            f"cohort.join(scaler=...): {kind.__name__} has another update(), "
            "which the other workers do not follow; want torch's rule")
    return LossScale(scaler) if scaler.is_enabled() else None


def _rounded(value: float) -> float:
    """As float32, which torch's scale is."""
    return float(torch.tensor(value, dtype=torch.float64).float())
