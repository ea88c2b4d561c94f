"""Batch norm over two workers in every form, against float64 torch on the
joined batch."""

import contextlib
import dataclasses
import unittest
from collections.abc import Callable
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import cohort
from cohort import _batch_norm, _passes
from networks import distance
from ranks import Rank, Server

CHANNELS = 5


class Head(nn.Module):
    """Something in front of and behind the layer under test."""

    def __init__(self, front, norm, calls=1):
        super().__init__()
        torch.manual_seed(3)
        self.front = front()
        self.norm = norm()
        self.back = nn.Linear(CHANNELS, 2)
        self.calls = calls

    def forward(self, x):
        x = self.front(x)
        for _ in range(self.calls):
            x = torch.tanh(self.norm(x))
        return self.back(x.flatten(2).mean(2) if x.dim() > 2 else x)


class Frozen(Head):
    """The layer uses its moving statistics in training."""

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self


class Recomputed(Head):
    """Activation checkpointing around both calls of the layer."""

    reentrant = True

    def forward(self, x):
        x = self.front(x)
        for _ in range(2):
            x = checkpoint(lambda t: torch.tanh(self.norm(t)), x,
                           use_reentrant=self.reentrant)
        return self.back(x.flatten(2).mean(2))


class RecomputedAnew(Recomputed):
    reentrant = False


class Half(Head):
    """The layer's input is bfloat16."""

    def forward(self, x):
        x = self.front(x)
        if x.dtype == torch.float32:
            x = x.bfloat16()
        x = self.norm(x).to(self.back.weight.dtype)
        return self.back(torch.tanh(x).flatten(2).mean(2))


class Partial(Head):
    """A second layer, which only the samples that are marked by a large first
    pixel use; and a third, which no sample uses."""

    def __init__(self, front, norm):
        super().__init__(front, norm)
        self.fronts = nn.ModuleList(front() for _ in range(2))
        self.norms = nn.ModuleList(norm() for _ in range(2))

    def forward(self, x):
        marked = (x[:, 0, 0, 0] > MARK - 1).float().view(-1, 1, 1, 1)
        out = self.norm(self.front(x))
        second = self.norms[0](self.fronts[0](x))
        self.norms[1](self.fronts[1](x))
        if marked.any():
            out = out + second * marked
        return self.back(torch.tanh(out).flatten(2).mean(2))


class Together(Head):
    """Two branches whose batch norms are called at once."""

    def __init__(self, front, norm):
        super().__init__(front, norm)
        self.fronts = nn.ModuleList((front(),))
        self.norms = nn.ModuleList((norm(),))

    def forward(self, x):
        first, second = cohort.batch_norm_together(
            [self.norm, self.norms[0]], [self.front(x), self.fronts[0](x)])
        return self.back(torch.tanh(first * second).flatten(2).mean(2))


MARK = 20.0


def marked_on_rank_0():
    batches = images((2, 3), 3, 6, 6)
    batches[0][0][:, 0, 0, 0] = MARK
    return batches


def conv2d():
    return nn.Conv2d(3, CHANNELS, 3, bias=False)


class LastChannels(nn.Module):
    """A convolution whose result has its channels last in memory."""

    def __init__(self):
        super().__init__()
        self.conv = conv2d()

    def forward(self, x):
        return self.conv(x).contiguous(memory_format=torch.channels_last)


def images(sizes, *shape):
    """A batch a rank of these sizes."""
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(size, *shape, generator=generator) * 2 + 1,
             torch.randn(size, 2, generator=generator)) for size in sizes]


@dataclasses.dataclass
class Case:
    model: Callable[[], nn.Module]
    # One batch a rank, the same in both steps.
    batches: Callable[[], list]
    tolerance: float = 2e-5
    # The reference, where it is another model.
    plain: Callable[[], nn.Module] | None = None


def squares(sizes=(2, 2)):
    return lambda: images(sizes, 3, 6, 6)


def norm2d(**options):
    return lambda: nn.BatchNorm2d(CHANNELS, **options)


