"""Rows: losses that are no means over samples, without weight= or job.sum."""

import torch
from torch import nn
from torch.nn import functional as F

from shapes.rows import Net, error_of, refused, row, steps, train

# The text of what is a mean over a part.
A_PART = ("job.backward()", "a part of the", "weight=")


def labels_of(y):
    """A class of each sample."""
    return (y[:, 0] > 0).long()


def ignoring(y):
    return labels_of(y).masked_fill(y[:, 1] > 0.3, -100)


@refused("UsageError", *A_PART)
def mean_over_labels_that_are_not_ignored(t):
    for model, x, y in steps(t):
        train(t, F.cross_entropy(model(x), ignoring(y)))


@refused("UsageError", *A_PART)
def smooth_mean_over_labels_that_are_not_ignored(t):
    for model, x, y in steps(t):
        train(t, F.cross_entropy(model(x), ignoring(y), label_smoothing=0.1))


@refused("UsageError", *A_PART)
def mean_over_pixels_that_are_not_ignored(t):
    for model, x, y in steps(t):
        target = (x[:, 0, :4, :4] > 0.5).long().masked_fill(x[:, 1, :4, :4] > 1, 255)
        train(t, F.cross_entropy(model.features(x), target, ignore_index=255))


@refused("UsageError", *A_PART)
def mean_by_weights_of_classes(t):
    for model, x, y in steps(t):
        loss = F.cross_entropy(model(x), labels_of(y), torch.tensor([0.2, 3.0]))
        train(t, loss + 0.1 * model.head.weight.square().mean())


@row()
def mean_by_weights_of_classes_that_is_weighted(t):
    for model, x, y in steps(t):
        labels, weights = labels_of(y), torch.tensor([0.2, 3.0], dtype=x.dtype)
        train(t, F.cross_entropy(model(x), labels, weights),
              weight=float(weights[labels].sum()))


@row(sizes={2: (2, 4), 3: (2, 4, 6)})
def as_many_labels_ignored_on_each_worker(t):
    """It is then a mean over samples, too."""
    for model, x, y in steps(t):
        labels = labels_of(y)
        labels[::2] = -100
        train(t, F.cross_entropy(model(x), labels))


@refused("UsageError", *A_PART)
def mean_of_entries_in_a_mask(t):
    for model, x, y in steps(t):
        each = (model(x) - y).square().sum(1)
        train(t, 3 * each[y[:, 0] > 0].mean())


@refused("UsageError", *A_PART)
def loss_of_entries_in_a_mask(t):
    for model, x, y in steps(t):
        mask = y[:, 0] > 0
        train(t, F.mse_loss(model(x)[mask], y[mask]))


@refused("UsageError", *A_PART)
def batch_that_the_body_filters(t):
    for model, x, y in steps(t):
        keep = y[:, 0] > -0.5
        train(t, F.cross_entropy(model(x[keep]), labels_of(y[keep])))


@refused("UsageError", *A_PART)
def batch_that_the_body_cuts(t):
    for model, x, y in steps(t):
        train(t, F.mse_loss(model(x[:4]), y[:4]))


@row(sizes={2: (2, 4), 3: (2, 4, 6)})
def half_of_the_batch_on_each_worker(t):
    for model, x, y in steps(t):
        train(t, F.cross_entropy(model(x)[::2], labels_of(y[::2])))


def boxes_of(y):
    """The sample of each box: some have one, others two."""
    return torch.repeat_interleave(1 + (y[:, 0] > 0).long())


@refused("UsageError", *A_PART)
def mean_over_boxes(t):
    for model, x, y in steps(t):
        of = boxes_of(y)
        train(t, (model(x)[of] - y[of]).abs().sum(1).mean())


@row()
def mean_over_boxes_that_is_weighted(t):
    for model, x, y in steps(t):
        of = boxes_of(y)
        train(t, (model(x)[of] - y[of]).square().sum(1).mean(), weight=len(of))


