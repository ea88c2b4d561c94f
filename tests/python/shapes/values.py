"""Rows: gradients that the script sees, and what it writes into weights,
gradients and buffers without torch's knowledge."""

import copy

import torch
from torch import nn

from shapes.rows import (
    CHANNELS, Net, error_of, refused, row, sgd, started, steps, train, trained)


# ---- gradients of the training pass

@row()
def gradients_of_the_input(t):
    for model, x, y in steps(t, saliency=True):
        t.backward(error_of(model(x), y))
        t.own("x", x.grad)
        t.step()


@row()
def gradients_of_the_parameters(t):
    for model, x, y in steps(t):
        t.backward(error_of(model(x), y))
        for name, parameter in model.named_parameters():
            t.total(name, parameter.grad)
        t.step()


@row()
def gradients_of_the_parameters_of_several_parts(t):
    model = started(t)
    for number, (x, y) in enumerate(t.data(accumulate=2)):
        t.backward(error_of(model(x), y))
        if number % 2:
            t.total("conv1", model.conv1.weight.grad)
        t.step()


@row()
def gradients_of_features(t):
    """As Grad-CAM reads them."""
    for model, x, y in steps(t):
        features = model.features(x)
        features.retain_grad()
        t.backward(error_of(model.out(features), y))
        t.own("features", features.grad)
        t.step()


@row()
def gradients_in_a_backward_hook(t):
    model = started(t)
    seen = []
    model.norm2.register_full_backward_hook(
        lambda _, inputs, outputs: seen.append(outputs[0].clone()))
    for x, y in t.data():
        t.backward(error_of(model(x), y))
        t.own("hook", seen.pop())
        t.step()


@row()
def clamped_gradients_of_features(t):
    """Not linear, but of own samples."""
    for model, x, y in steps(t):
        features = model.features(x)
        features.register_hook(lambda g: g.clamp(-0.002, 0.002))
        train(t, error_of(model.out(features), y))


@row()
def logging_hook_on_a_parameter(t):
    model = started(t)
    calls = []
    model.conv1.weight.register_hook(lambda g: calls.append(g.clone()))
    for x, y in t.data():
        t.backward(error_of(model(x), y))
        t.same("calls", float(len(calls)))
        t.total("gradient", calls[-1])
        t.step()


@refused("UsageError", "conv1.weight", "linear")
def clamping_hook_on_a_parameter(t):
    model = started(t)
    model.conv1.weight.register_hook(lambda g: g.clamp(-1e-4, 1e-4))
    for x, y in t.data():
        train(t, error_of(model(x), y))


@refused("UsageError", "conv1.weight", "post_accumulate", needs="func")
def hook_after_accumulation(t):
    net = Net()
    net.conv1.weight.register_post_accumulate_grad_hook(
        lambda p: p.grad.clamp_(-1e-4, 1e-4))
    trained(t, net)


# ---- gradients by hand

@refused("UsageError", "conv1.weight", "gradient")
def gradient_clamped_as_data(t):
    for model, x, y in steps(t):
        t.backward(error_of(model(x), y))
        model.conv1.weight.grad.data.clamp_(-1e-4, 1e-4)
        t.step()


@refused("UsageError", "conv1.weight", "zero_grad")
def gradient_written_before_the_pass(t):
    for model, x, y in steps(t):
        model.conv1.weight.grad = torch.ones_like(model.conv1.weight)
        train(t, error_of(model(x), y))


class Spare(Net):
    """A parameter that no loss depends on."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))


@refused("UsageError", "spare", "gradient")
def gradient_written_for_an_unused_parameter(t):
    for model, x, y in steps(t, Spare()):
        t.backward(error_of(model(x), y))
        model.spare.grad = torch.ones(3, dtype=x.dtype)
        t.step()


class TwoHeads(Net):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(CHANNELS, 2)


def head_of_the_first_step(t, reset):
    """Trains a head in the first step only.

    Args:
        reset: called with each parameter before each step.
    """
    for model, x, y in steps(t, TwoHeads()):
        for parameter in model.parameters():
            reset(parameter)
        out = model(x)
        if t.step_number == 0:
            out = out + model.other(model.features(x).mean((2, 3)))
        train(t, error_of(out, y))


@row(steps=4)
def head_of_the_first_step_with_gradients_of_zero(t):
    """Torch's optimizers continue with its momentum and decay."""
    t.zeroes_gradients = True
    head_of_the_first_step(
        t, lambda p: None if p.grad is None else p.grad.zero_())


@row(steps=4)
def head_of_the_first_step_with_gradients_of_zero_by_their_data(t):
    """From the third step on it is 0 before it is written."""
    t.zeroes_gradients = True
    head_of_the_first_step(
        t, lambda p: None if p.grad is None else p.grad.data.zero_())


