"""Rows: passes of the script's own, and derivatives of derivatives. A pass
differentiates the sum over the workers of what each one passes."""

import torch
from torch import nn
from torch.autograd import grad

from shapes.rows import (
    CHANNELS, Net, error_of, refused, row, started, steps, train)


# ---- gradients of the input, before the loss

@row()
def saliency_that_keeps_the_graph(t):
    for model, x, y in steps(t, saliency=True):
        out = model(x)
        found, = grad(out.tanh().sum(), x, retain_graph=True)
        t.own("saliency", found)
        weight = torch.sigmoid(10 * found.abs().mean((1, 2, 3)))
        train(t, ((out - y).square().sum(1) * weight).mean())


@row()
def two_saliencies_of_one_graph(t):
    for model, x, y in steps(t, saliency=True):
        out = model(x)
        a, = grad(out[:, 0].tanh().sum(), x, retain_graph=True)
        b, = grad(out[:, 1].sin().sum(), x, retain_graph=True)
        t.own("saliency", a - b)
        train(t, error_of(out, y) * 1.0 + (out.sum(1) * (a * b).sum((1, 2, 3))
                                           ).mean())


@row()
def saliency_of_a_mean(t):
    """`share` makes a mean over own samples the mean over all."""
    for model, x, y in steps(t, saliency=True):
        out = model(x)
        loss = error_of(out, y)
        found, = grad(t.share(loss, len(x)), x, retain_graph=True)
        t.own("saliency", found)
        weight = torch.sigmoid(100 * found.abs().mean((1, 2, 3)))
        train(t, loss + (out.square().sum(1) * weight).mean())


@row()
def saliency_after_the_loss(t):
    """A second pass, through another graph."""
    for model, x, y in steps(t):
        loss = error_of(model(x), y)
        other = (x * 0.5).requires_grad_()
        found, = grad(model(other).tanh().sum(), other)
        t.own("saliency", found)
        train(t, loss)


@refused("CohortError", "norm", or_right=True)
def saliency_on_rank_0_only(t):
    """Never the saliency of one rank with the loss of another."""
    for model, x, y in steps(t, saliency=True):
        out = model(x)
        weight = torch.ones(len(x), dtype=x.dtype)
        if t.here(0):
            mine = t.of(x, 0)
            found, = grad(out[mine].tanh().sum(), x, retain_graph=True)
            t.own("saliency", found[mine])
            weight = weight + torch.where(
                mine, found.abs().mean((1, 2, 3)), torch.zeros_like(weight))
        train(t, ((out - y).square().sum(1) * weight).mean())


@row()
def adversarial_samples_of_one_step(t):
    """FGSM, with a smooth sign."""
    for model, x, y in steps(t, saliency=True):
        found, = grad((model(x) - y).square().sum(), x)
        attack = (x + 0.1 * torch.tanh(found)).detach()
        t.own("attack", attack)
        train(t, error_of(model(attack), y))


@row()
def adversarial_samples_in_train_mode(t):
    """PGD: several passes a step, each with a graph that it frees."""
    for model, x, y in steps(t):
        attack = x.clone()
        for _ in range(3):
            attack = attack.detach().requires_grad_()
            found, = grad((model(attack) - y).square().sum(), attack)
            attack = attack + 0.1 * torch.tanh(found)
        t.own("attack", attack)
        train(t, error_of(model(attack.detach()), y) + error_of(model(x), y))


@row()
def adversarial_samples_in_eval_mode(t):
    for model, x, y in steps(t):
        model.eval()
        attack = x.clone()
        for _ in range(2):
            attack = attack.detach().requires_grad_()
            found, = grad((model(attack) - y).square().sum(), attack)
            attack = attack + 0.1 * torch.tanh(found)
        t.own("attack", attack)
        model.train()
        train(t, error_of(model(attack.detach()), y))


@row()
def virtual_adversarial_training(t):
    """A power iteration on a divergence of outputs."""
    for model, x, y in steps(t):
        out = model(x)
        direction = torch.cos(x * 3)
        for _ in range(2):
            direction = (0.1 * direction).detach().requires_grad_()
            distance = (model(x + direction) - out.detach()).square().sum()
            found, = grad(distance, direction)
            direction = found / (found.flatten(1).norm(dim=1) + 1e-3
                                 ).view(-1, 1, 1, 1)
        other = model(x + direction.detach())
        train(t, error_of(out, y) + (other - out).square().sum(1).mean())


# ---- second and third order

def penalty_of(found):
    return (found.flatten(1).norm(dim=1) - 1).square()


@row()
def gradient_penalty(t):
    for model, x, y in steps(t, lr=0.02, saliency=True):
        out = model(x)
        found, = grad(out.sum(), x, create_graph=True)
        train(t, error_of(out, y) + penalty_of(found).mean())


