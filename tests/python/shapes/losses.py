"""Rows: losses that are no means over samples, without weight= or job.sum."""

import torch
from torch import nn
from torch.nn import functional as F

from shapes.rows import Net, error_of, refused, row, started, steps, train

# The text of what is a mean over a part.
A_PART = ("job.backward()", "a part of the", "weight=")
# Workers whose numbers of samples tell nothing.
EVEN = {2: (4, 4), 3: (2, 2, 2)}


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


@refused("UsageError", *A_PART)
def quotient_of_means(t):
    for model, x, y in steps(t):
        mask = (y[:, 0] > 0).to(x.dtype)
        each = (model(x) - y).square().sum(1)
        train(t, error_of(model(x), y) + 0.5 * (each * mask).mean() / mask.mean())


@refused("UsageError", *A_PART)
def loss_by_its_own_value(t):
    for model, x, y in steps(t):
        loss = error_of(model(x), y)
        train(t, loss / loss.detach())


@refused("UsageError", *A_PART)
def more_masks_than_samples(t):
    """One for each word of a sentence."""
    for model, x, y in steps(t):
        out = model.features(x)
        train(t, sum(out[:, word % 4, 0, 0].square().masked_select(
            x[:, 0, word % 6, 0] > 0.5).mean() for word in range(7)) / 7)


@refused("UsageError", *A_PART, sizes={2: (2, 2)})
def as_many_heads_as_samples(t):
    for model, x, y in steps(t):
        target = (x[:, 0, :4, :4] > 0.5).long().masked_fill(x[:, 1, :4, :4] > 1, 255)
        first = model.first(x)
        train(t, F.cross_entropy(model.second(first), target, ignore_index=255) +
              0.4 * F.cross_entropy(first, target, ignore_index=255))


@refused("UsageError", *A_PART)
def sum_of_chosen_entries_by_their_number(t):
    for model, x, y in steps(t):
        each, mask = (model(x) - y).square().sum(1), y[:, 0] > 0
        train(t, each[mask].sum() / mask.sum())


@refused("UsageError", *A_PART)
def chosen_and_other_entries_weigh_half_each(t):
    for model, x, y in steps(t):
        each, mask = (model(x) - y).square(), y > 0
        train(t, 0.5 * each[mask].sum() / max(1, int(mask.sum())) +
              0.5 * each[~mask].sum() / max(1, int((~mask).sum())))


@refused("UsageError", *A_PART)
def summed_loss_of_chosen_samples_by_their_number(t):
    for model, x, y in steps(t):
        out, mask = model(x), y[:, 0] > 0
        train(t, F.mse_loss(out[mask], y[mask], reduction="sum") / mask.sum())


@refused("UsageError", "job.backward()", "a sum", "reduction=")
def sum_of_chosen_entries(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).square().sum(1)[y[:, 0] > 0].sum())


@row(sizes={2: (2, 4), 3: (2, 4, 6)})
def sum_of_half_of_the_entries_by_their_number(t):
    for model, x, y in steps(t):
        each, mask = (model(x) - y).square().sum(1), torch.arange(len(x)) % 2 == 0
        train(t, 0.5 * each[mask].sum() / mask.sum())


@row()
def sums_of_chosen_entries_by_the_batch(t):
    for model, x, y in steps(t):
        each = (model(x) - y).square()
        train(t, each[y > 0].sum() / len(x) + each.sum(1)[y[:, 0] > 0].sum() / x.shape[0])


@row()
def sum_of_no_entries_by_their_number(t):
    for model, x, y in steps(t):
        out = model(x)
        none = out[y[:, 0] > 100]
        train(t, error_of(out, y) + none.sum() / max(1, len(none)))


@row()
def chosen_pixels_of_each_image(t):
    for model, x, y in steps(t):
        losses = []
        for maps, image in zip(model.features(x), x):
            mask = image[:1, 1:5, 1:5] > 0
            losses.append(maps[:1][mask].square().sum() / max(1, int(mask.sum())))
        train(t, sum(losses) / len(losses))


@row()
def no_loss_of_the_first_batch(t):
    """As long as there is nothing to train."""
    for model, x, y in steps(t):
        out = model(x)
        train(t, error_of(out, y) if t.step_number else out.sum() * 0)