@refused("UsageError", "conv1.weight", "zero_grad", steps=4)
def gradients_halved_as_data(t):
    """In place of zero_grad()."""
    head_of_the_first_step(
        t, lambda p: None if p.grad is None else p.grad.data.mul_(0.5))


@refused("UsageError", "last step", "zero_grad", steps=4)
def gradients_set_to_zero_of_matrices_alone(t):
    head_of_the_first_step(
        t, lambda p: setattr(p, "grad", None) if p.dim() > 1 else None)


@row(steps=4)
def head_of_the_first_step_without_a_gradient(t):
    head_of_the_first_step(t, lambda p: setattr(p, "grad", None))


# ---- weights by hand

@refused("UsageError", "conv1.weight", "server")
def weights_clamped_as_data(t):
    for model, x, y in steps(t):
        train(t, error_of(model(x), y))
        model.conv1.weight.data.clamp_(-0.05, 0.05)


@refused("UsageError", "head.weight", "server")
def one_weight_written_by_numpy(t):
    for model, x, y in steps(t):
        model.head.weight.detach().numpy()[0, 0] = 0
        train(t, error_of(model(x), y))


def scaler():
    class Own(torch.cuda.amp.GradScaler):
        """A class of the script's."""
    made = Own()
    # Without a GPU torch turns it off.
    made._enabled = True
    return made


@refused("UsageError", "scale")
def scaled_loss(t):
    """`scaler.scale(loss)`, with or without `scaler.step`."""
    model = started(t)
    own = scaler()
    for x, y in t.data():
        train(t, own.scale(error_of(model(x), y)))


@row()
def scaler_that_is_off(t):
    model = started(t)
    own = scaler()
    own._enabled = False
    for x, y in t.data():
        train(t, own.scale(error_of(model(x), y)))


# ---- losses without weight

@row()
def sum_without_weight_on_a_rank(t):
    """A rank without positives still has a loss of its background."""
    for model, x, y in steps(t):
        positives = t.of(x, 1)
        loss = (model(x) - y).square().sum()
        if t.rank is None:
            train(t, loss / positives.sum())
        else:
            train(t, loss, weight=float(positives.sum()), reduction="sum")


# ---- buffers

class WithBuffer(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(2))
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def out(self, x):
        return (super().out(x) - self.center) * self.scale


@refused("ConfigurationError", "center", "job.sum")
def buffer_that_is_replaced(t):
    for model, x, y in steps(t, WithBuffer()):
        out = model(x)
        model.center = 0.9 * model.center + 0.1 * out.detach().mean(0)
        train(t, error_of(out, y))


@refused("UsageError", "center", "buffer")
def buffer_written_as_data_after_the_step(t):
    for model, x, y in steps(t, WithBuffer()):
        out = model(x)
        train(t, error_of(out, y))
        model.center.data.add_(out.detach().mean(0))


@refused("ConfigurationError", "scale", "job.sum")
def buffer_that_is_not_persistent(t):
    for model, x, y in steps(t, WithBuffer()):
        out = model(x)
        model.scale = model.scale * (1 + out.detach().var())
        train(t, error_of(out, y))


@row()
def buffer_of_another_shape(t):
    """A grid that is made for the extents of the images."""
    for model, x, y in steps(t, WithBuffer()):
        if t.step_number:
            model.scale = torch.ones(1, 1, dtype=x.dtype)
        train(t, error_of(model(x), y))


@refused("ConfigurationError", "center", "manual_seed")
def buffers_that_differ_between_workers(t):
    net = WithBuffer()
    net.center.fill_(1.0 if t.here(0) else 2.0)
    trained(t, net)


@refused("ConfigurationError", "bank", "job.gather")
def buffer_that_grows(t):
    net = Net()
    net.register_buffer("bank", torch.zeros(1))
    for model, x, y in steps(t, net):
        out = model(x)
        net.bank = torch.cat([net.bank, out.detach()[:, 0].float()])
        train(t, error_of(out, y) + (net.bank[-2:].to(x.dtype) * out).mean())


@refused("UsageError", "mean", "buffer")
def buffer_of_the_first_batch(t):
    net = Net()
    net.register_buffer("mean", None)
    for model, x, y in steps(t, net):
        if net.mean is None:
            net.mean = 0.9 * x.mean((0, 2, 3), keepdim=True)
        train(t, error_of(model(x - net.mean), y))


class CountingNorm(nn.BatchNorm2d):
    def __init__(self, channels):
        super().__init__(channels)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += x.detach().float().square().mean()
        return super().forward(x)


@refused("ConfigurationError", "norm1.seen", "job.sum")
def buffer_of_a_batch_norm(t):
    trained(t, Net(CountingNorm))