@refused("UsageError", *A_PART)
def quotient_by_a_mask(t):
    for model, x, y in steps(t):
        mask = (y[:, 0] > 0).to(x.dtype)
        each = (model(x) - y).square().sum(1)
        train(t, (each * mask).sum() / mask.sum().clamp(min=1))


@refused("UsageError", *A_PART)
def sum_over_labels_by_their_number(t):
    for model, x, y in steps(t):
        labels = ignoring(y)
        train(t, F.cross_entropy(model(x), labels, reduction="sum") /
              int((labels >= 0).sum()))


@row()
def quotients_by_the_batch(t):
    for model, x, y in steps(t):
        each = (model(x) - y).square()
        train(t, each.sum() / len(x) + torch.tanh(each).sum() / each.numel() +
              F.mse_loss(torch.tanh(each), y, reduction="sum") / (3 * len(x)))


@row()
def mean_of_all_entries_some_of_which_are_zero(t):
    for model, x, y in steps(t):
        each = (model(x) - y).square().sum(1)
        train(t, each.masked_fill(y[:, 0] > 0, 0).mean() + each.clamp(max=2).mean())


@refused("UsageError", "job.backward()", "sqrt", "job.sum")
def root_of_a_mean(t):
    for model, x, y in steps(t):
        train(t, torch.sqrt(F.mse_loss(model(x), y)))


@refused("UsageError", "job.backward()", "norm", "job.sum")
def norm_of_all_residuals(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).norm())


@refused("UsageError", "job.backward()", "abs", "job.sum")
def flooding(t):
    for model, x, y in steps(t):
        train(t, (error_of(model(x), y) - 3).abs() + 3)


@refused("UsageError", "job.backward()", "div", "job.sum")
def dice_over_the_batch_of_each_worker(t):
    for model, x, y in steps(t):
        share, target = torch.sigmoid(model(x)), (y > 0).to(x.dtype)
        train(t, error_of(share, y) + 1 - (2 * (share * target).sum() + 1) / (
            share.sum() + target.sum() + 1))


@refused("UsageError", "job.backward()", "a sum", "reduction=")
def sum_without_a_word(t):
    for model, x, y in steps(t):
        train(t, F.mse_loss(model(x), y, reduction="sum") + 0.1)


@refused("UsageError", "job.backward()", "a sum", "job.sum")
def sum_beside_a_mean(t):
    """As of an autoencoder's two terms."""
    for model, x, y in steps(t):
        out = model(x)
        train(t, (out - y).square().sum() + 0.5 * out.square().mean())


@row()
def functions_of_each_sample_in_a_loop(t):
    for model, x, y in steps(t):
        losses = [torch.sqrt(F.mse_loss(a, b)) + F.cross_entropy(
                      a.repeat(3, 1), torch.tensor([0, 1 if b[0] > 0 else -100, 1]))
                  for a, b in zip(model(x), y)]
        train(t, sum(losses) / len(losses))


@row()
def functions_of_parameters(t):
    """Weights of losses that are trained, and norms of the weights."""
    net = Net()
    net.scales = nn.Parameter(torch.tensor([0.1, 0.2]))
    for model, x, y in steps(t, net):
        out = model(x)
        norm = sum(p.square().sum() for p in model.parameters()).sqrt()
        first, second = model.scales
        train(t, torch.exp(-first) * error_of(out, y) + first + torch.exp(-second) *
              torch.tanh(out).sum(1).mean() + second.square() + 0.01 * norm)


@row()
def sum_over_columns_of_means(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).square().mean(0).sum())


@row()
def loss_within_a_checkpoint(t):
    """Its values are computed again where they are looked at, which only the
    backward pass may do."""
    for model, x, y in steps(t):
        def loss_of(x, model=model, y=y):
            each = model.norm2(model.conv2(x)).mean((2, 3)).square()
            return each.sum() / len(each) + F.cross_entropy(
                each[:, :2], labels_of(y)) + each[each[:, 0] > -1].mean()
        train(t, t.checkpoint(loss_of, model.first(x), reentrant=False))