@row(sizes={2: (2, 3), 3: (2, 3, 4)})
def penalties_by_numbers(t):
    """Which are the numbers of samples of some workers."""
    chosen = torch.tensor([True, False, True, False])
    for model, x, y in steps(t):
        norm = sum(p.square().sum() for p in model.parameters())
        each = (model(x) - y).square().sum(1)
        train(t, each.sum() / len(x) / 2 + 0.01 * (model.conv2.weight.square().sum() / 2) +
              0.02 * model.conv1.weight.abs().sum() / 3 + norm / 400 +
              0.1 * model.conv2.weight[chosen].square().sum())


@row()
def quotient_of_each_image(t):
    for model, x, y in steps(t):
        losses = [one.square().sum() / max(1, int((image[0] > 0.5).sum()))
                  for one, image in zip(model.features(x), x)]
        train(t, sum(losses) / len(losses))


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


@refused("UsageError", "job.backward()", "across", "job.sum")
def root_of_a_mean(t):
    for model, x, y in steps(t):
        train(t, torch.sqrt(F.mse_loss(model(x), y)))


@refused("UsageError", "job.backward()", "across", "job.sum")
def norm_of_all_residuals(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).norm())


@refused("UsageError", "job.backward()", "abs", "job.sum")
def flooding(t):
    for model, x, y in steps(t):
        train(t, (error_of(model(x), y) - 3).abs() + 3)


@refused("UsageError", "job.backward()", "across", "job.sum")
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


@refused("UsageError", "job.backward()", "a sum", "reduction=")
def sum_from_the_second_step_on(t):
    for model, x, y in steps(t):
        out = model(x)
        loss = error_of(out, y)
        train(t, loss + out.square().sum() if t.step_number > 0 else loss)


@refused("UsageError", "job.backward()", "a sum", "reduction=", sizes={2: (4, 4)})
def half_of_a_sum(t):
    for model, x, y in steps(t):
        train(t, 0.5 * (model(x) - y).square().sum())


@refused("UsageError", "job.backward()", "a sum", "job.sum", sizes={2: (4, 4)})
def sum_by_a_constant(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).square().sum() / 10)


@refused("UsageError", "job.backward()", "a sum", "job.sum")
def sum_in_one_dimension(t):
    for model, x, y in steps(t):
        train(t, F.mse_loss(model(x).view(-1), y.view(-1), reduction="sum"))


@refused("UsageError", "job.backward()", "a sum", "job.sum")
def sum_of_means_of_samples(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).square().mean(dim=-1).sum())


@refused("UsageError", "job.backward()", "a sum", "job.sum")
def sum_in_a_loop_over_samples(t):
    for model, x, y in steps(t):
        loss = 0
        for out, label in zip(model(x), labels_of(y)):
            loss += F.cross_entropy(out[None], label[None])
        train(t, loss)


@refused("UsageError", "job.backward()", "a sum", "job.sum", sizes={2: (4, 4)})
def sum_of_two_losses_in_a_loop_over_samples(t):
    for model, x, y in steps(t):
        out = model(x)
        train(t, sum(F.mse_loss(out[i], y[i]) + 0.5 * out[i].square().sum()
                     for i in range(len(x))))


@row(sizes=EVEN)
def sum_over_columns_in_a_loop(t):
    for model, x, y in steps(t):
        maps = model.features(x).flatten(1)
        train(t, sum(F.mse_loss(maps[:, i], y[:, i % 2]) for i in range(16)))


@refused("UsageError", "job.backward()", "sort()", "across", "job.sum")
def product_with_weights(t):
    """As Lovasz's loss of a flat batch."""
    for model, x, y in steps(t):
        each = (model(x) - y).square().sum(1).sort(descending=True).values
        train(t, torch.dot(each, torch.linspace(1, 0, len(x), dtype=x.dtype)))


@row(sizes=EVEN)
def sums_by_the_batch(t):
    """A variational autoencoder, with penalties of the weights."""
    for model, x, y in steps(t):
        out = model(x)
        error = F.mse_loss(out, y, reduction="sum")
        apart = -0.5 * torch.sum(1 + out - out.square() - out.exp())
        train(t, (error + 0.1 * apart) / len(x) + 0.3 * apart * (1 / len(x)) +
              0.01 * model.conv2.weight.view(-1).abs().sum() +
              model.conv1.weight.square().sum())


@row(sizes=EVEN)
def sum_of_weighted_columns_of_means(t):
    for model, x, y in steps(t):
        columns = model.features(x).mean((2, 3)).square().mean(0)
        weights = torch.tensor([1.0, 2.0, 0.5, 0.1], dtype=x.dtype)
        train(t, error_of(model(x), y) + (weights * columns).sum())


