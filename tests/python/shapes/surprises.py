"""Rows: what scripts do beside the calls that the package knows, each with the
numbers of one process or refused by name."""

import contextlib
import copy

import torch
from torch import nn

from shapes.own_batches import Three, out_of
from shapes.rows import (
    Net, error_of, one_step_each, refused, row, sgd, started, steps, train)
from shapes.script import Samples, batch_of


# ---- the optimizer

def clamp_weights(optimizer, args, kwargs):
    del args, kwargs
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.data.clamp_(-0.1, 0.1)


@refused("UsageError", "register_step_pre_hook", "clamp_weights", "clip_norm",
         needs="optimizer hooks")
def hook_before_the_optimizer(t):
    model = t.model(Net())
    optimizer = sgd(model)
    optimizer.register_step_pre_hook(clamp_weights)
    t.join(model, optimizer)
    one_step_each(t, model)


@refused("UsageError", "register_step_post_hook", "after_step",
         needs="optimizer hooks")
def hook_after_the_optimizer_from_the_second_step_on(t):
    model = t.model(Net())
    optimizer = sgd(model)
    t.join(model, optimizer)
    for x, y in t.data():
        if t.step_number == 1:
            optimizer.register_step_post_hook(clamp_weights)
        train(t, error_of(model(x), y))


@refused("UsageError", "register_optimizer_step_post_hook",
         needs="optimizer hooks")
def hook_after_every_optimizer(t):
    model = t.model(Net())
    optimizer = sgd(model)
    from torch.optim.optimizer import register_optimizer_step_post_hook
    register_optimizer_step_post_hook(clamp_weights)
    t.join(model, optimizer)
    one_step_each(t, model)


def after_a_local_step(t, kind, **options):
    """A model and an optimizer that has made a step before the run."""
    model = t.model(Net())
    optimizer = kind(model.parameters(), **options)
    x, y = batch_of(0, 9, 6, (3, 6, 6))
    dtype = next(model.parameters()).dtype
    error_of(model(x.to(dtype)), y.to(dtype)).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return model, optimizer


@refused("ConfigurationError", "SGD", "momentum_buffer", "new optimizer")
def momentum_from_before_the_run(t):
    model, optimizer = after_a_local_step(t, torch.optim.SGD, lr=0.1,
                                          momentum=0.9)
    t.join(model, optimizer)
    one_step_each(t, model)


