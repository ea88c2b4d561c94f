"""Rows: losses that are computed across the samples of a batch, without job.sum or
job.gather; and what only looks so."""

import torch
from torch import nn
from torch.nn import functional as F

from shapes.rows import Net, error_of, refused, row, sgd, started, steps, train

ACROSS = ("job.backward()", "across the samples", "job.gather", "weight=")
# As many as rows and columns below.
EVEN = {2: (4, 4)}


def embedded(model, x):
    return model.features(x).mean((2, 3))


@refused("UsageError", *ACROSS)
def similarities(t):
    """SimCLR."""
    for model, x, y in steps(t):
        z = F.normalize(torch.cat([embedded(model, x), embedded(model, x.flip(2))]))
        each = (z @ z.t()).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e4)
        train(t, F.cross_entropy(each, torch.arange(len(z)).roll(len(x))))


@refused("UsageError", *ACROSS)
def similarities_of_two_views(t):
    """CLIP."""
    for model, x, y in steps(t):
        each = torch.einsum("nc,mc->nm", embedded(model, x),
                            embedded(model, x.flip(2)))
        train(t, F.cross_entropy(each, torch.arange(len(x))))


@refused("UsageError", *ACROSS)
def hardest_samples(t):
    for model, x, y in steps(t):
        z = embedded(model, x)
        apart = torch.cdist(z, z)
        train(t, F.relu(apart.amax(1) - apart.amin(1) + 0.3).mean())