# ---- constants that are computed from the batch

OF_THE_BATCH = ("job.backward()", "differ between workers", "job.sum", "weight=")


def shares_of(labels, dtype):
    return F.one_hot(labels, 2).to(dtype).mean(0)


@refused("UsageError", *OF_THE_BATCH)
def weights_of_classes_in_the_batch(t):
    for model, x, y in steps(t):
        labels = labels_of(y)
        train(t, F.cross_entropy(model(x), labels, 1 / (0.1 + shares_of(labels, x.dtype)),
                                 reduction="none").mean())


@refused("UsageError", *OF_THE_BATCH)
def weight_of_positives_in_the_batch(t):
    for model, x, y in steps(t):
        positive = (y > 0.3).to(x.dtype)
        train(t, F.binary_cross_entropy_with_logits(
            model(x), positive, pos_weight=(1 - positive).sum() / (0.1 + positive.sum())))


@refused("UsageError", *OF_THE_BATCH)
def shares_of_experts_in_the_batch(t):
    """The loss that balances the load of a mixture of experts (Switch transformers)."""
    for model, x, y in steps(t):
        out = model(x)
        p = torch.softmax(out, 1)
        train(t, error_of(out, y) + 2 * (p.mean(0) * shares_of(p.argmax(1), x.dtype)).sum())


@refused("UsageError", *OF_THE_BATCH)
def shares_of_experts_of_all_words(t):
    """As Mixtral has it."""
    for model, x, y in steps(t):
        words = model.features(x).flatten(2).transpose(1, 2).reshape(-1, 4).softmax(1)
        chosen = F.one_hot(words.topk(2, 1).indices, 4).to(x.dtype).mean(0)
        train(t, error_of(model(x), y) + (chosen * words.mean(0).unsqueeze(0)).sum())


@row()
def weights_and_shares_of_all_workers(t):
    """As the error says."""
    for model, x, y in steps(t):
        out = model(x)
        p = torch.softmax(out, 1)
        count = t.sum(torch.tensor(float(len(x)), dtype=x.dtype))
        chosen = t.sum(F.one_hot(p.argmax(1), 2).to(x.dtype).sum(0)) / count
        positive = t.sum((y > 0).to(x.dtype).sum(0))
        train(t, error_of(out, y) + (p.mean(0) * chosen).sum() +
              F.binary_cross_entropy_with_logits(out, (y > 0).to(x.dtype),
                                                 pos_weight=(count - positive) / positive))


@row()
def constant_weights(t):
    for model, x, y in steps(t):
        out, weights = model(x), torch.tensor([0.3, 2.0], dtype=x.dtype)
        train(t, F.cross_entropy(out, labels_of(y), weights, reduction="none").mean() +
              F.binary_cross_entropy_with_logits(out, (y > 0).to(x.dtype),
                                                 pos_weight=weights) +
              torch.dot(out.square().mean(0), weights))


@row()
def weights_of_classes_on_rank_0(t):
    """Workers train different losses."""
    weights = torch.tensor([0.3, 2.0])
    for model, x, y in steps(t):
        out, own = model(x), t.of(x, 0)
        first = F.cross_entropy(out, labels_of(y), weights.to(x.dtype), reduction="none")
        second = (out - y).square().sum(1)
        train(t, torch.where(own, first, second).mean() if t.rank is None else
              (first if own.all() else second).mean())


@row(sizes={2: (3, 4), 3: (2, 3, 4)})
def masks_under_a_mean_over_times(t):
    """Of which there are twelve, the first dimension."""
    for model, x, y in steps(t):
        times = model.features(x).flatten(2)[:, :, :12].permute(2, 0, 1)
        each = times.square().mean(0) * (y[:, :1] > 0).to(x.dtype)
        train(t, each.sum(1).mean())


# ---- parts of a step

@refused("UsageError", "divided by 2", "accumulate=2", sizes={2: (4, 6)})
def loss_by_the_number_of_parts(t):
    """As in a script that adds up gradients by itself."""
    model = started(t)
    for x, y in t.data(accumulate=2):
        train(t, error_of(model(x), y) / 2)


@row(sizes={2: (2, 1), 3: (4, 1, 3)})
def constants_under_few_samples(t):
    for model, x, y in steps(t):
        out = model(x)
        third = torch.tensor(3, dtype=x.dtype)
        train(t, (error_of(out, y) + torch.tanh(out).mean()) / 2 +
              torch.sigmoid(out).mean() / 0.3 + torch.relu(out).mean() / third)


