"""Rows: several optimizers, each for one part of the model."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from shapes.rows import CHANNELS, Net, error_of, refused, row
from shapes.script import batch_of
from shapes.teachers import follow


class Generator(nn.Module):
    """From two numbers to an image."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.grow = nn.Linear(2, CHANNELS * 9)
        self.norm1 = nn.BatchNorm2d(CHANNELS)
        self.conv = nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, 2, bias=False)
        self.norm2 = nn.BatchNorm2d(CHANNELS)
        self.out = nn.Conv2d(CHANNELS, 3, 3, padding=1)

    def forward(self, z):
        x = self.grow(z).view(-1, CHANNELS, 3, 3)
        x = torch.tanh(self.norm1(x))
        return self.out(torch.tanh(self.norm2(self.conv(x))))


class Discriminator(Net):
    def forward(self, x):
        return self.out(self.features(x))[:, 0]


def adam(module, lr):
    # A large epsilon: a step by the sign of a rounding error would show.
    return torch.optim.Adam(module.parameters(), lr=lr, betas=(0.5, 0.99),
                            eps=1e-2)


def momentum(module, lr):
    return torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9,
                           weight_decay=0.01)


def slowly(module, lr):
    return torch.optim.SGD(module.parameters(), lr=0.2 * lr)


def started(t, make=momentum, generator_first=False, **options):
    """Both networks, which have joined, and their optimizers."""
    both = t.model(nn.ModuleList([Discriminator(), Generator()]))
    judge, maker = both
    opt_d, opt_g = make(judge, 0.05), make(maker, 0.02)
    t.join(both, [opt_g, opt_d] if generator_first else [opt_d, opt_g], **options)
    return judge, maker, opt_d, opt_g


def real(out):
    return functional.softplus(-out).mean()


def fake(out):
    return functional.softplus(out).mean()


def train_judge(t, judge, opt_d, x, made, samples=None):
    """As in PyTorch's DCGAN example: two passes, one step."""
    opt_d.zero_grad()
    t.backward(real(judge(x)), samples, optimizer=opt_d)
    t.backward(fake(judge(made.detach())), samples, optimizer=opt_d)
    t.step(opt_d)


def train_maker(t, judge, opt_g, made, **options):
    opt_g.zero_grad()
    t.backward(real(judge(made)), optimizer=opt_g)
    t.step(opt_g, **options)


@row(survives=True)
def dcgan(t):
    """The generator's pass comes before the discriminator's step, its derivative
    after it."""
    judge, maker, opt_d, opt_g = started(t, adam)
    for x, y in t.data():
        made = maker(y)
        train_judge(t, judge, opt_d, x, made)
        train_maker(t, judge, opt_g, made)


@row(survives=True)
def dcgan_with_momentum_and_one_pass(t):
    judge, maker, opt_d, opt_g = started(t)
    for x, y in t.data():
        made = maker(y)
        opt_d.zero_grad(set_to_none=False)
        loss = real(judge(x)) + fake(judge(made.detach()))
        t.backward(loss, optimizer=opt_d)
        t.own("discriminator", judge(x))
        t.step(opt_d)
        t.same("weight", judge.head.weight)
        train_maker(t, judge, opt_g, made)


@row(survives=True)
def generator_before_discriminator(t):
    judge, maker, opt_d, opt_g = started(t, generator_first=True)
    for x, y in t.data():
        made = maker(y)
        train_maker(t, judge, opt_g, made)
        train_judge(t, judge, opt_d, x, made)


@row(survives=True, steps=5)
def generator_every_other_batch(t):
    """The request for the next batch ends a step without it."""
    judge, maker, opt_d, opt_g = started(t, adam)
    for x, y in t.data():
        made = maker(y)
        train_judge(t, judge, opt_d, x, made)
        if t.step_number % 2:
            train_maker(t, judge, opt_g, made)