class Critic(Net):
    def forward(self, x):
        return self.out(self.features(x))[:, 0]


@row()
def wasserstein_critic(t):
    """WGAN-GP, with batch norm in the critic."""
    for model, x, y in steps(t, Critic(), lr=0.02):
        fake = torch.tanh(x.flip(2)) * 2
        share = torch.sigmoid(y[:, :1])[:, :, None, None]
        mixed = (share * x + (1 - share) * fake).requires_grad_()
        found, = grad(model(mixed).sum(), mixed, create_graph=True)
        loss = (model(fake) - model(x)).mean() + 10 * penalty_of(found).mean()
        train(t, loss)


@row()
def gradient_penalty_on_rank_0_only(t):
    for model, x, y in steps(t, lr=0.02, saliency=True):
        out = model(x)
        found, = grad(out.sum(), x, create_graph=True)
        mine = t.of(x, 0).to(x.dtype)
        train(t, error_of(out, y) + (penalty_of(found) * mine).mean())


@row()
def two_gradients_of_one_graph(t):
    for model, x, y in steps(t, lr=0.02, saliency=True):
        out = model(x)
        a, = grad(out.exp().sum(), x, create_graph=True)
        b, = grad(out.pow(3).sum(), x, create_graph=True)
        train(t, error_of(out, y) + (a * b).sum((1, 2, 3)).mean())


class WrittenOut(nn.BatchNorm2d):
    """Batch norm from operators that have derivatives of any order."""

    def forward(self, x):
        mean = x.mean((0, 2, 3), keepdim=True)
        variance = (x - mean).square().mean((0, 2, 3), keepdim=True)
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            self.running_mean.lerp_(mean.flatten(), self.momentum)
            self.running_var.lerp_(variance.flatten() * count / (count - 1),
                                   self.momentum)
            self.num_batches_tracked += 1
        return ((x - mean) * (variance + self.eps).rsqrt() *
                self.weight[:, None, None] + self.bias[:, None, None])


@row()
def third_order(t):
    """Torch's own batch norm has two in newer releases."""
    for model, x, y in steps(t, Net(WrittenOut if t.rank is None else nn.BatchNorm2d),
                    lr=0.02):
        x.requires_grad_()
        out = model(x)
        a, = grad(out.sin().sum(), x, create_graph=True)
        b, = grad(a.square().sum(), x, create_graph=True)
        train(t, error_of(out, y) + 0.02 * b.square().sum((1, 2, 3)).mean())


@row()
def hessian_vector_product(t):
    """Of the loss by the weights: each worker's is a share."""
    for model, x, y in steps(t):
        loss = error_of(model(x), y)
        weights = [model.conv1.weight, model.norm2.weight]
        found = grad(t.share(loss, len(x)), weights, create_graph=True)
        product = sum((g * torch.cos(torch.arange(g.numel(), dtype=g.dtype)
                                     ).view_as(g)).sum() for g in found)
        for name, value in zip("ab", grad(product, weights, retain_graph=True)):
            t.total(name, value)
        train(t, loss)


@row()
def gradients_of_the_weights(t):
    """Each worker's is its share, to be summed."""
    for model, x, y in steps(t):
        loss = error_of(model(x), y)
        for name, value in zip("abc", grad(
                t.share(loss, len(x)),
                [model.conv1.weight, model.norm1.weight, model.norm1.bias],
                retain_graph=True)):
            t.total(name, value)
        train(t, loss)


@row()
def penalty_in_half_of_the_steps(t):
    """Lazy regularisation."""
    for model, x, y in steps(t, lr=0.02, saliency=True):
        out = model(x)
        loss = error_of(out, y)
        if t.step_number % 2 == 1:
            found, = grad(out.sum(), x, create_graph=True)
            loss = loss + penalty_of(found).mean()
        train(t, loss)


@row()
def penalty_through_one_dimension(t):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.linear = nn.Linear(5, CHANNELS, bias=False)
            self.norm = nn.BatchNorm1d(CHANNELS)
            self.head = nn.Linear(CHANNELS, 2)

        def forward(self, x):
            return self.head(torch.tanh(self.norm(self.linear(x))))

    model = started(t, Flat(), lr=0.02)
    for x, y in t.data((5,)):
        x.requires_grad_()
        out = model(x)
        found, = grad(out.sum(), x, create_graph=True)
        train(t, error_of(out, y) + penalty_of(found).mean())


@row()
def penalty_without_scale(t):
    for model, x, y in steps(t, Net(affine=False), lr=0.02, saliency=True):
        out = model(x)
        found, = grad(out.sum(), x, create_graph=True)
        train(t, error_of(out, y) + penalty_of(found).mean())


