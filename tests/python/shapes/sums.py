"""Rows: losses over the samples of all workers, from job.sum and job.gather, and
losses with a weight each. A script writes them as one process does."""

import threading

import torch
from torch import nn
from torch.nn import functional as F

import cohort
from shapes.own_batches import Three, out_of
from shapes.rows import Net, error_of, refused, row, started, steps, train


def plain():
    """Without batch norm."""
    return Net(lambda channels: nn.GroupNorm(1, channels))


# ---- losses with a weight each

def detection(t, model, x, y):
    """A mean over objects and one over valid pixels; a worker's batch may have
    none of either."""
    out = model(x)
    objects = (y[:, 0] > 0.2).to(x.dtype)
    valid = (x[:, 0] > 0.3).flatten(1).to(x.dtype)
    boxes = ((out - y).square().sum(1) * objects).sum()
    masks = (torch.sigmoid(out[:, :1]) - 0.3).square().mul(valid).sum()
    return [(boxes / objects.sum() if objects.any() else boxes, objects.sum()),
            (masks / valid.sum().clamp(min=1), float(valid.sum()))]


@row()
def two_normalisers(t):
    model = started(t)
    for x, y in t.data():
        t.backward(detection(t, model, x, y))
        t.step()


@row(sizes={2: (0, 4), 3: (2, 0, 3)})
def two_normalisers_and_a_rank_without_samples(t):
    model = started(t, plain())
    for x, y in t.data():
        t.backward(detection(t, model, x, y))
        t.step()


@row()
def two_normalisers_of_sums(t):
    model = started(t, plain())
    for x, y in t.data():
        t.backward([(loss * weight, weight) for loss, weight in
                    detection(t, model, x, y)], reduction="sum")
        t.step()


@row()
def two_normalisers_one_of_which_is_0(t):
    """A mean over nothing is no number, and counts nothing."""
    model = started(t)
    for x, y in t.data():
        out = model(x)
        nothing = out[:0].square().mean()
        t.backward([(nothing, 0), (error_of(out, y), len(x))])
        t.step()


@row()
def sum_with_a_worker_without_a_batch(t):
    """A plain sum, no mean."""
    model = started(t, lr=0.01)
    for x, y in t.indexed(19):
        train(t, t.sum((model(x) - y).square().sum()))


@row()
def numbered_samples_with_two_normalisers(t):
    model = started(t)
    for x, y in t.indexed(22):
        out = model(x)
        heavy = torch.sigmoid(y[:, 0])
        t.backward([(error_of(out, y), len(x)),
                    ((out.square().sum(1) * heavy).sum() /
                     heavy.sum().clamp(min=1e-9), heavy.sum())])
        t.step()


@refused("TrainingError", "job.backward() of 2 losses", "rank 1")
def two_normalisers_on_one_rank(t):
    model = started(t)
    for x, y in t.data():
        pairs = detection(t, model, x, y)
        t.backward(pairs if t.rank == 0 else pairs[:1])
        t.step()


@refused("UsageError", "2 losses", "accumulate", sizes={2: (4, 6)})
def two_normalisers_of_accumulated_parts(t):
    model = started(t)
    for x, y in t.data(accumulate=2):
        t.backward(detection(t, model, x, y))
        t.step()


@refused("UsageError", "weight=3", "own weight")
def two_normalisers_and_a_weight(t):
    model = started(t)
    for x, y in t.data():
        t.backward(detection(t, model, x, y), weight=3)


@refused("UsageError", "Tensor", "pairs")
def losses_without_weights(t):
    model = started(t)
    for x, y in t.data():
        t.backward([model(x).sum(), model(x).sum()])


@refused("UsageError", "2 losses", "--normalization=global",
         flags=["--normalization=local", "--bn_statistics=async"])
def two_normalisers_under_local_normalisation(t):
    model = started(t)
    for x, y in t.data():
        t.backward(detection(t, model, x, y))


# ---- losses over the batch of all

def batch_dice(t, out, y):
    """One quotient a class, over the samples of all workers."""
    share, wanted = torch.sigmoid(out), torch.sigmoid(y)
    both = t.sum((share * wanted).sum(0))
    each = t.sum(share.sum(0) + wanted.sum(0))
    return 1 - (2 * both / each).mean()


@row()
def dice_over_the_batch(t):
    model = started(t)
    for x, y in t.data():
        loss = batch_dice(t, model(x), y)
        t.same("loss", loss)
        train(t, loss)