CASES = {
    "2d": Case(lambda: Head(conv2d, norm2d()), squares()),
    "uneven": Case(lambda: Head(conv2d, norm2d()), squares((1, 5))),
    "empty on one worker": Case(lambda: Head(conv2d, norm2d()),
                                squares((0, 3))),
    "one element a worker": Case(
        lambda: Head(lambda: nn.Linear(4, CHANNELS, bias=False),
                     lambda: nn.BatchNorm1d(CHANNELS)),
        lambda: images((1, 1), 4)),
    "1d": Case(lambda: Head(lambda: nn.Linear(4, CHANNELS, bias=False),
                            lambda: nn.BatchNorm1d(CHANNELS)),
               lambda: images((3, 4), 4)),
    "1d with length": Case(
        lambda: Head(lambda: nn.Conv1d(3, CHANNELS, 3, bias=False),
                     lambda: nn.BatchNorm1d(CHANNELS)),
        lambda: images((2, 3), 3, 9)),
    "3d": Case(lambda: Head(lambda: nn.Conv3d(2, CHANNELS, 2, bias=False),
                            lambda: nn.BatchNorm3d(CHANNELS)),
               lambda: images((1, 2), 2, 4, 4, 4)),
    "channels last": Case(lambda: Head(LastChannels, norm2d()), squares((2, 3))),
    "bfloat16": Case(lambda: Half(conv2d, norm2d()), squares(), 3e-2),
    "cumulative statistics": Case(
        lambda: Head(conv2d, norm2d(momentum=None)), squares((2, 3))),
    "no scale": Case(lambda: Head(conv2d, norm2d(affine=False)), squares()),
    "no statistics": Case(
        lambda: Head(conv2d, norm2d(track_running_stats=False)), squares()),
    "another epsilon and momentum": Case(
        lambda: Head(conv2d, norm2d(eps=0.1, momentum=0.3)), squares()),
    "in place of SyncBatchNorm": Case(
        lambda: Head(conv2d, lambda: nn.SyncBatchNorm(CHANNELS)), squares()),
    "frozen": Case(lambda: Frozen(conv2d, norm2d()), squares()),
    "called twice": Case(lambda: Head(conv2d, norm2d(), calls=2),
                         squares((1, 3))),
    "two at once": Case(lambda: Together(conv2d, norm2d()), squares((1, 3))),
    "used by one worker's loss": Case(lambda: Partial(conv2d, norm2d()),
                                      marked_on_rank_0),
    # torch itself updates moving statistics in the forward pass and again in the
    # recomputation.
    "checkpointing": Case(
        lambda: Recomputed(conv2d, norm2d()), squares((1, 3)),
        plain=lambda: Head(conv2d, norm2d(), calls=2)),
    "checkpointing without reentry": Case(
        lambda: RecomputedAnew(conv2d, norm2d()), squares((1, 3)),
        plain=lambda: Head(conv2d, norm2d(), calls=2)),
}
STEPS = 2


def optimizer_of(model):
    # The decay shows which parameters have no gradient.
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9,
                           weight_decay=0.01)


def squared_error(model, x, y):
    return (model(x) - y).square().sum()


def train(rank, address):
    """{case: state dict}: all cases in one process, a run a case would start
    too many servers."""
    states = {}
    for number, (name, case) in enumerate(CASES.items()):
        model = case.model()
        job = cohort.join(model, optimizer_of(model), server=address[number],
                          rank=rank, log_level="warning")
        batch = case.batches()[rank]
        for x, y in job.data(iter([batch] * STEPS), batch_size=4):
            job.backward(squared_error(model, x, y), weight=len(x),
                         reduction="sum")
            job.step()
        states[name] = {key: value.clone()
                        for key, value in model.state_dict().items()}
    return states


def reference(case):
    model = (case.plain or case.model)().double()
    if "SyncBatchNorm" in type(model.norm).__name__:
        norm = nn.BatchNorm2d(CHANNELS).double()
        model.norm = norm
    optimizer = optimizer_of(model)
    x, y = (torch.cat(parts).double() for parts in zip(*case.batches()))
    for _ in range(STEPS):
        optimizer.zero_grad()
        (squared_error(model, x, y) / len(x)).backward()
        optimizer.step()
    return model.state_dict()


class LateCopy:
    """A copy to host memory that is done at the second question."""

    def __init__(self, tensor):
        self._tensor = tensor
        self._questions = 0
        self.host = torch.full_like(tensor, float("nan"))

    def is_done(self):
        self._questions += 1
        if self._questions < 2:
            return False
        self.wait()
        return True

    def wait(self):
        self.host.copy_(self._tensor)


def train_elsewhere(rank, address, first):
    """The same, with the ranks from `first` on computing as if the CPU's memory
    were a device's."""
    if rank < first:
        return train(rank, address)
    with mock.patch("cohort._devices.on_host", lambda device: False), \
            mock.patch("cohort._devices.Copy",
                       lambda tensor, stream: LateCopy(tensor)):
        return train(rank, address)


class ApartReLU(nn.ReLU):
    """The same, but not torch's own."""


class Chain(nn.Module):
    """A Sequential in which ReLUs follow batch norms, in several forms."""

    def __init__(self, kind, relu):
        super().__init__()
        torch.manual_seed(5)
        self.kind = kind
        self.body = nn.Sequential(
            conv2d(), nn.BatchNorm2d(CHANNELS), relu(inplace=True),
            nn.Conv2d(CHANNELS, CHANNELS, 1), nn.BatchNorm2d(CHANNELS), relu())
        self.back = nn.Linear(CHANNELS, 2)
        # The script sees what a batch norm returns.
        self.seen = []
        if kind == "hook":
            for norm in (self.body[1], self.body[4]):
                norm.register_forward_hook(
                    lambda module, x, y: self.seen.append(float(y.min())))

    def forward(self, x):
        if self.kind == "channels last":
            x = x.contiguous(memory_format=torch.channels_last)
        x = (checkpoint(self.body, x, use_reentrant=False)
             if self.kind == "checkpointing" else self.body(x))
        return self.back(x.flatten(2).mean(2))


