"""Rows: what scripts do beside the calls that the package knows, each with the
numbers of one process or refused by name."""

import torch
from torch import nn

from shapes.rows import Net, error_of, refused, row, sgd, started, train
from shapes.script import batch_of


def one_step_each(t, model):
    for x, y in t.data():
        train(t, error_of(model(x), y))


# ---- the optimizer

def clamp_weights(optimizer, args, kwargs):
    del args, kwargs
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.data.clamp_(-0.1, 0.1)


@refused("UsageError", "register_step_pre_hook", "clamp_weights", "clip_norm",
         needs="optimizer hooks")
def hook_before_the_optimizer(t):
    model = t.model(Net())
    optimizer = sgd(model)
    optimizer.register_step_pre_hook(clamp_weights)
    t.join(model, optimizer)
    one_step_each(t, model)


@refused("UsageError", "register_step_post_hook", "after_step",
         needs="optimizer hooks")
def hook_after_the_optimizer_from_the_second_step_on(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    for x, y in t.data():
        if t.step_number == 1:
            optimizer.register_step_post_hook(clamp_weights)
        train(t, error_of(model(x), y))


@refused("UsageError", "register_optimizer_step_post_hook",
         needs="optimizer hooks")
def hook_after_every_optimizer(t):
    model = t.model(Net())
    optimizer = sgd(model)
    from torch.optim.optimizer import register_optimizer_step_post_hook
    register_optimizer_step_post_hook(clamp_weights)
    t.join(model, optimizer)
    one_step_each(t, model)


def after_a_local_step(t, kind, **options):
    """A model and an optimizer that has made a step before the run."""
    model = t.model(Net())
    optimizer = kind(model.parameters(), **options)
    x, y = batch_of(0, 9, 6, (3, 6, 6))
    dtype = next(model.parameters()).dtype
    error_of(model(x.to(dtype)), y.to(dtype)).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model, optimizer


@refused("ConfigurationError", "SGD", "momentum_buffer", "new optimizer")
def momentum_from_before_the_run(t):
    model, optimizer = after_a_local_step(t, torch.optim.SGD, lr=0.1,
                                          momentum=0.9)
    t.join(model, optimizer)
    one_step_each(t, model)


@refused("ConfigurationError", "Adam", "new optimizer")
def loaded_moments_of_adam(t):
    model, before = after_a_local_step(t, torch.optim.Adam, lr=0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer.load_state_dict(before.state_dict())
    t.join(model, optimizer)
    one_step_each(t, model)


@row()
def local_steps_without_momentum_before_the_run(t):
    """There is no state that could get lost."""
    model, optimizer = after_a_local_step(t, torch.optim.SGD, lr=0.1)
    t.join(model, optimizer)
    one_step_each(t, model)


@refused("ConfigurationError", "lr 0.0", "above 0 first")
def rate_of_zero_in_the_first_group(t):
    model = t.model(Net())
    t.join(model, torch.optim.SGD([
        {"params": model.conv1.parameters(), "lr": 0.0},
        {"params": model.head.parameters()}], lr=0.1))


@row()
def rate_of_zero_in_another_group(t):
    model = t.model(Net())
    t.join(model, torch.optim.SGD([
        {"params": model.head.parameters()},
        {"params": model.conv1.parameters(), "lr": 0.0}], lr=0.1))
    one_step_each(t, model)
