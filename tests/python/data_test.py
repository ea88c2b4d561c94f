"""Batches: their order, their randomness, loader processes, own data."""

import array
import collections
import os
import random
import subprocess
import sys
import time
import unittest

import torch
from torch import nn

import cohort
from cohort import _batches, _evaluation, _data
from networks import Shapes, joined, step
from ranks import Rank, Server, run


class Numbers(torch.utils.data.Dataset):
    """The sample's number and a random one."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index, torch.rand(())


def begun(batches):
    """Batches of the worker's own, the first of them in progress."""
    own = _data.OwnBatches(batches, loop=False)
    own.next()
    return own


class Scores(unittest.TestCase):
    """By a criterion, over batches of several sizes: that of all samples at once."""

    def score(self, criterion, samples, collate=torch.utils.data.default_collate,
              model=lambda x: x):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(()))

            def forward(self, x):
                return model(x)
        sums = _evaluation.Evaluator(
            samples, _evaluation.by_criterion(criterion, getattr(
                criterion, "ignore_index", -100)), collate, 3).score(
                    Model(), range(len(samples)))
        return sums.loss_sum / sums.loss_weight

    def test_class_weights_and_ignored_labels_count_as_in_the_loss(self):
        torch.manual_seed(5)
        logits, labels = torch.randn(8, 3), torch.tensor([0, 1, 2, 0, 1, 1, 0, 2])
        for criterion in (
                nn.CrossEntropyLoss(), nn.CrossEntropyLoss(ignore_index=1),
                nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0])),
                nn.NLLLoss(weight=torch.tensor([0.2, 1.0, 3.0]), ignore_index=0),
                nn.functional.cross_entropy):
            self.assertAlmostEqual(
                self.score(criterion, list(zip(logits, labels))),
                float(criterion(logits, labels)), 5)

    def test_samples_are_those_that_were_read(self):
        x, y = torch.randn(8, 2), torch.randn(8, 2)
        wanted = float(nn.functional.mse_loss(x, y))
        for name, samples, model, collate in (
                ("pairs", [((a, a), b) for a, b in zip(x, y)], lambda x: x[0],
                 torch.utils.data.default_collate),
                ("named", [({"a": a, "b": a, "c": a}, b) for a, b in zip(x, y)],
                 lambda x: x["b"], torch.utils.data.default_collate),
                ("time first", list(zip(x, y)), lambda x: x,
                 lambda items: tuple(torch.stack(field, 1)
                                     for field in zip(*items)))):
            with self.subTest(name):
                self.assertAlmostEqual(
                    self.score(nn.MSELoss(), samples, collate, model), wanted, 5)

    def test_what_is_no_mean_or_no_class_is_refused(self):
        with self.assertRaisesRegex(cohort.ConfigurationError, "reduction='sum'"):
            self.score(nn.MSELoss(reduction="sum"), [])

        def dice(logits, labels):
            hits = (logits.sigmoid() * labels).sum()
            return 1 - 2 * hits / (logits.sigmoid() + labels).sum()

        def balanced(logits, labels):
            return nn.functional.cross_entropy(
                logits, labels, weight=torch.tensor([0.2, 1.0, 3.0]))
        torch.manual_seed(5)
        labels = torch.tensor([0, 1, 2, 0, 1, 1, 0, 2])
        for criterion, wanted in (
                (dice, torch.rand(8, 2)), (balanced, labels),
                (lambda x, y: (x - y).square().mean().sqrt(), torch.rand(8, 2)),
                (lambda x, y: (x - y).square().sum(), torch.rand(8, 2))):
            with self.assertRaisesRegex(cohort.UsageError, "cohort.Evaluation"):
                self.score(criterion, list(zip(
                    torch.randn(8, 3)[:, :3 if wanted is labels else 2], wanted)))

        def ignoring(logits, labels):
            return nn.functional.cross_entropy(logits, labels, ignore_index=255)
        with self.assertRaisesRegex(cohort.UsageError, "255, want below 3.*ignore_"):
            self.score(ignoring, [(torch.zeros(3), torch.tensor(label))
                                  for label in (0, 255)])

    def test_a_function_whose_sums_do_not_add_up_is_refused(self):
        model = nn.Linear(3, 3)
        samples = list(zip(torch.randn(64, 3), torch.randn(64, 3)))

        def scored(sums, samples=samples):
            evaluator = _evaluation.Evaluator(
                samples, lambda model, batch, count: cohort.Evaluation(
                    *sums(float((model(batch[0]) - batch[1]).square().mean()), count)),
                torch.utils.data.default_collate, 32)
            with torch.no_grad():
                evaluator.score(model, range(len(samples)))
        scored(lambda mse, count: (mse * count, count))
        # Each score of random numbers is another one.
        scored(lambda mse, count: (mse * count * float(torch.rand(())), count))
        for name, sums in (("loss_sum", lambda mse, count: (mse ** 0.5 * count, count)),
                           ("loss_weight", lambda mse, count: (0.0, 1.0)),
                           ("labels", lambda mse, count: (0.0, count, 50, 100))):
            with self.assertRaisesRegex(cohort.UsageError, f"{name}=.* 8 samples.*sums"):
                scored(sums)

    def test_a_function_of_other_arguments_is_known_before_the_run(self):
        model = nn.Linear(3, 3)
        samples = [(torch.randn(3), torch.tensor(1))]
        with self.assertRaises(TypeError) as caught:
            _evaluation.Evaluator(
                samples, lambda model, batch, _: nn.functional.cross_entropy(
                    model, batch), torch.utils.data.default_collate, 3).check(model)
        self.assertIn("cohort.Evaluation", caught.exception.__notes__[0])
        self.assertTrue(model.training)


