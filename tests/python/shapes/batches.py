"""Rows: batches of forms that people's data sets and collate functions make, each
with the numbers of one process or refused by name. A step is an epoch: all samples
in any order."""

import dataclasses

import torch
from torch import nn

from shapes.rows import (
    Net, error_of, refused, row, sgd, started, steps, train, trained)
from shapes.script import Samples

SAMPLES = {2: (3, 5)}


class Crops(Samples):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return [x, x.flip(1)], y


def both(model, batch):
    (first, second), y = batch
    return error_of(model(first) + model(second), y)


def collated(t, model, data, loss_of, **options):
    """The worker's batches by the server's numbers; one process has all."""
    if t.rank is None:
        collate = options.get("collate_fn", torch.utils.data.default_collate)
        for _ in t.indexed(8):
            batch = collate([data[number] for number in range(8)])
            train(t, loss_of(model, _as(batch, model.head.weight.dtype)), weight=8)
        return
    for batch in t.job.data(data, batch_size=t.size, **options):
        train(t, loss_of(model, batch))


def _as(batch, dtype):
    if isinstance(batch, torch.Tensor):
        return batch.to(dtype) if batch.is_floating_point() else batch
    if isinstance(batch, dict):
        return {key: _as(value, dtype) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_as(value, dtype) for value in batch]
    if dataclasses.is_dataclass(batch):
        return type(batch)(*(_as(getattr(batch, field.name), dtype)
                             for field in dataclasses.fields(batch)))
    return batch


@row(sizes=SAMPLES)
def two_crops_of_each_sample(t):
    model = started(t)
    collated(t, model, Crops(8, (3, 6, 6)), both)


@row(sizes=SAMPLES)
def two_crops_in_a_dictionary(t):
    model = started(t)
    collated(t, model, Crops(8, (3, 6, 6)),
             lambda model, batch: both(model, (batch["crops"], batch["y"])),
             collate_fn=lambda items: dict(zip(
                 ("crops", "y"), torch.utils.data.default_collate(items))))


class Pairs(Samples):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"x": x, "z": x.flip(1)}, {"y": y}


@row(sizes=SAMPLES)
def a_pair_of_dictionaries(t):
    model = started(t)
    collated(t, model, Pairs(8, (3, 6, 6)), lambda model, batch: both(
        model, ((batch[0]["x"], batch[0]["z"]), batch[1]["y"])))


@row(sizes=SAMPLES)
def a_pair_of_pairs(t):
    model = started(t)
    collated(t, model, PairsOfPairs(8, (3, 6, 6)), lambda model, batch: both(
        model, ((batch[0][0], batch[1][0]), batch[0][1])))


class PairsOfPairs(Samples):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return (x, y), (x.flip(1), y)


@row()
def a_loss_of_one_element(t):
    for model, x, y in steps(t):
        train(t, error_of(model(x), y).reshape(1) if t.rank is not None else
              error_of(model(x), y))


def stacked(batch):
    return (torch.stack([x for x, _ in batch]), torch.stack([y for _, y in batch]))


def of_pairs(model, batch):
    x, y = stacked(batch)
    return error_of(model(x), y)


@row(sizes=SAMPLES)
def a_list_of_samples(t):
    model = started(t)
    collated(t, model, Samples(8, (3, 6, 6)), of_pairs, collate_fn=list)


@row(sizes=SAMPLES)
def a_list_of_dictionaries(t):
    model = started(t)
    collated(t, model, Samples(8, (3, 6, 6)),
             lambda model, batch: of_pairs(model, [(item["x"], item["y"])
                                                   for item in batch]),
             collate_fn=lambda items: [{"x": x, "y": y} for x, y in items])


@row(sizes=SAMPLES)
def numbers_of_the_batch_first(t):
    model = started(t)
    collated(t, model, Samples(8, (3, 6, 6)),
             lambda model, batch: error_of(model(batch[1]), batch[2]),
             collate_fn=lambda items: ([6, 6], *stacked(items)))


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor


@row(sizes=SAMPLES)
def a_dataclass(t):
    model = started(t)
    collated(t, model, Samples(8, (3, 6, 6)),
             lambda model, batch: error_of(model(batch.x), batch.y),
             collate_fn=lambda items: Batch(*stacked(items)))


@refused("UsageError", "made of 1 samples", "weight=", sizes={2: (1, 1)})
def tokens_of_one_sample_each(t):
    model = started(t)
    if t.rank is None:
        return
    collated(t, model, Samples(8, (3, 6, 6)),
             lambda model, batch: error_of(model(batch[0]), batch[1]),
             collate_fn=lambda items: tuple(torch.cat([v, v, v][:2 + (t.rank or 0)])
                                            for v in stacked(items)))


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from (Samples(8, (3, 6, 6))[number] for number in range(8))


@refused("UsageError", "IterableDataset", "DataLoader")
def a_stream_of_samples(t):
    model = started(t)
    if t.rank is None:
        return
    for x, y in t.job.data(Stream(), batch_size=t.size):
        train(t, error_of(model(x), y))


@refused("UsageError", "samples", "weight=")
def own_crops(t):
    """Two crops alone may be two samples."""
    model = started(t)
    if t.rank is None:
        return
    for (first, second), in t.job.data(iter(
            [([torch.zeros(t.size, 3, 6, 6)] * 2,)] * 3)):
        train(t, model(first).sum() + model(second).sum())


class Growing(Samples):
    extra = 0

    def __len__(self):
        return super().__len__() + self.extra


@refused("UsageError", "data set", "when the run began")
def a_data_set_that_grows(t):
    model = started(t)
    if t.rank is None:
        return
    data = Growing(16, (3, 6, 6))
    for x, y in t.job.data(data, batch_size=t.size):
        train(t, error_of(model(x), y))
        data.extra += 1


# ---- weights without a rendezvous

LOCAL = ["--normalization=local", "--bn_statistics=async"]


@row(flags=LOCAL)
def group_norm_under_local_normalisation(t):
    trained(t, Net(lambda channels: nn.GroupNorm(1, channels)))


@refused("UsageError", "job.share", "do not synchronise", flags=LOCAL)
def two_means_under_local_normalisation(t):
    for model, x, y in steps(t, Net(lambda channels: nn.GroupNorm(1, channels))):
        loss = t.job.share(error_of(model(x), y)) if t.rank is not None else (
            error_of(model(x), y))
        train(t, loss * 2, weight=1)


# ---- rates

@refused("ConfigurationError", "learning rates", "job.step_number", steps=4)
def rates_that_differ_between_workers(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer, schedulers=[
        torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, 4 + (t.rank or 0))])
    for x, y in t.data():
        train(t, error_of(model(x), y))


@refused("UsageError", "lr of group 0", "job.backward")
def rate_written_between_backward_and_step(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer, schedulers=[
        torch.optim.lr_scheduler.ConstantLR(optimizer)])
    for x, y in t.data():
        t.backward(error_of(model(x), y))
        optimizer.param_groups[0]["lr"] = 0.01
        t.step()


@refused("ConfigurationError", "epoch_schedulers", "own data")
def epoch_scheduler_of_own_data(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer, epoch_schedulers=[
        torch.optim.lr_scheduler.StepLR(optimizer, 1)])
    for x, y in t.data():
        train(t, error_of(model(x), y))
