"""Rows: averages, teachers and other models beside the one that is trained."""

import copy
import functools

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from shapes.own_batches import Three, late, out_of
from shapes.rows import (
    CHANNELS, Net, error_of, refused, row, started, steps, train)
from shapes.script import Samples


def frozen_copy(model):
    """A teacher: a deep copy without gradients."""
    teacher = copy.deepcopy(model)
    for parameter in teacher.parameters():
        parameter.requires_grad_(False)
    return teacher


def follow(teacher, model, rate=0.5):
    """An average of weights and statistics, by hand."""
    with torch.no_grad():
        for mine, theirs in zip(teacher.parameters(), model.parameters()):
            mine.lerp_(theirs, rate)
        for mine, theirs in zip(teacher.buffers(), model.buffers()):
            if mine.dtype.is_floating_point:
                mine.lerp_(theirs, rate)
            else:
                mine.copy_(theirs)


def averaged(average, current, count):
    return average + (current - average) * 0.5


@row()
def averaged_model(t):
    model = started(t)
    average = AveragedModel(model, avg_fn=averaged)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        average.update_parameters(model)
    t.same_state("average", average)


@row()
def averaged_model_with_buffers(t):
    model = started(t)
    average = AveragedModel(model, avg_fn=averaged, use_buffers=True)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        average.update_parameters(model)
    t.same_state("average", average)


@row()
def averaged_model_with_buffers_after_each_applied_step(t):
    model = started(t)
    average = AveragedModel(model, avg_fn=averaged, use_buffers=True)
    t.after_step(lambda: average.update_parameters(model))
    for x, y in t.data():
        train(t, error_of(model(x), y))
    t.same_state("average", average)


@row()
def mean_teacher_in_eval_mode(t):
    model = started(t)
    teacher = frozen_copy(model).eval()
    for x, y in t.data():
        with torch.no_grad():
            labels = teacher(x * 0.9)
        t.own("labels", labels)
        train(t, error_of(model(x), 0.5 * labels + y))
        follow(teacher, model)
    t.same_state("teacher", teacher)


@row()
def mean_teacher_in_train_mode(t):
    """Its batch statistics are the cohort's; its own moving ones move."""
    model = started(t)
    teacher = frozen_copy(model)
    for x, y in t.data():
        with torch.no_grad():
            labels = teacher(x * 0.9)
        t.own("labels", labels)
        train(t, error_of(model(x), 0.5 * labels + y))
        t.same_state("moved", teacher)
        follow(teacher, model)
    t.same_state("teacher", teacher)


@row()
def mean_teacher_made_before_the_join(t):
    model = t.model(Net())
    teacher = frozen_copy(model)
    started(t, model)
    for x, y in t.data():
        with torch.no_grad():
            labels = teacher(x * 0.9)
        t.own("labels", labels)
        train(t, error_of(model(x), 0.5 * labels + y))
        follow(teacher, model)
    t.same_state("teacher", teacher)


@row()
def mean_teacher_that_averages_weights_only(t):
    """Its statistics are those of its batches, as in several papers."""
    model = started(t)
    teacher = frozen_copy(model)
    for x, y in t.data():
        with torch.no_grad():
            labels = teacher(x * 0.9)
        t.own("labels", labels)
        train(t, error_of(model(x), 0.5 * labels + y))
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), model.parameters()):
                mine.lerp_(theirs, 0.5)
    t.same_state("teacher", teacher)


@row()
def teacher_with_gradients_of_the_input(t):
    """A frozen copy in train mode, between a generator and the loss."""
    model = started(t)
    judge = frozen_copy(model)
    judge.head = nn.Linear(CHANNELS, 1).to(model.head.weight.dtype)
    with torch.no_grad():
        judge.head.weight.fill_(0.5)
        judge.head.bias.zero_()
    for parameter in judge.head.parameters():
        parameter.requires_grad_(False)
    for x, y in t.data():
        image = x + 0.1 * model(x)[:, :1, None, None]
        train(t, judge(image).square().mean() + error_of(model(x), y))
    t.same_state("judge", judge)


@refused("TrainingError", "BatchNorm2d", "rank 0")
def teacher_in_train_mode_on_rank_0_only(t):
    """A layer that is not registered never meets without a member; the error
    names the line."""
    model = started(t)
    teacher = frozen_copy(model)
    for x, y in t.data():
        labels = y
        if t.here(0):
            with torch.no_grad():
                labels = y + teacher(x)
        train(t, error_of(model(x), labels))


@row()
def ensemble_of_copies_of_steps(t):
    """Snapshots in eval mode vote."""
    model = started(t)
    snapshots = []
    for x, y in t.data():
        with torch.no_grad():
            votes = [snapshot(x) for snapshot in snapshots]
        target = y + 0.1 * sum(votes) if votes else y
        train(t, error_of(model(x), target))
        snapshots.append(frozen_copy(model).eval())
    for number, snapshot in enumerate(snapshots):
        t.same_state(f"snapshot {number}", snapshot)


