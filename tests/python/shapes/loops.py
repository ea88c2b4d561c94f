"""Rows: loops around the data, each with the numbers of one process or refused by
name."""

import itertools

import torch

from shapes.rows import Net, error_of, refused, row, sgd, started, train
from shapes.script import Samples, batch_of

SAMPLES = 16


def data_of(t):
    """A model that has joined, and its data: two steps an epoch."""
    return started(t), t.job.data(Samples(SAMPLES, (3, 6, 6)), batch_size=t.size)


def epoch_of(t, model, data):
    for x, y in data:
        train(t, error_of(model(x), y))


# ---- one loop goes through all epochs

@row(steps=4)
def a_loop_of_the_script_over_epochs(t):
    model = started(t)
    if t.rank is None:
        epoch_of(t, model, t.indexed(SAMPLES))
        return
    data = t.job.data(Samples(SAMPLES, (3, 6, 6)), batch_size=t.size)
    for _ in range(2):
        epoch_of(t, model, data)


def by_epoch(t, change):
    """`change` is called before each epoch."""
    if t.rank is None:
        return
    model, data = data_of(t)
    for epoch in range(2):
        change(model, epoch)
        epoch_of(t, model, data)


@refused("UsageError", "number of the optimizer", "job.epochs", steps=4)
def rate_by_an_epoch_of_the_script(t):
    if t.rank is None:
        return
    model = Net()
    optimizer = sgd(model)
    t.join(model, optimizer)
    data = t.job.data(Samples(SAMPLES, (3, 6, 6)), batch_size=t.size)
    for epoch in range(2):
        optimizer.param_groups[0]["lr"] = 0.1 * 0.5 ** epoch
        epoch_of(t, model, data)


@refused("UsageError", "requires_grad", "job.epochs", steps=4)
def unfrozen_by_an_epoch_of_the_script(t):
    by_epoch(t, lambda model, epoch: model.conv1.requires_grad_(epoch > 0))


@refused("UsageError", "model.train()", "job.epochs", steps=4)
def statistics_frozen_by_an_epoch_of_the_script(t):
    by_epoch(t, lambda model, epoch: model.norm1.train(epoch < 1))


@refused("UsageError", "left before the end of epoch 0", "num_samples", steps=4)
def an_epoch_of_fewer_batches(t):
    if t.rank is None:
        return
    model, data = data_of(t)
    for _ in t.job.epochs():
        epoch_of(t, model, itertools.islice(data, 1))


@row(steps=4)
def an_epoch_of_fewer_samples(t):
    """As the error says; here as many as there are."""
    model = started(t)
    if t.rank is None:
        epoch_of(t, model, t.indexed(SAMPLES))
        return
    data = t.job.data(Samples(SAMPLES, (3, 6, 6)), batch_size=t.size)
    for _ in t.job.epochs():
        epoch_of(t, model, itertools.islice(data, len(data)))


@refused("UsageError", "while not job.finished", steps=4)
def a_generator_without_end(t):
    """Within the row's patience."""
    if t.rank is None:
        return
    model, data = data_of(t)

    def endless():
        while True:
            yield from data
    epoch_of(t, model, itertools.islice(endless(), 10))


# ---- the data is for training

@refused("UsageError", "no_grad", "evaluate_with", steps=4)
def a_score_over_the_data_in_an_epoch(t):
    if t.rank is None:
        return
    model, data = data_of(t)
    for _ in t.job.epochs():
        epoch_of(t, model, data)
        with torch.no_grad():
            for x, _ in data:
                model(x)


@refused("UsageError", "second loop", "evaluate_with", steps=4)
def a_second_loop_over_the_data_in_the_last_epoch(t):
    if t.rank is None:
        return
    model, data = data_of(t)
    for epoch in t.job.epochs():
        for _ in range(1 + epoch):
            epoch_of(t, model, data)


@refused("UsageError", "eval()", "evaluate_with", steps=4)
def a_score_over_the_data_after_the_run(t):
    if t.rank is None:
        return
    model, data = data_of(t)
    epoch_of(t, model, data)
    model.eval()
    for x, _ in data:
        model(x)