@row(survives=True)
def wgan_gp(t):
    """Several steps of the critic for one of the generator."""
    judge, maker, opt_d, opt_g = started(t, slowly)
    for x, y in t.data():
        for turn in range(3):
            made = maker(y * (1 + turn)).detach()
            share = torch.sigmoid(y[:, :1])[:, :, None, None]
            mixed = (share * x + (1 - share) * made).requires_grad_()
            found, = torch.autograd.grad(judge(mixed).sum(), mixed,
                                         create_graph=True)
            penalty = (found.square().sum((1, 2, 3)) + 1e-3).sqrt() - 1
            opt_d.zero_grad()
            t.backward((judge(made) - judge(x)).mean() +
                       10 * penalty.square().mean(), optimizer=opt_d)
            t.step(opt_d)
        opt_g.zero_grad()
        t.backward(-judge(maker(y)).mean(), optimizer=opt_g)
        t.step(opt_g)


@row(survives=True)
def generator_twice_at_the_end(t):
    judge, maker, opt_d, opt_g = started(t)
    for x, y in t.data():
        train_judge(t, judge, opt_d, x, maker(y))
        train_maker(t, judge, opt_g, maker(y), last=False)
        train_maker(t, judge, opt_g, maker(y * 2))


@row(survives=True)
def adversarial_segmentation(t):
    """Losses that are means over different things, beside a discriminator."""
    judge, maker, opt_d, opt_g = started(t)
    for x, y in t.data():
        made = maker(y)
        opt_g.zero_grad()
        valid = y[:, 0] > 0
        count = int(valid.sum())
        error = (made - x).square().mean((1, 2, 3))[valid].sum()
        train_judge(t, judge, opt_d, x, made)
        opt_g.zero_grad()
        t.backward([(error / max(count, 1), count), (real(judge(made)), len(y))],
                   optimizer=opt_g)
        t.step(opt_g)


@row(survives=True)
def actor_and_critic(t):
    """Both passes come before both steps."""
    torch.manual_seed(2)
    both = t.model(nn.ModuleList([Net(), Discriminator()]))
    actor, critic = both
    opt_a, opt_c = momentum(actor, 0.1), momentum(critic, 0.05)
    t.join(both, [opt_a, opt_c])
    for x, y in t.data():
        opt_a.zero_grad()
        opt_c.zero_grad()
        value, policy = critic(x), actor(x)
        advantage = (y.sum(1) - value).detach()
        t.backward((advantage * error_of_each(policy, y)).mean(), optimizer=opt_a)
        t.step(opt_a)
        t.backward((value - y.sum(1)).square().mean(), optimizer=opt_c)
        t.step(opt_c)


def error_of_each(out, y):
    return (out - y).square().sum(1)


@row(survives=True)
def gradients_set_to_nothing_between_two_passes(t):
    """Then the first does not count, as in torch."""
    judge, maker, opt_d, opt_g = started(t)
    for x, y in t.data():
        made = maker(y)
        t.backward(real(judge(x * 2)), optimizer=opt_d)
        train_judge(t, judge, opt_d, x, made)
        train_maker(t, judge, opt_g, made)
        opt_d.zero_grad()


@row(survives=True)
def rates_of_each_optimizer_by_hand(t):
    judge, maker, opt_d, opt_g = started(t, adam)
    for x, y in t.data():
        opt_d.param_groups[0]["lr"] = 0.05 / (1 + t.step_number)
        opt_g.param_groups[0]["lr"] = 0.02 * (1 + t.step_number)
        opt_g.param_groups[0]["betas"] = (0.5 + 0.1 * t.step_number, 0.99)
        made = maker(y)
        train_judge(t, judge, opt_d, x, made)
        train_maker(t, judge, opt_g, made)


def started_with_schedulers(t):
    """The discriminator's rate is a third after two of its steps, the generator's
    after each."""
    both = t.model(nn.ModuleList([Discriminator(), Generator()]))
    optimizers = momentum(both[0], 0.05), momentum(both[1], 0.02)
    t.join(both, list(optimizers), schedulers=[
        torch.optim.lr_scheduler.StepLR(optimizer, every, 1 / 3)
        for optimizer, every in zip(optimizers, (2, 1))])
    return *both, *optimizers