@refused("ConfigurationError", "Adam", "new optimizer")
def loaded_moments_of_adam(t):
    model, before = after_a_local_step(t, torch.optim.Adam, lr=0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer.load_state_dict(before.state_dict())
    t.join(model, optimizer)
    one_step_each(t, model)


@row()
def local_steps_without_momentum_before_the_run(t):
    """There is no state that could get lost."""
    model, optimizer = after_a_local_step(t, torch.optim.SGD, lr=0.1)
    t.join(model, optimizer)
    one_step_each(t, model)


def trained_on(t, kind, new, **options):
    """Steps of the script alone, after the run."""
    model = t.model(Net())
    optimizer = kind(model.parameters(), **options)
    t.join(model, optimizer)
    one_step_each(t, model)
    if new:
        optimizer = kind(model.parameters(), **options)
    model.eval()
    x, y = batch_of(0, 9, 6, (3, 6, 6))
    dtype = next(model.parameters()).dtype
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        error_of(model(x.to(dtype)), y.to(dtype)).backward()
        optimizer.step()


@refused("UsageError", "optimizer.step()", "momentum", "new optimizer")
def momentum_after_the_run(t):
    trained_on(t, torch.optim.SGD, False, lr=0.1, momentum=0.9)


@row()
def momentum_of_a_new_optimizer_after_the_run(t):
    trained_on(t, torch.optim.SGD, True, lr=0.1, momentum=0.9)


@row()
def local_steps_without_momentum_after_the_run(t):
    trained_on(t, torch.optim.SGD, False, lr=0.1)


@row()
def rate_of_zero_in_the_first_group(t):
    model = t.model(Net())
    t.join(model, torch.optim.SGD([
        {"params": model.conv1.parameters(), "lr": 0.0},
        {"params": model.head.parameters()}], lr=0.1))
    one_step_each(t, model)


@row()
def rate_of_zero_in_another_group(t):
    model = t.model(Net())
    t.join(model, torch.optim.SGD([
        {"params": model.head.parameters()},
        {"params": model.conv1.parameters(), "lr": 0.0}], lr=0.1))
    one_step_each(t, model)


# ---- batches

@row()
def a_loop_that_is_left_and_begun_again(t):
    """A batch counts once, wherever the script leaves its loop."""
    model = started(t)
    if t.rank is None:
        one_step_each(t, model)
        return
    batches = (batch_of(t.rank, step, t.size, (3, 6, 6))
               for step in range(t.steps))
    data = t.job.data(batches, batch_size=t.size)
    for _ in range(t.steps):
        for x, y in data:
            train(t, error_of(model(x), y))
            break


@row()
def a_loop_that_is_left_after_a_void_step(t):
    """The first attempt at step 0 shows the server which workers call norm3, and
    is void: its batch comes again."""
    model = started(t, Three())
    if t.rank is None:
        for x, y in t.data():
            train(t, error_of(out_of(t, model, x), y))
        return
    data = t.job.data((batch_of(t.rank, step, t.size, (3, 6, 6))
                       for step in range(t.steps)), batch_size=t.size)
    turns = 0
    while not t.job.finished:
        for x, y in data:
            train(t, error_of(out_of(t, model, x), y))
            turns += 1
            break
    assert turns > t.steps, "no step was void"


@row()
def a_loop_that_is_left_with_accumulate(t):
    model = started(t)
    if t.rank is None:
        for x, y in t.data(accumulate=2):
            train(t, error_of(model(x), y))
        return
    batches = (batch_of(t.rank, step, t.size, (3, 6, 6))
               for step in range(t.steps))
    data = t.job.data(batches, batch_size=t.size, accumulate=2)
    for _ in range(t.steps):
        for number, (x, y) in enumerate(data):
            train(t, error_of(model(x), y))
            if number == 1:
                break


@refused("UsageError", "not trained")
def a_loop_that_is_left_within_a_step(t):
    model = started(t)
    if t.rank is None:
        return
    data = t.job.data((batch_of(t.rank, 0, t.size, (3, 6, 6)) for _ in range(9)),
                      batch_size=t.size, accumulate=2)
    for _ in range(2):
        for x, y in data:
            train(t, error_of(model(x), y))
            break


class Recurrent(nn.Module):
    """Reads [time, samples, features]."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.cell = nn.GRU(3, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0][-1])


def time_first(items):
    return (torch.stack([x for x, _ in items], 1),
            torch.stack([y for _, y in items]))


def sequences(t, make, **options):
    """What `make` turns the batches of the worker into."""
    if t.rank is None:
        for x, y in t.data((6, 3)):
            yield make(x, y)
        return
    own = (make(*batch_of(t.rank, step, t.size, (6, 3)))
           for step in range(t.steps))
    yield from t.job.data(own, batch_size=t.size, **options)


@refused("UsageError", "lengths 6, 3", "weight=")
def own_batches_with_time_first(t):
    model = started(t, Recurrent())
    for x, y in sequences(t, lambda x, y: (x.transpose(0, 1), y)):
        train(t, error_of(model(x), y))


@row()
def own_batches_with_time_first_and_a_weight(t):
    model = started(t, Recurrent())
    for x, y in sequences(t, lambda x, y: (x.transpose(0, 1), y)):
        train(t, error_of(model(x), y), weight=len(y))


@refused("UsageError", "lengths 2, 3, 3", "weight=")
def own_batches_with_edges_first(t):
    model = started(t, Recurrent())

    def graph(x, y):
        return {"edge_index": torch.zeros(2, 9, dtype=torch.long), "x": x, "y": y}
    for batch in sequences(t, graph):
        train(t, error_of(model(batch["x"].transpose(0, 1)), batch["y"]))


@row(sizes={2: (3, 5)})
def numbered_samples_with_time_first(t):
    """A step is an epoch: all samples in any order."""
    model = started(t, Recurrent())
    data = Samples(8, (6, 3))
    if t.rank is None:
        for _ in t.indexed(8, (6, 3)):
            x, y = time_first([data[number] for number in range(8)])
            dtype = model.head.weight.dtype
            train(t, error_of(model(x.to(dtype)), y.to(dtype)), weight=8)
        return
    for x, y in t.job.data(data, batch_size=t.size, collate_fn=time_first):
        train(t, error_of(model(x), y))


@refused("UsageError", "accumulate", "(6, 3, 3)")
def numbered_samples_with_time_first_in_parts(t):
    model = started(t, Recurrent())
    if t.rank is None:
        return
    for x, y in t.job.data(Samples(8, (6, 3)), batch_size=t.size, accumulate=2,
                           collate_fn=time_first):
        train(t, error_of(model(x), y))


# ---- passes

@refused("ConfigurationError", "norm2", "is_grads_batched")
def several_gradients_in_one_pass(t):
    for model, x, y in steps(t, saliency=True):
        out = model(x)
        torch.autograd.grad(out.sum(0), x, torch.eye(2, dtype=x.dtype),
                            is_grads_batched=True, retain_graph=True)
        train(t, error_of(out, y))


@refused("ConfigurationError", "norm2", "vectorize=True")
def jacobian_in_one_pass(t):
    for model, x, y in steps(t):
        torch.autograd.functional.jacobian(lambda x: model(x).sum(0), x,
                                           vectorize=True)
        train(t, error_of(model(x), y))


@refused("ConfigurationError", "norm", "vectorize=True")
def hessian_in_one_pass(t):
    """The second pass differentiates the sums of the first."""
    for model, x, y in steps(t):
        torch.autograd.functional.hessian(lambda x: model(x).sum(), x,
                                          vectorize=True)
        train(t, error_of(model(x), y))


@row()
def jacobian_by_rows(t):
    for model, x, y in steps(t):
        rows = torch.autograd.functional.jacobian(lambda x: model(x).sum(0), x)
        t.own("jacobian", rows.transpose(0, 1))
        train(t, error_of(model(x), y))


# ---- batch norm beside the modules

def by_an_operator(t, operator):
    for model, x, y in steps(t):
        x = model.conv1(x)
        x = operator(x, model.norm1.weight, model.norm1.bias)[0]
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


@refused("UsageError", "native_batch_norm.default", "cohort.local")
def an_overload_of_an_operator(t):
    by_an_operator(t, lambda *x: torch.ops.aten.native_batch_norm.default(
        *x, None, None, True, 0.1, 1e-5))


@refused("UsageError", "batch_norm.default", "cohort.local")
def another_overload_of_an_operator(t):
    by_an_operator(t, lambda *x: torch.ops.aten.batch_norm.default(
        *x, None, None, True, 0.1, 1e-5, False)[None])


@refused("UsageError", "_native_batch_norm_legit", "cohort.local", needs="func")
def an_operator_without_statistics(t):
    by_an_operator(t, lambda *x: torch.ops.aten._native_batch_norm_legit.no_stats(
        *x, True, 0.1, 1e-5))


@refused("UsageError", "_native_batch_norm_legit", "cohort.local", needs="func")
def an_operator_of_compilers(t):
    by_an_operator(t, lambda *x: torch.ops.aten._native_batch_norm_legit(
        *x, None, None, True, 0.1, 1e-5))


@row()
def an_overload_in_evaluation_mode(t):
    for model, x, y in steps(t):
        x = torch.ops.aten.native_batch_norm.default(
            model.conv1(x), model.norm1.weight, model.norm1.bias,
            torch.zeros(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype), False,
            0.1, 1e-5)[0]
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


# As `from torch import batch_norm` at the top of a script.
batch_norm = torch.batch_norm


@refused("UsageError", "job.backward()", "from torch import batch_norm",
         "cohort.local")
def a_function_bound_before_the_join(t):
    by_an_operator(t, lambda *x: batch_norm(
        *x, None, None, True, 0.1, 1e-5, False)[None])


@refused("UsageError", "job.backward()", "scripted")
def a_scripted_module_beside_the_model(t):
    model = t.model(Net())
    beside = torch.jit.script(nn.BatchNorm2d(4, affine=False,
                                             track_running_stats=False))
    t.join(model, sgd(model))
    for x, y in t.data():
        x = beside(model.conv1(x))
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


@row()
def a_function_within_local(t):
    for model, x, y in steps(t):
        x = model.conv1(x)
        with t.local():
            x = t.locally(lambda part: torch.batch_norm(
                part, model.norm1.weight, model.norm1.bias, None, None, True, 0.1,
                1e-5, False), x)
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


@row()
def a_function_over_a_weight(t):
    """Weight standardisation."""
    for model, x, y in steps(t):
        weight = torch.batch_norm(
            model.conv1.weight.reshape(1, 4, -1), None, None, None, None, True,
            0.1, 1e-5, False).view_as(model.conv1.weight)
        x = torch.tanh(model.norm1(nn.functional.conv2d(x, weight)))
        train(t, error_of(model.out(model.second(x)), y))


@row()
def a_function_over_a_weight_by_rows(t):
    for model, x, y in steps(t):
        weight = torch.batch_norm(
            model.conv1.weight.flatten(1).t(), None, None, None, None, True, 0.1,
            1e-5, False).t().view_as(model.conv1.weight)
        x = torch.tanh(model.norm1(nn.functional.conv2d(x, weight)))
        train(t, error_of(model.out(model.second(x)), y))


@contextlib.contextmanager
def doubled(kind):
    """Calls of the class give twice what they did."""
    before = vars(kind).get("forward")
    plain = kind.forward
    kind.forward = lambda self, x: 2 * plain(self, x)
    try:
        yield
    finally:
        if before is None:
            del kind.forward
        else:
            kind.forward = before


@row()
def code_of_the_class_replaced_before_the_join(t):
    with doubled(nn.BatchNorm2d):
        one_step_each(t, started(t))


@row()
def code_of_the_class_replaced_in_the_run(t):
    for model, x, y in steps(t):
        with (doubled(nn.modules.batchnorm._BatchNorm) if t.step_number == 1
              else contextlib.nullcontext()):
            train(t, error_of(model(x), y))


@row(needs="compile")
def code_of_the_class_replaced_under_a_compiler(t):
    model = started(t)
    run = torch.compile(model, backend="aot_eager") if (
        t.rank is not None) else model
    for x, y in t.data():
        with (doubled(nn.BatchNorm2d) if t.step_number == 1
              else contextlib.nullcontext()):
            train(t, error_of(run(x), y))


# ---- models

@refused("ConfigurationError", "conv3.weight", "shares memory", "conv2.weight",
         "assigning")
def weights_tied_by_their_data(t):
    net = t.model(Net())
    net.conv3 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    net.conv3.weight.data = net.conv2.weight.data
    one_step_each(t, started(t, net))


@refused("ConfigurationError", "shares memory")
def parameters_that_overlap_in_part(t):
    net = t.model(Net())
    flat = torch.randn(12)
    net.head.weight.data = flat[:8].view(2, 4)
    net.head.bias.data = flat[7:9]
    one_step_each(t, started(t, net))


@row()
def weights_tied_by_the_parameter(t):
    net = t.model(Net())
    net.conv3 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    net.conv3.weight = net.conv2.weight
    for model, x, y in steps(t, net):
        train(t, error_of(model.out(torch.tanh(model.conv3(model.features(x)))),
                          y))


@row()
def parameters_in_one_flat_buffer(t):
    net = t.model(Net())
    parameters = list(net.parameters())
    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    pieces = flat.split([parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces):
        parameter.data = piece.view_as(parameter)
    one_step_each(t, started(t, net))


class Words(nn.Module):
    def __init__(self, words, **options):
        super().__init__()
        torch.manual_seed(4)
        self.words = words(5, 4, **options)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        numbers = (x[:, 0, 0, :3] * 2).long().abs() % 5
        found = self.words(numbers)
        return self.head(self.norm(found.mean(1) if found.dim() > 2 else found))


@refused("ConfigurationError", "words", "scale_grad_by_freq")
def gradients_by_frequency(t):
    one_step_each(t, started(t, Words(nn.Embedding, scale_grad_by_freq=True)))


class ByFrequency(Words):
    def forward(self, x):
        numbers = (x[:, 0, 0, :3] * 2).long().abs() % 5
        return self.head(self.norm(nn.functional.embedding(
            numbers, self.words.weight, scale_grad_by_freq=True).mean(1)))


@refused("UsageError", "F.embedding", "scale_grad_by_freq")
def gradients_by_frequency_of_a_function(t):
    one_step_each(t, started(t, ByFrequency(nn.Embedding)))


@refused("ConfigurationError", "words", "EmbeddingBag", "max_norm")
def embeddings_of_limited_length(t):
    one_step_each(t, started(t, Words(nn.EmbeddingBag, max_norm=1.0)))


class Limited(nn.Embedding):
    """As the error says."""

    def forward(self, numbers):
        v = super().forward(numbers)
        return v * (1 / v.norm(dim=-1, keepdim=True)).clamp(max=1)


@row()
def embeddings_limited_in_the_forward_pass(t):
    one_step_each(t, started(t, Words(Limited)))


@row()
def a_copy_that_is_scripted_after_the_run(t):
    """As the error about scripted modules says."""
    for model, x, y in steps(t):
        train(t, error_of(model(x), y))
    model = copy.deepcopy(model).eval()
    t.own("scripted", torch.jit.script(model)(x))
    t.own("traced", torch.jit.trace(model, x)(x))


# ---- tracers of torch in the loop

def between_steps(t, use):
    """`use` gets the model in evaluation mode."""
    model = started(t)
    x, _ = batch_of(0, 9, 6, (3, 6, 6))
    x = x.to(next(model.parameters()).dtype)
    for inputs, y in t.data():
        model.eval()
        t.same("traced", use(model, x))
        model.train()
        train(t, error_of(model(inputs), y))


@row()
def traced_by_fx(t):
    between_steps(t, lambda model, x: torch.fx.symbolic_trace(model)(x))


@row()
def scripted_copy(t):
    between_steps(t, lambda model, x: torch.jit.script(
        copy.deepcopy(model))(x))


@row(needs="func")
def exported(t):
    between_steps(t, lambda model, x: torch.export.export(
        model, (x,)).module()(x))


@refused("ConfigurationError", "norm1", "model.eval()", needs="func")
def traced_in_training_mode(t):
    from torch._subclasses.fake_tensor import FakeTensorMode
    for model, x, y in steps(t):
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            model(fake.from_tensor(x))
        train(t, error_of(model(x), y))


@refused("UsageError", "job.backward()", "float")
def a_number_in_place_of_the_loss(t):
    for model, x, y in steps(t):
        t.backward(float(error_of(model(x), y)))
        t.step()


class WithinAFunction(torch.autograd.Function):
    """Keeps a separate graph, and differentiates it in its backward pass."""

    @staticmethod
    def forward(ctx, x, layer, *parameters):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.out = layer(ctx.x)
        ctx.parameters = parameters
        return ctx.out.detach()

    @staticmethod
    def backward(ctx, gradient):
        x, *others = torch.autograd.grad(ctx.out, (ctx.x, *ctx.parameters),
                                         gradient)
        return x, None, *others


@refused("UsageError", "backward pass of a custom", "batch norm")
def a_layer_within_a_function(t):
    for model, x, y in steps(t):
        x = WithinAFunction.apply(model.conv1(x), model.norm1,
                                  *model.norm1.parameters())
        train(t, error_of(model.out(model.second(torch.tanh(x))), y))


@refused("ConfigurationError", "norm1", "make_fx", needs="func")
def recorded_in_training_mode(t):
    from torch.fx.experimental.proxy_tensor import make_fx
    for model, x, y in steps(t):
        train(t, error_of(make_fx(model)(x)(x), y))


@refused("UsageError", "norm1", "cohort.local")
def a_layer_of_the_model_within_local(t):
    for model, x, y in steps(t):
        with t.local():
            out = model(x)
        train(t, error_of(out, y))


@refused("UsageError", "another optimizer of the script", needs="optimizer hooks")
def a_copy_trained_within_each_step(t):
    """An inner loop."""
    for model, x, y in steps(t):
        inner = copy.deepcopy(model)
        optimizer = torch.optim.SGD(inner.parameters(), 0.1)
        error_of(inner.head(x.mean((2, 3)).repeat(1, 2)[:, :4]), y).backward()
        optimizer.step()
        train(t, error_of(model(x), y) + error_of(inner.head.weight, 0))


@refused("TrainingError", "job.share", "rank 0", "rank 1")
def shares_of_one_rank_only(t):
    for model, x, y in steps(t):
        out = model(x.requires_grad_())
        if t.here(0):
            t.share(error_of(out, y), weight=len(x))
        train(t, error_of(out, y))