class Siamese(Net):
    """SimSiam: a projector and a predictor with batch norm."""

    def __init__(self):
        super().__init__()
        self.projector = nn.Sequential(
            nn.Linear(CHANNELS, CHANNELS, bias=False), nn.BatchNorm1d(CHANNELS),
            nn.Tanh(), nn.Linear(CHANNELS, CHANNELS, bias=False),
            nn.BatchNorm1d(CHANNELS, affine=False))
        self.predictor = nn.Sequential(
            nn.Linear(CHANNELS, 3, bias=False), nn.BatchNorm1d(3), nn.Tanh(),
            nn.Linear(3, CHANNELS))

    def forward(self, x):
        z = self.projector(self.features(x).mean((2, 3)))
        return self.predictor(z), z


def unlike(a, b):
    return -nn.functional.cosine_similarity(a, b.detach()).mean()


@row()
def simsiam(t):
    model = started(t, Siamese(), lr=0.05)
    for x, _ in t.data():
        p1, z1 = model(x * 0.9)
        p2, z2 = model(x.flip(3) + 0.1)
        train(t, 0.5 * unlike(p1, z2) + 0.5 * unlike(p2, z1))


@row()
def byol(t):
    """The target is an average in train mode."""
    model = started(t, Siamese(), lr=0.05)
    target = frozen_copy(model)
    for x, _ in t.data():
        p1, _ = model(x * 0.9)
        p2, _ = model(x.flip(3) + 0.1)
        with torch.no_grad():
            _, z1 = target(x * 0.9)
            _, z2 = target(x.flip(3) + 0.1)
        train(t, unlike(p1, z2) + unlike(p2, z1))
        with torch.no_grad():
            for mine, theirs in zip(target.parameters(), model.parameters()):
                mine.lerp_(theirs, 0.1)
    t.same_state("target", target)


@row()
def pseudo_labels_of_the_model_itself(t):
    """Semi-supervised: half of the batch gets the model's own labels."""
    for model, x, y in steps(t):
        model.eval()
        with torch.no_grad():
            labels = torch.softmax(model(x), 1)
        model.train()
        t.own("labels", labels)
        train(t, error_of(model(x), labels) + error_of(model(x * 1.1), y))


@row()
def recalibrated_teacher(t):
    """Resets the copy's statistics, and estimates them by passes."""
    for model, x, y in steps(t):
        teacher = frozen_copy(model)
        if t.step_number == 1:
            for module in teacher.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.reset_running_stats()
                    module.momentum = None
        train(t, error_of(model(x), y))
        teacher.eval()
        with torch.no_grad():
            t.own("teacher", teacher(x))


# ---- what the server does not keep

def follow_as_data(teacher, model):
    """DINO's, whose writes torch does not count."""
    with torch.no_grad():
        for mine, theirs in zip(teacher.parameters(), model.parameters()):
            mine.data.mul_(0.5).add_(0.5 * theirs.detach().data)


def with_a_teacher_by_data(t, net, out_of):
    model = started(t, net)
    teacher = frozen_copy(model).eval()
    for x, y in t.data():
        labels = teacher.out(teacher.features(x))
        train(t, error_of(out_of(model, x), 0.5 * labels + y))
        follow_as_data(teacher, model)
    t.same_state("teacher", teacher)


@row()
def teacher_by_data(t):
    with_a_teacher_by_data(t, Net(), lambda model, x: model(x))


@refused("UsageError", "Conv2d.weight", "void", "keep=")
def teacher_by_data_after_a_void_step(t):
    with_a_teacher_by_data(t, Three(), functools.partial(late, t))


class Centred(nn.Module):
    """A loss with a centre that is another tensor after each step."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(2))

    def forward(self, out, y):
        return error_of(out - self.centre, y)

    def follow(self, weight):
        self.centre = 0.9 * self.centre + 0.1 * weight.detach()


@refused("UsageError", "Centred.centre", "void", "keep=")
def centre_that_is_assigned_after_a_void_step(t):
    model, loss_of = started(t, Three()), t.model(Centred())
    for x, y in t.data():
        train(t, loss_of(out_of(t, model, x), y))
        loss_of.follow(model.head.bias)


@refused("UsageError", ".weight", "no batch", "keep=", steps=4)
def teacher_and_a_worker_without_a_batch(t):
    """Of ten samples an epoch rank 1 has none in the second step."""
    model = started(t)
    teacher = frozen_copy(model).eval()
    for x, y in t.indexed(10):
        train(t, error_of(model(x), teacher(x) + y))
        follow(teacher, model)


@row(steps=4)
def average_by_epoch_and_a_worker_without_a_batch(t):
    model = started(t)
    average = frozen_copy(model)
    if t.rank is None:
        for number, (x, y) in enumerate(t.indexed(10)):
            train(t, error_of(model(x), y))
            if number % 2:
                follow(average, model)
    else:
        data = t.job.data(Samples(10, (3, 6, 6)), batch_size=t.size)
        for _ in t.job.epochs():
            for x, y in t._counted(data):
                train(t, error_of(model(x), y))
            follow(average, model)
    # A worker may have had no part in the last one.
    t.step_number = t.steps
    t.same_state("average", average)