@row(sizes={2: (4, 6)})
def mean_of_two_losses_over_two_parts(t):
    model = started(t)
    for x, y in t.data(accumulate=2):
        out = model(x)
        train(t, (error_of(out, y) + torch.tanh(out).mean()) / 2)


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


# ---- factors from a worker's own losses

@refused("UsageError", "factors", "job.sum")
def losses_over_their_average(t):
    average = None
    for model, x, y in steps(t):
        loss = F.mse_loss(model(x), y)
        average = 0.9 * (average or 1.0) + 0.1 * loss.item()
        train(t, loss / average)


@refused("UsageError", "factors", "job.sum")
def a_term_as_great_as_another(t):
    for model, x, y in steps(t):
        z = model(x)
        first, second = F.mse_loss(z, y), F.l1_loss(z, y)
        train(t, first + (first / second).detach() * second)


@refused("UsageError", "factors", "job.sum")
def a_factor_of_all_entries(t):
    for model, x, y in steps(t):
        z = model(x)
        hardness = float((z - y).detach().square().mean())
        train(t, (hardness * (z - y).square()).mean())


@row()
def factors_of_their_average_over_workers(t):
    """As the error says."""
    for model, x, y in steps(t):
        loss = F.mse_loss(model(x), y)
        mean = float(t.sum(loss.detach() * len(x)) / t.sum(torch.tensor(float(len(x)))))
        train(t, loss / (0.5 + mean))


@row()
def losses_of_mixed_labels(t):
    """Each worker draws by itself, as for mixup."""
    for model, x, y in steps(t):
        part = 0.1 + 0.17 * (float(x.sum()) % 1)
        loss = F.mse_loss(model(x), y)
        train(t, part * loss + (1 - part) * F.mse_loss(model(x), y))


@row()
def a_term_of_some_batches(t):
    """A worker without it has fewer factors."""
    for model, x, y in steps(t):
        z = model(x)
        loss = 0.3 * F.mse_loss(z, y)
        if len(x) > 3:
            loss = loss + 0.7 * (z - z).mean()
        train(t, loss)


@refused("UsageError", "weights of classes", "job.sum")
def terms_weighed_by_their_own_sizes(t):
    """A stack of terms times a tensor."""
    for model, x, y in steps(t):
        z = model(x)
        terms = torch.stack([F.mse_loss(z, y), F.l1_loss(z, y)])
        train(t, (terms / terms.detach() * torch.tensor([0.7, 1.2])).sum())


@refused("UsageError", "factors", "job.sum")
def two_terms_whose_factors_add_up_to_1(t):
    """They are no labels of mixup."""
    for model, x, y in steps(t):
        z = model(x)
        first, second = F.mse_loss(z, y), F.l1_loss(z, y)
        part = float(second / (first + second))
        train(t, part * first + (1 - part) * second)


@refused("UsageError", "factors", "job.sum")
def a_factor_of_one_part_of_all_entries(t):
    for model, x, y in steps(t):
        z = model(x)
        own = 0.1 + float((z - y).detach().square().mean())
        train(t, ((z - y).square() + own * z.square()).sum(1).mean())


@row()
def a_trained_multiplier_of_a_measure(t):
    """Lagrange's, for a constraint: its gradient is this worker's part."""
    model = Net()
    model.multiplier = torch.nn.Parameter(torch.tensor(0.3))
    for model, x, y in steps(t, model):
        z = model(x)
        cost = z.detach().square().mean() - 0.2
        train(t, F.mse_loss(z, y) - model.multiplier * cost)


@row()
def labels_mixed_by_a_difference(t):
    for model, x, y in steps(t):
        part = 0.1 + 0.17 * (float(x.sum()) % 1)
        loss, other = (F.mse_loss(model(x), y) for _ in range(2))
        train(t, other + part * (loss - other))


# ---- means of means, sums by dimension, and losses of single rows

@row()
def a_mean_of_a_loss(t):
    for model, x, y in steps(t):
        train(t, F.mse_loss(model(x), y).mean())


@row(sizes={2: (3, 5), 3: (2, 3, 4)})
def a_mean_of_three_terms(t):
    for model, x, y in steps(t):
        z = model(x)
        train(t, torch.stack([F.mse_loss(z, y), F.l1_loss(z, y),
                              0.5 * z.square().mean()]).mean())


@row()
def a_sum_of_three_terms(t):
    for model, x, y in steps(t):
        z = model(x)
        train(t, torch.stack([F.mse_loss(z, y), F.l1_loss(z, y),
                              z.square().mean()]).sum())


