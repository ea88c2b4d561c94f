"""job.sum and job.gather: their bits, and workers killed in front of them. Losses
made of them are rows of shapes_test.py."""

import unittest

import torch
from torch import nn
from torch.nn import functional as F

from networks import digest, joined
from ranks import Server, die_once, run

STEPS = 4
ROWS = (3, 0, 5)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def batches(rank, rows, steps):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        yield torch.randn(rows, 6, generator=generator)


def numbers(rank, dtype):
    """Some that cancel, and some far apart."""
    wide = dtype in (torch.float64, torch.float32)
    generator = torch.Generator().manual_seed(10 + rank)
    x = torch.randn(7, generator=generator, dtype=torch.float64)
    x *= 10.0 ** (5 * rank if wide else rank)
    great = 1e300 if dtype is torch.float64 else 1e4
    return torch.cat((x, x.new_tensor([great, -great, 1.0, 1e-7]).roll(
        rank))).to(dtype)


TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def take(rank, address):
    """The sums and gathers of one step."""
    model, job = joined(address, network(), lr=0.1, rank=rank)
    for x in job.data(batches(rank, ROWS[rank], 1), batch_size=3):
        found = [job.sum(numbers(rank, dtype)) for dtype in TYPES]
        found += [job.sum(torch.tensor(rank + 1)), job.sum(torch.zeros(0, 3)),
                  job.gather(x), job.gather(torch.full((rank,), -(1 << 50))),
                  job.gather(torch.tensor([[rank == 1]]))]
        job.backward(model(x).sum(), weight=len(x), reduction="sum")
        job.step()
    return found


def train(rank, address, dies, marker):
    """Rank 1 kills itself once, in its second step."""
    model, job = joined(address, network(), lr=0.1, rank=rank, server_timeout=60)
    step = 0

    def reach(place):
        if place == dies and step == 1:
            die_once(rank, marker)

    class Reached(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            reach("within the pass")
            return gradient

    def data():
        while True:
            yield torch.randn(3 + rank, 6, generator=torch.Generator().manual_seed(
                100 * rank + job.version))
    for x in job.data(data(), batch_size=3 + rank):
        step = job.version
        reach("before")
        z = Reached.apply(model(x))
        mean = job.sum(z.sum(0)) / job.sum(torch.tensor(len(x)))
        reach("between")
        every = job.gather(F.normalize(z - mean, dim=1))
        reach("after")
        loss = (every @ every.T).square().mean()
        job.backward([(loss, len(x)), (z.square().mean(), 1 + rank)])
        reach("after the pass")
        job.step()
    return digest(model.state_dict())


def train_pairs(rank, address):
    model, job = joined(address, network(), lr=0.1, rank=rank)
    for x in job.data(batches(rank, 2 + rank, 1), batch_size=2):
        a = model(x)[:, 0].square()
        b = model(x)[:1, 1].exp()
        job.backward([(a.mean(), len(x)), (b.mean(), 10)])
        job.step()


def meet_some(rank, address):
    """How many members each applied step has had, by two sums of it, and whether
    own rows were found among all."""
    model, job = joined(address, network(), lr=0.1, rank=rank)
    found = []
    for x in job.data(batches(rank, 3, 10 ** 9), batch_size=3):
        first = job.sum(torch.tensor(1))
        z = model(x)
        every = job.gather(z)
        # As in LIMITS.md; a lower rank may have no part in the step.
        rows = job.gather(torch.tensor([[job.rank, len(x)]]))
        own = int(rows[rows[:, 0] < job.rank, 1].sum())
        same = torch.equal(every[own:own + len(x)], z)
        job.backward(z.square().mean())
        if job.step().verdict == "applied":
            found.append((int(first), len(every) // 3, same))
    return found


def train_on(rank, address):
    """Rank 1 leaves in its second step, between two gathers."""
    model, job = joined(address, network(), lr=0.1, rank=rank)
    found = []
    for x in job.data(batches(rank, 3 + 2 * rank, 10 ** 9), batch_size=3):
        rows = len(job.gather(x))
        if rank == 1 and job.version == 1:
            job.leave()
            return found
        z = model(x)
        every = job.gather(z)
        count = int(job.sum(torch.tensor(1)))
        if count == 1:
            # Own rows, whose derivatives are right, too.
            found.append(torch.equal(every, z[torch.arange(rows) % 3]))
        job.backward([(every.square().mean(), len(x)), (z.mean(), 1)])
        found.append((job.step().verdict, rows, len(every), count))
    return found


class Sums(unittest.TestCase):
    def test_bits(self):
        by_rank = run(take, 3, flags=["--max_steps=1"])
        wanted = []
        for dtype in TYPES:
            total = torch.zeros(11, dtype=torch.float64)
            for rank in range(3):
                total = total + numbers(rank, dtype).double()
            wanted.append(total.to(dtype))
        wanted += [
            torch.tensor(6), torch.zeros(0, 3),
            torch.cat([next(batches(rank, ROWS[rank], 1)) for rank in range(3)]),
            torch.full((3,), -(1 << 50)), torch.tensor([[False], [True], [False]])]
        for found in by_rank:
            self.assertEqual(len(found), len(wanted))
            for ours, theirs in zip(found, wanted):
                self.assertEqual(ours.dtype, theirs.dtype)
                self.assertTrue(torch.equal(ours, theirs), (ours, theirs))

    def test_killed_workers_leave_no_trace(self):
        digests = set()
        for dies in ("", "before", "between", "after", "within the pass",
                     "after the pass"):
            with self.subTest(dies=dies), Server(
                    2, f"--max_steps={STEPS}", "--lease=2s") as server:
                ranks = server.ranks(train, dies, server.dir / "marker")
                if dies:
                    ranks[1] = ranks[1].replaced()
                for rank in ranks:
                    digests.add(rank.result())
        self.assertEqual(len(digests), 1)

    def test_a_void_step_has_own_values(self):
        with Server(2, "--max_steps=3", "--on_worker_loss=continue") as server:
            found = server.call(train_on)[0]
        self.assertEqual(found, [
            ("applied", 8, 8, 2), True, ("void", 8, 8, 1), True,
            ("applied", 3, 3, 1), True, ("applied", 3, 3, 1)])

    def test_the_loss_is_that_of_one_process(self):
        with Server(2, "--max_steps=1") as server:
            server.call(train_pairs)
            server.complete()
            reported = float(server.rows()[-1]["train_loss"])
        model = network()
        parts = [next(batches(rank, 2 + rank, 1)) for rank in range(2)]
        a = torch.cat([model(x)[:, 0].square() for x in parts]).mean()
        b = torch.cat([model(x)[:1, 1].exp() for x in parts]).mean()
        self.assertAlmostEqual(reported, float(a + b), places=5)

    def test_only_members_are_summed(self):
        """The step's two fastest of three."""
        with Server(3, "--max_steps=20", "--min_pushes=2") as server:
            for found in server.call(meet_some):
                self.assertEqual(set(found) - {(2, 2, True)}, set())


if __name__ == "__main__":
    unittest.main()
