"""Rows: batch norm that is called as a function, and classes that call it."""

import torch
from torch import nn
from torch.nn import functional as F

from shapes.models import apply_with
from shapes.rows import (
    CHANNELS, Net, error_of, refused, row, started, steps, train, trained)


class ByHand(Net):
    """Calls the function with a registered layer's buffers."""

    @staticmethod
    def normalised(layer, x):
        return F.batch_norm(x, layer.running_mean, layer.running_var,
                            layer.weight, layer.bias, layer.training,
                            layer.momentum, layer.eps)

    def first(self, x):
        return torch.tanh(self.normalised(self.norm1, self.conv1(x)))


@row()
def function_with_a_layers_buffers(t):
    trained(t, ByHand())


@row()
def function_and_module_in_turn(t):
    for model, x, y in steps(t):
        x = torch.tanh(ByHand.normalised(model.norm1, model.conv1(x)))
        x = torch.tanh(ByHand.normalised(model.norm2, model.second(x)))
        train(t, error_of(model.out(x), y))


@row()
def function_with_the_buffers_of_another_layer(t):
    """One layer's statistics, another one's scale."""
    for model, x, y in steps(t):
        x = F.batch_norm(model.conv1(x), model.norm1.running_mean,
                         model.norm1.running_var, model.norm2.weight,
                         model.norm2.bias, True, 0.1, 1e-5)
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


@row()
def torch_batch_norm(t):
    for model, x, y in steps(t):
        layer = model.norm1
        x = torch.batch_norm(model.conv1(x), layer.weight, layer.bias,
                             layer.running_mean, layer.running_var, True, 0.2,
                             1e-4, False)
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


@row()
def function_in_eval_mode(t):
    for model, x, y in steps(t):
        layer = model.norm1
        out = model(x)
        other = F.batch_norm(model.conv1(x), layer.running_mean,
                             layer.running_var, layer.weight, layer.bias)
        t.own("other", other)
        train(t, error_of(out + model.out(torch.tanh(other)), y))


class Own(nn.Module):
    """A batch norm of a script's own: registered buffers, no _BatchNorm."""

    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels,), 0.9))
        self.shift = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.scale,
                            self.shift, self.training, 0.1, 1e-5)


@row()
def function_with_foreign_registered_buffers(t):
    trained(t, Net(Own))


@refused("UsageError", "local()", or_right=True)
def function_with_lasting_buffers(t):
    """Tensors of the script that are in no module."""
    model = started(t)
    kind = next(model.parameters()).dtype
    mean, var = (torch.zeros(CHANNELS, dtype=kind), torch.ones(CHANNELS, dtype=kind))
    for number, (x, y) in enumerate(t.data()):
        if number == 0:
            # Not called in the first step: they last since before the batch.
            train(t, error_of(model(x), y))
            continue
        x = F.batch_norm(model.conv1(x), mean, var, None, None, True)
        t.same("mean", mean)
        t.same("var", var)
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


@refused("UsageError", "local()")
def function_without_buffers(t):
    """Nothing says which layer it is; with one image a worker it would be an
    instance norm."""
    for model, x, y in steps(t):
        x = F.batch_norm(model.conv1(x), None, None, training=True)
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


@refused("UsageError", "local()", sizes={2: (1, 1)})
def function_without_buffers_of_one_image(t):
    for model, x, y in steps(t):
        x = F.batch_norm(model.conv1(x), None, None, training=True)
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


@row()
def function_without_buffers_as_local(t):
    for model, x, y in steps(t):
        def normalised(part):
            return F.batch_norm(part, None, None, training=True)
        with t.local():
            x = t.locally(normalised, model.conv1(x))
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


class Standardised(nn.Conv2d):
    """Weight standardisation, as timm has it: of the weights alone."""

    def forward(self, x):
        weight = F.batch_norm(self.weight.reshape(1, self.out_channels, -1),
                              None, None, training=True, momentum=0.0,
                              eps=1e-6).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias)


@row()
def weight_standardisation(t):
    net = Net()
    torch.manual_seed(5)
    net.conv1 = Standardised(3, CHANNELS, 3)
    trained(t, net)