class Parts(unittest.TestCase):
    def test_samples_in_a_batch(self):
        self.assertEqual(_batches.samples_in(torch.zeros(3, 2)), 3)
        self.assertEqual(_batches.samples_in((torch.zeros(4), torch.zeros(9))), 4)
        self.assertEqual(_batches.samples_in({"x": torch.zeros(5)}), 5)
        # A list of images of different sizes.
        self.assertEqual(_batches.samples_in([[torch.zeros(1, 2), torch.zeros(3)],
                                              ["a", "b"]]), 2)
        self.assertIsNone(_batches.samples_in("text"))

    def test_split_keeps_samples_together(self):
        batch = (torch.arange(5), {"name": list("abcde")})
        parts = [_batches.split(batch, part, 2) for part in range(2)]
        self.assertEqual([part[0].tolist() for part in parts],
                         [[0, 1], [2, 3, 4]])
        self.assertEqual([part[1]["name"] for part in parts],
                         [["a", "b"], ["c", "d", "e"]])
        # By the numbers of the samples, 3 to 7: the even ones, and the odd ones.
        parts = [_batches.split(batch, part, 2, first=3) for part in range(2)]
        self.assertEqual([part[0].tolist() for part in parts],
                         [[1, 3], [0, 2, 4]])
        self.assertEqual([part[1]["name"] for part in parts],
                         [["b", "d"], ["a", "c", "e"]])
        with self.assertRaisesRegex(cohort.UsageError, "cannot split a batch"):
            _batches.split("text", 0, 2)

    def test_as_many_fields_as_samples_are_fields(self):
        images = [torch.zeros(3, 4, 5), torch.zeros(3, 6, 5)]
        first, second = (_batches.split((images, [1, 2]), part, 2, 2)
                         for part in range(2))
        self.assertEqual((first[1], second[1]), ([1], [2]))
        self.assertIs(second[0][0], images[1])
        samples = [(images[0], 1), (images[1], 2)]
        self.assertEqual(_batches.split(samples, 1, 2, 2), samples[1:])

    def test_mappings_stay_what_they_are(self):
        batch = collections.UserDict(x=torch.arange(4))
        part = _batches.split(batch, 1, 2, 4)
        self.assertIsInstance(part, collections.UserDict)
        self.assertEqual(part["x"].tolist(), [2, 3])

    def test_split_cuts_lists_of_samples(self):
        images = [torch.zeros(3, size, 5) for size in (4, 5, 6, 7)]
        targets = [{"boxes": torch.zeros(count, 4)} for count in (1, 0, 3, 4)]
        first, second = (_batches.split((images, targets), part, 2)
                         for part in range(2))
        self.assertEqual([len(part) for part in first], [2, 2])
        self.assertIs(second[0][1], images[3])
        self.assertIs(second[1][0], targets[2])
        # Two images with two boxes each.
        targets = ({"boxes": torch.zeros(2, 4)}, {"boxes": torch.ones(2, 4)})
        _, second = _batches.split((images[:2], targets), 1, 2, 2)
        self.assertIs(second[0], targets[1])

    def test_split_refuses_what_it_would_tear_apart(self):
        for batch, pattern in (
                ((torch.zeros(4, 3), torch.zeros(7, 6)), r"\(7, 6\)"),
                ({"x": torch.zeros(4), "ids": array.array("q", [1, 2])}, "array"),
                # Three images of three channels, or three fields.
                ((torch.zeros(3), [torch.zeros(3, 8)] * 3), "a list of 3")):
            with self.assertRaisesRegex(cohort.UsageError, pattern):
                _batches.split(batch, 0, 2)

    def test_numbered_samples_are_known(self):
        for lengths, wanted in (((4,), 4), ((6, 4), 4), ((8, 8), 4)):
            batch = [torch.zeros(length, 7) for length in lengths]
            self.assertEqual(_batches.counted_samples(batch, 4), (wanted, ""))
        # A collate_fn has left one out; time and samples; points of clouds.
        self.assertEqual(_batches.counted_samples(
            (torch.zeros(3, 7), torch.zeros(3)), 4), (3, ""))
        self.assertEqual(_batches.counted_samples(
            (torch.zeros(6, 4), torch.zeros(6, 4)), 4), (4, ""))
        points, doubt = _batches.counted_samples(torch.zeros(9, 3), 4)
        self.assertEqual(points, 9)
        self.assertRegex(doubt, "made of 4 samples.*lengths 9; pass weight=")

    def test_boxes_are_no_samples(self):
        """Images, and the boxes of all of them: in a last, shorter batch their
        number may be the batch size by chance."""
        batches = [(torch.zeros(images, 3), torch.zeros(boxes, 6))
                   for images, boxes in ((4, 9), (4, 0), (3, 4))]
        own = _data.OwnBatches(batches, loop=False)
        for images, _ in batches:
            own.next()
            self.assertEqual(own.samples(4), (len(images), ""))
            own.counted()
        self.assertRegex(begun(batches[2:]).samples(4)[1],
                         "lengths 3, 4.*batch_size=4.*weight=")
        self.assertRegex(begun(batches[2:]).samples(None)[1], "batch_size=")
        # The declared number is about that of a batch.
        self.assertTrue(begun(batches).samples(5)[1])
        self.assertEqual(begun([torch.zeros(3, 2)]).samples(5), (3, ""))

    def test_ways_to_count(self):
        """With the declared number for a whole batch, the number read for a
        numbered one; None: it is in doubt."""
        x, y = torch.zeros(5, 3, 8, 8), torch.zeros(5)
        images = [torch.zeros(3, 8 + size, 8) for size in range(5)]
        boxes = [{"boxes": torch.zeros(1 + size, 4)} for size in range(5)]
        packed = torch.nn.utils.rnn.pack_sequence(
            [torch.zeros(size) for size in (4, 3, 2, 2, 1)])
        for name, batch, read, own in (
                ("crops", ([x, x], y), 5, 5), ("named crops",
                                               {"c": (x, x), "y": y}, 5, 5),
                ("samples", [(image, 1) for image in images], 5, 5),
                ("dictionaries", [{"x": image} for image in images], 5, 5),
                ("views as records", [{"x": x, "y": y}] * 2, 5, 5),
                ("pairs of records", [(x, [1] * 5)] * 2, 5, 5),
                ("numbers first", ([6, 6], x, y), 5, 5),
                ("lists", (images, boxes), 5, 5), ("packed", (packed, y), 5, 5),
                ("text", ("a", x, y), 5, 5), ("images", [x[0]] * 5, None, 5),
                ("views together", (torch.zeros(10, 3), y), 5, None),
                ("time first", (torch.zeros(7, 5, 2), torch.zeros(7, 5)), 5, 5),
                ("time and tokens", (torch.zeros(7, 5), torch.zeros(35)), None, None),
                ("tokens", (torch.zeros(13, 2), torch.zeros(13)), None, 13)):
            with self.subTest(name):
                count, doubt = _batches.counted_samples(batch, 5)
                self.assertEqual(None if doubt else count, read)
                count, doubt = _batches.OwnCounter().count(batch, 5)
                self.assertEqual(None if doubt else count, own)

    def test_a_shorter_batch_is_counted_as_whole_ones_were(self):
        def batch(samples):
            return [{"x": torch.zeros(samples, 3)}, {"y": torch.zeros(samples)}]
        counter = _batches.OwnCounter()
        self.assertEqual(counter.count(batch(5), 5), (5, ""))
        self.assertEqual(counter.count(batch(4), 5), (4, ""))
        # Labelled samples, and others.
        apart = (torch.zeros(5, 3), [1] * 5), (torch.zeros(9, 3), [1] * 9)
        self.assertTrue(_batches.OwnCounter().count(apart, 5)[1])
        self.assertTrue(_batches.counted_samples(apart, 14)[1])
        self.assertIsNone(_batches.samples_in(apart))
        # Two records, or four samples in each.
        self.assertTrue(_batches.OwnCounter().count(batch(4), 5)[1])
        self.assertIsNone(_batches.samples_in(batch(4)))

    def test_what_may_have_been_left_out_and_may_have_time_first_is_in_doubt(self):
        short = torch.zeros(3, 5)
        self.assertTrue(_batches.counted_samples((short, short), 5)[1])
        self.assertEqual(_batches.counted_samples((short, short[:2]), 5), (5, ""))

    def test_an_epoch_is_a_permutation(self):
        order = _data.Order(seed=3, size=50)
        first = order.indices(0, 0, 50)
        self.assertEqual(sorted(first), list(range(50)))
        self.assertNotEqual(first, order.indices(1, 0, 50))
        self.assertEqual(first[10:20], order.indices(0, 10, 20))

    def test_digests_differ_with_length_and_content(self):
        wanted = _data.digest_of(Shapes(40), 1)
        self.assertEqual(_data.digest_of(Shapes(40), 1), wanted)
        self.assertEqual(_data.digest_of(Shapes(40, noise=0), 1), wanted)
        self.assertNotEqual(_data.digest_of(Shapes(41), 1), wanted)
        self.assertNotEqual(_data.digest_of(Shapes(40, noise=1), 1), wanted)

    def test_digests_of_samples_with_random_numbers_of_their_own(self):
        def digest(size, seed, length=4, kind=float):
            return _data.digest_of(Unseeded(size, seed, length, kind), 1)
        wanted = digest(8, 1)
        self.assertEqual(digest(8, 2), wanted)
        self.assertNotEqual(digest(9, 1), wanted)
        self.assertNotEqual(digest(8, 1, length=5), wanted)
        self.assertNotEqual(digest(8, 1, kind=int), wanted)
        # Lengths that change from reading to reading are not compared.
        self.assertEqual(digest(8, 1, length=None), digest(8, 2, length=None))

    def test_digests_do_not_depend_on_the_process(self):
        """Addresses of objects, and the order of sets."""
        code = ("import data_test, cohort._data as d; "
                "print(d.digest_of(data_test.Objects(), 1))")
        digests = {subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True,
            text=True, env={**os.environ, "PYTHONHASHSEED": str(seed)}).stdout
            for seed in range(3)}
        self.assertEqual(len(digests), 1, digests)

    def test_loader_processes_change_nothing(self):
        order = _data.Order(seed=3, size=40)
        ranges = [(0, begin, begin + 4) for begin in range(2, 38, 8)]
        # A range that was not forecast, a repetition, and the next epoch.
        ranges += [(0, 0, 4), (0, 0, 4), (1, 2, 6), (1, 10, 14)]
        def read(workers):
            reader = _data.RangeReader(Numbers(40), order, 9,
                                       {"num_workers": workers})
            return [[part.tolist() for part in reader.read(where)]
                    for where in ranges]
        plain = read(0)
        self.assertEqual(read(2), plain)
        self.assertEqual(plain[5], plain[6])
        indices = [index for numbers, _ in plain[:5] for index in numbers]
        self.assertEqual(indices, [i for _, b, e in ranges[:5]
                                   for i in order.indices(0, b, e)])

    def test_a_collate_function_that_leaves_out_all_samples_has_a_hint(self):
        reader = _data.RangeReader([None] * 4, _data.Order(1, 4), 5, {
            "collate_fn": lambda items: torch.utils.data.default_collate(
                [item for item in items if item is not None])})
        with self.assertRaises(IndexError) as caught:
            reader.read((0, 0, 2))
        self.assertIn("weight=len(x)", caught.exception.__notes__[0])

    def test_batches_of_tensors_are_those_of_their_samples(self):
        order = _data.Order(seed=3, size=12)
        tensors = (torch.randn(12, 2, 3), torch.arange(12), torch.randn(12) > 0)
        for dataset in (torch.utils.data.TensorDataset(*tensors),
                        torch.utils.data.TensorDataset(
                            tensors[0].transpose(1, 2), *tensors[1:])):
            def read(**options):
                reader = _data.RangeReader(dataset, order, 9, options)
                return reader.read((1, 3, 8))
            at_once = read()
            one_by_one = read(
                collate_fn=lambda items: torch.utils.data.default_collate(items))
            self.assertIs(type(at_once), type(one_by_one))
            for whole, stacked in zip(at_once, one_by_one, strict=True):
                self.assertEqual((whole.dtype, whole.stride()),
                                 (stacked.dtype, stacked.stride()))
                self.assertTrue(torch.equal(whole, stacked))

    def test_a_data_set_that_may_draw_numbers_has_a_seed_a_sample(self):
        class Noisy(torch.utils.data.TensorDataset):
            def __getitem__(self, index):
                return super().__getitem__(index)[0] + torch.rand(())
        dataset = Noisy(torch.zeros(12))
        order = _data.Order(seed=3, size=12)
        reader = _data.RangeReader(dataset, order, 9, {})
        first, again = reader.read((0, 0, 6)), reader.read((0, 2, 4))
        self.assertEqual(first[2:4].tolist(), again.tolist())
        self.assertEqual(len(set(first.tolist())), 6)

    def test_own_batches_are_kept_until_they_count(self):
        own = _data.OwnBatches(range(4), loop=False)
        for length in 1, 2, 2:
            own.rewind()
            self.assertEqual([own.next() for _ in range(length)],
                             list(range(length)))
        own.counted()
        self.assertEqual([own.next(), own.next()], [2, 3])
        own.counted()
        with self.assertRaises(StopIteration):
            own.next()

    def test_the_digest_of_a_batch_depends_on_its_content(self):
        x, y = torch.randn(4, 3, 8, 8), torch.arange(4)
        wanted = _data.digest_of_batch((x, y))
        self.assertEqual(_data.digest_of_batch([x.clone(), {"y": y}]), wanted)
        self.assertTrue(0 < wanted < 1 << 64)
        for other in ((x, y.flip(0)), (x[:3], y), (x + 1e-6, y), x):
            self.assertNotEqual(_data.digest_of_batch(other), wanted)
        # A large one, by its beginning; and one that is not contiguous.
        large = torch.zeros(1 << 20)
        digest = _data.digest_of_batch(large)
        large[-1] = 1
        self.assertEqual(_data.digest_of_batch(large), digest)
        large[0] = 1
        self.assertNotEqual(_data.digest_of_batch(large), digest)
        turned = torch.randn(512, 8, 64).permute(0, 2, 1)
        digest = _data.digest_of_batch(turned)
        self.assertEqual(_data.digest_of_batch(turned.contiguous()), digest)
        self.assertNotEqual(_data.digest_of_batch(turned.flip(0)), digest)
        for without in ("text", [], torch.zeros(0), None):
            self.assertEqual(_data.digest_of_batch(without), 0)

    def test_few_steps_have_a_digest(self):
        own = _data.OwnBatches((torch.full((2,), i) for i in range(80)), False)
        self.assertEqual(own.digest(0), 0)
        steps = []
        for version in range(70):
            own.next()
            if own.digest(version):
                steps.append(version)
            own.counted()
        self.assertEqual(steps, [0, 1, 2, 16, 32, 48, 64])
        # A replacement compares its first ones, and then with the others.
        own = _data.OwnBatches((torch.full((2,), i) for i in range(80)), False)
        steps = []
        for version in range(100, 140):
            own.next()
            if own.digest(version):
                steps.append(version)
            own.counted()
        self.assertEqual(steps, [100, 101, 102, 112, 116, 128, 132])

    def test_own_batches_start_over(self):
        looping = _data.OwnBatches([5], loop=True)
        for _ in range(3):
            self.assertEqual(looping.next(), 5)
            looping.counted()