@row(survives=True, steps=11)
def schedulers_follow_the_steps_of_their_optimizers(t):
    """Two steps of the discriminator in each batch, and one of the generator in
    each fifth one."""
    judge, maker, opt_d, opt_g = started_with_schedulers(t)
    for x, y in t.data():
        for turn in (1, 2):
            train_judge(t, judge, opt_d, x, maker(y * turn))
            t.same("rate", opt_d.param_groups[0]["lr"])
        if t.step_number % 5 == 0:
            train_maker(t, judge, opt_g, maker(y))
        t.same("rates", [opt.param_groups[0]["lr"] for opt in (opt_d, opt_g)])


@row(survives=True, steps=5)
def schedulers_of_optimizers_that_take_turns(t):
    """The generator is stepped in the even batches, the discriminator in others."""
    judge, maker, opt_d, opt_g = started_with_schedulers(t)
    for x, y in t.data():
        if t.step_number % 2:
            train_judge(t, judge, opt_d, x, maker(y))
        else:
            train_maker(t, judge, opt_g, maker(y))
        t.same("rates", [opt.param_groups[0]["lr"] for opt in (opt_d, opt_g)])


@row(survives=True)
def average_of_the_generator(t):
    """A kept module that follows after the step."""
    average = t.model(Generator()).requires_grad_(False)
    judge, maker, opt_d, opt_g = started(t, keep=[average])
    for x, y in t.data():
        made = maker(y)
        train_judge(t, judge, opt_d, x, made)
        train_maker(t, judge, opt_g, made)
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), maker.parameters()):
                mine.lerp_(theirs, 0.25)
    t.same_state("average", average)


@row(survives=True, steps=4)
def centre_of_each_update_by_a_rule(t):
    """It is all workers' after each step, in one that the request for the next batch
    ends too."""
    centre = torch.zeros((), dtype=t.model(nn.Linear(1, 1)).weight.dtype)
    judge, maker, opt_d, opt_g = started(t, keep={"centre": centre},
                                         buffers={"centre": "mean"})
    for x, y in t.data():
        made = maker(y)
        out = judge(x)
        opt_d.zero_grad()
        t.backward(real(out - centre), optimizer=opt_d)
        centre.lerp_(out.detach().mean(), 0.3)
        t.step(opt_d)
        if t.step_number % 2:
            train_maker(t, judge, opt_g, made - centre)
        else:
            centre.lerp_(y.mean(), 0.3)
    t.same("centre", centre)


@row(survives=True)
def three_optimizers(t):
    """CycleGAN's shape: two discriminators after the generator."""
    parts = t.model(nn.ModuleList([Generator(), Discriminator(), Discriminator()]))
    maker, first, second = parts
    optimizers = [momentum(part, rate) for part, rate in
                  zip(parts, (0.02, 0.05, 0.03))]
    t.join(parts, optimizers)
    opt_g, *opts_d = optimizers
    for x, y in t.data():
        made = maker(y)
        opt_g.zero_grad()
        t.backward(real(first(made)) + real(second(made.flip(2))),
                   optimizer=opt_g)
        t.step(opt_g)
        for judge, optimizer in zip((first, second), opts_d):
            train_judge(t, judge, optimizer, x, made)


@row()
def a_loop_that_is_left_between_two_optimizers(t):
    """The next batch comes from another loop over the same data."""
    judge, maker, opt_d, opt_g = started(t)
    if t.rank is None:
        for x, y in t.data():
            train_judge(t, judge, opt_d, x, maker(y))
        return
    data = t.job.data((batch_of(t.rank, step, t.size, (3, 6, 6))
                       for step in range(t.steps)), batch_size=t.size)
    while not t.job.finished:
        for x, y in data:
            train_judge(t, judge, opt_d, x, maker(y))
            break