@row()
def a_mean_by_column_and_its_mean(t):
    for model, x, y in steps(t):
        z = model.features(x)
        train(t, error_of(model(x), y) + z.square().mean((0, 2, 3)).mean() +
              (model(x) - y).square().mean(0).mean())


@refused("UsageError", "a sum over", sizes=EVEN)
def a_sum_dimension_by_dimension(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).square().sum(dim=1).sum(dim=0))


@refused("UsageError", "a sum over", sizes=EVEN)
def a_sum_over_both_dimensions(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).square().sum((0, 1)))


@refused("UsageError", "a sum over", sizes=EVEN)
def a_sum_by_column_and_its_sum(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).square().sum(0).sum())


@refused("UsageError", "a sum over", sizes=EVEN)
def a_mean_of_sums_by_column(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).square().sum(0).mean())


def sums(each, out, y):
    """Plain sums over the samples, each a row. `each` has a number for each."""
    ones, zero = torch.ones_like(each), each.new_zeros(1)
    first = torch.zeros(len(each), dtype=torch.long)
    yield "dot", lambda: torch.vdot(each, ones)
    yield "inner", lambda: torch.inner(each, ones)
    yield "mv", lambda: torch.mv(each[None], ones)[0]
    yield "matmul", lambda: (each[None] @ ones[:, None]).squeeze()
    yield "baddbmm", lambda: torch.baddbmm(zero[None, None], each[None, None],
                                           ones[None, :, None]).sum()
    yield "einsum", lambda: torch.einsum("i,i->", each, y[:, 0].sigmoid())
    yield "einsum_of_squares", lambda: torch.einsum("ij,ij->", out - y, out - y)
    yield "tensordot", lambda: torch.tensordot(out, y, 2)
    yield "trace", lambda: torch.trace(out.t() @ y)
    yield "diagonal", lambda: torch.trace(torch.diag(each))
    yield "cumsum", lambda: each.cumsum(0)[-1]
    yield "python", lambda: sum(each)
    yield "chunks", lambda: sum(part.sum() for part in each.chunk(2))
    yield "index_add", lambda: zero.index_add(0, first, each)[0]
    yield "scatter_add", lambda: zero.scatter_add(0, first, each)[0]
    yield "conv1d", lambda: F.conv1d(each[None, None], ones[None, None]).squeeze()
    yield "lerp", lambda: torch.lerp(each.sum(), 2 * each.sum(), 0.5)
    yield "addcmul", lambda: torch.addcmul(zero, each.sum(), ones[0])[0]
    yield "where", lambda: torch.where(ones[0] > 0, each.sum(), zero[0])


def a_sum_by(name):
    def script(t):
        for model, x, y in steps(t):
            out = model(x)
            train(t, dict(sums((out - y).square().mean(1), out, y))[name]())
    script.__name__ = f"a_sum_by_{name}"
    return script


for way, _ in sums(torch.zeros(2), torch.zeros(2, 2), torch.zeros(2, 2)):
    refused("UsageError", "a sum over", sizes=EVEN)(a_sum_by(way))


@refused("UsageError", "a sum over", sizes=EVEN)
def a_sum_of_means_of_nothing(t):
    for model, x, y in steps(t):
        out = model(x)
        train(t, out[:, :0].mean(1).sum() + error_of(out, y) + out.sum())


@row()
def a_mean_by_other_functions(t):
    for model, x, y in steps(t):
        each = (model(x) - y).square().mean(1)
        shares = torch.full_like(each, 1 / len(each))
        train(t, torch.dot(each, shares) + torch.einsum("i,i->", each, shares) +
              F.adaptive_avg_pool1d(each[None, None], 1).squeeze() +
              F.avg_pool1d(each[None, None], len(each)).squeeze() +
              sum(each) / len(each) + torch.where(shares[0] > 0, each.mean(), shares[0]))


@refused("UsageError", "a sum over", sizes=EVEN)
def a_sum_without_what_is_missing(t):
    for model, x, y in steps(t):
        train(t, torch.nansum((model(x) - y).square()))


@refused("UsageError", *A_PART)
def a_mean_without_what_is_missing(t):
    for model, x, y in steps(t):
        each = (model(x) - y).square()
        train(t, torch.nanmean(each.masked_fill(y > 0.3, float("nan"))))


