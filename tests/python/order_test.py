"""Gradients of weights are computed while batch norms wait, with the same bits."""

import unittest

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import cohort
from cohort import _convolution, _layer_calls, _order, _passes
from networks import DEVICE, distance
from ranks import Server


def block(inputs, outputs, **options):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, **options),
                         nn.BatchNorm2d(outputs), nn.ReLU())


class Chain(nn.Module):
    """Each batch norm has a convolution above it."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(block(1, 4), block(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.blocks(x).mean((2, 3)))


class Branches(Chain):
    """Two that end in batch norms, above one."""

    def __init__(self):
        super().__init__()
        self.blocks = block(1, 4)
        self.branches = nn.ModuleList(block(4, 4) for _ in range(2))

    def forward(self, x):
        x = self.blocks(x)
        return self.head(sum(branch(x) for branch in self.branches).mean((2, 3)))


class Kinds(Chain):
    """Convolutions of other kinds, one that is called twice, one with a bias that is
    not trained, one within activation checkpointing, and a residual."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(block(1, 4), block(4, 4, groups=2, bias=False))
        self.twice = block(4, 4)
        self.fixed = block(4, 4)
        self.fixed[0].bias.requires_grad_(False)
        self.recomputed = block(4, 4)
        self.line = nn.Sequential(nn.Conv1d(4, 4, 3, stride=2, dilation=2),
                                  nn.BatchNorm1d(4))

    def forward(self, x):
        x = self.blocks(x)
        x = x + self.twice(self.twice(x))
        x = checkpoint(self.recomputed, self.fixed(x), use_reentrant=False)
        return self.head(self.line(x.flatten(2)).mean(2))


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    for step in range(4):
        size = 1 + (step + rank) % 3
        yield (torch.randn(size, 1, 6, 6, generator=generator),
               torch.randint(0, 2, (size,), generator=generator))


def train(rank, address, kind, moves, penalty=False):
    """The state dict, and what the last pass has done."""
    done = []
    if not moves:
        _layer_calls.can_move = False
    send, gradients = _passes.send_backward, _convolution._Call.gradients

    def noted(step, calls):
        done.append("send")
        passes = send(step, calls)
        for one in passes:
            one.receive = (lambda receive=one.receive: (
                done.append("receive"), receive())[1])
        return passes

    def noted_gradients(call, *arguments):
        done.append("input" if arguments[-1][0] else "weight")
        return gradients(call, *arguments)
    _passes.send_backward = noted
    _convolution._Call.gradients = noted_gradients
    torch.manual_seed(1)
    model = kind().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    job = cohort.join(model, optimizer, server=address, rank=rank, log_level="warning")
    for x, y in job.data(batches(rank), batch_size=2):
        x, y = x.to(DEVICE).requires_grad_(penalty), y.to(DEVICE)
        loss = nn.functional.cross_entropy(model(x), y)
        if penalty:
            slope, = torch.autograd.grad(loss * len(x), x, create_graph=True)
            loss = loss + slope.square().flatten(1).sum(1).mean()
        done.clear()
        job.backward(loss, weight=len(x))
        job.step()
    return {key: value.cpu() for key, value in model.state_dict().items()}, done


@unittest.skipUnless(_order.can_move,
                     f"torch {torch.__version__} does not move nodes")
class Order(unittest.TestCase):
    def passes(self, *arguments):
        with Server(2, "--max_steps=4") as server:
            results = server.call(train, *arguments)
        (first, done), (second, others) = results
        self.assertEqual(done, others)
        for name, value in first.items():
            self.assertTrue(torch.equal(value, second[name]), name)
        return first, done

    def check(self, *arguments, tolerance=0.0):
        """What the last pass has done, where the order is changed."""
        moved, done = self.passes(arguments[0], True, *arguments[1:])
        plain, waits = self.passes(arguments[0], False, *arguments[1:])
        self.assertNotIn("weight", waits)
        for name, value in moved.items():
            self.assertLessEqual(distance(value, plain[name]), tolerance, name)
        return done

    def test_the_gradient_of_a_weight_is_computed_between_sending_and_receiving(self):
        self.assertEqual(self.check(Chain), [
            "send", "receive", "input", "send", "weight", "receive"])

    def test_branches_meet_in_the_reverse_order_of_their_calls(self):
        self.assertEqual(self.check(Branches), [
            "send", "receive", "input", "send", "receive", "input", "send",
            "weight", "weight", "receive"])

    def test_other_convolutions(self):
        self.assertIn("weight", self.check(Kinds))

    def test_a_gradient_of_a_gradient(self):
        # More is added up, in another order.
        self.check(Chain, True, tolerance=1e-6)


if __name__ == "__main__":
    unittest.main()
