"""torch.compile: one graph, and the same order of batch norms on all workers."""

import shutil
import unittest

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import cohort
from networks import DEVICE, Shapes, digest, distance, joined, step
from ranks import Server


def block(inputs, dilation):
    return nn.Sequential(
        nn.Conv2d(inputs, 6, 3, padding=dilation, dilation=dilation, bias=False),
        nn.BatchNorm2d(6), nn.Tanh())


class Branches(nn.Module):
    """Branches whose batch norms a compiler could reorder, one of them
    recomputed if wanted, and an output without influence on the loss."""

    def __init__(self, recomputed):
        super().__init__()
        self.recomputed = recomputed
        torch.manual_seed(0)
        self.stem = block(1, 1)
        self.branches = nn.ModuleList(block(6, d) for d in (1, 2, 3))
        self.pool = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 6, 1, bias=False),
            nn.BatchNorm2d(6), nn.Tanh())
        self.unused = block(6, 1)
        self.head = nn.Conv2d(24, 4, 1)

    def forward(self, x):
        x = self.stem(x)
        parts = [branch(x) for branch in self.branches[:2]]
        parts.append(checkpoint(self.branches[2], x, use_reentrant=False)
                     if self.recomputed else self.branches[2](x))
        parts.append(self.pool(x).expand(-1, -1, *x.shape[2:]))
        return self.head(torch.cat(parts, 1)).mean((2, 3)), self.unused(x)


def batches(rank, steps):
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        size = 1 + (step + rank) % 5
        y = torch.randint(0, 4, (size,), generator=generator)
        yield (torch.randn(size, 1, 10, 10, generator=generator) +
               y.view(-1, 1, 1, 1), y)


def train(rank, address, steps, backends, recomputed):
    """The state dict, why the compiler ended graphs, and their number."""
    model = Branches(recomputed).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    job = cohort.join(model, optimizer, server=address, rank=rank,
                      log_level="warning")
    run, breaks, graphs = model, {}, 0
    if backends[rank] is not None:
        run = torch.compile(model, backend=backends[rank],
                            fullgraph=not recomputed)
    for x, y in job.data(batches(rank, steps), batch_size=3):
        x, y = x.to(DEVICE), y.to(DEVICE)
        job.backward(nn.functional.cross_entropy(run(x)[0], y), weight=len(x))
        job.step()
    if backends[rank] is not None:
        breaks = dict(torch._dynamo.utils.counters["graph_break"])
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return {key: value.to("cpu", copy=True)
            for key, value in model.state_dict().items()}, breaks, graphs


def train_locally(compiled):
    """The digest of what one worker makes by local steps."""
    model, job = joined(None, lr=0.05, local_steps=3, serve={"epochs": 1})
    run = torch.compile(model, backend="aot_eager") if compiled else model
    for batch in job.data(Shapes(44), batch_size=4, shuffle=False):
        step(run, job, batch)
    return digest(model.state_dict())


@unittest.skipUnless(hasattr(torch.library, "custom_op"),
                     f"torch {torch.__version__} has no custom operators")
class Compile(unittest.TestCase):
    def states(self, steps, *backends, recomputed=False):
        with Server(2, f"--max_steps={steps}") as server:
            results = server.call(train, steps, backends, recomputed)
        for (_, breaks, graphs), backend in zip(results, backends):
            self.assertEqual(graphs == 0, backend is None)
            if not recomputed:
                self.assertEqual(breaks, {})
                # One shape at first, then any.
                self.assertLessEqual(graphs, 3)
        first, second = results[0][0], results[1][0]
        for name, value in first.items():
            self.assertTrue(torch.equal(value, second[name]), name)
        return first

    def check(self, steps, tolerance, *backends, **options):
        wanted = self.states(steps, None, None, **options)
        for name, value in self.states(steps, *backends, **options).items():
            if not name.endswith("num_batches_tracked"):
                self.assertLessEqual(distance(value, wanted[name]), tolerance,
                                     name)

    def test_one_graph_over_200_steps_of_unequal_batches(self):
        self.check(200, 0, "aot_eager", "aot_eager")

    def test_local_steps(self):
        self.assertEqual(train_locally(True), train_locally(False))

    def test_compiled_and_eager_workers(self):
        self.check(20, 0, "aot_eager", None)

    def test_activation_checkpointing_ends_a_graph(self):
        self.check(20, 0, "aot_eager", "aot_eager", recomputed=True)

    @unittest.skipUnless(shutil.which("g++"), "no C++ compiler")
    def test_generated_code(self):
        self.check(20, 1e-4, "inductor", "inductor")


if __name__ == "__main__":
    unittest.main()