@row()
def dice_over_the_batch_without_batch_norm(t):
    model = started(t, plain())
    for x, y in t.data():
        train(t, batch_dice(t, model(x), y))


@row(sizes={2: (0, 4), 3: (2, 0, 3)})
def dice_over_the_batch_and_a_rank_without_samples(t):
    model = started(t, plain())
    for x, y in t.data():
        train(t, batch_dice(t, model(x), y))


@row()
def dice_over_the_batch_beside_a_mean(t):
    model = started(t)
    for x, y in t.data():
        out = model(x)
        train(t, batch_dice(t, out, y) + 0.5 * error_of(out, y))


@row()
def dice_over_the_batch_beside_a_mean_over_labels(t):
    model = started(t)
    for x, y in t.data():
        out = model(x)
        valid = (y[:, 0] > -0.5).to(x.dtype)
        mean = ((out - y).square().sum(1) * valid).sum() / valid.sum()
        t.backward([(batch_dice(t, out, y), 1), (mean, valid.sum())])
        t.step()


@row(sizes={2: (4, 6), 3: (2, 4, 6)})
def dice_over_the_batch_of_each_part(t):
    model = started(t)
    for x, y in t.data(accumulate=2):
        train(t, batch_dice(t, model(x), y))


def contrast(a, b):
    """NT-Xent of two views."""
    z = F.normalize(torch.cat((a, b)), dim=1)
    n = len(a)
    logits = (z @ z.T / 0.5).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
    return F.cross_entropy(logits, torch.arange(2 * n).roll(n))


@row()
def simclr(t):
    model = started(t)
    for x, _ in t.data():
        a, b = model(x), model(x.flip(2))
        train(t, contrast(t.gather(a), t.gather(b)))


@row()
def simclr_without_batch_norm(t):
    model = started(t, plain())
    for x, _ in t.data():
        a, b = model(x), model(x.flip(2))
        train(t, contrast(t.gather(a), t.gather(b)))


@row(sizes={2: (0, 4), 3: (2, 0, 3)})
def simclr_and_a_rank_without_samples(t):
    model = started(t, plain())
    for x, _ in t.data():
        a, b = model(x), model(x.flip(2))
        train(t, contrast(t.gather(a), t.gather(b)))


@row()
def clip(t):
    """Each worker has the rows of its images and texts."""
    model = started(t, plain())
    for x, _ in t.data():
        image = F.normalize(model(x), dim=1)
        text = F.normalize(model(x.flip(2)) + 0.1, dim=1)
        own = torch.arange(len(x)) + t.before(t.gather(torch.tensor([len(x)])))
        train(t, F.cross_entropy(image @ t.gather(text).T * 5, own) +
              F.cross_entropy(text @ t.gather(image).T * 5, own))


@row()
def barlow_twins(t):
    """Embeddings normalised over the batch, which nn.BatchNorm1d would do, too."""
    model = started(t)
    for x, _ in t.data():
        count = t.sum(torch.tensor([len(x)]))

        def normalised(z):
            mean = t.sum(z.sum(0)) / count
            variance = t.sum((z - mean).square().sum(0)) / count
            return (z - mean) / (variance + 1e-3).sqrt()
        a = normalised(model(x))
        b = normalised(model(x.flip(2)))
        cross = t.sum(a.T @ b) / count
        eye = torch.eye(len(cross), dtype=x.dtype)
        train(t, ((cross - eye).square() * (0.05 + eye)).sum())


@row()
def covariance_of_all(t):
    """VICReg's terms."""
    model = started(t)
    for x, y in t.data():
        out = model(x)
        z = t.gather(out)
        z = z - z.mean(0)
        covariance = z.T @ z / (len(z) - 1)
        spread = F.relu(1 - (covariance.diagonal() + 1e-2).sqrt()).mean()
        train(t, error_of(out, y) + spread + covariance[0, 1].square())


# ---- where sums may be

class Centred(Net):
    """Normalises by hand in its forward pass, between two batch norms."""
    script = None

    def first(self, x):
        x = super().first(x)
        count = self.script.sum(torch.full((1,), float(len(x)), dtype=x.dtype))
        mean = self.script.sum(x.mean((2, 3)).sum(0)) / count
        return torch.tanh(x - mean[:, None, None])


def centred(t, **options):
    net = Centred()
    net.script = t
    return started(t, net, **options)


@row()
def sums_between_layers(t):
    model = centred(t)
    for x, y in t.data():
        out = model(x)
        t.own("output", out)
        train(t, error_of(out, y))


