"""Rows: state beside the model that a version has as it has weights."""

import itertools

import numpy
import torch
from torch.nn import functional as F

from shapes.rows import (
    CHANNELS, Net, error_of, refused, row, sgd, started, train)
from shapes.script import Samples
from shapes.teachers import Siamese, follow, frozen_copy, unlike

ROWS_OF_QUEUE = 12


def with_teacher(t, model=None, train_mode=False, **options):
    """A model that has joined, and a kept copy."""
    model = t.model(model or Net())
    teacher = frozen_copy(model).train(train_mode)
    t.join(model, sgd(model, **options), keep=[teacher])
    return model, teacher


@row(survives=True)
def kept_teacher(t):
    """Changed after the step, void or not."""
    model, teacher = with_teacher(t)
    for x, y in t.data():
        with torch.no_grad():
            labels = teacher(x * 0.9)
        t.own("labels", labels)
        train(t, error_of(model(x), 0.5 * labels + y))
        follow(teacher, model)
    t.same_state("teacher", teacher)


@row(survives=True)
def kept_teacher_in_train_mode(t):
    """Its statistics move in the body, before the step."""
    model, teacher = with_teacher(t, train_mode=True)
    for x, y in t.data():
        with torch.no_grad():
            labels = teacher(x * 0.9)
        t.own("labels", labels)
        train(t, error_of(model(x), 0.5 * labels + y))
        follow(teacher, model)
    t.same_state("teacher", teacher)


@row(survives=True)
def kept_byol(t):
    model, target = with_teacher(t, Siamese(), train_mode=True, lr=0.05)
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


class Contrast(Net):
    """MoCo: a queue of keys, which the pass writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("queue", F.normalize(
            torch.randn(ROWS_OF_QUEUE, 2), dim=1))

    def enqueue(self, keys):
        self.queue.copy_(torch.cat((keys, self.queue))[:len(self.queue)])


@row(survives=True)
def kept_queue(t):
    """Every worker has all keys, in rank order. Outputs are not near 0, where rounding
    would decide their direction."""
    model, encoder = with_teacher(t, Contrast(), train_mode=True)
    for x, _ in t.data():
        query = F.normalize(model(x) + 1, dim=1)
        with torch.no_grad():
            key = F.normalize(encoder(x * 0.9 + 0.1) + 1, dim=1)
            keys = t.gather(key)
        near = (query * key).sum(1, keepdim=True)
        far = query @ model.queue.clone().T
        scores = torch.cat((near, far), 1) / 0.5
        model.enqueue(keys)
        train(t, F.cross_entropy(scores, torch.zeros(len(x), dtype=torch.long)))
        follow(encoder, model, 0.1)
    t.same_state("encoder", encoder)


class Around(torch.nn.Module):
    """Registers tensors that are the model's, and one that is kept."""

    def __init__(self, model, centre):
        super().__init__()
        self.weight = model.head.weight
        self.register_buffer("queue", model.queue)
        self.register_buffer("centre", centre)


@row(survives=True)
def wrapper_of_own_and_kept_tensors(t):
    model = t.model(Contrast())
    centre = torch.zeros(2, dtype=model.head.weight.dtype)
    around = Around(model, centre)
    t.join(model, sgd(model), keep={"centre": centre})
    for x, y in t.data():
        out = model(x)
        around.queue.lerp_(t.sum(out.detach().sum(0)), 0.1)
        train(t, error_of(F.linear(model.features(x).mean((2, 3)), around.weight),
                          y + 0.1 * model.queue.mean(0) + centre))
        around.centre.add_(0.1)
    t.same("queue", model.queue)
    t.same("centre", centre)