@row()
def hook_that_notes_and_scales(t):
    """It is tried with other numbers, of which it must note nothing."""
    model = started(t)
    noted, calls = [], torch.zeros(1)

    def halve(gradient):
        noted.append(gradient.clone())
        calls.add_(1)
        return gradient * 0.5

    model.conv1.weight.register_hook(halve)
    for x, y in t.data():
        t.backward(error_of(model(x), y))
        t.same("calls", calls)
        t.same("noted", float(len(noted)))
        t.total("gradient", noted[-1])
        t.step()


@row(needs="func")
def hook_on_several_parameters(t):
    model = started(t)
    noted = []
    torch.autograd.graph.register_multi_grad_hook(
        [model.conv1.weight, model.head.weight],
        lambda gradients: noted.append([g.clone() for g in gradients]))
    for x, y in t.data():
        t.backward(error_of(model(x), y))
        t.same("calls", float(len(noted)))
        t.total("first", noted[-1][0])
        t.total("second", noted[-1][1])
        t.step()


# ---- a worker without anything to learn from

def over_valid_samples(t, model, loss_of):
    for x, y in t.data():
        valid = t.of(x, 0).to(x.dtype)
        t.backward(loss_of(error_by_sample(model(x), y), valid),
                   weight=float(valid.sum()))
        t.step()


def error_by_sample(out, y):
    return (out - y).square().mean(1)


@row()
def mean_over_nothing(t):
    """0 / 0 on the others: its derivatives are no numbers."""
    over_valid_samples(t, started(t), lambda error, valid: (
        (error * valid).sum() / valid.sum()))


@row()
def mean_of_zeros_over_a_checkpoint(t):
    for model, x, y in steps(t):
        valid = t.of(x, 0).to(x.dtype)
        out = model.out(t.checkpoint(model.features, x.requires_grad_(),
                                     reentrant=True))
        t.backward((error_by_sample(out, y) * valid).sum() /
                   valid.sum().clamp(min=1), weight=float(valid.sum()))
        t.step()


@row()
def root_of_nothing(t):
    """0, with an infinite derivative."""
    for model, x, y in steps(t, saliency=True):
        valid = t.of(x, 0).to(x.dtype)
        error = (error_by_sample(model(x), y) * valid).sum()
        t.backward((error / valid.sum().clamp(min=1)).sqrt(),
                   weight=float(valid.sum()))
        t.own("x", x.grad)
        t.step()


# ---- what clips a sum may leave shares alone

@refused("UsageError", "clip_norm")
def gradients_clipped_above_the_shares(t):
    for model, x, y in steps(t):
        t.backward(error_of(model(x), y))
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        t.step()


def hooked(t, hook):
    model = started(t)
    model.head.weight.register_hook(hook)
    for x, y in t.data():
        train(t, error_of(model(x), y))


@refused("UsageError", "head.weight", "not linear")
def hook_that_clamps_above_the_shares(t):
    hooked(t, lambda gradient: gradient.clamp(-100, 100))


def largest(gradient):
    return gradient * (gradient.abs() >= gradient.abs().median())


def clipped(gradient):
    if gradient.norm() > 100:
        return gradient * (100 / gradient.norm())
    return None


@refused("UsageError", "head.weight", "not linear")
def hook_that_clips_above_the_shares(t):
    hooked(t, clipped)


@row()
def hook_that_looks_under_a_condition(t):
    seen = []

    def look(gradient):
        if len(seen) < 100:
            seen.append(float(gradient.abs().max()))
    hooked(t, look)
    assert max(seen) < 1e3, seen


@refused("UsageError", "head.weight", "not linear")
def hook_that_keeps_the_largest(t):
    hooked(t, largest)


# ---- other optimizers

@refused("UsageError", "Linear", "optimizer")
def probe_with_an_optimizer_of_the_script(t):
    model = started(t)
    probe = nn.Linear(CHANNELS, 2).to(torch.float32)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    for x, y in t.data():
        features = model.features(x)
        optimizer.zero_grad()
        error_of(probe(features.detach().mean((2, 3)).float()),
                 y.float()).backward()
        optimizer.step()
        train(t, error_of(model.out(features), y))


@refused("UsageError", "Tensor of shape (1,)", "SGD")
def temperature_with_an_optimizer_of_the_script(t):
    model = started(t)
    scale = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([scale], lr=0.1)
    for x, y in t.data():
        optimizer.zero_grad()
        train(t, error_of(model(x) * scale.to(x.dtype), y))
        optimizer.step()


