"""Rows: weights and moving statistics that the script writes at the end of an epoch,
where newer ones are about to come from the server."""

import copy
import itertools

import torch

from shapes.rows import error_of, refused, row, started, train
from shapes.script import Samples, batch_of

SAMPLES = 16
STEPS = 2


def epochs(t):
    """The batches of each epoch."""
    if t.rank is None:
        every = t.indexed(SAMPLES)
        for _ in range(t.steps // STEPS):
            yield itertools.islice(every, STEPS)
        return
    data = t.job.data(Samples(SAMPLES, (3, 6, 6)), batch_size=t.size)
    for _ in t.job.epochs():
        yield t._counted(data)


def epoch_of(t, model, batches):
    for x, y in batches:
        train(t, error_of(model(x), y))


def clamp(model):
    with torch.no_grad():
        model.head.weight.clamp_(-0.1, 0.1)


def score_of(model):
    x, y = batch_of(5, 0, 6, (3, 6, 6))
    dtype = next(model.parameters()).dtype
    model.eval()
    with torch.no_grad():
        score = error_of(model(x.to(dtype)), y.to(dtype))
    model.train()
    return score


@refused("UsageError", "head.weight", "values were changed", steps=4)
def weights_clamped_in_the_last_step_of_an_epoch(t):
    model = started(t)
    for batches in epochs(t):
        for number, (x, y) in enumerate(batches):
            train(t, error_of(model(x), y))
            if number == STEPS - 1:
                clamp(model)


@refused("UsageError", "head.weight", "values were changed")
def weights_clamped_in_the_last_step_of_the_run(t):
    model = started(t)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        if t.step_number == t.steps - 1:
            clamp(model)


@refused("UsageError", "conv1.weight", "job.state_dict()", steps=4)
def an_average_in_the_model_that_is_saved(t):
    model = started(t)
    for batches in epochs(t):
        epoch_of(t, model, batches)
        for parameter in model.parameters():
            parameter.data.mul_(0.5)
        if t.rank is not None:
            t.job.state_dict()


@row(steps=4)
def an_average_in_the_model_for_a_score(t):
    """By load_state_dict(), which torch counts as two changes."""
    model = started(t)
    average = copy.deepcopy(model.state_dict())
    for batches in epochs(t):
        epoch_of(t, model, batches)
        trained = copy.deepcopy(model.state_dict())
        for name, value in average.items():
            if value.is_floating_point():
                value.lerp_(trained[name], 0.3)
        model.load_state_dict(average)
        t.same("score", score_of(model))
        model.load_state_dict(trained)


@row(steps=4)
def weights_written_after_the_run(t):
    model = started(t)
    for batches in epochs(t):
        epoch_of(t, model, batches)
    clamp(model)
    if t.rank is not None:
        t.same("saved", t.job.state_dict()["head.weight"])
    else:
        t.same("saved", model.head.weight)


@row(steps=4)
def statistics_written_before_a_load(t):
    model = started(t)
    for batches in epochs(t):
        epoch_of(t, model, batches)
        model.norm2.running_var.mul_(2)
        if t.rank is not None:
            t.job.load()
            t.job.state_dict()
        t.same("variance", model.norm2.running_var)
        t.same("score", score_of(model))
