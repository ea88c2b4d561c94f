"""Rows: schedulers of the learning rate."""

import logging
import pickle

import numpy
import torch
from torch import nn
from torch.optim import lr_scheduler

from shapes.rows import Net, error_of, refused, row, sgd, train


def joined(t, make, passed=False):
    """A model that has joined, and the scheduler of its optimizer."""
    model = t.model(Net())
    optimizer = sgd(model)
    scheduler = make(optimizer)
    t.join(model, optimizer, schedulers=[scheduler] if passed else [])
    return model, scheduler


def stepped(t, make):
    """Each step is followed by a call of the scheduler."""
    model, scheduler = joined(t, make)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        scheduler.step()
        t.same("rate", scheduler.get_last_lr()[0])


def one_cycle(optimizer):
    return lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=9)


def reloaded(value):
    """Through the protocol of torch.save."""
    return pickle.loads(pickle.dumps(value, 2))


def same_next_rates(t, scheduler):
    """Those that follow the state of a scheduler, which another one loads, and
    those that follow in a copy of it."""
    other = one_cycle(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1,
                                      momentum=0.9))
    other.load_state_dict(reloaded(scheduler.state_dict()))
    copied = reloaded(scheduler)
    for one in (other, copied):
        one.step()
        t.same("next", one.get_last_lr()[0])


@row(steps=3)
def schedulers_are_saved_in_the_run(t):
    model, scheduler = joined(t, one_cycle)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        scheduler.step()
        same_next_rates(t, scheduler)


@row(steps=3)
def a_passed_scheduler_is_saved_and_stepped_after_the_run(t):
    model, scheduler = joined(t, one_cycle, passed=True)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        same_next_rates(t, scheduler)
    scheduler.step()
    t.same("rate", scheduler.get_last_lr()[0])


@row(steps=6)
def sequence_of_schedulers_with_functions_and_a_counter(t):
    stepped(t, lambda optimizer: lr_scheduler.SequentialLR(optimizer, [
        lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2,
                              cycle_momentum=False),
        lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6, cycle_momentum=False),
        lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.5)], [2, 4]))


@row(steps=6)
def milestones_of_numpy(t):
    stepped(t, lambda optimizer: lr_scheduler.MultiStepLR(
        optimizer, (numpy.array([0.4, 0.8]) * 6).astype(int), numpy.float32(0.3)))


class Table:
    """Factors of a rate by step."""

    def __init__(self, size):
        self.factors = numpy.linspace(1, 0.1, size)

    def __call__(self, step):
        return self.factors[step]


@row(steps=6)
def rates_from_an_array(t):
    stepped(t, lambda optimizer: lr_scheduler.LambdaLR(optimizer, Table(7)))


@refused("ConfigurationError", "LambdaLR", "closure", "want at most")
def rates_from_a_long_array(t):
    stepped(t, lambda optimizer: lr_scheduler.LambdaLR(optimizer, Table(10000)))


class Logged(lr_scheduler.ExponentialLR):
    def __init__(self, *args):
        self.logger = logging.getLogger("rates")
        super().__init__(*args)


@refused("ConfigurationError", "Logged['logger']", "global variable")
def scheduler_with_a_logger(t):
    stepped(t, lambda optimizer: Logged(optimizer, 0.8))


class WarmUp(lr_scheduler.LambdaLR):
    """As that of pytorch-gradual-warmup-lr: another scheduler follows it."""

    def __init__(self, optimizer, steps, after):
        self.after = after
        self.steps = steps
        super().__init__(optimizer, lambda step: (step + 1) / steps)

    def step(self):
        if self.last_epoch < self.steps - 1:
            super().step()
        else:
            self.after.step()
            self._last_lr = self.after.get_last_lr()


def warm_up(optimizer):
    return WarmUp(optimizer, 3, lr_scheduler.MultiStepLR(optimizer, [1, 3], 0.5))


@row(steps=6)
def warm_up_with_a_scheduler_that_follows(t):
    stepped(t, warm_up)


@row(steps=6, survives=True)
def passed_warm_up_with_a_scheduler_that_follows(t):
    model, scheduler = joined(t, warm_up, passed=True)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        t.same("rate", scheduler.get_last_lr()[0])
