"""Rows: what a body changes that is repeated: batches of the script's own, and plain
attributes of modules."""

import torch
from torch import nn

from shapes.rows import Net, error_of, refused, row, sgd, started, train
from shapes.script import batch_of


class Three(Net):
    def __init__(self):
        super().__init__()
        self.norm3 = nn.BatchNorm2d(4)


def out_of(t, model, x):
    """Rank 1 alone calls norm3, so the first attempt at a step is void."""
    x = model.first(x)
    if t.here(1):
        own = t.of(x, 1)
        x = x.masked_scatter(own.view(-1, 1, 1, 1),
                             torch.tanh(model.norm3(x[own])))
    return model.out(model.second(x))


def dictionaries(t):
    """The batches of one process, or of this worker."""
    if t.rank is None:
        for x, y in t.data():
            yield {"x": x, "y": y}
        return
    yield from t._counted(t.job.data(
        (dict(zip("xy", batch_of(t.rank, step, t.size, (3, 6, 6))))
         for step in range(t.steps)), batch_size=t.size))


@row()
def a_batch_that_is_changed_in_place(t):
    model = started(t, Three())
    for batch in dictionaries(t):
        batch["x"].sub_(0.3).mul_(2)
        train(t, error_of(out_of(t, model, batch["x"]), batch["y"]))


@row()
def a_batch_that_the_body_takes_apart(t):
    model = started(t, Three())
    for batch in dictionaries(t):
        y = batch.pop("y")
        train(t, error_of(out_of(t, model, batch.pop("x")), y))


def late(t, model, x):
    """Rank 1 calls norm3 from the second step on, so that step is void."""
    return out_of(t, model, x) if t.step_number else model(x)


@row()
def a_batch_that_the_body_takes_apart_in_a_later_step(t):
    model = started(t, Three())
    for batch in dictionaries(t):
        y = batch.pop("y")
        train(t, error_of(late(t, model, batch["x"]), y))


@row()
def a_batch_that_is_changed_in_place_in_each_step(t):
    model = started(t, Three())
    for batch in dictionaries(t):
        batch["x"].sub_(0.3).mul_(2)
        train(t, error_of(late(t, model, batch["x"]), batch["y"]))


@refused("UsageError", "in place", "a copy")
def a_batch_that_is_changed_in_place_in_a_later_step(t):
    model = started(t, Three())
    for batch in dictionaries(t):
        if t.step_number:
            batch["x"].sub_(0.3).mul_(2)
        train(t, error_of(late(t, model, batch["x"]), batch["y"]))


# ---- attributes of modules

class Annealed(Three):
    """A temperature by the number of passes, and a state between batches."""

    def __init__(self):
        super().__init__()
        self.temperature = 1.0
        self.state = None

    def anneal(self, out):
        self.temperature *= 0.5
        self.state = out.detach().mean(0) if self.state is None else (
            self.state * self.temperature)
        self.last_but_one = self.temperature
        return out * self.temperature


@row(steps=4, survives=True)
def a_number_and_a_state_of_a_module(t):
    model = started(t, Annealed())
    for x, y in t.data():
        out = model.anneal(late(t, model, x))
        train(t, error_of(out, y + 0.0 * model.state))
        t.same("temperature", model.temperature)


class Sharpened(nn.Module):
    """A loss with a factor that grows."""
    factor = 1.0

    def forward(self, out, y):
        self.factor += 0.5
        return self.factor * error_of(out, y)


@row(steps=4, survives=True)
def a_number_of_a_loss(t):
    model, loss = t.model(Three()), Sharpened()
    t.join(model, sgd(model), keep=[loss])
    for x, y in t.data():
        train(t, loss(late(t, model, x), y))
        t.same("factor", loss.factor)


@refused("UsageError", "no tensors", "weight=")
def own_batches_of_arrays(t):
    model = started(t)
    if t.rank is None:
        return
    for x, y in t.job.data((tuple(part.numpy() for part in batch_of(
            t.rank, step, t.size, (3, 6, 6))) for step in range(t.steps)),
            batch_size=t.size):
        train(t, error_of(model(torch.from_numpy(x)), torch.from_numpy(y)))


@row()
def own_batches_of_arrays_with_a_weight(t):
    model = started(t)
    if t.rank is None:
        for x, y in t.data():
            train(t, error_of(model(x), y))
        return
    for x, y in t.job.data((tuple(part.numpy() for part in batch_of(
            t.rank, step, t.size, (3, 6, 6))) for step in range(t.steps)),
            batch_size=t.size):
        train(t, error_of(model(torch.from_numpy(x)), torch.from_numpy(y)),
              weight=len(x))