@refused("UsageError", "topk()", *ACROSS)
def hardest_half_of_the_pixels(t):
    for model, x, y in steps(t):
        each = model.features(x).square().mean(1).view(-1)
        train(t, each.topk(len(each) // 2).values.mean())


@row()
def hardest_pixels_of_each_sample(t):
    for model, x, y in steps(t):
        each = model.features(x).square().mean(1)
        train(t, each.flatten(1).topk(5).values.mean() + sum(
            one.flatten().sort().values[:3].mean() for one in each) / len(each))


@refused("UsageError", *ACROSS)
def covariances(t):
    """Barlow Twins."""
    for model, x, y in steps(t):
        product = embedded(model, x).t() @ embedded(model, x.flip(2)) / len(x)
        train(t, (product - torch.eye(4, dtype=x.dtype)).square().sum())


@refused("UsageError", *ACROSS)
def variances(t):
    """VICReg."""
    for model, x, y in steps(t):
        z = embedded(model, x)
        train(t, error_of(model.head(z), y) +
              F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean())


@refused("UsageError", *ACROSS)
def entropy_of_a_mean(t):
    for model, x, y in steps(t):
        share = model(x).softmax(1).mean(0)
        train(t, error_of(model(x), y) + (share * share.log()).sum())


@refused("UsageError", *ACROSS, sizes=EVEN)
def dice_by_class(t):
    for model, x, y in steps(t):
        share = model.features(x).sigmoid()
        target = (x[:, :1, :4, :4] > 0).to(x.dtype).expand_as(share)
        over = 0, 2, 3
        train(t, 1 - ((2 * (share * target).sum(over) + 1) /
                      (share.sum(over) + target.sum(over) + 1)).mean())


@refused("UsageError", *ACROSS)
def risks(t):
    """Cox."""
    for model, x, y in steps(t):
        out = model(x)[y[:, 0].argsort(descending=True), 0]
        train(t, (out.logcumsumexp(0) - out).mean())


MIXED = ("functions of sums", *ACROSS)


@refused("UsageError", *MIXED)
def differences_of_all_pairs(t):
    """As in a maximum mean discrepancy."""
    for model, x, y in steps(t):
        z = model(x)
        apart = (z[:, None] - z[None]).square().sum(-1)
        train(t, error_of(z, y) + (-apart).exp().mean())


@refused("UsageError", *MIXED)
def distances_to_means_of_classes(t):
    for model, x, y in steps(t):
        z = embedded(model, x)
        of = F.one_hot((y[:, 0] > 0).long(), 2).to(x.dtype)
        centres = (of[:, :, None] * z[:, None]).sum(0) / (of.sum(0)[:, None] + 1)
        train(t, (z - (of[:, :, None] * centres).sum(1)).square().mean())


@refused("UsageError", *MIXED)
def triplets_of_the_batch(t):
    for model, x, y in steps(t):
        z = model(x)
        train(t, F.triplet_margin_loss(z, z.roll(1, 0), z.roll(2, 0), margin=9.0))


@refused("UsageError", *MIXED)
def root_of_a_mean_by_einsum(t):
    for model, x, y in steps(t):
        apart = model(x) - y
        train(t, torch.einsum("nc,nc->", apart, apart).div(len(x)).sqrt().view(1))


@refused("UsageError", *MIXED)
def pairs_from_the_second_step_on(t):
    for model, x, y in steps(t):
        z = model(x)
        loss = error_of(z, y)
        if t.step_number > 0:
            loss = loss + (z * z.roll(1, 0)).sum(1).tanh().mean()
        train(t, loss)


@refused("UsageError", *MIXED)
def dice_beside_a_mean_over_pixels(t):
    for model, x, y in steps(t):
        share = model.features(x).sigmoid()
        target = (x[:, :1, :4, :4] > 0).to(x.dtype).expand_as(share)
        dice = 2 * (share * target).sum() / (share.sum() + target.sum())
        train(t, F.binary_cross_entropy(share, target) - dice,
              weight=share.numel())


@refused("UsageError", *MIXED)
def dice_as_one_of_two_losses(t):
    for model, x, y in steps(t):
        share = torch.sigmoid(model(x))
        dice = 2 * share[:, 0].sum() / (share.sum() + len(x))
        t.backward([(error_of(share, y), len(x)), (-dice, 2 * len(x))])
        t.step()


@refused("UsageError", *MIXED)
def pairs_above_a_checkpoint(t):
    for model, x, y in steps(t):
        z = model.head(t.checkpoint(model.features, x, reentrant=False).mean((2, 3)))
        train(t, error_of(z, y) + (z * z.roll(1, 0)).sum(1).tanh().mean())


@refused("UsageError", *MIXED)
def words_of_all_samples(t):
    """Rows of the last layer are parts of samples."""
    for model, x, y in steps(t):
        words = model.head(model.features(x).flatten(2).transpose(1, 2))
        train(t, (words.softmax(-1).mean((0, 1)) + 0.1).log().mean())


class ByHand(nn.Module):
    """Batch norm."""

    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x):
        over = 0, 2, 3
        x = x - x.mean(over, keepdim=True)
        return self.scale * x / (x.square().mean(over, keepdim=True) + 1e-5).sqrt()


@refused("UsageError", "the model computes", "batch-norm module", *ACROSS)
def batch_norm_by_hand(t):
    for model, x, y in steps(t, Net(ByHand)):
        train(t, error_of(model(x), y))


# ---- hooks of outputs, which are called once

@row()
def gradient_of_an_output_is_kept(t):
    for model, x, y in steps(t):
        features = model.features(x).mean((2, 3))
        out = model.head(features)
        features.retain_grad()
        seen = []
        out.register_hook(seen.append)
        train(t, error_of(out, y))
        t.own("features", features.grad)
        grad, = seen
        t.own("out", grad)


# ---- other dimensions of that extent

class Sequences(nn.Module):
    """Words in the first dimension."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.memory = nn.LSTM(3, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.memory(x.transpose(0, 1))[0])


@row(sizes={2: (4, 2)})
def sequences_by_word(t):
    model = started(t, Sequences())
    for x, y in t.data((6, 3)):
        words = model(x)
        train(t, error_of(words.softmax(2).tanh().sum(0), y) +
              F.cross_entropy(words.flatten(0, 1), words.flatten(0, 1).argmax(1)))


class Prototypes(nn.Module):
    """Classes as outputs of a layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.words = nn.Linear(3, 4)
        self.images = nn.Linear(3, 4)

    def forward(self, x):
        classes = self.words(torch.eye(12, 3, dtype=x.dtype))
        return F.normalize(self.images(x), dim=1) @ F.normalize(classes, dim=1).t()


@row(sizes={2: (4, 6)})
def similarities_to_classes(t):
    model = started(t, Prototypes())
    for x, y in t.data((3,)):
        train(t, F.cross_entropy(model(x), (5 * y[:, 0].abs()).long().clamp(max=11)))



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


@row()
def layers_that_get_no_samples(t):
    """As the rest of a network behind an early exit."""
    for model, x, y in steps(t):
        early = x.flatten(1).amax(1) > -100
        z = embedded(model, x)
        loss = sum((model.head(z[rows]) - y[rows]).square().sum()
                   for rows in (early, ~early))
        train(t, loss / len(x))


# ---- arithmetic within the model

class Shifted(Net):
    """Takes each sample's features from its neighbour."""

    def second(self, x):
        return super().second(x + 0.5 * x.roll(-1, 0))


@refused("UsageError", "the model computes", *ACROSS, sizes={2: (4, 5)})
def features_of_neighbours(t):
    for model, x, y in steps(t, Shifted()):
        train(t, error_of(model(x), y))


class OverTheBatch(Net):
    """Attention to the samples of the batch."""

    def out(self, x):
        x = x.mean((2, 3))
        return self.head((x @ x.t()).softmax(1) @ x)


@refused("UsageError", "the model computes", *ACROSS)
def attention_to_samples(t):
    for model, x, y in steps(t, OverTheBatch()):
        train(t, error_of(model(x), y))


class Deviation(Net):
    """The last channel is how much the batch deviates, as in discriminators."""

    def second(self, x):
        x = super().second(x)
        spread = x[:, :3].std(0).mean().expand(len(x), 1, *x.shape[2:])
        return torch.cat([x[:, :3], spread], 1)


@refused("UsageError", "the model computes", *ACROSS)
def deviation_of_the_batch(t):
    for model, x, y in steps(t, Deviation()):
        train(t, error_of(model(x), y))


class Queries(nn.Module):
    """As many trained vectors as samples attend to what a sample has."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.queries = nn.Parameter(torch.randn(4, 3))
        self.ask = nn.Linear(3, 4)
        self.keys = nn.Linear(3, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        keys = self.keys(x)
        found = self.ask(self.queries) @ keys.transpose(1, 2)
        return self.head(torch.tanh(found.softmax(-1) @ keys)).sum(1)


@row(sizes=EVEN)
def as_many_queries_as_samples(t):
    model = started(t, Queries())
    for x, y in t.data((5, 3)):
        train(t, error_of(model(x), y))


class Packed(nn.Module):
    """Sequences by their length."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(9)
        self.words = nn.Linear(3, 4)
        self.memory = nn.GRU(4, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        lengths = torch.tensor([2 + 7 * k % 4 for k in range(len(x))])
        packed = nn.utils.rnn.pack_padded_sequence(
            self.words(x), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.memory(packed)[1][-1])


@row(sizes=EVEN)
def packed_sequences(t):
    model = started(t, Packed())
    for x, y in t.data((5, 3)):
        train(t, error_of(model(x), y))


class Sorted(Net):
    """Sorts samples within the model, as a mixture of experts."""

    def second(self, x):
        order = x.mean((1, 2, 3)).argsort()
        return super().second(x[order])[order.argsort()]


@row(sizes=EVEN)
def samples_in_another_order(t):
    for model, x, y in steps(t, Sorted()):
        train(t, error_of(model(x), y))


class Positions(nn.Module):
    """As many positions as samples."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(9)
        self.words = nn.Linear(3, 4)
        self.positions = nn.Embedding(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.words(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(x.tanh().mean(1))


@row(sizes=EVEN)
def as_many_positions_as_samples(t):
    model = started(t, Positions())
    for x, y in t.data((4, 3)):
        train(t, error_of(model(x), y))


@refused("UsageError", *MIXED, sizes={2: (6, 6)})
def halves_of_the_batch(t):
    for model, x, y in steps(t):
        first, second = model(x).chunk(2)
        train(t, error_of(first, second))


class Gated(Net):
    """Weights of channels from what the batch has in the mean; or each sample."""

    def __init__(self, by_sample=False):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        self.by_sample = by_sample

    def out(self, x):
        x = x.mean((2, 3))
        gates = (torch.cat([self.gate(one) for one in x.split(1)]) if self.by_sample else
                 self.gate(x.mean(0, keepdim=True)))
        return super().out(x[:, :, None, None]) * gates


@refused("UsageError", "the model computes", *ACROSS)
def gates_by_the_batch(t):
    for model, x, y in steps(t, Gated()):
        train(t, error_of(model(x), y))


class WithMean(Net):
    """A further row is the mean of the others."""

    def out(self, x):
        x = x.mean((2, 3))
        x = self.head(torch.cat([x, x.mean(0, keepdim=True)]))
        return x[:-1] + x[-1:]


@refused("UsageError", "the model computes", *ACROSS)
def a_row_of_the_mean(t):
    for model, x, y in steps(t, WithMean()):
        train(t, error_of(model(x), y))


@row(sizes=EVEN)
def gates_in_a_loop_over_samples(t):
    for model, x, y in steps(t, Gated(by_sample=True)):
        train(t, error_of(model(x), y))


def standardised(values, dims=()):
    return (values - values.mean(dims, keepdim=True)) / (
        values.std(dims, keepdim=True) + 1e-8)


@refused("UsageError", "mean was taken off", *ACROSS)
def advantages_over_the_batch(t):
    """PPO."""
    for model, x, y in steps(t):
        advantages = standardised(y[:, 0])
        ratio = model(x)[:, 0].exp()
        train(t, torch.max(-advantages * ratio,
                           -advantages * ratio.clamp(0.8, 1.2)).mean())


@refused("UsageError", "mean was taken off", *ACROSS)
def returns_less_their_mean(t):
    """REINFORCE."""
    for model, x, y in steps(t):
        rewards = 20 + y[:, 0]
        train(t, -((rewards - rewards.mean()) * model(x)[:, 0]).mean())


@refused("UsageError", "mean was taken off", *ACROSS)
def returns_less_their_mean_in_a_product(t):
    for model, x, y in steps(t):
        rewards = 20 + y[:, 0]
        train(t, -torch.einsum("n,n->", rewards - rewards.mean(),
                               model(x)[:, 0]) / len(x))


@refused("UsageError", "mean was taken off", *ACROSS)
def returns_less_their_mean_as_weights(t):
    for model, x, y in steps(t):
        rewards = 20 + y[:, 0]
        train(t, F.binary_cross_entropy_with_logits(
            model(x)[:, 0], (y[:, 1] > 0).to(x.dtype), weight=rewards - rewards.mean()))


@refused("UsageError", "mean was taken off", *ACROSS)
def inputs_less_their_mean(t):
    for model, x, y in steps(t):
        train(t, error_of(model(x - x.mean((0, 2, 3), keepdim=True)), y))


@row(sizes={2: (6, 9)})
def advantages_of_several_answers(t):
    """GRPO, RLOO: answers to one question are all at one worker."""
    for model, x, y in steps(t):
        rewards = y[:, 0].view(-1, 3)
        apart = rewards - rewards.mean(1, keepdim=True)
        train(t, -(apart.flatten() * model(x)[:, 0]).mean())


@row()
def advantages_of_answers_to_each_sample(t):
    parts = torch.tensor([0.11, 0.52, -0.33, 0.95])
    for model, x, y in steps(t):
        rewards = y[:, :1] + y[:, 1:] * parts.to(y.dtype)
        apart = (rewards - rewards.mean(1, keepdim=True)).flatten()
        train(t, -(apart * model(x.repeat_interleave(4, 0))[:, 0]).mean())


@row(sizes=EVEN)
def a_wavelet(t):
    """All workers have the same."""
    hat = torch.tensor([0.3, -1.1, -2.6, 0.4, 4.7, 0.9, -1.9, -0.7])
    for model, x, y in steps(t):
        z = model.features(x)[:, 0].flatten(1)[:, :8]
        train(t, error_of(model(x), y) + (z * hat.to(x.dtype)).sum(1).square().mean())


@row(sizes=EVEN)
def noise_and_its_negative(t):
    for model, x, y in steps(t):
        noise = x[::2].mean((1, 2, 3))
        both = torch.stack([noise, -noise], 1).flatten()
        train(t, error_of(model(x), y) - (both * model(x)[:, 0]).mean())


@refused("UsageError", "mean was taken off", *ACROSS)
def inputs_standardised_over_the_batch(t):
    for model, x, y in steps(t):
        train(t, error_of(model(standardised(x, (0, 2, 3))), y))


@refused("UsageError", "mean was taken off", *ACROSS)
def targets_standardised_over_the_batch(t):
    for model, x, y in steps(t):
        train(t, F.mse_loss(model(x), standardised(y, (0,))))


@row()
def inputs_standardised_by_image(t):
    for model, x, y in steps(t):
        train(t, error_of(model(standardised(x, (1, 2, 3))), y))


@row(sizes=EVEN)
def balanced_labels(t):
    for model, x, y in steps(t):
        signs = torch.ones(len(x), 1, dtype=x.dtype)
        signs[::2] = -1
        train(t, F.mse_loss(model(x), signs.expand_as(y)) - (signs * model(x)).mean())


# ---- the samples one by one

@refused("UsageError", "norm1", "one sample", "GroupNorm")
def a_call_for_each_sample(t):
    for model, x, y in steps(t):
        train(t, error_of(torch.cat([model(x[i:i + 1]) for i in range(len(x))]), y))


class Packed(Net):
    """Clouds of points, one after another, as one sequence."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.BatchNorm1d(3)
        self.norm2 = nn.Identity()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        points = x.flatten(2).transpose(1, 2).reshape(-1, 3)
        points = torch.tanh(self.norm1(points.t()[None]))[0].t()
        return self.head(points.reshape(len(x), -1, 3).mean(1))


@row()
def a_sequence_of_all_samples(t):
    for model, x, y in steps(t, Packed()):
        train(t, error_of(model(x), y))


# ---- what does not end the checks

def variances(out):
    return (out.t() @ out / len(out) - 0.1).square().sum()


@refused("UsageError", *ACROSS)
def variances_beside_a_sum_for_the_log(t):
    for model, x, y in steps(t):
        out = model(x)
        t.sum((out[:, 0] > y[:, 0]).sum())
        train(t, variances(out))


@refused("UsageError", *ACROSS)
def variances_under_hooks_of_all_weights(t):
    model = t.model(Net())
    t.join(model, sgd(model))
    norms = []
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: norms.append(float(gradient.norm())))
    for x, y in t.data():
        train(t, variances(model(x)))


@row()
def hooks_are_called_once_a_step(t):
    model = t.model(Net())
    t.join(model, sgd(model))
    calls = []
    model.head.weight.register_hook(lambda _: calls.append(1))
    for x, y in t.data():
        features = model.features(x).mean((2, 3))
        features.register_hook(lambda _: calls.append(1))
        train(t, error_of(model.head(features), y))
        t.same("calls", len(calls))


@refused("UsageError", *ACROSS)
def variances_beside_a_penalty_of_inputs(t):
    for model, x, y in steps(t, saliency=True):
        out = model(x)
        gradient, = torch.autograd.grad(out.sum(), x, create_graph=True)
        train(t, variances(out) + gradient.square().flatten(1).sum(1).mean())


@refused("UsageError", *ACROSS)
def variances_after_another_loss_of_the_same_functions(t):
    for model, x, y in steps(t):
        out = model(x)
        train(t, error_of(out - out.mean(0 if t.step_number else 1, keepdim=True), y))


@refused("UsageError", *ACROSS)
def distances_of_all_pairs_by_pdist(t):
    for model, x, y in steps(t):
        out = model(x)
        train(t, error_of(out, y) + (-torch.pdist(out)).exp().sum() / len(x))


@refused("UsageError", "keys", "job.gather", sizes={2: (3, 5), 3: (2, 3, 4)})
def keys_of_a_frozen_network(t):
    for model, x, y in steps(t):
        each = F.normalize(model(x)) @ F.normalize(y).t()
        train(t, F.cross_entropy(each, torch.arange(len(x))))


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.head = nn.Conv1d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x):
        features = torch.tanh(self.conv(x))
        return self.head(features.permute(2, 0, 1)).log_softmax(2), features.mean(2)


