"""Rows: cohort.RunningNormalizer, whose numbers are those of one process that has
all samples."""

from concurrent import futures

from shapes.batches import LOCAL
from shapes.meetings import TwoHeads, summed, with_branch
from shapes.rows import Net, error_of, refused, row, sgd, started, train

def numbers_of(t, *normalizers):
    for number, one in enumerate(normalizers):
        for name in ("count", "mean", "variance"):
            t.same(f"{name}{number}", getattr(one, name))


def with_normalizer(t, shape=(2,), model=None, **options):
    """A model that has joined, and what normalises beside it."""
    model = t.model(model or Net())
    normalizer = t.normalizer(shape, **options)
    t.join(model, sgd(model), keep={"targets": normalizer})
    return model, normalizer


@row(survives=True)
def two_normalizers(t):
    """Of targets, and of returns; some samples are added in two calls, some calls
    have one sample, and the second one moves within the step, too."""
    model = t.model(Net())
    targets = t.normalizer((2,))
    returns = t.normalizer((), momentum=0.3)
    t.join(model, sgd(model), keep={"targets": targets, "returns": returns})
    for x, y in t.data():
        targets.update(y[:2])
        for sample in y[2:]:
            targets.update(sample)
        out = model(x)
        t.own("normalised", targets.normalize(y))
        t.own("back", targets.denormalize(out))
        returns.update(1000 + y.sum(1))
        returns.sync()
        numbers_of(t, targets, returns)
        returns.update(y[:, :1])
        train(t, error_of(out, targets.normalize(y) + 0.1 * returns.normalize(y)))
        numbers_of(t, targets, returns)


@row(sizes={2: (0, 4), 3: (2, 0, 3)}, survives=True)
def a_normalizer_without_samples_of_a_rank(t):
    model, targets = with_normalizer(t)
    for x, y in t.data():
        targets.update(y)
        out = model(x)
        summed(t, (out - targets.normalize(y)).square().sum(1))
        numbers_of(t, targets)


@row(survives=True)
def a_normalizer_without_samples_in_a_step(t):
    """It stays as it was."""
    model, targets = with_normalizer(t, momentum=0.5)
    for x, y in t.data():
        if t.step_number == 1:
            targets.update(y)
        out = model(x)
        train(t, error_of(out, targets.normalize(y)))
        numbers_of(t, targets)


@row(survives=True)
def a_normalizer_and_void_steps(t):
    """Steps from which the server learns the order of calls are repeated."""
    model, targets = with_normalizer(t, model=TwoHeads())
    for x, y in t.data():
        targets.update(y)
        targets.sync()
        targets.update(2 * y)
        with t.call("on rank 0"):
            out = with_branch(t, model, x, (0,), model.third)
        with t.call("on all"):
            out = out + model.out(model.third(model.features(x)))
        summed(t, (out - targets.normalize(y)).square().sum(1))
        numbers_of(t, targets)


class Normalised(Net):
    """It normalises its input by all inputs of the steps before."""

    def __init__(self, normalizer):
        super().__init__()
        self.input = normalizer

    def first(self, x):
        if self.training:
            self.input.update(x.movedim(1, -1))
        x = self.input(x.movedim(1, -1)).movedim(-1, 1)
        return super().first(x)


@row(survives=True)
def a_normalizer_in_the_model(t):
    """Called again by a checkpoint, and copied."""
    model = t.model(Normalised(t.normalizer((3,))))
    t.join(model, sgd(model))
    teacher = t.teacher(0.7)
    for x, y in t.data(accumulate=2):
        x.requires_grad_()
        z = t.checkpoint(model.first, x, reentrant=False)
        train(t, error_of(model.out(model.second(z)), y + 0.1 * teacher(x)))
    t.same_state("teacher", teacher)


# ---- refused

def trains_normalised(t, **options):
    model, targets = with_normalizer(t, **options)
    for x, y in t.data():
        targets.update(y)
        train(t, error_of(model(x), targets.normalize(y)))


@refused("UsageError", "targets", "--aggregation=sync", flags=("--aggregation=async",))
def a_normalizer_under_async(t):
    trains_normalised(t)


@refused("UsageError", "targets", "--normalization=global", flags=LOCAL)
def a_normalizer_under_local_normalisation(t):
    trains_normalised(t)


@refused("UsageError", "targets", "groups", sizes={4: (2, 3, 2, 3)},
         flags=("--normalization_group=2",))
def a_normalizer_in_groups(t):
    trains_normalised(t)


@refused("UsageError", "input", "--min_pushes", flags=("--min_pushes=1",))
def a_normalizer_in_the_model_of_the_first_push(t):
    model = t.model(Normalised(t.normalizer((3,))))
    t.join(model, sgd(model))
    for x, y in t.data():
        t.backward([(error_of(model(x), y), len(x)), (x.mean() * model.head.bias.sum(), 1)])
        t.step()


@refused("UsageError", "targets.update()", "no batch is in progress")
def samples_after_the_step(t):
    model, targets = with_normalizer(t)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        targets.update(y)


@refused("UsageError", "targets.update()", "outside the loop's thread")
def samples_in_another_thread(t):
    _, targets = with_normalizer(t)
    for _, y in t.data():
        with futures.ThreadPoolExecutor() as pool:
            pool.submit(targets.update, y).result()


@refused("UsageError", "targets.update()", "[3]", "[2]")
def samples_of_another_shape(t):
    _, targets = with_normalizer(t)
    for _, y in t.data():
        targets.update(y[0, :1].expand(3))


@refused("UsageError", "targets.update()", "not finite")
def samples_that_are_not_finite(t):
    _, targets = with_normalizer(t)
    for _, y in t.data():
        targets.update(y / 0)


@refused("UsageError", "belongs to no run", "keep=")
def a_normalizer_that_does_not_join(t):
    model = started(t)
    targets = t.normalizer((2,))
    for _, y in t.data():
        targets.update(y)


@refused("ConfigurationError", "input", "float16", "float64")
def a_normalizer_in_half_precision(t):
    model = Normalised(t.normalizer((3,)))
    model.input.half()
    t.join(model, sgd(model))


@refused("ConfigurationError", "RunningNormalizer", "momentum 1.5")
def a_normalizer_of_a_wrong_momentum(t):
    t.normalizer((3,), momentum=1.5)


@refused("CohortError", "targets.sync()")
def a_normalizer_that_rank_0_moves(t):
    model, targets = with_normalizer(t)
    for x, y in t.data():
        if t.here(0):
            targets.sync()
        train(t, error_of(model(x), y))