class Adaptive(nn.Module):
    """AdaIN as in MUNIT: instance statistics through batch norm, with buffers
    that are made in the call."""
    script = None

    def __init__(self, channels):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        n, c = x.shape[:2]
        with self.script.local() if self.script else torch.enable_grad():
            out = F.batch_norm(
                x.reshape(1, n * c, *x.shape[2:]), self.running_mean.repeat(n),
                self.running_var.repeat(n), None, None, True, 0.1, 1e-5)
        return out.view_as(x)


@refused("UsageError", "local()")
def adaptive_instance_norm(t):
    net = Net()
    net.norm1 = Adaptive(CHANNELS)
    trained(t, net)


@row()
def adaptive_instance_norm_as_local(t):
    net = Net()
    net.norm1 = Adaptive(CHANNELS)
    net.norm1.script = t
    trained(t, net)


@row()
def instance_norm(t):
    net = Net()
    net.norm1 = nn.InstanceNorm2d(CHANNELS, affine=True)
    for model, x, y in steps(t, net):
        train(t, error_of(F.instance_norm(model(x)[:, None]).squeeze(1), y))


@refused("CohortError", "norm1", or_right=True)
def instance_norm_with_statistics(t):
    """Buffers that are no batch norm's."""
    net = Net()
    net.norm1 = nn.InstanceNorm2d(CHANNELS, track_running_stats=True)
    trained(t, net)


@row()
def group_and_layer_norm(t):
    net = Net()
    net.norm1 = nn.GroupNorm(2, CHANNELS)
    net.norm3 = nn.LayerNorm(2)
    for model, x, y in steps(t, net):
        train(t, error_of(model.norm3(model(x)), y))


@refused("UsageError", "batch_norm")
def native_batch_norm(t):
    for model, x, y in steps(t):
        layer = model.norm1
        x, _, _ = torch.native_batch_norm(
            model.conv1(x), layer.weight, layer.bias, layer.running_mean,
            layer.running_var, True, 0.1, 1e-5)
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


@refused("UsageError", "batch_norm")
def operator_by_hand(t):
    for model, x, y in steps(t):
        layer = model.norm1
        x = torch.ops.aten.batch_norm(
            model.conv1(x), layer.weight, layer.bias, layer.running_mean,
            layer.running_var, True, 0.1, 1e-5, False)
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


# ---- subclasses

class Calling(nn.BatchNorm2d):
    """A forward that calls torch's."""

    def forward(self, x):
        return torch.tanh(super().forward(x * 1.5)) * 1.2


@row()
def subclass_that_calls_its_base(t):
    trained(t, Net(Calling))


class Plain(nn.BatchNorm2d):
    """Nothing but a name."""


@row()
def subclass_without_code(t):
    trained(t, Net(Plain))


class WithActivation(nn.BatchNorm2d):
    """As timm's BatchNormAct2d."""

    def forward(self, x):
        self._check_input_dim(x)
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        by_batch = self.training or (self.running_mean is None and
                                     self.running_var is None)
        x = F.batch_norm(
            x, self.running_mean if not self.training or self.track_running_stats
            else None, self.running_var if not self.training or
            self.track_running_stats else None, self.weight, self.bias, by_batch,
            factor, self.eps)
        return F.silu(x)


@row()
def subclass_with_an_activation(t):
    trained(t, Net(WithActivation))


@row()
def subclass_with_an_activation_in_eval_mode(t):
    for model, x, y in steps(t, Net(WithActivation)):
        model.eval()
        t.own("eval", model(x))
        model.train()
        train(t, error_of(model(x), y))


def checkpointed(t, norm, reentrant):
    for model, x, y in steps(t, Net(norm) if norm else ByHand()):
        x.requires_grad_(reentrant)
        x = t.checkpoint(model.first, x, reentrant=reentrant)
        x = t.checkpoint(model.second, x, reentrant=reentrant)
        train(t, error_of(model.out(x), y))


@row()
def subclass_with_an_activation_checkpointed(t):
    checkpointed(t, WithActivation, False)


@row()
def subclass_with_an_activation_checkpointed_with_reentry(t):
    checkpointed(t, WithActivation, True)


@row()
def function_checkpointed(t):
    checkpointed(t, None, False)