@row(survives=True)
def kept_centre(t):
    """DINO: the mean of the teacher's outputs over all workers, in a tensor."""
    model = t.model(Net())
    teacher = frozen_copy(model).eval()
    centre = torch.zeros(2, dtype=model.head.weight.dtype)
    t.join(model, sgd(model), keep={"teacher": teacher, "centre": centre})
    for x, _ in t.data():
        with torch.no_grad():
            out = teacher(x)
            total = t.sum(out.sum(0))
            count = t.sum(torch.tensor(float(len(x)), dtype=out.dtype))
        target = torch.softmax(out - centre, 1)
        train(t, -(target * torch.log_softmax(model(x * 0.9), 1)).sum(1).mean())
        follow(teacher, model, 0.2)
        centre.lerp_(total / count, 0.3)
        t.same("centre", centre)


class Quantised(Net):
    """VQ-VAE: a codebook that is an average of what it stands for."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(3, CHANNELS) * 0.3)
        self.register_buffer("counts", torch.ones(3))

    def quantise(self, t, z):
        nearest = F.one_hot(torch.cdist(z, self.codes).argmin(1), 3).to(z.dtype)
        chosen = nearest @ self.codes
        with torch.no_grad():
            self.counts.lerp_(t.sum(nearest.sum(0)), 0.3)
            self.codes.lerp_(t.sum(nearest.T @ z) / self.counts[:, None], 0.3)
        return chosen


@row(survives=True)
def kept_codebook(t):
    model = started(t, Quantised())
    for x, y in t.data():
        z = model.features(x).mean((2, 3))
        chosen = model.quantise(t, z.detach())
        loss = error_of(model.head(z + (chosen - z).detach()), y)
        train(t, loss + (z - chosen).square().sum(1).mean())
        t.same("codes", model.codes)


class Observed(Net):
    """An observer of quantisation, whose buffer is empty at first, and another
    tensor in each pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("peak", torch.zeros(0))

    def observe(self, t, z):
        seen = t.sum(z.square().sum((0, 2, 3)))
        self.peak = seen if not len(self.peak) else torch.maximum(self.peak, seen)


@row(survives=True)
def kept_observer(t):
    model = started(t, Observed())
    for x, y in t.data():
        z = model.features(x)
        model.observe(t, z.detach())
        train(t, error_of(model.out(z / (1 + model.peak[:, None, None])), y))


@row(survives=True)
def kept_average(t):
    """job.teacher."""
    model = started(t)
    teacher = t.teacher(0.7)
    for x, y in t.data():
        with torch.no_grad():
            labels = teacher(x)
        t.own("labels", labels)
        train(t, error_of(model(x), 0.5 * labels + y))
        t.same_state("teacher", teacher)


# ---- changed by each worker's samples