@row()
def saliency_through_sums(t):
    model = centred(t)
    for x, y in t.data():
        x.requires_grad_()
        out = model(x)
        found, = torch.autograd.grad(out.tanh().sum(), x, retain_graph=True)
        t.own("saliency", found)
        weight = torch.sigmoid(10 * found.abs().mean((1, 2, 3)))
        train(t, ((out - y).square().sum(1) * weight).mean())


@row()
def penalty_through_sums(t):
    model = centred(t, lr=0.02)
    for x, y in t.data():
        x.requires_grad_()
        out = model(x)
        found, = torch.autograd.grad(out.sin().sum(), x, create_graph=True)
        t.own("gradient", found)
        train(t, error_of(out, y) + found.square().sum((1, 2, 3)).mean())


@row()
def third_order_through_a_gather(t):
    model = started(t, plain(), lr=0.02)
    for x, y in t.data():
        x.requires_grad_()
        out = model(x)
        z = t.gather(out)
        loss = t.share((z @ z.T).tanh().mean(), len(x))
        a, = torch.autograd.grad(loss, x, create_graph=True)
        b, = torch.autograd.grad(a.sin().sum(), x, create_graph=True)
        t.own("second", b)
        train(t, error_of(out, y) + 10 * b.square().sum((1, 2, 3)).mean())


@row()
def gradient_of_a_loss_of_all(t):
    """Each worker passes its share of a loss that all have."""
    model = started(t)
    for x, y in t.data():
        x.requires_grad_()
        out = model(x)
        loss = batch_dice(t, out, y)
        found, = torch.autograd.grad(t.share(loss, len(x)), x, retain_graph=True)
        t.own("gradient", found)
        train(t, loss + error_of(out, y))


@row()
def sums_in_a_checkpoint(t):
    net = Centred()
    net.script = t
    model = started(t, net)
    for x, y in t.data():
        x = t.checkpoint(model.first, x, reentrant=False)
        train(t, error_of(model.out(model.second(x)), y))


@row()
def sums_in_a_checkpoint_with_reentry(t):
    net = Centred()
    net.script = t
    model = started(t, net)
    for x, y in t.data():
        x = t.checkpoint(model.first, x.requires_grad_(), reentrant=True)
        train(t, error_of(model.out(model.second(x)), y))


@row()
def a_sum_of_what_one_rank_differentiates(t):
    """The others bring constants, and have their losses' derivatives for it."""
    model = started(t, plain())
    for x, y in t.data():
        out = model(x)
        mine = t.of(x, 0)[:, None]
        total = t.sum(torch.where(mine, out, out.detach()).sum(0)
                      if t.here(0) else out.detach().sum(0))
        train(t, error_of(out, y + 0.1 * total))


@row()
def a_sum_in_the_loss_of_one_rank(t):
    model = started(t, plain())
    for x, y in t.data():
        out = model(x)
        total = t.sum(out.sum(0)).tanh()
        mine = t.of(x, 0).to(x.dtype)
        each = (out - y).square().sum(1)
        if t.here(0):
            each = each + mine * (out * total).sum(1)
        train(t, each.mean())


@row()
def a_sum_in_two_losses(t):
    model = started(t, plain())
    for x, y in t.data():
        out = model(x)
        spread = t.sum(out.square().sum(0))
        t.backward([(error_of(out, y) + spread.sum(), len(x)),
                    ((out * spread).sum(1).mean(), 2 * len(x))])
        t.step()


@row()
def sums_without_gradients(t):
    """After the pass, too; of integers."""
    model = started(t)
    for x, y in t.data():
        out = model(x)
        t.backward(error_of(out, y))
        with torch.no_grad():
            t.same("right", t.sum((out[:, 0] > y[:, 0]).sum()))
            t.same("spread", t.sum(out.square().sum(0)))
        t.same("all", t.gather(out[:, 0] > y[:, 0]).long())
        t.step()


@row()
def sums_by_name(t):
    """The code is not the same on all workers."""
    model = started(t, plain())
    for x, y in t.data():
        out = model(x)
        if t.here(0):
            total = t.sum(out.sum(0), name="outputs")
        else:
            total = t.sum(out.sum(0), name="outputs")
        train(t, error_of(out, y + total))


@row(needs="compile")
def sums_in_a_compiled_model(t):
    """The graph ends at each."""
    model = centred(t)
    run = model if t.rank is None else torch.compile(model, backend="aot_eager")
    for x, y in t.data():
        train(t, error_of(run(x), y))


