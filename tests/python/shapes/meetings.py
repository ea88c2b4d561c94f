"""Rows: ranks that do not call the same layers. The statistics are those of the
samples that reach a layer, as in one process."""

import threading

import torch
from torch import nn

import cohort
from shapes.rows import (
    CHANNELS, Net, error_of, refused, row, started, steps, train, trained)


class TwoHeads(Net):
    """A second branch, with another batch norm."""

    def __init__(self):
        super().__init__()
        self.conv3 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(CHANNELS)
        self.conv4 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.norm4 = nn.BatchNorm2d(CHANNELS)

    def third(self, x):
        return torch.tanh(self.norm3(self.conv3(x)))

    def fourth(self, x):
        return torch.tanh(self.norm4(self.conv4(x)))


def summed(t, each):
    """Trains a sum over samples, which may be those of some ranks only."""
    t.backward(each.sum(), weight=len(each), reduction="sum")
    t.step()


def with_branch(t, model, x, which, branch):
    """Adds a branch's output to the samples of some ranks."""
    features = model.features(x)
    if not t.here(*which):
        return model.out(features)
    mine = t.of(x, *which)
    extra = torch.zeros_like(features)
    extra = extra.index_put((mine.nonzero()[:, 0],), branch(features[mine]))
    return model.out(features + extra)


@row()
def a_layer_that_rank_0_calls(t):
    """No valid points on the other ranks."""
    for model, x, y in steps(t, TwoHeads()):
        out = with_branch(t, model, x, (0,), model.third)
        t.own("output", out)
        summed(t, (out - y).square().sum(1))


@row()
def a_layer_that_the_last_rank_calls(t):
    model = started(t, TwoHeads())
    last = len(t.sizes) - 1
    for x, y in t.data():
        out = with_branch(t, model, x, (last,), model.third)
        summed(t, (out - y).square().sum(1))


@row(sizes={3: (2, 3, 4)})
def a_layer_that_two_of_three_ranks_call(t):
    for model, x, y in steps(t, TwoHeads()):
        out = with_branch(t, model, x, (0, 2), model.third)
        summed(t, (out - y).square().sum(1))


@row()
def a_layer_that_another_rank_calls_in_each_step(t):
    for model, x, y in steps(t, TwoHeads()):
        rank = t.step_number % len(t.sizes)
        out = with_branch(t, model, x, (rank,), model.third)
        summed(t, (out - y).square().sum(1))


@row()
def two_branches_by_rank(t):
    """Rank 0 takes one, the others the other."""
    model = started(t, TwoHeads())
    others = tuple(range(1, len(t.sizes)))
    for x, y in t.data():
        features = model.features(x)
        extra = torch.zeros_like(features)
        for ranks, branch in (((0,), model.third), (others, model.fourth)):
            if t.here(*ranks):
                mine = t.of(x, *ranks)
                extra = extra.index_put((mine.nonzero()[:, 0],),
                                        branch(features[mine]))
        summed(t, (model.out(features + extra) - y).square().sum(1))


@row()
def a_skipped_layer_in_front_of_others(t):
    """The ranks that skip it wait in a later one."""
    for model, x, y in steps(t, TwoHeads()):
        first = model.first(x)
        if t.here(0):
            mine = t.of(x, 0)
            extra = torch.zeros_like(first).index_put(
                (mine.nonzero()[:, 0],), model.third(first[mine]))
            first = first + extra
        summed(t, (model.out(model.second(first)) - y).square().sum(1))


@row()
def stochastic_depth_by_rank(t):
    for model, x, y in steps(t, TwoHeads()):
        x = model.features(x)
        for number, block in enumerate((model.third, model.fourth)):
            ranks = [rank for rank in range(len(t.sizes))
                     if (rank + t.step_number + number) % 2 == 0]
            if t.here(*ranks):
                mine = t.of(x, *ranks)
                x = x + torch.zeros_like(x).index_put(
                    (mine.nonzero()[:, 0],), block(x[mine]))
        summed(t, (model.out(x) - y).square().sum(1))


@row()
def stochastic_depth_alike_on_all_ranks(t):
    for model, x, y in steps(t, TwoHeads()):
        x = model.features(x)
        if t.step_number % 2 == 0:
            x = x + model.third(x)
        train(t, error_of(model.out(x), y))


@row(steps=4)
def a_head_from_the_third_step_on(t):
    for model, x, y in steps(t, TwoHeads()):
        x = model.features(x)
        if t.step_number >= 2:
            x = x + model.third(x)
        train(t, error_of(model.out(x), y))


@row(steps=4)
def a_head_on_one_rank_from_the_third_step_on(t):
    for model, x, y in steps(t, TwoHeads()):
        which = (1,) if t.step_number >= 2 else ()
        out = with_branch(t, model, x, which, model.third)
        summed(t, (out - y).square().sum(1))


@refused("TrainingError", "norm3", "norm4", "rank 1")
def layers_in_another_order_by_rank(t):
    for model, x, y in steps(t, TwoHeads()):
        features = model.features(x)
        if t.rank == 0:
            a = model.third(features)
            b = model.fourth(features)
        else:
            b = model.fourth(features)
            a = model.third(features)
        train(t, error_of(model.out(a * b + features), y))


@refused("TrainingError", "norm2", "norm4", "rank 1")
def a_cycle_of_orders(t):
    """Each rank begins with another layer."""
    for model, x, y in steps(t, TwoHeads()):
        features = torch.tanh(model.conv1(x))
        blocks = [model.second, model.third, model.fourth]
        first = t.rank or 0
        found = {}
        for number in range(3):
            which = (first + number) % 3
            found[which] = blocks[which](features)
        train(t, error_of(model.out(found[0] + found[1] * found[2]), y))