@row()
def function_checkpointed_with_reentry(t):
    checkpointed(t, None, True)


@row()
def foreign_buffers_checkpointed(t):
    checkpointed(t, Own, False)


class InForward(nn.BatchNorm2d):
    """Ghost batch norm: parts of the batch by themselves. Their statistics are
    those of the calls, each over all workers."""

    def forward(self, x):
        return torch.cat([super(InForward, self).forward(part)
                          for part in x.chunk(2, 3)], 3)


@row()
def subclass_that_calls_its_base_twice(t):
    trained(t, Net(InForward))


class Conditional(nn.Module):
    """Conditional batch norm: a scale that depends on the sample."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.embed = nn.Linear(1, channels)

    def forward(self, x):
        scale = self.embed(x.mean((1, 2, 3))[:, None])
        return self.norm(x) * (1 + scale[:, :, None, None])


@row()
def conditional_batch_norm(t):
    trained(t, Net(Conditional))


class Renormalised(nn.BatchNorm2d):
    """Batch renormalisation, in its usual code: batch norm by hand, without
    torch's function."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var, self.momentum)
        return ((x - mean.view(1, -1, 1, 1)) /
                (var + self.eps).sqrt().view(1, -1, 1, 1))


@refused("UsageError", "across the", "batch-norm module")
def subclass_that_normalises_by_itself(t):
    """Its buffers differ from worker to worker."""
    trained(t, Net(Renormalised))


def compiled(t, norm):
    model = started(t, Net(norm) if norm else ByHand())
    run = model if t.rank is None else torch.compile(model, backend="aot_eager")
    for x, y in t.data():
        train(t, error_of(run(x), y))


@refused("Exception", "compile", "within a graph", needs="compile", or_right=True)
def function_compiled(t):
    """The compiler wraps the error in another one."""
    compiled(t, None)


@refused("CohortError", "compile", needs="compile", or_right=True)
def subclass_with_an_activation_compiled(t):
    compiled(t, WithActivation)


@row()
def weight_norm(t):
    net = Net()
    net.conv1 = nn.utils.weight_norm(net.conv1)
    trained(t, net)


@row(survives=True)
def spectral_norm(t):
    """A buffer that the pass writes, which depends on the weights alone."""
    net = Net()
    net.conv1 = nn.utils.spectral_norm(net.conv1)
    trained(t, net)


# ---- other parameters and buffers for a call

@row()
def functional_call_with_the_students_buffers(t):
    for model, x, y in steps(t):
        values = {**dict(model.named_parameters()),
                  **dict(model.named_buffers())}
        train(t, error_of(apply_with(model, values, x), y))


@row()
def functional_call_with_other_weights(t):
    """A perturbed copy of the weights, whose gradients reach the model."""
    for model, x, y in steps(t):
        values = {name: value * 1.05
                  for name, value in model.named_parameters()}
        train(t, error_of(model(x) + apply_with(model, values, x), y))


@row()
def functional_call_with_a_teachers_buffers(t):
    """The teacher's buffers move, the student's do not."""
    model = started(t)
    teacher = {name: value.detach().clone() for name, value in
               [*model.named_parameters(), *model.named_buffers()]}
    for x, y in t.data():
        with torch.no_grad():
            labels = apply_with(model, teacher, x * 0.9)
        t.own("labels", labels)
        train(t, error_of(model(x), labels + 0.1 * y))
        t.same("mean", teacher["norm1.running_mean"])
        t.same("var", teacher["norm2.running_var"])


@row()
def functional_call_in_eval_mode(t):
    for model, x, y in steps(t):
        values = {name: value.detach().clone() for name, value in
                  [*model.named_parameters(), *model.named_buffers()]}
        model.eval()
        labels = apply_with(model, values, x)
        t.own("labels", labels)
        model.train()
        train(t, error_of(model(x), labels.detach() + 0.1 * y))


@row()
def sharpness_by_other_weights(t):
    """A second pass with moved weights, in the same step."""
    for model, x, y in steps(t):
        moved = {name: value + 0.01 * torch.cos(value.detach())
                 for name, value in model.named_parameters()}
        train(t, 0.5 * error_of(model(x), y) +
              0.5 * error_of(apply_with(model, moved, x), y))
