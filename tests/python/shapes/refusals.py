"""Rows: what cannot be right, and is refused by name."""

import copy

import torch
from torch import nn

import cohort
from shapes.rows import (
    Net, error_of, one_step_each, refused, row, sgd, started, steps, train)


# ---- a model that changes after the join

# The text of a part that the server does not have.
CHANGED = ("when the run was joined", "before")


def changed(t, change):
    net = Net()
    for model, x, y in steps(t, net):
        train(t, error_of(model(x), y))
        change(net)


@refused("UsageError", "head.weight", *CHANGED)
def layer_that_is_replaced(t):
    changed(t, lambda net: setattr(net, "head", nn.Linear(4, 2)))


@refused("UsageError", "head.weight", *CHANGED)
def parameter_that_is_replaced(t):
    changed(t, lambda net: setattr(net.head, "weight", nn.Parameter(
        net.head.weight.detach() * 0.5, requires_grad=False)))


@refused("UsageError", "tail.0.weight", *CHANGED)
def layer_that_is_added_later(t):
    changed(t, lambda net: setattr(net, "tail", nn.Sequential(nn.Linear(2, 2))))


@refused("UsageError", "norm1", *CHANGED)
def batch_norm_without_parameters_that_is_replaced(t):
    net = Net(affine=False)
    for model, x, y in steps(t, net):
        train(t, error_of(model(x), y))
        net.norm1 = nn.BatchNorm2d(4, affine=False)


@refused("UsageError", "norm1", "SyncBatchNorm", *CHANGED)
def batch_norms_that_are_converted_after_the_join(t):
    net = started(t, Net())
    nn.SyncBatchNorm.convert_sync_batchnorm(net)
    one_step_each(t, net)


@row()
def layers_without_parameters_come_and_go(t):
    """What is left out has no gradients, as in one process."""
    net = Net()
    for number, (model, x, y) in enumerate(steps(t, net)):
        train(t, error_of(model(x), y))
        if number == 0:
            net.norm2 = nn.Identity()
        net.extra = nn.Tanh()


# ---- before the run

@refused("ConfigurationError", "DistributedDataParallel", ".module")
def distributed_data_parallel(t):
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    started(t, nn.parallel.DistributedDataParallel(Net()))


@row()
def data_parallel_on_one_device(t):
    """Without GPUs it calls its module."""
    net = t.model(Net())
    model = nn.DataParallel(net) if t.rank is not None else net
    t.join(model, sgd(model))
    t.trained = net
    one_step_each(t, model)


@refused("ConfigurationError", "the model", "script")
def scripted_model(t):
    model = torch.jit.script(Net())
    t.join(model, sgd(model))
    one_step_each(t, model)


@refused("ConfigurationError", "part", "script")
def scripted_submodule(t):
    net = Net()
    net.part = torch.jit.script(nn.Sequential(nn.Conv2d(4, 4, 1),
                                              nn.BatchNorm2d(4)))
    for model, x, y in steps(t, net):
        train(t, error_of(model.out(model.part(model.first(x))), y))


@refused("ConfigurationError", "part", "trace")
def traced_submodule(t):
    net = Net()
    net.part = torch.jit.trace(nn.Sequential(nn.Conv2d(4, 4, 1),
                                             nn.BatchNorm2d(4)),
                               torch.randn(2, 4, 4, 4))
    for model, x, y in steps(t, net):
        train(t, error_of(model.out(model.part(model.first(x))), y))


@row()
def scripted_submodule_without_batch_norm(t):
    net = Net()
    net.part = torch.jit.script(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Tanh()))
    for model, x, y in steps(t, net):
        train(t, error_of(model.out(model.second(model.part(model.first(x)))),
                          y))


@refused("ConfigurationError", "ASGD")
def another_optimizer(t):
    model = t.model(Net())
    t.join(model, torch.optim.ASGD(model.parameters()))


@refused("ConfigurationError", "LBFGS")
def optimizer_with_a_closure(t):
    model = t.model(Net())
    t.join(model, torch.optim.LBFGS(model.parameters()))