@row()
def a_step_in_which_a_rank_calls_nothing(t):
    for model, x, y in steps(t):
        each = (model.head(x.mean((2, 3)).repeat(1, 2)[:, :CHANNELS]) - y
                ).square().sum(1)
        if t.step_number == 1 and t.here(0):
            mine = t.of(x, 0)
            more = (model(x[mine]) - y[mine]).square().sum(1)
            each = each.index_put((mine.nonzero()[:, 0],), more, accumulate=True)
        elif t.step_number != 1:
            each = each + (model(x) - y).square().sum(1)
        summed(t, each)


@row()
def a_layer_that_nobody_calls(t):
    trained(t, TwoHeads())


@row()
def warm_up_on_one_rank_of_a_layer_by_name(t):
    """`cohort.call` pairs calls by name where a rank has more of them."""
    for model, x, y in steps(t, TwoHeads()):
        features = model.features(x)
        extra = torch.zeros_like(features)
        if t.here(0):
            mine = t.of(x, 0)
            with t.call("only on rank 0"):
                extra = extra.index_put((mine.nonzero()[:, 0],),
                                        model.third(features[mine]))
        with t.call("on all ranks"):
            features = model.third(features)
        summed(t, (model.out(features + extra) - y).square().sum(1))


@refused("CohortError", "norm3")
def a_layer_called_twice_by_one_rank_and_once_by_another(t):
    """Which call belongs to which is not known: the numbers of calls differ, and
    neither is 0."""
    for model, x, y in steps(t, TwoHeads()):
        features = model.third(model.features(x))
        if t.here(0):
            features = model.third(features)
        train(t, error_of(model.out(features), y))


@row()
def pyramid_levels_by_name(t):
    """A shared head on several sizes, one of which a rank leaves out."""
    for model, x, y in steps(t, TwoHeads()):
        features = model.features(x)
        each = torch.zeros(len(x), dtype=x.dtype)
        for number, ranks in enumerate((range(1, len(t.sizes)),
                                        range(len(t.sizes)))):
            if t.here(*ranks):
                mine = t.of(x, *ranks)
                level = features[mine]
                if number:
                    level = nn.functional.avg_pool2d(level, 2)
                with t.call(f"level {number}"):
                    out = model.out(model.third(level))
                each = each.index_put((mine.nonzero()[:, 0],), (
                    out - y[mine]).square().sum(1), accumulate=True)
        summed(t, each)


@refused("CohortError", "norm3")
def pyramid_levels_that_differ(t):
    """A shared head on several sizes, one of which a rank leaves out: its second
    call would meet the other's first."""
    for model, x, y in steps(t, TwoHeads()):
        features = model.features(x)
        levels = [features, nn.functional.avg_pool2d(features, 2)]
        if not t.here(0):
            levels = levels[1:]
        out = sum(model.out(model.third(level)) for level in levels)
        train(t, error_of(out, y))


@row(sizes={2: (4, 6), 3: (2, 4, 6)})
def a_layer_in_the_second_part_only(t):
    model = started(t, TwoHeads())
    for number, (x, y) in enumerate(t.data(accumulate=2)):
        x = model.features(x)
        if number % 2:
            x = x + model.third(x)
        train(t, error_of(model.out(x), y))


@row(sizes={2: (4, 6), 3: (2, 4, 6)})
def a_layer_in_another_part_by_rank(t):
    """With accumulation, each part has its own meetings."""
    model = started(t, TwoHeads())
    part = 0
    for number, (x, y) in enumerate(t.data(accumulate=2)):
        part = number % 2
        rank = 1 - part
        out = with_branch(t, model, x, (rank,), model.third)
        t.own("output", out)
        summed(t, (out - y).square().sum(1))


@row()
def a_penalty_with_a_layer_that_one_rank_calls(t):
    for model, x, y in steps(t, TwoHeads(), lr=0.02, saliency=True):
        out = with_branch(t, model, x, (1,), model.third)
        found, = torch.autograd.grad(out.sum(), x, create_graph=True)
        each = (out - y).square().sum(1) + found.square().sum((1, 2, 3))
        summed(t, each)


@refused("CohortError", "norm")
def a_layer_in_another_thread(t):
    for model, x, y in steps(t):
        failed = []

        def call():
            try:
                model(x * 0.5)
            except cohort.CohortError as error:
                failed.append(error)
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        train(t, error_of(model(x), y))


@refused("UsageError", "norm")
def a_training_call_between_steps(t):
    for model, x, y in steps(t):
        train(t, error_of(model(x), y))
        model(x)


@refused("UsageError", "norm")
def a_training_call_between_steps_without_gradients(t):
    for model, x, y in steps(t):
        train(t, error_of(model(x), y))
        with torch.no_grad():
            model(x)


@refused("UsageError", "norm1", "outside of a step")
def a_function_between_steps(t):
    for model, x, y in steps(t):
        train(t, error_of(model(x), y))
        layer = model.norm1
        nn.functional.batch_norm(model.conv1(x), layer.running_mean,
                                 layer.running_var, training=True)


@row()
def a_training_call_before_the_run(t):
    """Before the join, and before the first batch: plain torch."""
    net = t.model(Net())
    x = torch.linspace(-1, 1, 4 * 108).view(4, 3, 6, 6).to(
        net.head.weight.dtype)
    net(x)
    trained(t, net)


@row()
def a_training_call_after_the_run(t):
    """Plain torch again; the weights are the run's last."""
    for model, x, y in steps(t):
        train(t, error_of(model(x), y))
    x = torch.linspace(-1, 1, 4 * 108).view(4, 3, 6, 6).to(
        model.head.weight.dtype)
    t.same("output", model(x))
