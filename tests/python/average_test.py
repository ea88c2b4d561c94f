"""Moving averages of weights and statistics (--ema_decay), against float64."""

import unittest

from torch import nn

from networks import Shapes, distance, joined, step
from ranks import Rank, Server

DECAY = 0.9


def train(rank, address):
    """(averages by the script, the run's in the middle, the run's at the end,
    the last weights)"""
    model, job = joined(address, lr=0.05, rank=rank)
    job.evaluate_with(Shapes(32), nn.CrossEntropyLoss())
    averages, middle = None, None
    for x, y in job.data(Shapes(64), batch_size=4):
        if averages is None:
            averages = {name: value.double()
                        for name, value in job_state(model).items()}
        job.backward(nn.functional.cross_entropy(model(x), y))
        version = job.step().version
        now = job.state_dict()
        decay = min(DECAY, version / (9 + version))
        for name, value in averages.items():
            value.mul_(decay).add_(now[name].double(), alpha=1 - decay)
        if version == 7:
            middle = distances(averages, job.state_dict(averaged=True))
    return (middle, distances(averages, job.state_dict(averaged=True)),
            distances(averages, job_state(model)),
            {name: value for name, value in
             job.state_dict(averaged=True).items()})


def job_state(model):
    return {name: value for name, value in model.state_dict().items()
            if not name.endswith("num_batches_tracked")}


def distances(wanted, seen):
    return max(distance(seen[name], value) for name, value in wanted.items())


class Average(unittest.TestCase):
    def test_it_is_the_scripts_own_and_scored_and_exported(self):
        with Server(2, "--epochs=3", f"--ema_decay={DECAY}") as server:
            for middle, end, plain, averages in server.call(train):
                self.assertLess(middle, 1e-6)
                self.assertLess(end, 1e-6)
                # The model itself has the last weights.
                self.assertGreater(plain, 1e-3)
            server.complete()
            scored = [row["epoch"] for row in server.rows()
                      if row["bn_statistics"] == "average"]
            self.assertEqual(scored, ["1", "2", "3"])
            exported = (server.results / "model_average.safetensors").read_bytes()
            self.assertIn(averages["0.weight"].numpy().tobytes(), exported)

    def test_a_run_without_it_says_how_to_get_it(self):
        with Server(1, "--max_steps=1") as server:
            with self.assertRaisesRegex(AssertionError, "--ema_decay=0.999"):
                Rank(train_one, 0, server.address).result()


def train_one(rank, address):
    model, job = joined(address, lr=0.05, rank=rank)
    for batch in job.data(Shapes(64), batch_size=4):
        step(model, job, batch)
    job.state_dict(averaged=True)


if __name__ == "__main__":
    unittest.main()