class Sam(torch.optim.SGD):
    """Sharpness-aware minimisation, as published: a separate class."""


@refused("ConfigurationError", "Sam")
def subclass_of_an_optimizer(t):
    model = t.model(Net())
    t.join(model, Sam(model.parameters(), lr=0.1))


@refused("ConfigurationError", "ReduceLROnPlateau")
def schedule_by_a_measure_that_is_passed(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer, schedulers=[
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)])


@refused("ConfigurationError", "ReduceLROnPlateau", "job.sum")
def schedule_by_each_workers_loss(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for x, y in t.data():
        loss = error_of(model(x), y)
        train(t, loss)
        scheduler.step(loss)


@refused("UsageError", "ReduceLROnPlateau", "sync", flags=("--aggregation=async",))
def schedule_by_a_measure_under_async(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        scheduler.step(1.0)


@refused("ConfigurationError", "norm1", "lazy")
def lazy_batch_norm(t):
    net = Net()
    net.norm1 = nn.LazyBatchNorm2d()
    t.join(net, torch.optim.SGD(net.conv1.parameters(), lr=0.1))


@refused("ConfigurationError", "float64")
def a_model_in_float64(t):
    started(t, Net().double())


@refused("ConfigurationError", "float16")
def a_model_in_float16(t):
    started(t, Net().half())


@refused("UsageError", "has a job already")
def a_second_job(t):
    started(t)
    other = Net()
    cohort.join(other, sgd(other), server=t.address, log_level="error")


# ---- in the loop

@refused("UsageError", "job.backward(loss")
def loss_backward(t):
    for model, x, y in steps(t):
        error_of(model(x), y).backward()
        t.step()


@refused("UsageError", "job.step()")
def optimizer_step(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    for x, y in t.data():
        t.backward(error_of(model(x), y))
        optimizer.step()


@refused("UsageError", "SGD", "conv1.weight", "second run")
def another_optimizer_in_the_run(t):
    """As for fine-tuning after a number of steps."""
    for model, x, y in steps(t):
        if t.step_number == 1:
            torch.optim.SGD(model.parameters(), lr=0.01)
        train(t, error_of(model(x), y))


@refused("UsageError", "Adam", "head.weight", "cohort.join")
def another_optimizer_after_the_join(t):
    model = started(t)
    torch.optim.Adam(model.head.parameters(), lr=0.01)
    one_step_each(t, model)


@row()
def another_optimizer_of_a_copy_in_the_run(t):
    for model, x, y in steps(t):
        torch.optim.SGD(copy.deepcopy(model).parameters(), lr=0.01)
        train(t, error_of(model(x), y))


@refused("UsageError", "retain_graph", "torch.autograd.grad")
def an_argument_of_torch(t):
    for model, x, y in steps(t):
        t.backward(error_of(model(x), y), retain_graph=True)


@refused("UsageError", "add_param_group")
def a_group_added_in_the_run(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})


@refused("UsageError", "GradScaler")
def gradient_scaler(t):
    """It calls optimizer.step()."""
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    scaler = torch.cuda.amp.GradScaler(enabled=False)
    for x, y in t.data():
        t.backward(error_of(model(x), y))
        scaler.step(optimizer)
        scaler.update()


@refused("UsageError", "gradient was changed", "clip")
def gradients_clipped(t):
    for model, x, y in steps(t):
        t.backward(error_of(model(x), y))
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        t.step()


@refused("UsageError", "conv1.weight", "hook", or_right=True)
def gradients_clamped_by_a_hook(t):
    """A worker's gradient is a share: a hook that is not linear acts on the
    wrong numbers."""
    model = started(t)
    model.conv1.weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
    for x, y in t.data():
        train(t, error_of(model(x), y))


@refused("UsageError", "conv1.weight", "by hand")
def weights_changed(t):
    for model, x, y in steps(t):
        train(t, error_of(model(x), y))
        with torch.no_grad():
            model.conv1.weight.mul_(0.5)


@refused("UsageError", "lr", "scheduler")
def rate_changed_after_the_step(t):
    """It would be lost with the process."""
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    for x, y in t.data():
        train(t, error_of(model(x), y))
        optimizer.param_groups[0]["lr"] *= 0.5


@refused("ConfigurationError", "learning rates", "job.step_number")
def rates_by_hand_that_differ_between_workers(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    for x, y in t.data():
        if t.rank == 1:
            optimizer.param_groups[0]["lr"] *= 0.5
        train(t, error_of(model(x), y))


MODES = ("ConfigurationError", "frozen (requires_grad)", "evaluation mode", "alike")


@refused(*MODES)
def a_layer_frozen_on_one_rank(t):
    for model, x, y in steps(t):
        model.conv1.requires_grad_(t.rank != 1)
        train(t, error_of(model(x), y))


@refused(*MODES)
def a_layer_frozen_on_one_rank_without_batch_norm(t):
    """There is no other meeting."""
    for model, x, y in steps(t, Net(lambda channels: nn.GroupNorm(1, channels))):
        model.conv1.requires_grad_(t.rank != 1)
        train(t, error_of(model(x), y))


@refused(*MODES)
def a_model_left_in_evaluation_mode_on_rank_0(t):
    net = Net(lambda channels: nn.GroupNorm(1, channels))
    net.drop = nn.Dropout(0.5)
    for model, x, y in steps(t, net):
        if t.rank == 0:
            model.eval()
            model(x)
        train(t, error_of(model.drop(model(x)), y))


@refused("UsageError", "not trained", "num_workers=")
def batches_that_are_fetched_ahead(t):
    model = started(t)
    batches = iter(t.data())
    coming = next(batches, None)
    while coming is not None:
        (x, y), coming = coming, next(batches, None)
        train(t, error_of(model(x), y))


@refused("UsageError", "job.step()")
def a_batch_without_a_step(t):
    for model, x, y in steps(t):
        t.backward(error_of(model(x), y))


@refused("UsageError", "scalar")
def loss_of_each_sample(t):
    for model, x, y in steps(t):
        train(t, (model(x) - y).square().sum(1))


@refused("ConfigurationError", "norm", "vmap", needs="func")
def per_sample_gradients(t):
    """vmap over batch norm."""
    for model, x, y in steps(t):
        def loss(one, wanted):
            return (model(one[None]) - wanted).square().sum()
        torch.func.vmap(torch.func.grad(loss))(x, y)
        train(t, error_of(model(x), y))


@refused("ConfigurationError", "norm", "forward-mode")
def forward_mode_derivative(t):
    for model, x, y in steps(t):
        with torch.autograd.forward_ad.dual_level():
            model(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
        train(t, error_of(model(x), y))


@refused("UsageError", "norm1", or_right=True)
def a_layer_replaced_in_the_run(t):
    for model, x, y in steps(t):
        if t.step_number == 1:
            other = nn.BatchNorm2d(4).to(x.dtype)
            other.load_state_dict(model.norm1.state_dict())
            model.norm1 = other
        train(t, error_of(model(x), y))


@refused("UsageError", "norm3", or_right=True)
def a_layer_added_in_the_run(t):
    """Its parameters are in no group, so they are not trained."""
    model = started(t)
    model.norm3 = nn.BatchNorm2d(4).to(model.head.weight.dtype)
    for x, y in t.data():
        x = model.features(x)
        train(t, error_of(model.out(model.norm3(x)), y))


@row(needs="compile")
def compiled_model(t):
    model = started(t)
    run = torch.compile(model, backend="aot_eager") if (
        t.rank is not None) else model
    for x, y in t.data():
        train(t, error_of(run(x), y))


@refused("Exception", "double backward", needs="compile", or_right=True)
def gradient_penalty_of_a_compiled_model(t):
    """The error is torch's, of any model."""
    model = started(t, lr=0.02)
    run = torch.compile(model, backend="aot_eager") if (
        t.rank is not None) else model
    for x, y in t.data():
        x.requires_grad_()
        out = run(x)
        found, = torch.autograd.grad(out.sum(), x, create_graph=True)
        train(t, error_of(out, y) + found.square().sum((1, 2, 3)).mean())
