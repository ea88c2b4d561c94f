"""Rows: a loss over a model, and what surrounds it."""

import torch
from torch import nn

import cohort
from shapes.rows import (
    CHANNELS, Net, error_of, refused, row, sgd, started, steps, train, trained)


@row()
def straight(t):
    for model, x, y in steps(t):
        out = model(x)
        t.own("output", out)
        train(t, error_of(out, y))


@row()
def numbered_samples(t):
    """The server's permutation; the last step of an epoch is smaller."""
    model = started(t)
    for x, y in t.indexed(22):
        train(t, error_of(model(x), y))


@row()
def sum_over_labels(t):
    """Weighted by something other than samples."""
    for model, x, y in steps(t):
        valid = (y[:, 0] > -0.5).to(x.dtype)
        loss = ((model(x) - y).square().sum(1) * valid).sum()
        train(t, loss, weight=float(valid.sum()), reduction="sum")


@row()
def mean_over_labels(t):
    for model, x, y in steps(t):
        valid = (y[:, 0] > -0.5).to(x.dtype)
        loss = ((model(x) - y).square().sum(1) * valid).sum() / valid.sum()
        train(t, loss, weight=float(valid.sum()))


@row()
def loss_used_twice(t):
    for model, x, y in steps(t):
        out = model(x)
        each = (out - y).square().sum(1)
        train(t, (each + torch.tanh(each)).mean() + 0.5 * each.mean())


@row(sizes={2: (0, 4), 3: (2, 0, 3)})
def a_rank_without_samples(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).square().sum(), weight=len(x), reduction="sum")


@row()
def nesterov(t):
    trained(t, nesterov=True)


@row()
def plain_sgd(t):
    trained(t, momentum=0.0, weight_decay=0.0)


@row()
def adam(t):
    model = t.model(Net())
    t.join(model, torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3))
    for x, y in t.data():
        train(t, error_of(model(x), y))


@row()
def adamw_with_groups(t):
    model = t.model(Net())
    t.join(model, torch.optim.AdamW(
        [{"params": model.head.parameters(), "lr": 0.03, "weight_decay": 0.0},
         {"params": [p for name, p in model.named_parameters()
                     if not name.startswith("head")]}],
        lr=0.01, eps=1e-3, weight_decay=0.1))
    for x, y in t.data():
        train(t, error_of(model(x), y))


@row()
def schedule_by_step(t):
    model = t.model(Net())
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    t.join(model, optimizer, schedulers=[scheduler])
    for x, y in t.data():
        train(t, error_of(model(x), y))


@row(steps=5)
def schedule_that_the_script_steps(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, 10)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        t.same("rate", optimizer.param_groups[0]["lr"])
        scheduler.step()


@row(steps=5, survives=True)
def schedule_by_a_measure(t):
    """Beside one of time that the job advances."""
    model = t.model(Net())
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    t.join(model, optimizer, schedulers=[scheduler])
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5,
                                                         patience=0)
    for x, y in t.data():
        loss = error_of(model(x), y)
        total = t.sum(loss.detach() * len(x))
        train(t, loss)
        t.same("rate", optimizer.param_groups[0]["lr"])
        plateau.step(total)


@row(steps=4)
def rates_by_hand(t):
    """From 0 on, and two groups."""
    model = t.model(Net())
    optimizer = torch.optim.SGD(
        [{"params": model.head.parameters(), "lr": 0.0},
         {"params": [p for name, p in model.named_parameters()
                     if not name.startswith("head")]}], lr=0.05, momentum=0.9)
    t.join(model, optimizer)
    for x, y in t.data():
        for index, group in enumerate(optimizer.param_groups):
            group["lr"] = 0.05 * t.step_number / (1 + index)
        train(t, error_of(model(x), y))


@row(steps=4)
def rate_multiplied_by_hand(t):
    model = t.model(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, eps=1e-3)
    t.join(model, optimizer)
    for x, y in t.data():
        optimizer.param_groups[0]["lr"] *= 0.5
        train(t, error_of(model(x), y))


@row(steps=4)
def decay_and_betas_by_hand(t):
    """Schedules of decay and betas, and groups that differ."""
    model = t.model(Net())
    optimizer = torch.optim.AdamW(
        [{"params": model.head.parameters(), "betas": (0.7, 0.9)},
         {"params": [p for name, p in model.named_parameters()
                     if not name.startswith("head")], "weight_decay": 0.0}],
        lr=0.02, eps=1e-3)
    t.join(model, optimizer)
    for x, y in t.data():
        head, body = optimizer.param_groups
        head["weight_decay"] = 0.5 + 0.5 * t.step_number
        body["betas"] = (0.9 - 0.1 * t.step_number, 0.99)
        train(t, error_of(model(x), y))


@row(steps=3)
def rates_by_hand_over_parts(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    for x, y in t.data(accumulate=2):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + t.step_number)
        train(t, error_of(model(x), y))


# ---- models