class Unseeded:
    """Random numbers that no seed reaches."""

    def __init__(self, size, seed, length, kind):
        self._size, self._length, self._kind = size, length, kind
        self._random = random.Random(seed)

    def __len__(self):
        return self._size

    def __getitem__(self, index):
        length = self._length or self._random.randrange(100)
        return {"x": torch.full((length,), self._random.random()),
                "y": [self._random.random() for _ in range(length)],
                "z": self._kind(self._random.random())}


class Objects:
    """Samples that are no numbers."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return object(), {"one", "two", "three", "four"}, index


def shuffled(rank, address, by_rank):
    """Trains on a shuffled loader that it makes."""
    model, job = joined(address)
    torch.manual_seed(3 + (rank if by_rank else 0))
    loader = torch.utils.data.DataLoader(Shapes(64), batch_size=4, shuffle=True)
    for batch in job.data(loader, batch_size=4):
        step(model, job, batch)


def seen(rank, address, accumulate, by_epoch):
    """The samples of each batch, and the epochs they came in."""
    model, job = joined(address)

    class Indexed(Shapes):
        def __getitem__(self, index):
            return (*super().__getitem__(index), index)

    data = job.data(Indexed(24), batch_size=4, accumulate=accumulate)
    batches = []

    def train(epoch):
        for x, y, index in data:
            batches.append((epoch, job.epoch, index.tolist()))
            step(model, job, (x, y))

    if by_epoch:
        for epoch in job.epochs():
            train(epoch)
    else:
        train(None)
    return rank, batches


def until_its_data_ends(rank, address, batches):
    model, job = joined(address)
    generator = torch.Generator().manual_seed(rank)
    source = ((torch.randn(3, 1, 12, 12, generator=generator),
               torch.randint(0, 4, (3,), generator=generator))
              for _ in range(batches[rank]))
    steps = 0
    for batch in job.data(source, batch_size=3):
        steps += step(model, job, batch).verdict == "applied"
    return steps, job.finished


def void_at_the_end(rank, address, marker):
    """Rank 0 has one batch, and ends in the second step of the other; the reason
    of that step."""
    model, job = joined(address)

    def source():
        x, y = torch.full((3, 1, 12, 12), float(rank)), torch.zeros(3).long()
        yield x, y
        while rank == 0 and not marker.exists():
            time.sleep(0.01)
        if rank == 1:
            yield x, y

    result = None
    for x, y in job.data(source(), batch_size=3):
        if job.version == 1:
            model.register_forward_pre_hook(lambda *_: marker.touch())
        job.backward(nn.functional.cross_entropy(model(x), y))
        result = job.step()
    return result.verdict, result.reason


def reads(rank, address):
    """How often each sample is read in an epoch."""
    del rank

    class Counted(Shapes):
        seen = [0] * 16

        def __getitem__(self, index):
            self.seen[index] += 1
            return super().__getitem__(index)

    model, job = joined(address)
    for batch in job.data(Counted(16), batch_size=4):
        step(model, job, batch)
    return Counted.seen


class Jobs(unittest.TestCase):
    def test_joining_reads_four_samples_three_times(self):
        seen, = run(reads, 1, flags=["--epochs=1"])
        self.assertEqual([index for index, count in enumerate(seen) if count > 1],
                         [0, 5, 10, 15])
        self.assertEqual(sum(seen), 16 + 3 * 4)

    def test_two_workers_share_each_epoch(self):
        results = run(seen, 2, 1, True, flags=["--epochs=2"])
        for epoch in range(2):
            samples = [index for _, batches in results
                       for asked, at, indices in batches if at == epoch
                       for index in indices]
            self.assertEqual(sorted(samples), list(range(24)))
        for _, batches in results:
            self.assertTrue(all(asked == at for asked, at, _ in batches))

    def cut(self, whole, step, parts):
        """The samples of `whole` in steps of several parts."""
        order = [index for _, _, batch in whole for index in batch]
        return [order[begin + part:begin + step:parts]
                for begin in range(0, len(order), step) for part in range(parts)]

    def test_a_step_larger_than_the_batch_comes_in_parts(self):
        (_, whole), = run(seen, 1, 1, False, flags=["--epochs=1"])
        for accumulate, size in ((1, 4), (2, 2)):
            (_, parts), = run(seen, 1, accumulate, False,
                              flags=["--epochs=1", "--global_batch=12"])
            self.assertEqual([batch for _, _, batch in parts],
                             self.cut(whole, 12, 12 // size))

    def test_parts_of_a_step(self):
        (_, whole), = run(seen, 1, 1, False, flags=["--epochs=1"])
        (_, parts), = run(seen, 1, 2, False, flags=["--epochs=1"])
        self.assertEqual([batch for _, _, batch in parts], self.cut(whole, 4, 2))

    def test_the_end_of_own_data_ends_the_run(self):
        with Server(2, "--max_steps=1000") as server:
            results = server.call(until_its_data_ends, [7, 1000])
            self.assertEqual(results, [(7, True), (7, True)], server.log())
            self.assertIn("the data of worker 0 has ended", server.log())

    def test_a_step_that_the_end_of_data_makes_void_says_so(self):
        with Server(2, "--max_steps=1000") as server:
            first, (verdict, reason) = server.call(void_at_the_end, server.dir / "marker")
            self.assertEqual(first, ("applied", ""))
            self.assertEqual(verdict, "void")
            # The other text is of a step that is void when it begins.
            self.assertRegex(reason, "rank 0 has left: its data has ended|is over")
            self.assertRegex(server.log(), "rank 0 has left.*its data has ended")

    SAME = "ranks 0 and 1 train the same batches"

    def test_ranks_that_train_the_same_batches_are_named(self):
        for by_rank in (False, True):
            with Server(2, "--max_steps=6") as server:
                server.call(shuffled, by_rank)
                server.complete()
                self.assertEqual(server.log().count(self.SAME),
                                 0 if by_rank else 1, server.log())

    def test_the_same_batches_are_named_under_async(self):
        with Server(2, "--max_steps=24", "--aggregation=async") as server:
            server.call(shuffled, False)
            server.complete()
            self.assertEqual(server.log().count(self.SAME), 1, server.log())

    def test_own_data_needs_a_number_of_steps(self):
        with Server(1) as server:
            with self.assertRaisesRegex(AssertionError, "a server with "
                                        "--max_steps=N"):
                Rank(until_its_data_ends, 0, server.address, [7]).result()


if __name__ == "__main__":
    unittest.main()