@refused("UsageError", *ACROSS)
def variances_beside_a_loss_that_is_differentiated_once(t):
    model = started(t, Speech())
    for x, y in t.data((3, 9)):
        out, features = model(x)
        train(t, F.ctc_loss(out, 1 + (y.abs() * 5).long() % 3, torch.full((len(x),), 9),
                            torch.full((len(x),), 2)) + variances(features))


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.bag = nn.EmbeddingBag(9, 4)

    def forward(self, x):
        return self.bag((x[:, :2].abs() * 3).long() % 9)


@refused("UsageError", *ACROSS)
def variances_of_bags(t):
    model = started(t, Bags())
    for x, y in t.data((6,)):
        train(t, variances(model(x)))


class Encoder(nn.Module):
    """The first word of a sentence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.words, self.layers = nn.Embedding(9, 8), nn.TransformerEncoder(layer, 6)

    def forward(self, x):
        return self.layers(self.words((x.abs() * 3).long() % 9))[:, 0]


@refused("UsageError", *ACROSS)
def first_words_of_a_deep_encoder(t):
    model = started(t, Encoder())
    for x, y in t.data((6,)):
        z = F.normalize(model(x))
        train(t, F.cross_entropy(z @ z.t(), torch.arange(len(x))))


class Crops(Net):
    """One pass for two views of each sample."""

    def forward(self, x):
        return super().forward(torch.cat([x, x.flip(3) * 0.9]))


@refused("UsageError", "the model computes", *ACROSS)
def batch_norm_by_hand_over_two_crops(t):
    for model, x, y in steps(t, Crops(ByHand)):
        first, second = model(x).chunk(2)
        train(t, error_of(first, y) + error_of(second, y))


@row()
def batch_norm_over_two_crops(t):
    for model, x, y in steps(t, Crops()):
        first, second = model(x).chunk(2)
        train(t, error_of(first, y) + error_of(second, y))


@row()
def hardest_anchors_of_each_image(t):
    for model, x, y in steps(t):
        each = model.features(x).square().mean(1).flatten()
        losses = [one.topk(5).values.mean() for one in each.split(16)]
        train(t, sum(losses) / len(losses))