class Shared(Net):
    """One body on two sizes."""

    def forward(self, x):
        small = nn.functional.avg_pool2d(x, 2)
        return self.out(self.features(x)) + self.out(self.second(
            torch.tanh(self.norm1(nn.functional.conv2d(
                small, self.conv1.weight, padding=1)))))


@row()
def shared_layers_on_two_sizes(t):
    trained(t, Shared())


@row()
def siamese_calls(t):
    """A model called twice a step, with gradients through both."""
    for model, x, y in steps(t):
        train(t, error_of(model(x) * model(x.flip(3) * 0.7), y))


class Branching(Net):
    """Loops and branches that change from step to step."""
    step = 0

    def forward(self, x):
        x = self.first(x)
        for number in range(1 + self.step):
            x = x + self.second(x) if number % 2 else self.second(x)
        if self.step == 1:
            x = torch.tanh(self.norm1(x))
        return self.out(x)


@row(steps=4)
def control_flow_by_step(t):
    for model, x, y in steps(t, Branching()):
        model.step = t.step_number
        train(t, error_of(model(x), y))


@row()
def warm_up_passes_without_gradients(t):
    for model, x, y in steps(t):
        with torch.no_grad():
            model(x * 0.5)
            model(x + 1)
        train(t, error_of(model(x), y))


@row()
def pass_without_gradients_after_the_loss(t):
    for model, x, y in steps(t):
        loss = error_of(model(x), y)
        with torch.no_grad():
            model(x * 0.5)
        train(t, loss)


@row()
def inference_mode_before_the_loss(t):
    for model, x, y in steps(t):
        with torch.inference_mode():
            out = model(x * 0.5)
        t.own("output", out.clone())
        train(t, error_of(model(x), y))