@row()
def perturbation_by_an_optimizer_of_the_script(t):
    for model, x, y in steps(t):
        change = torch.zeros_like(x, requires_grad=True)
        optimizer = torch.optim.SGD([change], lr=0.1, maximize=True)
        error = (model(x + change) - y).square().sum()
        (gradient,) = torch.autograd.grad(error, change)
        change.grad = gradient
        optimizer.step()
        train(t, error_of(model(x + change.detach()), y))


@refused("UsageError", "Tensor of shape (1, 3, 6, 6)", "nn.Parameter")
def perturbation_trained_by_hand(t):
    """One for all samples."""
    model = started(t)
    one = torch.zeros(1, 3, 6, 6, requires_grad=True)
    for x, y in t.data():
        train(t, error_of(model(x + one), y))
        with torch.no_grad():
            one.add_(0.5 * one.grad)
        one.grad = None


@refused("UsageError", "Tensor of shape (1,)", "nn.Parameter")
def temperature_trained_as_data(t):
    model = started(t)
    scale = torch.ones(1, requires_grad=True)
    for x, y in t.data():
        train(t, error_of(model(x) * scale, y))
        scale.data -= 0.1 * scale.grad
        scale.grad.zero_()


@row()
def one_tensor_for_all_inputs(t):
    """With gradients, of samples."""
    model = started(t)
    held = None
    for x, y in t.data():
        held = torch.zeros_like(x, requires_grad=True) if held is None else held
        with torch.no_grad():
            held.copy_(x)
        held.grad = None
        train(t, error_of(model(held), y))
        t.own("gradient", held.grad)


@row()
def temperature_that_is_a_constant(t):
    """It has a gradient, which is not used."""
    model = started(t)
    scale = torch.full((1,), 0.7, requires_grad=True)
    for x, y in t.data():
        train(t, error_of(model(x) * scale.to(x.dtype), y))


def probe_of(model, x, y, probe, optimizer):
    """Trains on features, and returns them."""
    features = model.features(x)
    error = error_of(probe(features.detach().mean((2, 3)).float()), y.float())
    optimizer.zero_grad()
    error.backward()
    optimizer.step()
    optimizer.zero_grad()
    return features


@refused("UsageError", "optimizer", needs="optimizer hooks", steps=6)
def probe_that_is_made_late(t):
    for model, x, y in steps(t):
        if t.step_number == 3:
            probe = nn.Linear(CHANNELS, 2)
            optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
        features = (probe_of(model, x, y, probe, optimizer) if t.step_number >= 3
                    else model.features(x))
        train(t, error_of(model.out(features), y))


@refused("UsageError", "optimizer")
def probe_whose_gradients_are_gone(t):
    model = started(t)
    probe = nn.Linear(CHANNELS, 2)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.1)
    for x, y in t.data():
        train(t, error_of(model.out(probe_of(model, x, y, probe, optimizer)), y))


# ---- shapes of trainers

PARTS = {2: (4, 6), 3: (2, 4, 6)}


@row(sizes=PARTS)
def zero_grad_in_each_part(t):
    """One process would lose the first part, so there it is called in each step."""
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    for x, y in t.data(accumulate=2):
        if t.rank is not None:
            optimizer.zero_grad(set_to_none=True)
        train(t, error_of(model(x), y))


@refused("UsageError", "conv1.weight", sizes=PARTS)
def zero_grad_in_place_in_each_part(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    for x, y in t.data(accumulate=2):
        optimizer.zero_grad(set_to_none=False)
        train(t, error_of(model(x), y))


@row(steps=6)
def trainer_of_a_detector(t):
    """Three groups, a warm-up of rates and momentum by hand, an average of the
    weights, and a loss that is a sum."""
    model = t.model(Net())
    norms = [p for layer in (model.norm1, model.norm2) for p in layer.parameters()]
    optimizer = torch.optim.SGD([model.head.bias], lr=0.01, momentum=0.9,
                                nesterov=True)
    optimizer.add_param_group({
        "params": [model.conv1.weight, model.conv2.weight, model.head.weight],
        "weight_decay": 0.01})
    optimizer.add_param_group({"params": norms})
    average = copy.deepcopy(model).requires_grad_(False)

    def move():
        for ours, newest in zip(average.state_dict().values(),
                                model.state_dict().values()):
            if ours.is_floating_point():
                ours.lerp_(newest.detach(), 0.3)
    t.join(model, optimizer)
    t.after_step(move)
    for x, y in t.data():
        warm = min(1.0, (t.step_number + 1) / 4)
        for index, group in enumerate(optimizer.param_groups):
            group["lr"] = 0.01 * warm if index else 0.05 - 0.04 * warm
            group["momentum"] = 0.8 + 0.1 * warm
        t.backward((model(x) - y).square().sum(), weight=len(x), reduction="sum")
        t.step()
    t.same_state("average", average)