@refused("UsageError", "no_grad", "--bn_statistics=after", steps=4)
def statistics_over_the_data_after_the_run(t):
    if t.rank is None:
        return
    model, data = data_of(t)
    epoch_of(t, model, data)
    torch.optim.swa_utils.update_bn(data, model)


# ---- epochs of the script's own batches

def own_loader(t, **options):
    """A model that has joined, and own data of two batches."""
    model = started(t)
    batches = [batch_of(t.rank, step, t.size, (3, 6, 6)) for step in range(2)]
    return model, t.job.data(torch.utils.data.DataLoader(batches, batch_size=None),
                             batch_size=t.size, **options)


@refused("UsageError", "second loop", "loop=True", "--max_steps", steps=4)
def own_batches_in_a_loop_over_epochs(t):
    model, data = own_loader(t)
    for _ in range(2):
        epoch_of(t, model, data)


@refused("UsageError", "job.epochs()", "loop=True", steps=4)
def own_batches_in_epochs_of_the_job(t):
    model, data = own_loader(t)
    for _ in t.job.epochs():
        epoch_of(t, model, data)


@row(steps=4)
def own_batches_that_loop(t):
    if t.rank is not None:
        model, data = own_loader(t, loop=True)
        epoch_of(t, model, data)
        return
    model = started(t)
    epoch_of(t, model, t._batches(
        ([batch_of(rank, step % 2, size, (3, 6, 6)) for rank, size in enumerate(t.sizes)]
         for step in range(t.steps)), 1))


# ---- a second loader beside the data

def loader(samples=None):
    return torch.utils.data.DataLoader(Samples(SAMPLES, (3, 6, 6))
                                       if samples is None else samples, batch_size=4)


BESIDE = ("second DataLoader", "own data", "zip")


def beside(t, pairs):
    """Trains the batches of the data with others that a second loader reads."""
    if t.rank is None:
        return
    model, data = data_of(t)
    for (x, y), (u, _) in pairs(data, loader()):
        train(t, error_of(model(x), y) + model(u).square().mean())


@refused("UsageError", *BESIDE, sizes={2: (4, 4)}, steps=4)
def unlabelled_samples_of_a_second_loader(t):
    beside(t, zip)


@refused("UsageError", *BESIDE, sizes={2: (4, 4)}, steps=4)
def a_second_loader_that_is_read_first(t):
    beside(t, lambda data, others: (pair[::-1] for pair in zip(others, data)))


@refused("UsageError", *BESIDE, sizes={2: (4, 4)}, steps=4)
def a_second_loader_that_is_read_after_the_step(t):
    if t.rank is None:
        return
    model, data = data_of(t)
    others = iter(loader())
    u, _ = next(others)
    for x, y in data:
        train(t, error_of(model(x), y) + model(u).square().mean())
        u, _ = next(others)


def pairs(t):
    """Batches of two loaders, as own data."""
    if t.rank is None:
        yield from ((x, 0.5 * x, y) for x, y in t.data())
        return
    batches = [batch_of(t.rank, step, t.size, (3, 6, 6)) for step in range(t.steps)]
    loaders = [torch.utils.data.DataLoader(
        [(factor * x, y) for x, y in batches], batch_size=None) for factor in (1, 0.5)]
    for (x, y), (u, _) in t._counted(t.job.data(zip(*loaders), batch_size=t.size)):
        yield x, u, y


@row()
def own_batches_of_two_loaders(t):
    model = started(t)
    for x, u, y in pairs(t):
        train(t, error_of(model(x) + model(u), y))


@row(steps=4)
def a_score_in_the_body(t):
    model = started(t)
    for x, y in t.indexed(SAMPLES):
        model.eval()
        with torch.no_grad():
            t.same("error", sum(error_of(model(u.to(x.dtype)), v) for u, v in loader()))
        model.train()
        train(t, error_of(model(x), y))
