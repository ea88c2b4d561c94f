"""Rows: moving statistics that a script reads, writes or schedules."""

import copy

import torch
from torch import nn

from shapes.rows import (
    CHANNELS, Net, error_of, refused, row, started, steps, train, trained)


# ---- options of a layer

@row()
def cumulative_average(t):
    trained(t, Net(momentum=None))


@row()
def momentum_of_zero(t):
    trained(t, Net(momentum=0.0))


@row()
def momentum_of_one(t):
    trained(t, Net(momentum=1.0))


@row()
def no_scale(t):
    trained(t, Net(affine=False))


@row()
def no_statistics(t):
    trained(t, Net(track_running_stats=False))


@row()
def no_statistics_in_eval_mode(t):
    """The exception: a layer in eval mode never meets, as torch's SyncBatchNorm,
    so each worker normalises its own samples."""
    for model, x, y in steps(t, Net(track_running_stats=False)):
        model.eval()
        with torch.no_grad():
            t.own("eval", t.locally(model, x))
        model.train()
        train(t, error_of(model(x), y))


@row()
def momentum_by_step(t):
    """Usual for point clouds."""
    for model, x, y in steps(t):
        for layer in (model.norm1, model.norm2):
            layer.momentum = 0.5 * 0.5 ** t.step_number
        train(t, error_of(model(x), y))


@row()
def momentum_after_a_step(t):
    model = started(t)
    for number, (x, y) in enumerate(t.data()):
        train(t, error_of(model(x), y))
        model.norm1.momentum = 0.5 / (number + 1)


@row()
def momentum_between_two_calls(t):
    for model, x, y in steps(t):
        model.norm1.momentum = 0.3
        out = model(x)
        model.norm1.momentum = 0.02
        train(t, error_of(out + model(x * 2 + 1), y))


@row()
def momentum_becomes_none(t):
    for model, x, y in steps(t):
        if t.step_number == 1:
            model.norm1.momentum = None
        train(t, error_of(model(x), y))


@row()
def epsilon_by_step(t):
    for model, x, y in steps(t):
        model.norm1.eps = 0.1 * (1 + t.step_number)
        train(t, error_of(model(x), y))


@refused("CohortError", "norm1", "eps")
def epsilon_by_rank(t):
    for model, x, y in steps(t):
        model.norm1.eps = 0.2 if t.here(0) else 0.1
        train(t, error_of(model(x), y))


@refused("CohortError", "norm1", "momentum")
def momentum_by_rank(t):
    for model, x, y in steps(t):
        model.norm1.momentum = 0.2 if t.here(0) else 0.1
        train(t, error_of(model(x), y))


@row()
def statistics_reset(t):
    for model, x, y in steps(t):
        if t.step_number == 1:
            model.norm1.reset_running_stats()
        train(t, error_of(model(x), y))


@row()
def statistics_reset_after_the_backward_pass(t):
    for model, x, y in steps(t):
        t.backward(error_of(model(x), y))
        if t.step_number == 1:
            model.norm1.reset_running_stats()
        t.step()


@row()
def tracking_ends_later(t):
    """Such a call has the batch's statistics, and moves none."""
    for model, x, y in steps(t):
        if t.step_number == 1:
            model.norm1.track_running_stats = False
        train(t, error_of(model(x), y))


# ---- values that a script writes

@row()
def buffers_written_in_a_step(t):
    for model, x, y in steps(t):
        with torch.no_grad():
            model.norm1.running_mean.fill_(0.5)
            model.norm2.running_var.mul_(2)
        train(t, error_of(model(x), y))


@row()
def buffers_written_after_the_backward_pass(t):
    for model, x, y in steps(t):
        t.backward(error_of(model(x), y))
        with torch.no_grad():
            model.norm1.running_mean.mul_(0.5)
        t.step()


@row()
def buffers_replaced_in_a_step(t):
    """Other tensors, in the place of the registered ones."""
    for model, x, y in steps(t):
        if t.step_number == 1:
            model.norm1.running_mean = model.norm1.running_mean * 0.5
        train(t, error_of(model(x), y))


@refused("CohortError", "norm1", or_right=True)
def buffers_written_after_a_step(t):
    for model, x, y in steps(t):
        train(t, error_of(model(x), y))
        if t.step_number == 1:
            with torch.no_grad():
                model.norm1.running_mean.add_(1)


@row()
def buffers_moved_in_memory(t):
    """Tensors that stay the same objects, by share_memory() and `.data`."""
    for model, x, y in steps(t):
        for buffer in model.norm1.buffers():
            buffer.share_memory_()
        mean = model.norm2.running_mean
        mean.data = mean.data + 0.1
        model.eval()
        with torch.no_grad():
            t.own("eval", model(x))
        model.train()
        train(t, error_of(model(x), y))
        mean.data = mean.data + 0.1