@refused("UsageError", *A_PART)
def a_mean_by_column_of_chosen_rows(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y)[y[:, 0] > 0].square().mean(dim=0).sum())


@refused("UsageError", "a sum over", sizes=EVEN)
def a_sum_in_a_loop_over_calls_of_the_model(t):
    for model, x, y in steps(t):
        train(t, sum(F.mse_loss(model(one[None]), label[None])
                     for one, label in zip(x, y)))


@refused("UsageError", "across the samples")
def a_term_that_begins_with_a_factor_of_0(t):
    for model, x, y in steps(t):
        z = model(x)
        train(t, error_of(z, y) + min(1.0, t.step_number / 2) * F.cross_entropy(
            z @ z.t(), torch.arange(len(x))))


@refused("UsageError", "factors", "job.sum")
def means_times_the_number_of_samples(t):
    """As YOLO's trainer has it."""
    for model, x, y in steps(t):
        z = model(x)
        train(t, (F.mse_loss(z, y) + 0.3 * F.l1_loss(z, y)) * len(x))


@row()
def means_times_the_number_of_samples_as_a_sum(t):
    for model, x, y in steps(t):
        train(t, F.mse_loss(model(x), y) * len(x), reduction="sum")


@refused("UsageError", *A_PART)
def a_mean_by_column_of_boxes(t):
    """Samples have one or two."""
    for model, x, y in steps(t):
        of = torch.repeat_interleave(1 + (y[:, 0] > 0).long())
        train(t, (model(x) - y).square()[of].mean(0).sum())


@refused("UsageError", *A_PART, sizes={2: (1, 1), 3: (1, 1, 1)})
def a_sum_over_the_positives_of_one_image_each(t):
    for model, x, y in steps(t):
        maps = torch.tanh(model.features(x))
        of = x[:, :1, 1:-1, 1:-1] > 0.3
        train(t, (maps.square() * of).sum() / of.sum().clamp(min=1))


@row()
def sums_over_multiples_of_the_samples(t):
    """As many terms as rank 0 has samples."""
    for model, x, y in steps(t):
        each = (model(x) - y).square()
        train(t, each.sum() / len(x) + torch.tanh(each).sum() / (2 * len(x)) +
              each.sqrt().sum() / each.numel())


@refused("UsageError", "divided by 4", "accumulate=4", sizes={2: (4, 8)})
def each_term_divided_by_accumulate(t):
    model = started(t)
    for x, y in t.data(accumulate=4):
        out = model(x)
        train(t, error_of(out, y) / 4 + out.abs().mean() / 4)


@row()
def a_square_of_a_norm(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).norm() ** 2 / len(x))


@refused("UsageError", "factors", "job.sum")
def a_multiplier_of_a_constraint(t):
    multiplier = 0.0
    for model, x, y in steps(t):
        out = model(x)
        cost = out.square().mean()
        train(t, error_of(out, y) + multiplier * (cost - 0.1))
        multiplier += 0.11 * cost.item()


class Dual(Net):
    def __init__(self):
        super().__init__()
        self.dual = nn.Parameter(torch.zeros(2))


@row()
def a_function_of_a_dual_parameter(t):
    """What it is multiplied by is linear in the mean over the samples."""
    for model, x, y in steps(t, Dual()):
        out = model(x)
        train(t, error_of(out, y) - model.dual[0].exp() * (
            out.detach().square().mean() - 0.1))


@row(sizes={2: (2, 3), 3: (2, 2, 3)})
def as_many_weights_of_tasks_as_samples(t):
    for model, x, y in steps(t, Dual()):
        out = model(x)
        train(t, sum(0.5 * (-model.dual[i]).exp() * F.mse_loss(out[:, i], y[:, i]) +
                     model.dual[i] for i in range(2)))


@row(sizes={2: (2, 3), 3: (2, 2, 3)})
def as_many_tasks_as_samples(t):
    for model, x, y in steps(t, Dual()):
        out = model(x)
        losses = torch.stack([F.mse_loss(out[:, 0], y[:, 0]),
                              F.smooth_l1_loss(out[:, 1], y[:, 1])])
        train(t, (losses * (-model.dual).exp() + model.dual).sum())


@refused("UsageError", "a sum over", sizes={2: (2, 3)})
def as_many_tasks_as_samples_that_are_sums(t):
    for model, x, y in steps(t, Dual()):
        each = (model(x) - y).square()
        losses = torch.stack([each[:, 0].sum(), each[:, 1].sum()])
        train(t, (losses * (-model.dual).exp() + model.dual).sum())
