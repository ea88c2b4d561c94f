"""Scripts whose share of a step is not their batch size."""

import itertools
import time
import unittest

import torch
from torch import nn

import cohort
from networks import (
    Shapes, distance, joined, samples_of_steps, step, three_batch_norms)
from ranks import Server, run

SAMPLES = 90
SEED = 7
STEPS = 12
BATCH = 8


def train(rank, address, accumulate):
    """The weights, and the samples of each part."""
    model, job = joined(address, momentum=0.9)
    sizes = []
    for batch in job.data(Shapes(SAMPLES), batch_size=BATCH,
                          batch_size_max=2 * BATCH, accumulate=accumulate):
        sizes.append(len(batch[0]))
        step(model, job, batch)
    del rank
    return model.state_dict(), sizes


def reference(parts):
    """One float64 process, with the batches of both workers. Of two parts, one has
    the samples with even numbers in the epoch."""
    model = three_batch_norms().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = Shapes(SAMPLES)
    for indices in itertools.islice(
            samples_of_steps(SEED, SAMPLES, 2 * BATCH), STEPS):
        optimizer.zero_grad()
        for part in range(parts):
            x, y = torch.utils.data.default_collate(
                [data[i] for i in indices[part::parts]])
            (nn.functional.cross_entropy(model(x.double()), y) *
             len(x) / len(indices)).backward()
        optimizer.step()
    return model.state_dict()


class Slow(Shapes):
    """Whose samples take longer to read."""

    def __init__(self, seconds):
        super().__init__(SAMPLES)
        self.seconds = seconds

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return super().__getitem__(index)


def train_slowly(rank, address):
    model, job = joined(address)
    data = job.data(Slow(0.004 if rank == 0 else 0.012), batch_size=BATCH,
                    batch_size_max=2 * BATCH, name="slow")
    for batch in data:
        step(model, job, batch)
    return job.version


class Shares(unittest.TestCase):
    def test_one_to_three_is_one_process_with_the_joined_batch(self):
        # An epoch is five steps of 16 and one of 10, which 1:3 divides as 2.5
        # and 7.5, from the samples 80 and 83 on.
        sizes = {1: [[4, 4, 4, 4, 4, 3] * 2, [12, 12, 12, 12, 12, 7] * 2],
                 2: [([2, 2] * 5 + [2, 1]) * 2, ([6, 6] * 5 + [3, 4]) * 2]}
        for parts in (1, 2):
            with self.subTest(parts=parts):
                results = run(train, 2, parts, flags=[
                    f"--seed={SEED}", "--epochs=1000", f"--max_steps={STEPS}",
                    "--shares=1,3"])
                self.assertEqual([seen for _, seen in results], sizes[parts])
                wanted = reference(parts)
                for state, _ in results:
                    for name, value in state.items():
                        if not name.endswith("num_batches_tracked"):
                            self.assertLess(distance(value, wanted[name]), 1e-4, name)

    def test_auto_gives_a_slow_worker_less(self):
        """And the samples of a step stay 16."""
        with Server(2, "--epochs=100000", "--shares=auto",
                    "--lease=600ms") as server:
            ranks = server.ranks(train_slowly)
            def shares():
                return [change["settings"]["shares"] for change in
                        server.json("policy", "history")["changes"]
                        if ":" in change["settings"].get("shares", "")]
            server.wait_until(shares, "a change of shares")
            last = shares()[-1]
            server.ctl("run", "drain")
            for rank in ranks:
                rank.result()
        fast, slow = map(int, last.removeprefix("auto:").split(","))
        self.assertEqual(fast + slow, 2 * BATCH)
        self.assertGreater(fast, slow)

    def test_what_cannot_be_is_refused(self):
        _, job = joined("127.0.0.1:1")
        for data, sizes in ((Shapes(8), {"batch_size": 4, "batch_size_max": 3}),
                            (iter([]), {"batch_size_max": 8})):
            with self.assertRaisesRegex(cohort.UsageError, "batch_size_max"):
                job.data(data, **sizes)


if __name__ == "__main__":
    unittest.main()