@refused("UsageError", "conv1.weight", "moved")
def a_model_moved_into_shared_memory(t):
    for model, x, y in steps(t):
        if t.step_number == 1:
            model.share_memory()
        train(t, error_of(model(x), y))


@row()
def buffers_saved_and_restored_around_a_pass(t):
    for model, x, y in steps(t):
        saved = {name: value.clone() for name, value in model.named_buffers()}
        model(x * 3 + 2)
        with torch.no_grad():
            for name, value in model.named_buffers():
                value.copy_(saved[name])
        train(t, error_of(model(x), y))


@row()
def statistics_loaded_from_a_file(t):
    model = started(t)
    file = {"running_mean": torch.full((CHANNELS,), 0.7),
            "running_var": torch.full((CHANNELS,), 3.0),
            "num_batches_tracked": torch.tensor(40)}
    for x, y in t.data():
        if t.step_number == 1:
            model.norm1.load_state_dict(file, strict=False)
        train(t, error_of(model(x), y))


@refused("CohortError", "norm1")
def buffers_written_by_one_rank(t):
    for model, x, y in steps(t):
        if t.rank == 1:
            with torch.no_grad():
                model.norm1.running_mean.fill_(0.5)
        train(t, error_of(model(x), y))


# ---- values that a script reads

@row()
def eval_pass_before_a_training_call(t):
    """Pseudo labels, by the statistics of the version."""
    for model, x, y in steps(t):
        model.eval()
        with torch.no_grad():
            labels = torch.tanh(model(x))
        t.own("labels", labels)
        model.train()
        train(t, error_of(model(x * 0.9), labels + 0.1 * y))


@row()
def eval_pass_after_a_training_call(t):
    """By the statistics that the call has moved."""
    for model, x, y in steps(t):
        out = model(x)
        model.eval()
        with torch.no_grad():
            labels = torch.tanh(model(x))
        t.own("labels", labels)
        model.train()
        train(t, error_of(out, labels + 0.1 * y))


@row()
def eval_pass_between_two_training_calls(t):
    for model, x, y in steps(t):
        out = model(x)
        model.eval()
        with torch.no_grad():
            other = model(x * 0.5)
        t.own("other", other)
        model.train()
        train(t, error_of(out + other + model(x * 2), y))


@row()
def eval_pass_between_steps(t):
    for model, x, y in steps(t):
        train(t, error_of(model(x), y))
        model.eval()
        with torch.no_grad():
            t.own("after", model(x))
        model.train()


@row()
def eval_pass_on_rank_0_only(t):
    for model, x, y in steps(t):
        out = model(x)
        if t.here(0):
            mine = t.of(x, 0)
            model.eval()
            with torch.no_grad():
                t.own("eval", model(x[mine]))
            model.train()
        train(t, error_of(out, y))


@refused("CohortError", "norm1")
def eval_pass_at_another_place_by_rank(t):
    """Rank 0 reads the statistics before the training call, others after it."""
    for model, x, y in steps(t):
        for place in range(2):
            if place == (0 if t.rank == 0 else 1):
                model.eval()
                with torch.no_grad():
                    labels = model(x)
                model.train()
            if place == 0:
                out = model(x)
        train(t, error_of(out, y + labels))


@refused("CohortError", "norm1", or_right=True)
def a_layer_in_eval_mode_on_rank_0_only(t):
    """It is a layer that the other ranks call."""
    for model, x, y in steps(t):
        x = model.conv1(x)
        parts = []
        for ranks, training in (((0,), False),
                                (tuple(range(1, len(t.sizes))), True)):
            if t.here(*ranks):
                model.norm1.train(training)
                parts.append(model.norm1(x[t.of(x, *ranks)]))
        x = torch.tanh(torch.cat(parts))
        train(t, error_of(model.out(model.second(x)), y))


@refused("CohortError", "norm1", flags=["--normalization=local"])
def eval_pass_after_a_call_that_is_normalised_locally(t):
    """There are no statistics of all in the step."""
    for model, x, y in steps(t):
        out = model(x)
        model.eval()
        with torch.no_grad():
            labels = model(x)
        model.train()
        train(t, error_of(out, y + labels))


@refused("CohortError", "norm1", flags=["--bn_statistics=after"])
def eval_pass_without_statistics_of_a_version(t):
    model = started(t)
    for x, y in t.indexed(22):
        model.eval()
        with torch.no_grad():
            labels = model(x)
        model.train()
        train(t, error_of(model(x), y + labels))