class Bounded(nn.Module):
    def forward(self, weight):
        return torch.tanh(weight * 4) / 4


@row(survives=True)
def critic_with_bounded_weights(t):
    """In place of WGAN's clamp."""
    both = t.model(nn.ModuleList([Discriminator(), Generator()]))
    judge, maker = both
    parametrize.register_parametrization(judge.head, "weight", Bounded())
    opt_d, opt_g = momentum(judge, 0.05), momentum(maker, 0.02)
    t.join(both, [opt_d, opt_g])
    for x, y in t.data():
        made = maker(y)
        opt_d.zero_grad()
        t.backward((judge(made.detach()) - judge(x)).mean(), optimizer=opt_d)
        t.step(opt_d)
        opt_g.zero_grad()
        t.backward(-judge(made).mean(), optimizer=opt_g)
        t.step(opt_g)


@row(survives=True, steps=5)
def one_cycle_of_each_optimizer(t):
    both = t.model(nn.ModuleList([Discriminator(), Generator()]))
    judge, maker = both
    opt_d, opt_g = adam(judge, 0.05), adam(maker, 0.02)
    cycles = [torch.optim.lr_scheduler.OneCycleLR(opt, 0.05, total)
              for opt, total in ((opt_d, 10), (opt_g, 4))]
    t.join(both, [opt_d, opt_g], schedulers=cycles)
    for x, y in t.data():
        for _ in range(2):
            train_judge(t, judge, opt_d, x, maker(y))
        if t.step_number % 2:
            train_maker(t, judge, opt_g, maker(y))
        for opt in (opt_d, opt_g):
            t.same("numbers", [opt.param_groups[0]["lr"],
                               opt.param_groups[0]["betas"][0]])


@row(survives=True, steps=4)
def average_after_a_body_without_the_last_optimizer(t):
    average = t.model(Discriminator()).requires_grad_(False)
    judge, maker, opt_d, opt_g = started(t, keep=[average])
    for x, y in t.data():
        train_judge(t, judge, opt_d, x, maker(y))
        follow(average, judge, 0.3)
    t.same_state("average", average)


@row(survives=True, steps=4)
def order_of_optimizers_by_batch(t):
    judge, maker, opt_d, opt_g = started(t)
    for x, y in t.data():
        if t.step_number % 2:
            train_maker(t, judge, opt_g, maker(y), last=False)
            opt_d.zero_grad()
            t.backward(real(judge(x)) + fake(judge(maker(y).detach())),
                       optimizer=opt_d)
            t.step(opt_d, last=True)
        else:
            train_judge(t, judge, opt_d, x, maker(y))
            train_maker(t, judge, opt_g, maker(y))


# ---- what is refused

@refused("RuntimeError", "modified by an inplace operation")
def discriminator_pass_before_its_step_and_derivative_after(t):
    """As in torch."""
    judge, maker, opt_d, opt_g = started(t)
    for x, y in t.data():
        made = maker(y)
        out = judge(made)
        train_judge(t, judge, opt_d, x, made)
        t.backward(real(out), optimizer=opt_g)
        t.step(opt_g)


@refused("UsageError", "got no optimizer", "optimizer=")
def several_optimizers_without_a_name(t):
    judge, _, _, _ = started(t)
    for x, _ in t.data():
        t.backward(real(judge(x)))


@refused("UsageError", "optimizers[1] (1.grow.weight", "last=False")
def optimizers_stepped_in_another_order(t):
    judge, maker, opt_d, opt_g = started(t)
    for x, y in t.data():
        made = maker(y)
        train_maker(t, judge, opt_g, made)
        train_judge(t, judge, opt_d, x, made)


@refused("UsageError", "optimizers[0]", "optimizers[1]", "step it first")
def gradients_of_two_optimizers_before_a_step(t):
    judge, maker, opt_d, opt_g = started(t)
    for x, y in t.data():
        t.backward(real(judge(x)), optimizer=opt_d)
        t.backward(real(judge(maker(y))), optimizer=opt_g)


