"""Rows: float16 gradients that a GradScaler scales."""

import torch
from torch import nn

from shapes.rows import (
    CHANNELS, Net, error_of, refused, row, sgd, train)
from shapes.scalers import NarrowBackward

# The first step's gradients overflow float16; those of the fourth are greater.
SCALE = 2.0 ** 20


class Narrow(Net):
    """Gradients have the range of float16 above or below all batch norms."""

    def __init__(self, above):
        super().__init__()
        self.above = above

    def features(self, x):
        x = self.conv1(x)
        if not self.above:
            x = NarrowBackward.apply(x)
        x = self.second(torch.tanh(self.norm1(x)))
        return NarrowBackward.apply(x) if self.above else x


def scaled(t, model, make=sgd, scale=SCALE, parts=1, moves=(0.5, 1.0, 2.0)):
    """Steps, and the scale in each; it moves by these factors."""
    model = t.model(model)
    scaler = t.scaler(init_scale=scale, growth_interval=2)
    t.join(model, make(model), scaler=scaler)
    scales = []
    for number, (x, y) in enumerate(t.data(accumulate=parts)):
        if number % parts == 0:
            t.same("scale", scaler.get_scale())
            scales.append(scaler.get_scale())
        # On one worker.
        great = t.of(x, 1) & (t.step_number == 3)
        yield model, x, y * (1 + 9 * great[:, None])
    t.step_number = t.steps
    t.same("scale", scaler.get_scale())
    if t.rank is None:
        seen = {after / before for before, after in zip(scales, scales[1:])}
        assert seen == set(moves), scales


@row(steps=8)
def a_scaler_above_batch_norm(t):
    """The gradients that batch norm gets are not finite."""
    for model, x, y in scaled(t, Narrow(above=True)):
        train(t, error_of(model(x), y))


@row(steps=8)
def a_scaler_below_batch_norm(t):
    for model, x, y in scaled(t, Narrow(above=False)):
        train(t, error_of(model(x), y))


def adam(model):
    # Counts the updates of each parameter: skipped steps are none.
    return torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)


@row(steps=8)
def a_scaler_with_adam_over_parts(t):
    """One part of a step may overflow."""
    for number, (model, x, y) in enumerate(scaled(
            t, Narrow(above=True), adam, parts=2)):
        train(t, error_of(model(x), y * (1 + number % 2)))


@row(steps=8)
def a_scaler_of_two_losses(t):
    for model, x, y in scaled(t, Narrow(above=True)):
        out, positive = model(x), y[:, 1] > 0
        both = [(error_of(out, y), len(x)),
                ((out - 1).square().sum(1)[positive].sum() /
                 max(int(positive.sum()), 1), int(positive.sum()))]
        train(t, both)


@row(steps=8)
def a_scaler_under_gradients_of_the_input(t):
    """Passes of the script are not scaled; those through them are."""
    for model, x, y in scaled(t, Narrow(above=True)):
        x.requires_grad_()
        out = model(x)
        (gradient,) = torch.autograd.grad(out.square().sum(), x,
                                          create_graph=True)
        t.own("gradient", gradient)
        train(t, error_of(out, y) + gradient.square().sum((1, 2, 3)).mean())


class Half(Net):
    """A layer whose backward pass is in float16, with its rounding."""

    def __init__(self, script):
        super().__init__()
        self._script = script

    def features(self, x):
        x = super().features(x)
        return self._script.half(x).to(x.dtype)


@row(steps=4)
def a_scaler_of_rounded_gradients(t):
    for model, x, y in scaled(t, Half(t), scale=2.0 ** 8, moves=(1.0, 2.0)):
        train(t, error_of(model(x), y))


@row()
def a_scaler_that_is_off(t):
    model = t.model(Net())
    scaler = t.scaler(enabled=False)
    t.join(model, sgd(model), scaler=scaler)
    for x, y in t.data():
        train(t, scaler.scale(error_of(model(x), y)))


# ---- refused

def called(t, what):
    model = t.model(Net())
    optimizer = sgd(model)
    scaler = t.scaler()
    t.join(model, optimizer, scaler=scaler)
    for x, y in t.data():
        loss = error_of(model(x), y)
        if what == "scale":
            loss = scaler.scale(loss)
        t.backward(loss)
        if what == "unscale_":
            scaler.unscale_(optimizer)
        t.step()
        getattr(scaler, what)(*[optimizer] * (what == "step"))


@refused("UsageError", "GradScaler.scale", "cohort.join(scaler=")
def a_scaler_and_a_loss_that_the_script_scales(t):
    called(t, "scale")


@refused("UsageError", "GradScaler.unscale_", "cohort.join(scaler=")
def a_scaler_and_gradients_that_the_script_unscales(t):
    called(t, "unscale_")


@refused("UsageError", "GradScaler.step", "cohort.join(scaler=")
def a_scaler_that_the_script_steps(t):
    called(t, "step")


@refused("UsageError", "GradScaler.update", "cohort.join(scaler=")
def a_scaler_that_the_script_updates(t):
    called(t, "update")


def joined_with(t, scaler):
    model = t.model(Net())
    t.join(model, sgd(model), scaler=scaler)
    for x, y in t.data():
        train(t, error_of(model(x), y))


@refused("UsageError", "GradScaler", "--aggregation=sync",
         flags=["--aggregation=async"])
def a_scaler_under_async(t):
    joined_with(t, t.scaler())


@refused("UsageError", "GradScaler", "--normalization=global",
         flags=["--normalization=local", "--bn_statistics=async"])
def a_scaler_under_local_normalisation(t):
    joined_with(t, t.scaler())


@refused("ConfigurationError", "scaler=", "same arguments")
def scalers_that_differ_between_workers(t):
    joined_with(t, t.scaler(growth_interval=10 + t.rank))


@refused("CohortError", "GradScaler")
def a_scaler_on_one_worker(t):
    joined_with(t, t.scaler() if t.rank == 0 else None)


@refused("ConfigurationError", "another update()")
def a_scaler_with_another_rule(t):
    scaler = t.scaler()
    kind = type(scaler)
    scaler.__class__ = type("Own", (kind,), {
        "update": lambda self: None, "__module__": __name__})
    joined_with(t, scaler)


@refused("ConfigurationError", "got a Linear", "GradScaler")
def a_scaler_that_is_none(t):
    joined_with(t, nn.Linear(CHANNELS, 2))


@refused("ConfigurationError", "GradScaler", "down to 0")
def gradients_that_are_never_finite(t):
    model = t.model(Net())
    t.join(model, sgd(model), scaler=t.scaler(init_scale=2.0 ** -148))
    for x, y in t.data():
        train(t, error_of(model(x), y) * float("inf"))
