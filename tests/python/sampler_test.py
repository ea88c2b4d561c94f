"""Samplers of the script: what an epoch has, in which order, on which worker."""

import unittest

import torch
from torch import nn
from torch.utils import data as torch_data

import cohort
from cohort import _core, _data, _sampler
from networks import Shapes, digest, distance, joined, step, three_batch_norms
from ranks import Rank, Server, die_once, run

SEED = 7
SAMPLES = 26
WEIGHTS = [1.0 + index % 5 for index in range(SAMPLES)]
FLAGS = ("--epochs=3", f"--seed={SEED}")


def weighted(generator=None, weights=tuple(WEIGHTS)):
    return torch_data.WeightedRandomSampler(weights, 30, generator=generator)


def drawn(sampler, epoch):
    """The samples that all workers have to draw."""
    torch.manual_seed(_core.mix_seed(SEED, epoch))
    return list(sampler)


class ByEpoch(torch_data.Sampler):
    """Takes the epoch by `set_epoch`, as a curriculum does."""

    def __init__(self):
        self.epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 6

    def __iter__(self):
        return iter(range(self.epoch, self.epoch + 6))


class Counting(ByEpoch):
    """Counts epochs by itself."""

    set_epoch = None
    epoch = 0

    def __init__(self):
        pass

    def __iter__(self):
        self.epoch += 1
        return super().__iter__()


class Pairs(torch_data.Sampler):
    """Keys that are no numbers."""

    def __init__(self):
        pass

    def __len__(self):
        return 4

    def __iter__(self):
        return iter([(index, index % 2) for index in torch.randperm(4).tolist()])


class Orders(unittest.TestCase):
    def test_draws_depend_on_the_seed_and_the_epoch_alone(self):
        for name, make in (
                ("weighted", weighted),
                ("generator", lambda: weighted(torch.Generator())),
                ("subset", lambda: torch_data.SubsetRandomSampler(range(3, 20))),
                ("random", lambda: torch_data.RandomSampler(range(20))),
                ("pairs", Pairs)):
            with self.subTest(name):
                sampler = make()
                first = _sampler.SampledOrder(sampler, SEED)
                size = len(sampler)
                epochs = [first.indices(epoch, 0, size) for epoch in range(3)]
                self.assertEqual(epochs[1], drawn(make(), 1) if
                                 name != "generator" else epochs[1])
                self.assertNotEqual(epochs[0], epochs[1])
                # Another process, which has drawn something else before.
                torch.rand(5)
                other = _sampler.SampledOrder(make(), SEED)
                self.assertEqual(other.indices(2, 3, 4), epochs[2][3:4])
                self.assertEqual(other.digest(), first.digest())
                self.assertEqual(other.indices(0, 0, size), epochs[0])
                self.assertNotEqual(other.digest(), first.digest())
                self.assertNotEqual(
                    _sampler.SampledOrder(make(), 8).indices(0, 0, size),
                    epochs[0])

    def test_a_sampler_is_given_the_epoch(self):
        order = _sampler.SampledOrder(ByEpoch(), SEED)
        self.assertEqual(order.indices(3, 1, 3), [4, 5])
        self.assertEqual(order.indices(0, 1, 3), [1, 2])

    def test_other_samplers_are_refused(self):
        with self.assertRaisesRegex(cohort.ConfigurationError, "Counting"):
            _sampler.SampledOrder(Counting(), SEED)
        short = ByEpoch()
        order = _sampler.SampledOrder(short, SEED)
        short.__class__ = type("Short", (ByEpoch,), {
            "__iter__": lambda self: iter(range(5))})
        with self.assertRaisesRegex(cohort.UsageError, "5 samples in epoch 1.*__len__"):
            order.indices(1, 0, 1)
        for sampler, pattern in (
                (torch_data.DistributedSampler(range(8), 2, 0),
                 "DistributedSampler, which shards"),
                (iter(range(3)), "with a length"), (3, "with a length")):
            with self.assertRaisesRegex(cohort.UsageError, pattern):
                _sampler.check_sampler(sampler)

    def test_loader_processes_and_repeated_samples(self):
        class Random(torch_data.Dataset):
            def __len__(self):
                return SAMPLES

            def __getitem__(self, index):
                return index, torch.rand(())

        order = _sampler.SampledOrder(weighted(), SEED)

        def read(workers):
            reader = _data.RangeReader(Random(), order, SEED,
                                       {"num_workers": workers})
            return [[part.tolist() for part in reader.read((1, begin, begin + 6))]
                    for begin in range(0, 30, 6)]
        batches = read(0)
        self.assertEqual(read(2), batches)
        indices = [index for numbers, _ in batches for index in numbers]
        self.assertEqual(indices, order.indices(1, 0, 30))
        # With replacement: a sample that comes twice is augmented twice.
        self.assertLess(len(set(indices)), 30)
        self.assertEqual(len({x for _, values in batches for x in values}), 30)