@row(steps=2)
def a_sum_of_4_MiB(t):
    model = started(t, plain())
    for x, y in t.data():
        out = model(x)
        wide = t.sum(out.sum() * torch.linspace(0, 1, 1 << 20, dtype=x.dtype))
        t.same("numbers", wide[::65537])
        train(t, error_of(out, y) + wide.square().mean())


# ---- refused

@refused("TrainingError", "job.sum", "rank 0", "rank 1")
def a_sum_on_one_rank(t):
    model = started(t)
    for x, y in t.data():
        out = model(x)
        if t.rank == 0:
            t.sum(out.sum(0))
        train(t, error_of(out, y))


@refused("TrainingError", "job.sum", "job.gather", "rank 1")
def a_sum_that_meets_a_gather(t):
    model = started(t, plain())
    for x, y in t.data():
        out = model(x)
        train(t, (t.sum(out.sum(0)) if t.rank == 0 else t.gather(out)).sum())


@refused("TrainingError", "job.sum", "float32 [2]", "float32 [3]")
def sums_of_other_shapes(t):
    model = started(t, plain())
    for x, y in t.data():
        t.sum(x.new_zeros(2 + (t.rank or 0)), name="zeros")
        train(t, error_of(model(x), y))


@refused("TrainingError", "job.gather", "float32 [*, 2]", "float32 [*, 3]")
def gathers_of_other_shapes(t):
    model = started(t, plain())
    for x, y in t.data():
        t.gather(x.new_zeros(1, 2 + (t.rank or 0)), name="zeros")
        train(t, error_of(model(x), y))


@refused("TrainingError", "job.sum", "float32", "float64")
def sums_of_other_types(t):
    model = started(t, plain())
    for x, y in t.data():
        out = model(x)
        total = out.sum(0)
        t.sum(total.double() if t.rank == 0 else total, name="outputs")
        train(t, error_of(out, y))


@refused("TrainingError", "job.sum", "outputs", "rank 0", "rank 1")
def a_pass_through_a_sum_on_one_rank(t):
    model = started(t, plain())
    for x, y in t.data():
        x.requires_grad_()
        out = model(x)
        total = t.sum(out.sum(0), name="outputs")
        if t.rank == 0:
            torch.autograd.grad(total.sum(), x, retain_graph=True)
        train(t, error_of(out, y + total))


@refused("UsageError", "job.sum()", "4194308 bytes", "4194304")
def a_sum_of_more_than_4_MiB(t):
    model = started(t, plain())
    for x, y in t.data():
        t.sum(torch.zeros((1 << 20) + 1))


@refused("UsageError", "job.gather()", "4194304")
def a_gather_of_more_than_4_MiB(t):
    """The sum of all of them."""
    model = started(t, plain())
    for x, y in t.data():
        t.gather(torch.zeros((1 << 19) + 1))


@refused("UsageError", "job.sum()", "int32", "int64")
def a_sum_of_narrow_integers(t):
    model = started(t, plain())
    for x, y in t.data():
        t.sum(torch.ones(2, dtype=torch.int32))


@refused("UsageError", "job.sum()", "1099511627777")
def a_sum_of_great_integers(t):
    model = started(t, plain())
    for x, y in t.data():
        t.sum(torch.tensor([3, (1 << 40) + 1]))


@refused("UsageError", "job.sum()", "complex64", "view_as_real")
def a_sum_of_complex_numbers(t):
    model = started(t, plain())
    for x, y in t.data():
        t.sum(torch.ones(2, dtype=torch.complex64))


@refused("UsageError", "job.sum()", "got a float", "tensor")
def a_sum_of_a_number(t):
    model = started(t, plain())
    for x, y in t.data():
        t.sum(float(x.sum()))


@refused("UsageError", "job.gather()", "dimensions", "reshape")
def a_gather_of_a_scalar(t):
    model = started(t, plain())
    for x, y in t.data():
        t.gather(x.sum())


@refused("UsageError", "job.sum()", "name", "printable")
def a_sum_with_a_long_name(t):
    model = started(t, plain())
    for x, y in t.data():
        t.sum(x.sum(), name="x" * 121)


@refused("UsageError", "job.sum()", "no batch is in progress")
def a_sum_between_steps(t):
    model = started(t, plain())
    for x, y in t.data():
        out = model(x)
        train(t, error_of(out, y))
        t.sum(out.detach())