class Centred(Net):
    """DINO's loss: a centre of the teacher's outputs, a tensor that is another one
    after each pass; and how many samples it has seen."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(2))
        self.register_buffer("seen", torch.tensor(0))

    def loss(self, out, seen_by_teacher):
        target = torch.softmax(seen_by_teacher - self.centre, 1)
        self.centre = self.centre * 0.7 + seen_by_teacher.mean(0) * 0.3
        self.seen += len(out)
        return -(target * torch.log_softmax(out, 1)).sum(1).mean()


RULES = {"centre": "mean", "seen": "sum"}


@row(survives=True)
def centre_by_a_rule(t):
    model = t.model(Centred())
    teacher = frozen_copy(model).eval()
    t.join(model, sgd(model), keep=[teacher], buffers=RULES)
    for x, _ in t.data():
        with torch.no_grad():
            labels = teacher(x)
        train(t, model.loss(model(x * 0.9), labels))
        t.same("centre", model.centre)
        t.same("seen", model.seen)
        follow(teacher, model, 0.2)


@row(survives=True)
def kept_tensor_by_a_rule(t):
    """Two updates in a body, and parts of a batch."""
    model = t.model(Net())
    centre = torch.zeros(2, dtype=model.head.weight.dtype)
    t.join(model, sgd(model), keep={"centre": centre}, buffers={"centre": "mean"})
    for x, y in t.data(accumulate=2):
        out = model(x)
        loss = error_of(out, y + centre)
        for part in (out.detach(), y):
            centre.lerp_(part.mean(0), 0.2)
        train(t, loss)
    t.same("centre", centre)


@row(survives=True, sizes={2: (3, 0), 3: (0, 2, 4)})
def centre_by_a_rule_without_samples(t):
    """A mean over nothing is no number."""
    model = t.model(Centred())
    t.join(model, sgd(model), buffers=RULES)
    for x, y in t.data():
        out = model(x) + model.centre
        model.centre = model.centre * 0.7 + y.mean(0) * 0.3
        train(t, error_of(out, y) if len(x) else out.sum() * 0,
              weight=float(len(x)))
    t.same("centre", model.centre)


@refused("ConfigurationError", "centre", "differs")
def centre_without_a_rule(t):
    model = started(t, Centred())
    for x, y in t.data():
        out = model(x)
        train(t, model.loss(out, y))


@refused("ConfigurationError", "centre", "differs")
def centre_changed_after_the_step(t):
    """The rule acts at job.step()."""
    model = t.model(Centred())
    t.join(model, sgd(model), buffers=RULES)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        model.centre.add_(x.mean())


@refused("ConfigurationError", "norm1.running_mean", "batch norm")
def rule_for_a_batch_norm(t):
    model = t.model(Net())
    t.join(model, sgd(model), buffers={"norm1.running_mean": "mean"})


@refused("ConfigurationError", "teacher.norm1.running_var", "batch norm")
def rule_for_a_batch_norm_of_a_teacher(t):
    model = t.model(Net())
    t.join(model, sgd(model), keep={"teacher": frozen_copy(model)},
           buffers={"teacher.norm1.running_var": "mean"})


@refused("ConfigurationError", "center", "centre, seen")
def rule_for_no_buffer(t):
    model = t.model(Centred())
    t.join(model, sgd(model), buffers={"center": "mean"})


@refused("ConfigurationError", "seen", "int64")
def mean_of_integers(t):
    model = t.model(Centred())
    t.join(model, sgd(model), buffers={"seen": "mean"})


@refused("ConfigurationError", "centre", "'max'")
def rule_that_is_none(t):
    model = t.model(Centred())
    t.join(model, sgd(model), buffers={"centre": "max"})


@refused("UsageError", "queue", "shape")
def shape_of_a_buffer_with_a_rule(t):
    model = t.model(Contrast())
    t.join(model, sgd(model), buffers={"queue": "mean"})
    for x, y in t.data():
        model.queue = model.queue[1:]
        train(t, error_of(model(x), y))


# ---- numbers in attributes

class Tempered(Net):
    """A temperature that each training pass changes, or each pass."""

    def __init__(self, kind, always=False):
        super().__init__()
        self.tau, self.always = kind(1), always

    def forward(self, x):
        if self.training or self.always:
            self.tau *= type(self.tau)(0.9)
        return torch.tanh(super().forward(x) * float(self.tau))


def tempered(t, model, behind):
    """`behind` gets the model after each epoch. In the second step of one the last
    worker has no sample."""
    model = started(t, model)
    if t.rank is None:
        every = t.indexed(10)
        epochs = (itertools.islice(every, 2) for _ in range(t.steps // 2))
    else:
        data = t.job.data(Samples(10, (3, 6, 6)), batch_size=t.size)
        epochs = (t._counted(data) for _ in t.job.epochs())
    for batches in epochs:
        for x, y in batches:
            train(t, error_of(model(x), y))
        behind(model)


@row(steps=6)
def temperature_scaled_behind_each_epoch(t):
    def behind(model):
        model.tau *= 1.5
    tempered(t, Tempered(float), behind)


@row(steps=6)
def temperature_of_passes_and_scores(t):
    def behind(model):
        model.eval()
        with torch.no_grad():
            model(Samples(4, (3, 6, 6))[0][0][None].to(model.head.weight.dtype))
        model.train()
    tempered(t, Tempered(float, always=True), behind)


@row(steps=6)
def temperature_of_numpy(t):
    tempered(t, Tempered(numpy.float32), lambda model: None)


class Counters(Net):
    """More numbers than a version holds, or almost as many."""

    def __init__(self, count):
        super().__init__()
        self.all = torch.nn.ModuleList(torch.nn.Identity() for _ in range(count))

    def forward(self, x):
        if self.training:
            for module in self.all:
                module.n = getattr(module, "n", 0) + 1
        return super().forward(x) * 0.9 ** self.all[-1].n


@row(steps=6)
def nine_hundred_counters(t):
    model = started(t, Counters(900))
    for x, y in t.indexed(10):
        train(t, error_of(model(x), y))


@refused("UsageError", "1001 numbers", "register_buffer")
def a_thousand_counters_and_one(t):
    model = started(t, Counters(1001))
    for x, y in t.data():
        train(t, error_of(model(x), y))


@refused("UsageError", "evaluation mode change tau", "self.training", steps=6)
def temperature_of_all_passes_and_evaluate_with(t):
    model = started(t, Tempered(float, always=True))
    t.job.evaluate_with(Samples(7, (3, 6, 6)), torch.nn.MSELoss())
    for x, y in t.indexed(10):
        train(t, error_of(model(x), y))


# ---- refused

@refused("ConfigurationError", "queue", "job.gather")
def queue_of_own_keys(t):
    model = started(t, Contrast())
    for x, y in t.data():
        out = model(x)
        model.enqueue(out.detach())
        train(t, error_of(out, y))


@refused("ConfigurationError", "teacher")
def teachers_that_differ(t):
    model = t.model(Net())
    teacher = frozen_copy(model)
    with torch.no_grad():
        teacher.head.bias.fill_(float(t.rank or 0))
    t.join(model, sgd(model), keep={"teacher": teacher})
    for x, y in t.data():
        train(t, error_of(model(x), y))


@refused("ConfigurationError", "keep", "same keep=")
def kept_by_rank_0_only(t):
    model = t.model(Net())
    t.join(model, sgd(model), keep=[frozen_copy(model)] if t.here(0) else ())
    for x, y in t.data():
        train(t, error_of(model(x), y))


@refused("UsageError", "queue", "keep=")
def buffer_written_after_the_step(t):
    """Whether it belongs to the run cannot be known when the step is sent."""
    model = started(t, Contrast())
    for x, y in t.data():
        train(t, error_of(model(x), y))
        model.queue.mul_(0.5)


@row(survives=True)
def buffer_written_after_the_step_that_is_named(t):
    model = t.model(Contrast())
    t.join(model, sgd(model), keep={"queue": model.queue})
    for x, y in t.data():
        train(t, error_of(model(x), y + model.queue[0]))
        model.queue.mul_(0.5)


@refused("UsageError", "keep", "sync", flags=("--aggregation=async",))
def kept_teacher_under_async(t):
    model, _ = with_teacher(t)
    for x, y in t.data():
        train(t, error_of(model(x), y))


@refused("UsageError", "keep", "--min_pushes", flags=("--min_pushes=1",))
def kept_teacher_of_the_first_push(t):
    model, _ = with_teacher(t)
    for x, y in t.data():
        train(t, error_of(model(x), y))


@refused("ConfigurationError", "keep", "parameters of the model")
def a_part_of_the_model_is_kept(t):
    model = t.model(Net())
    t.join(model, sgd(model), keep=[model.head])
    for x, y in t.data():
        train(t, error_of(model(x), y))


@refused("ConfigurationError", "keep", "list")
def a_list_is_kept(t):
    model = t.model(Net())
    t.join(model, sgd(model), keep={"losses": [1.0]})
    for x, y in t.data():
        train(t, error_of(model(x), y))