class Flat(nn.Module):
    """1d, with and without a length; 3d."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.conv3 = nn.Conv3d(1, CHANNELS, 2, bias=False)
        self.norm3 = nn.BatchNorm3d(CHANNELS)
        self.conv1 = nn.Conv1d(CHANNELS, CHANNELS, 2, bias=False)
        self.norm1 = nn.BatchNorm1d(CHANNELS)
        self.linear = nn.Linear(CHANNELS, CHANNELS, bias=False)
        self.norm0 = nn.BatchNorm1d(CHANNELS)
        self.head = nn.Linear(CHANNELS, 2)

    def forward(self, x):
        x = torch.tanh(self.norm3(self.conv3(x.unsqueeze(1)))).flatten(2)
        x = torch.tanh(self.norm1(self.conv1(x))).mean(2)
        return self.head(torch.tanh(self.norm0(self.linear(x))))


@row()
def one_and_three_dimensions(t):
    model = started(t, Flat())
    for x, y in t.data((3, 4, 4)):
        train(t, error_of(model(x), y))


@row()
def sync_batch_norm(t):
    trained(t, Net(nn.SyncBatchNorm))


@row()
def a_model_that_is_one_batch_norm(t):
    for model, x, y in steps(t, nn.BatchNorm2d(3)):
        train(t, error_of(model(x).tanh().mean((2, 3))[:, :2], y))


@row()
def a_parameter_without_elements(t):
    net = Net()
    net.none = nn.Parameter(torch.zeros(0, 3))
    for model, x, y in steps(t, net):
        train(t, error_of(model(x) + model.none.sum(), y))


@row()
def a_model_in_channels_last(t):
    for model, x, y in steps(t, Net().to(memory_format=torch.channels_last)):
        train(t, error_of(model(x.contiguous(
            memory_format=torch.channels_last)), y))


@row()
def input_in_channels_last(t):
    for model, x, y in steps(t):
        train(t, error_of(model(x.contiguous(
            memory_format=torch.channels_last)), y))


class InPlace(Net):
    """Activations that overwrite the output of batch norm."""

    def forward(self, x):
        x = nn.functional.elu(self.norm1(self.conv1(x)), inplace=True)
        x = self.norm2(self.conv2(x))
        return self.out(x.tanh_())


@row()
def activation_in_place(t):
    trained(t, InPlace())


class Rectified(Net):
    def first(self, x):
        return nn.functional.relu(self.norm1(self.conv1(x)), inplace=True)


@row()
def relu_in_place(t):
    trained(t, Rectified())


@row()
def dropout_under_a_seed(t):
    for model, x, y in steps(t):
        x = t.dropout_of(x, 0.3)
        t.own("dropped", x)
        train(t, error_of(model(x), y))


@row()
def bfloat16_autocast(t):
    for model, x, y in steps(t):
        with t.autocast():
            out = model(x)
        train(t, error_of(out.to(y.dtype), y))


class Halved(Net):
    script = None

    def first(self, x):
        x = self.norm1(self.script.half(self.conv1(x)))
        return torch.tanh(self.script.half(x.to(self.head.weight.dtype)).to(
            self.head.weight.dtype))


@row()
def float16_input_of_a_layer(t):
    net = Halved()
    net.script = t
    trained(t, net)


class Together(Net):
    def __init__(self):
        super().__init__()
        self.conv3 = nn.Conv2d(3, CHANNELS, 3, bias=False)
        self.norm3 = nn.BatchNorm2d(CHANNELS)

    def forward(self, x):
        a, b = cohort.batch_norm_together([self.norm1, self.norm3],
                                          [self.conv1(x), self.conv3(x)])
        return self.out(self.second(torch.tanh(a) * torch.tanh(b)))


@row()
def two_layers_at_once(t):
    trained(t, Together())


@row()
def a_layer_that_the_loss_does_not_need(t):
    for model, x, y in steps(t):
        first = model.first(x)
        model.second(first)
        train(t, error_of(model.out(first), y))


@row()
def a_part_that_the_loss_of_one_rank_needs(t):
    for model, x, y in steps(t):
        first = model.first(x)
        mine = t.of(x, 0).to(x.dtype).view(-1, 1, 1, 1)
        out = first + model.second(first) * mine if t.here(0) else first
        if not t.here(0):
            model.second(first)
        train(t, error_of(model.out(out), y))


# ---- parts of a step

@row(sizes={2: (4, 6), 3: (2, 4, 6)})
def accumulate(t):
    model = started(t)
    for x, y in t.data(accumulate=2):
        train(t, error_of(model(x), y))


@row(sizes={2: (5, 3), 3: (2, 5, 3)})
def accumulate_uneven_parts(t):
    model = started(t)
    for x, y in t.data(accumulate=2):
        train(t, error_of(model(x), y))


# ---- what is trained

def no_gradients(module, wanted=False):
    for parameter in module.parameters():
        parameter.requires_grad_(wanted)


@row()
def frozen_layers(t):
    """The usual frozen body: no gradients, moving statistics."""
    net = Net()
    no_gradients(net.conv1)
    no_gradients(net.norm1)
    model = t.model(net)
    t.join(model, torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.1,
        momentum=0.9, weight_decay=0.01))
    model.norm1.eval()
    for x, y in t.data():
        train(t, error_of(model(x), y))


@row()
def frozen_scale_with_batch_statistics(t):
    net = Net()
    no_gradients(net.norm1)
    trained(t, net)


@row(steps=4)
def unfrozen_at_a_step(t):
    """Two-phase fine-tuning: the optimizer has all parameters."""
    net = Net()
    no_gradients(net.conv1)
    no_gradients(net.norm1)
    for model, x, y in steps(t, net):
        if t.step_number == 2:
            no_gradients(model, True)
        train(t, error_of(model(x), y))


@row(steps=4)
def unfrozen_after_a_step(t):
    """Between job.step() and the next batch."""
    net = Net()
    no_gradients(net.conv1)
    model = started(t, net)
    for number, (x, y) in enumerate(t.data()):
        train(t, error_of(model(x), y))
        if number == 1:
            no_gradients(model, True)


@row(steps=4)
def frozen_at_a_step(t):
    """As in torch, the weights then rest: SGD skips what has no gradient."""
    for model, x, y in steps(t):
        if t.step_number == 2:
            no_gradients(model.conv1)
            no_gradients(model.norm1)
        train(t, error_of(model(x), y))


@row(steps=4)
def frozen_and_unfrozen_with_adam(t):
    model = t.model(Net())
    t.join(model, torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3))
    for x, y in t.data():
        no_gradients(model.conv1, t.step_number not in (1, 2))
        train(t, error_of(model(x), y))


@row()
def a_parameter_that_is_in_no_group(t):
    """It is never trained, as in torch."""
    model = t.model(Net())
    t.join(model, torch.optim.SGD(
        [p for name, p in model.named_parameters() if name != "conv1.weight"],
        lr=0.1, momentum=0.9))
    for x, y in t.data():
        train(t, error_of(model(x), y))


@row()
def a_parameter_without_a_gradient(t):
    """It has no decay in that step, as in torch."""
    net = Net()
    net.unused = nn.Linear(CHANNELS, 2)
    trained(t, net)


@row()
def tied_weights(t):
    net = Net()
    net.again = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
    net.again.weight = net.conv2.weight
    for model, x, y in steps(t, net):
        first = model.second(model.first(x))
        train(t, error_of(model.out(torch.tanh(model.again(first))), y))


@row(survives=True)
def a_buffer_that_the_pass_writes(t):
    net = Net()
    net.register_buffer("count", torch.zeros(1))
    for model, x, y in steps(t, net):
        model.count += 1
        train(t, error_of(model(x), y))


@refused("ConfigurationError", "embedding.weight", "sparse")
def sparse_embedding(t):
    net = Net()
    net.embedding = nn.Embedding(5, CHANNELS, sparse=True)
    for model, x, y in steps(t, net, momentum=0.0, weight_decay=0.0):
        words = torch.arange(len(x)) % 5
        out = model.out(model.features(x) +
                        model.embedding(words)[:, :, None, None])
        train(t, error_of(out, y))