@row()
def a_layer_put_into_eval_mode_later(t):
    """Its statistics rest, and its scale is trained."""
    for model, x, y in steps(t):
        if t.step_number >= 1:
            model.norm1.eval()
        train(t, error_of(model(x), y))


@row(steps=4)
def a_layer_in_eval_mode_every_second_step(t):
    for model, x, y in steps(t):
        model.norm2.train(t.step_number % 2 == 0)
        train(t, error_of(model(x), y))


@row()
def statistics_in_the_loss(t):
    for model, x, y in steps(t):
        out = model(x)
        scale = 1 + model.norm1.running_mean.abs().mean()
        train(t, error_of(out * scale, y) +
              out.mean() * model.norm2.running_var.mean())


@row()
def statistics_in_the_loss_before_the_call(t):
    for model, x, y in steps(t):
        scale = 1 + model.norm1.running_mean.abs().mean()
        train(t, error_of(model(x) * scale, y))


@row()
def state_dict_in_the_run(t):
    for model, x, y in steps(t):
        t.same_state("at the batch", model)
        out = model(x)
        t.same("moved", model.norm1.running_mean)
        t.same("count", model.norm1.num_batches_tracked)
        train(t, error_of(out, y))
        t.same_state("after the step", model)


@row()
def normalised_by_hand_with_statistics(t):
    """As in inference code that folds batch norm."""
    for model, x, y in steps(t):
        layer = model.norm1
        scale = layer.weight / (layer.running_var + layer.eps).sqrt()
        shift = layer.bias - layer.running_mean * scale
        folded = model.conv1(x) * scale.view(1, -1, 1, 1) + (
            shift.view(1, -1, 1, 1))
        t.own("folded", folded)
        train(t, error_of(model(x) + model.out(torch.tanh(folded)), y))


@row()
def distillation_from_the_version_before(t):
    """A copy in eval mode, made again in each step."""
    for model, x, y in steps(t):
        teacher = copy.deepcopy(model).eval()
        with torch.no_grad():
            labels = teacher(x)
        t.own("labels", labels)
        train(t, error_of(model(x), labels * 0.5 + y))


# ---- buffers that two modules share

class Twins(Net):
    """Two batch norms with one pair of statistics."""

    def __init__(self):
        super().__init__()
        self.twin = nn.BatchNorm2d(CHANNELS)
        self.twin.running_mean = self.norm2.running_mean
        self.twin.running_var = self.norm2.running_var
        self.twin.num_batches_tracked = self.norm2.num_batches_tracked

    def forward(self, x):
        x = self.first(x)
        return self.out(self.second(x) + torch.tanh(self.twin(self.conv2(x))))


@refused("ConfigurationError", "twin", or_right=True)
def two_modules_that_share_statistics(t):
    net = Twins()
    model = started(t, net)
    if t.rank is None:
        # Conversion to another precision would part them.
        model.twin.running_mean = model.norm2.running_mean
        model.twin.running_var = model.norm2.running_var
        model.twin.num_batches_tracked = model.norm2.num_batches_tracked
    for x, y in t.data():
        train(t, error_of(model(x), y))


@row()
def one_module_under_two_names(t):
    net = Net()
    net.alias = net.norm2
    for model, x, y in steps(t, net):
        first = model.second(model.first(x))
        train(t, error_of(model.out(torch.tanh(model.alias(first))), y))


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(5, CHANNELS)
        self.norm = nn.BatchNorm1d(CHANNELS)
        self.head = nn.Linear(CHANNELS, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.linear(x))))


@refused("CohortError", "norm", sizes={2: (1, 0)})
def one_value_a_channel_in_the_cohort(t):
    """torch refuses it, too."""
    model = started(t, Flat())
    for x, y in t.data((5,)):
        train(t, (model(x) - y).square().sum(), weight=len(x), reduction="sum")


@row(sizes={2: (1, 1), 3: (1, 1, 1)})
def one_value_a_channel_on_each_worker(t):
    model = started(t, Flat())
    for x, y in t.data((5,)):
        train(t, error_of(model(x), y))


@row()
def frozen_layers_without_statistics(t):
    """torch normalises them by the batch in eval mode, too."""
    model = started(t, Net(track_running_stats=False))
    model.norm1.eval()
    for x, y in t.data():
        train(t, error_of(model(x), y))


class OfEmbeddings(Net):
    """Normalises embeddings, which depend on the samples by numbers alone."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, CHANNELS)

    def out(self, x):
        numbers = (x[:, 0, 0, 0] * 2).long().abs() % 5
        words = nn.functional.batch_norm(self.words(numbers), None, None,
                                         training=True)
        return self.head(x.mean((2, 3)) + words)


@refused("UsageError", "OfEmbeddings.out", "F.batch_norm")
def norm_of_embeddings(t):
    trained(t, OfEmbeddings())
