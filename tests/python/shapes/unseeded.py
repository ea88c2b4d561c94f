"""Rows: tensors beside the model that each worker draws by itself, without a seed."""

import torch
from torch import nn

from shapes.rows import CHANNELS, Net, error_of, refused, row, sgd, started, train
from shapes.teachers import follow, frozen_copy

DRAWN = ("differs between workers", "torch.manual_seed")


def draw(t):
    """Each worker has its own random numbers from here on."""
    torch.manual_seed(100 + (t.rank or 0))


def target(t):
    """Random network distillation."""
    return t.model(nn.Sequential(nn.Flatten(), nn.Linear(108, 2))).requires_grad_(False)


@refused("ConfigurationError", "Linear", *DRAWN)
def a_frozen_network(t):
    model = started(t)
    draw(t)
    other = target(t)
    for x, y in t.data():
        train(t, error_of(model(x), other(x)))


@row()
def a_frozen_network_that_is_seeded(t):
    model = started(t)
    other = target(t)
    for x, y in t.data():
        train(t, error_of(model(x), other(x)))


@refused("ConfigurationError", "Conv2d", *DRAWN)
def a_teacher_made_before_the_first_batch(t):
    """The run's weights are those of rank 0, and the copy has this worker's."""
    model = t.model(Net())
    draw(t)
    with torch.no_grad():
        model.conv1.weight.normal_()
    teacher = frozen_copy(model).eval()
    t.join(model, sgd(model))
    for x, y in t.data():
        with torch.no_grad():
            labels = teacher(x)
        train(t, error_of(model(x), labels + y))


@row()
def a_network_that_rank_0_calls(t):
    """Such as to score another one."""
    model = started(t)
    draw(t)
    other = target(t)
    for x, y in t.data():
        if t.here(0):
            other(x)
        train(t, error_of(model(x), y))


@row()
def a_network_that_none_calls(t):
    model = started(t)
    draw(t)
    other = target(t)
    for x, y in t.data():
        train(t, error_of(model(x), y))
    other(x)


@row(survives=True)
def a_kept_teacher_in_a_wrapper(t):
    """Its tensors are another version's in a process that joins later."""
    model = t.model(Net())
    teacher = frozen_copy(model).eval()
    t.join(model, sgd(model), keep=[teacher])
    both = nn.Sequential(teacher, nn.Tanh())
    for x, y in t.data():
        with torch.no_grad():
            labels = both(x)
        train(t, error_of(model(x), labels + y))
        follow(teacher, model)
    t.same_state("teacher", teacher)


class Projected(Net):
    """A random projection that is no buffer, and what the last pass has returned."""
    seen = None

    def __init__(self):
        super().__init__()
        self.table = torch.randn(CHANNELS, CHANNELS)
        self.seen = torch.zeros(1)

    def forward(self, x):
        x = self.features(x).mean((2, 3))
        self.seen = x.detach()
        return self.head(torch.sin(x @ self.table.to(x.dtype)))


@refused("ConfigurationError", "table", *DRAWN)
def a_random_attribute(t):
    draw(t)
    model = Projected()
    draw(t)
    model.table.normal_()
    model = started(t, model)
    for x, y in t.data():
        train(t, error_of(model(x), y))


@row(survives=True)
def an_attribute_that_each_pass_assigns(t):
    """Here first by a pass before the run."""
    model = started(t, Projected())
    draw(t)
    with torch.no_grad():
        model.seen = torch.randn(2)
    for x, y in t.data():
        train(t, error_of(model(x), y))