@refused("UsageError", "job.sum()", "thread")
def a_sum_in_another_thread(t):
    model = started(t, plain())
    for x, y in t.data():
        failed = []

        def call():
            try:
                t.sum(x)
            except cohort.CohortError as error:
                failed.append(error)
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        raise failed[0]


@refused("UsageError", "job.sum()", "torch.func", needs="func")
def a_sum_under_vmap(t):
    model = started(t, plain())
    for x, y in t.data():
        torch.func.vmap(t.sum)(x)


@refused("ConfigurationError", "job.sum", "is_grads_batched")
def a_batched_pass_through_a_sum(t):
    model = started(t, plain())
    for x, y in t.data():
        x.requires_grad_()
        out = t.sum(model(x).sum(0))
        torch.autograd.grad(out, x, torch.eye(2), is_grads_batched=True)


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, script):
        ctx.script = script
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return ctx.script.sum(dy) * 2, None


@refused("UsageError", "job.sum", "backward pass")
def a_sum_in_the_backward_pass_of_a_function(t):
    model = started(t, plain())
    for x, y in t.data():
        train(t, InBackward.apply(model(x), t).square().mean())


@refused("UsageError", "job.sum()", "--aggregation=sync",
         flags=["--aggregation=async"])
def a_sum_under_async(t):
    model = started(t, plain())
    for x, y in t.data():
        t.sum(x.sum())


@refused("UsageError", "job.gather()", "--aggregation=sync",
         flags=["--aggregation=bounded"])
def a_gather_under_bounded(t):
    model = started(t, plain())
    for x, y in t.data():
        t.gather(x)


@refused("UsageError", "job.sum()", "groups", sizes={4: (2, 3, 2, 3)},
         flags=["--normalization_group=2"])
def a_sum_in_groups(t):
    model = started(t, plain())
    for x, y in t.data():
        t.sum(x.sum())


@refused("UsageError", "2 losses", "groups", sizes={4: (2, 3, 2, 3)},
         flags=["--normalization_group=2"])
def two_normalisers_in_groups(t):
    model = started(t)
    for x, y in t.data():
        t.backward(detection(t, model, x, y))


# ---- a first step that is void

@row()
def a_sum_in_a_void_first_step(t):
    """There it is this worker's alone, which is no reason to refuse it."""
    model = started(t, Three())
    for x, y in t.data():
        out = out_of(t, model, x)
        train(t, t.sum((out - y).square().sum()) * 0.05)


@row()
def a_gather_in_a_void_first_step(t):
    model = started(t, Three())
    for x, y in t.data():
        z, wanted = t.gather(out_of(t, model, x)), t.gather(y)
        train(t, (z @ z.t()).square().mean() + error_of(z, wanted))


# ---- penalties

def penalty_of(model):
    return model.head.weight.square().sum()


@refused("UsageError", "job.backward()", "term of the weights alone",
         "weight=n")
def a_penalty_in_a_sum_over_samples(t):
    for model, x, y in steps(t):
        loss = (model(x) - y).square().sum() + 0.5 * penalty_of(model)
        train(t, loss, weight=len(x), reduction="sum")


@refused("UsageError", "job.sum()", "term of the weights alone",
         "job.sum(loss) + penalty")
def a_penalty_in_a_sum_over_workers(t):
    for model, x, y in steps(t):
        loss = (model(x) - y).square().sum() + penalty_of(model)
        train(t, t.sum(0.05 * loss))


@row()
def a_penalty_beside_a_sum_over_workers(t):
    """As the error says."""
    for model, x, y in steps(t):
        loss = t.sum((model(x) - y).square().sum())
        train(t, 0.05 * loss + 0.3 * penalty_of(model))


@row()
def a_penalty_beside_a_mean_over_labels(t):
    """As the error says."""
    for model, x, y in steps(t):
        valid = (y[:, 0] > -0.5).to(x.dtype)
        loss = ((model(x) - y).square().sum(1) * valid).sum() / valid.sum()
        train(t, loss + 0.3 * penalty_of(model), weight=float(valid.sum()))


@row()
def trained_weights_of_sums(t):
    """A term of the weights that counts once for each sample."""
    net = Net()
    net.scales = nn.Parameter(torch.zeros(2))
    for model, x, y in steps(t, net):
        each = (model(x) - y).square().sum(0)
        loss = torch.exp(-model.scales) * each + model.scales * len(x)
        train(t, loss.sum(), weight=len(x), reduction="sum")