@refused("UsageError", "not trained")
def an_update_that_is_not_stepped(t):
    judge, maker, opt_d, opt_g = started(t)
    for x, y in t.data():
        train_judge(t, judge, opt_d, x, maker(y))
        t.backward(real(judge(maker(y))), optimizer=opt_g)


@refused("UsageError", "optimizers[0]", "optimizers[1]", "computed")
def a_step_of_another_optimizer_than_the_pass(t):
    judge, _, opt_d, opt_g = started(t)
    for x, _ in t.data():
        t.backward(real(judge(x)), optimizer=opt_d)
        t.step(opt_g)


@refused("ConfigurationError", "optimizers[0]", "optimizers[1]", "0.head.weight")
def optimizers_that_share_a_parameter(t):
    both = t.model(nn.ModuleList([Discriminator(), Generator()]))
    t.join(both, [momentum(both, 0.05), momentum(both[0].head, 0.05)])


@refused("UsageError", "0.conv1.weight", "parametrize")
def weights_clamped_between_two_steps(t):
    """WGAN."""
    judge, maker, opt_d, opt_g = started(t)
    for x, y in t.data():
        train_judge(t, judge, opt_d, x, maker(y))
        for weight in judge.parameters():
            weight.data.clamp_(-0.01, 0.01)
        train_maker(t, judge, opt_g, maker(y))


@refused("UsageError", "0.conv1.weight", "parametrize")
def weights_clamped_after_the_last_step_of_a_batch(t):
    """The request for the next batch ends the step."""
    judge, maker, opt_d, _ = started(t)
    for x, y in t.data():
        train_judge(t, judge, opt_d, x, maker(y))
        for weight in judge.parameters():
            weight.data.clamp_(-0.01, 0.01)


@refused("UsageError", "lr of group 0 of optimizers[1]")
def a_rate_changed_before_the_step_of_another_optimizer(t):
    judge, maker, opt_d, opt_g = started(t)
    for x, y in t.data():
        t.backward(real(judge(x)), optimizer=opt_d)
        opt_g.param_groups[0]["lr"] *= 0.5
        t.step(opt_d)


@refused("UsageError", "StepLR", "schedulers=")
def a_scheduler_stepped_between_two_optimizers(t):
    judge, maker, opt_d, opt_g = started(t)
    scheduler = torch.optim.lr_scheduler.StepLR(opt_d, 2)
    for x, y in t.data():
        train_judge(t, judge, opt_d, x, maker(y))
        scheduler.step()
        train_maker(t, judge, opt_g, maker(y))


@refused("UsageError", "has a gradient", "changed since")
def clipped_between_two_passes(t):
    judge, _, opt_d, _ = started(t)
    for x, _ in t.data():
        t.backward(real(judge(x)), optimizer=opt_d)
        nn.utils.clip_grad_norm_(judge.parameters(), 0.01)
        t.backward(fake(judge(x)), optimizer=opt_d)


@refused("UsageError", "do not synchronise", flags=["--aggregation=async"])
def several_optimizers_without_meetings(t):
    judge, _, opt_d, _ = started(t)
    for x, _ in t.data():
        t.backward(real(judge(x)), optimizer=opt_d)
        t.step(opt_d)


@refused("UsageError", "job.backward() of several optimizers", "accumulate")
def several_optimizers_over_parts(t):
    judge, _, opt_d, _ = started(t)
    for x, _ in t.data(accumulate=2):
        t.backward(real(judge(x)), optimizer=opt_d)


@refused("TrainingError", "optimizer", "order")
def optimizers_stepped_in_another_order_by_rank(t):
    judge, maker, opt_d, opt_g = started(t)
    for x, y in t.data():
        t.backward(error_of(judge(x)[:, None] + judge(maker(y))[:, None], y),
                   optimizer=opt_d)
        t.step(opt_d, last=t.rank == 0)