# Batch norms and ReLUs that take one pass together, in two steps.
CHAINS = {"plain": 4, "channels last": 4, "checkpointing": 8, "recorded": 4,
          "hook": 0}


def train_chains(rank, address):
    """[(name of the case, passes of both, weights)]."""
    results = []
    addresses = iter(address)
    for kind in CHAINS:
        for relu in (nn.ReLU, ApartReLU):
            model = Chain(kind, relu)
            job = cohort.join(model, optimizer_of(model), server=next(addresses),
                              rank=rank, log_level="warning")
            batch = images((2, 3), 3, 6, 6)[rank]
            with mock.patch("cohort._batch_norm.with_relu",
                            wraps=_batch_norm.with_relu) as both:
                for x, y in job.data(iter([batch] * STEPS), batch_size=4):
                    x = x.clone().requires_grad_()
                    loss = squared_error(model, x, y)
                    if kind == "recorded":
                        dx, = torch.autograd.grad(loss, x, create_graph=True)
                        loss = loss + dx.square().sum()
                    job.backward(loss, weight=len(x), reduction="sum")
                    job.step()
            assert type(model.body) is nn.Sequential
            if kind == "hook":
                assert min(model.seen) < 0, "the hook saw the ReLU's output"
            results.append((kind, both.call_count, {
                key: value.clone() for key, value in model.state_dict().items()}))
    return results


def results_of(runs, function, *arguments):
    """What a function of rank, addresses and arguments returns by rank, and the log
    of each server."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(2, f"--max_steps={STEPS}"))
                   for _ in range(runs)]
        ranks = [Rank(function, rank, [s.address for s in servers], *arguments)
                 for rank in range(2)]
        try:
            results = [rank.result() for rank in ranks]
        except AssertionError as error:
            raise AssertionError(
                f"{error}\n" + "\n".join(s.log() for s in servers)) from None
        return results, [server.log() for server in servers]


class BatchNorm(unittest.TestCase):
    def test_a_relu_that_follows_in_a_sequence_has_the_same_bits(self):
        results, _ = results_of(2 * len(CHAINS), train_chains)
        for result in results:
            for (kind, passes, together), (_, none, apart) in zip(
                    result[::2], result[1::2]):
                with self.subTest(case=kind):
                    self.assertEqual((passes, none), (CHAINS[kind], 0))
                    for name, value in together.items():
                        self.assertTrue(torch.equal(value, apart[name]), name)

    def check(self, function, *arguments):
        results, logs = results_of(len(CASES), function, *arguments)
        for (name, case), log in zip(CASES.items(), logs):
            wanted = reference(case)
            for state in (result[name] for result in results):
                for key, value in state.items():
                    with self.subTest(case=name, tensor=key):
                        if key.endswith("num_batches_tracked"):
                            self.assertEqual(int(value), int(wanted[key]))
                            continue
                        self.assertLess(distance(value, wanted[key]),
                                        case.tolerance, log)

    def test_every_form_over_two_workers(self):
        self.check(train)

    def test_every_form_on_devices(self):
        self.check(train_elsewhere, 0)

    def test_every_form_on_a_device_and_the_cpu(self):
        self.check(train_elsewhere, 1)

    def test_cuda_gets_all_that_its_backward_pass_needs(self):
        """CUDA refuses saved statistics that are not defined, which the CPU does
        not read."""
        called = []

        class Recorder(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                if "native_batch_norm_backward" in str(func):
                    called.append(args)
                return func(*args, **(kwargs or {}))

        x, dy = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        kept = _passes.Kept(mock.Mock(), 1e-5, mean, variance)
        with Recorder():
            _, dgamma, dbeta = _passes._backward_on_device(
                mock.Mock(), _passes.BackwardCall(kept, x, dy, None, (), False))
        (arguments,) = called
        self.assertTrue(torch.equal(arguments[5], mean))
        self.assertLess(distance(arguments[6], 1 / (variance + 1e-5).sqrt()), 1e-6)
        shifted = (x - mean.view(1, 3, 1, 1)).double()
        self.assertLess(distance(dbeta, dy.double().sum((0, 2, 3))), 1e-5)
        self.assertLess(distance(dgamma, (dy.double() * shifted).sum((0, 2, 3)) /
                                 (variance + 1e-5).sqrt().double()), 1e-5)

    def test_cuda_has_the_operators_that_are_called(self):
        # They cannot run here.
        names = [argument.name for argument in
                 torch.ops.aten.batch_norm_backward_elemt.default._schema.arguments]
        self.assertEqual(len(names), 8, names)
        self.assertEqual(names[:5],
                         ["grad_out", "input", "mean", "invstd", "weight"])
        self.assertEqual(names[7], "count")


if __name__ == "__main__":
    unittest.main()