class Indexed(Shapes):
    def __getitem__(self, index):
        return (*super().__getitem__(index), index)


def train(rank, address, marker=None, change=False, **options):
    """By step: the samples; and the model. With a marker, rank 1 dies in its
    fifth step, once."""
    model, job = joined(address, lr=0.05)
    weights = torch.tensor(WEIGHTS)
    options = options or {"sampler": weighted(weights=weights)}
    loader = job.data(Indexed(SAMPLES), batch_size=4, **options)
    steps = {}
    for epoch in job.epochs():
        if change and rank == 1 and epoch == 1:
            options["sampler"].weights[0] = 9
        for x, y, index in loader:
            if job.version == 5:
                die_once(rank, marker)
            steps[job.version] = index.tolist()
            step(model, job, (x, y))
        length = len(loader)
    return steps, digest(model.state_dict()), model.state_dict(), length


def alone(batches):
    """The model of one process in float64, over the same batches."""
    model = three_batch_norms().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = Shapes(SAMPLES)
    for batch in batches:
        x, y = torch_data.default_collate([data[index] for index in batch])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.double()), y).backward()
        optimizer.step()
    return model.state_dict()


class Runs(unittest.TestCase):
    def test_workers_share_what_the_sampler_yields(self):
        (steps, first, state, length), (others, second, *_) = run(
            train, 2, flags=FLAGS)
        self.assertEqual(first, second)
        # 30 samples an epoch, in steps of 8.
        self.assertEqual(length, 4)
        together = [steps[version] + others[version] for version in range(12)]
        orders = [drawn(weighted(), epoch) for epoch in range(3)]
        self.assertEqual(together, [order[begin:begin + 8] for order in orders
                                    for begin in range(0, 30, 8)])
        wanted = alone(together)
        for name, value in state.items():
            if value.is_floating_point():
                self.assertLess(distance(value, wanted[name]), 1e-4, name)

    def test_without_shuffling_the_order_is_that_of_the_data_set(self):
        results = run(in_order, 2, flags=["--epochs=2"])
        self.assertEqual(
            # The last step is one rank's alone.
            [sum((steps.get(version, []) for steps in results), [])
             for version in (0, 7)],
            [list(range(8)), list(range(24, 26))])

    def test_a_replacement_draws_the_same(self):
        with Server(2, *FLAGS) as server:
            wanted = [result[1] for result in server.call(train)]
        with Server(2, *FLAGS, "--lease=2s") as server:
            first, second = server.ranks(train, server.dir / "marker")
            results = [rank.result() for rank in (first, second.replaced())]
            self.assertEqual([result[1] for result in results], wanted,
                             server.log())
        self.assertEqual(min(results[1][0]), 5)

    def test_samplers_that_differ_between_workers_are_named(self):
        with Server(2, *FLAGS) as server:
            # The other one waits for a replacement of it.
            self.assertIn("data set digest", server.ranks(differs)[1].result())
        with Server(2, *FLAGS) as server:
            self.assertTrue(all("sampler=" in text
                                for text in server.call(changes)))

    def test_arguments(self):
        with Server(1) as server:
            self.assertEqual(Rank(arguments, 0, server.address).result(), [
                "UsageError batch_sampler", "UsageError sampler",
                "UsageError sampler"])


def in_order(rank, address):
    return train(rank, address, shuffle=False)[0]


def differs(rank, address):
    try:
        train(rank, address, sampler=weighted(
            weights=[weight + rank * index for index, weight in
                     enumerate(WEIGHTS)]))
    except cohort.CohortError as error:
        return str(error)
    return "no error"


def changes(rank, address):
    try:
        train(rank, address, change=True, sampler=weighted())
    except cohort.CohortError as error:
        return str(error)
    return "no error"


def arguments(rank, address):
    del rank
    model, job = joined(address)
    seen = []
    for data, options in (
            (Shapes(8), {"batch_sampler": [[0, 1]]}),
            (iter([]), {"sampler": range(3)}),
            (Shapes(8), {"sampler": torch_data.DistributedSampler(
                range(8), 2, 0)})):
        try:
            job.data(data, 4, **options)
        except cohort.CohortError as error:
            name = str(error).partition("(")[2].partition("=")[0]
            seen.append(f"{type(error).__name__} {name}")
    job.leave()
    return seen


if __name__ == "__main__":
    unittest.main()
