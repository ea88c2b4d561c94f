"""Rows: losses that are computed across the samples of a batch, without job.sum or
job.gather; and what only looks so."""

import torch
from torch import nn
from torch.nn import functional as F

from shapes.rows import Net, error_of, refused, row, started, steps, train

ACROSS = ("job.backward()", "across the samples", "job.gather", "weight=")
# As many as rows and columns below.
EVEN = {2: (4, 4)}


def embedded(model, x):
    return model.features(x).mean((2, 3))


@refused("UsageError", "mm()", *ACROSS)
def similarities(t):
    """SimCLR."""
    for model, x, y in steps(t):
        z = F.normalize(torch.cat([embedded(model, x), embedded(model, x.flip(2))]))
        each = (z @ z.t()).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e4)
        train(t, F.cross_entropy(each, torch.arange(len(z)).roll(len(x))))


@refused("UsageError", "mm()", *ACROSS)
def similarities_of_two_views(t):
    """CLIP."""
    for model, x, y in steps(t):
        each = torch.einsum("nc,mc->nm", embedded(model, x),
                            embedded(model, x.flip(2)))
        train(t, F.cross_entropy(each, torch.arange(len(x))))


@refused("UsageError", "dist()", *ACROSS)
def hardest_samples(t):
    for model, x, y in steps(t):
        z = embedded(model, x)
        apart = torch.cdist(z, z)
        train(t, F.relu(apart.amax(1) - apart.amin(1) + 0.3).mean())


@refused("UsageError", "mm()", *ACROSS)
def covariances(t):
    """Barlow Twins."""
    for model, x, y in steps(t):
        product = embedded(model, x).t() @ embedded(model, x.flip(2)) / len(x)
        train(t, (product - torch.eye(4, dtype=x.dtype)).square().sum())


@refused("UsageError", "var()", *ACROSS)
def variances(t):
    """VICReg."""
    for model, x, y in steps(t):
        z = embedded(model, x)
        train(t, error_of(model.head(z), y) +
              F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean())


@refused("UsageError", "mean()", *ACROSS)
def entropy_of_a_mean(t):
    for model, x, y in steps(t):
        share = model(x).softmax(1).mean(0)
        train(t, error_of(model(x), y) + (share * share.log()).sum())


@refused("UsageError", "sum()", *ACROSS, sizes=EVEN)
def dice_by_class(t):
    for model, x, y in steps(t):
        share = model.features(x).sigmoid()
        target = (x[:, :1, :4, :4] > 0).to(x.dtype).expand_as(share)
        over = 0, 2, 3
        train(t, 1 - ((2 * (share * target).sum(over) + 1) /
                      (share.sum(over) + target.sum(over) + 1)).mean())


@refused("UsageError", "logcumsumexp()", *ACROSS)
def risks(t):
    """Cox."""
    for model, x, y in steps(t):
        out = model(x)[y[:, 0].argsort(descending=True), 0]
        train(t, (out.logcumsumexp(0) - out).mean())


class ByHand(nn.Module):
    """Batch norm."""

    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x):
        over = 0, 2, 3
        x = x - x.mean(over, keepdim=True)
        return self.scale * x / (x.square().mean(over, keepdim=True) + 1e-5).sqrt()


@refused("UsageError", "mean()", "batch-norm module", *ACROSS)
def batch_norm_by_hand(t):
    for model, x, y in steps(t, Net(ByHand)):
        train(t, error_of(model(x), y))


# ---- other dimensions of that extent

@row(sizes=EVEN)
def mean_of_four_outputs(t):
    for model, x, y in steps(t):
        outs = torch.stack([model(x.flip(k)) for k in (1, 2, 3)] + [model(x)])
        train(t, error_of(torch.tanh(outs.mean(0)), y))


@row(sizes=EVEN)
def functions_of_each_sample(t):
    for model, x, y in steps(t):
        train(t, sum(-F.log_softmax(one, 0)[1] + one.var(0)
                     for one in embedded(model, x)) / len(x))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(3, 4)
        self.head = nn.Linear(4, 2)


@row(sizes=EVEN)
def attention_to_four_words(t):
    model = started(t, Attention())
    for x, y in t.data((4, 3)):
        found = model.first(x) @ model.second(x).transpose(1, 2)
        words = (found.softmax(-1) @ model.first(x)).transpose(0, 1)
        train(t, error_of(model.head(torch.tanh(words.mean(0))), y))


@row(sizes=EVEN)
def functions_of_means_of_weights(t):
    for model, x, y in steps(t):
        weight = model.conv2.weight
        weight = (weight - weight.mean(0)) / weight.std(0)
        x = F.conv2d(model.first(x), weight, padding=1)
        train(t, error_of(model.out(torch.tanh(model.norm2(x))), y) +
              (model.head.weight @ model.head.weight.t()).square().mean())


@row(sizes=EVEN)
def products_of_each_sample(t):
    """A loss of style."""
    for model, x, y in steps(t):
        each = model.features(x).flatten(2)
        train(t, (each @ each.transpose(1, 2) - 0.1).square().mean() +
              error_of(model(x), y))


@row(sizes=EVEN)
def mean_over_samples_of_columns(t):
    for model, x, y in steps(t):
        columns = (model(x) - y).square().mean(0)
        train(t, 2 * columns[0] + columns[1:].sum() / 3)


@row(sizes=EVEN)
def similarities_that_are_meant(t):
    """As the error says."""
    for model, x, y in steps(t):
        z = model(x)
        train(t, error_of(z, y) + 0.0 * (z @ z.t()).square().mean(), weight=len(x))