@refused("CohortError", "norm", or_right=True)
def penalty_recorded_by_rank_0_only(t):
    """Rank 0 passes create_graph=True, the others do not."""
    for model, x, y in steps(t, lr=0.02, saliency=True):
        out = model(x)
        found, = grad(out.sum(), x, create_graph=t.here(0), retain_graph=True)
        mine = t.of(x, 0).to(x.dtype)
        train(t, error_of(out, y) + (penalty_of(found) * mine).mean())


# ---- checkpoints

class Checkpointed(Net):
    script = None
    reentrant = False

    def forward(self, x):
        x = self.script.checkpoint(self.first, x, reentrant=self.reentrant)
        x = self.script.checkpoint(self.second, x, reentrant=self.reentrant)
        return self.out(x)


def checkpointed(t, reentrant):
    net = Checkpointed()
    net.script, net.reentrant = t, reentrant
    return started(t, net)


@row()
def checkpointing(t):
    model = checkpointed(t, False)
    for x, y in t.data():
        train(t, error_of(model(x), y))


@row()
def checkpointing_with_reentry(t):
    model = checkpointed(t, True)
    for x, y in t.data():
        # Reentry needs an input with a gradient.
        train(t, error_of(model(x.requires_grad_()), y))


@row()
def saliency_of_a_checkpointed_model(t):
    """The script's own pass recomputes the forward."""
    model = checkpointed(t, False)
    for x, y in t.data():
        x.requires_grad_()
        out = model(x)
        found, = grad(out.tanh().sum(), x, retain_graph=True)
        t.own("saliency", found)
        weight = torch.sigmoid(10 * found.abs().mean((1, 2, 3)))
        train(t, ((out - y).square().sum(1) * weight).mean())


@row()
def attack_on_a_checkpointed_model(t):
    model = checkpointed(t, False)
    for x, y in t.data():
        x.requires_grad_()
        found, = grad((model(x) - y).square().sum(), x)
        attack = (x + 0.1 * torch.tanh(found)).detach()
        train(t, error_of(model(attack), y))


@row()
def checkpointed_calls_of_one_layer(t):
    net = Net()
    for model, x, y in steps(t, net):
        x = model.first(x)
        for _ in range(3):
            x = t.checkpoint(model.second, x, reentrant=False)
        train(t, error_of(model.out(x), y))


@row()
def checkpoint_within_a_checkpoint(t):
    for model, x, y in steps(t):
        def outer(value):
            return model.second(t.checkpoint(model.first, value,
                                             reentrant=False))
        out = t.checkpoint(outer, x, reentrant=False)
        train(t, error_of(model.out(out), y))


# ---- several losses

@row()
def two_losses_added(t):
    """An auxiliary head."""
    net = Net()
    net.side = nn.Linear(CHANNELS, 2)
    for model, x, y in steps(t, net):
        first = model.first(x)
        loss = error_of(model.out(model.second(first)), y)
        train(t, loss + 0.4 * error_of(model.side(first.mean((2, 3))), -y))


@refused("UsageError", "job.backward")
def two_backward_passes(t):
    for model, x, y in steps(t):
        out = model(x)
        t.backward(error_of(out, y))
        t.backward(error_of(model(x * 2), y))
        t.step()


@row()
def inner_gradient_of_the_head(t):
    """A recorded pass that reaches no batch norm."""
    for model, x, y in steps(t, lr=0.02):
        features = model.features(x).mean((2, 3))
        found, = grad((model.head(features) - y).square().sum(), features,
                      create_graph=True)
        train(t, error_of(model.head(features - 0.1 * found), y))


@row()
def gradient_in_the_loss_of_a_generator(t):
    """A path-length penalty: the gradient by a latent."""
    for model, x, y in steps(t, lr=0.02):
        latent = x.clone().requires_grad_()
        image = model.features(latent)
        noise = torch.cos(image.detach() * 5)
        found, = grad((image * noise).sum(), latent, create_graph=True)
        length = found.square().sum((1, 2, 3)).add(1e-6).sqrt()
        train(t, error_of(model.out(image), y) + (length - 0.5).square().mean())


# ---- functions of gradients of the weights, which are added up first

@row()
def weight_of_a_loss_by_gradients(t):
    """As a VQGAN's."""
    for model, x, y in steps(t):
        out = model(x)
        losses = error_of(out, y), out.tanh().mean()
        first, second = (
            t.sum(grad(t.share(loss, len(x)), model.head.weight,
                       retain_graph=True)[0]).norm()
            for loss in losses)
        train(t, losses[0] + first / (second + 1e-2) * losses[1])


@row()
def squared_gradients_of_the_step_before(t):
    """As the weights of EWC's penalty."""
    squares = []
    for model, x, y in steps(t):
        loss = error_of(model(x), y)
        t.backward(loss + sum(
            (square * parameter.square()).sum()
            for square, parameter in zip(squares, model.parameters())))
        squares = [t.sum(parameter.grad).square()
                   for parameter in model.parameters()]
        t.step()
