"""What people do wrong: each is an error that says what to do."""

import os
import subprocess
import sys
import textwrap
import unittest

import torch
from torch import nn

import cohort
from networks import Shapes, three_batch_norms
from ranks import Rank, Server, run


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.01, **options)


class BeforeJoining(unittest.TestCase):
    """Found without a server."""

    def refuses(self, kind, pattern, model, optimizer=None, **options):
        options.setdefault("server", "127.0.0.1:1")
        with self.assertRaisesRegex(kind, pattern):
            cohort.join(model, optimizer or sgd(model), **options)

    def test_models(self):
        model = three_batch_norms().double()
        self.refuses(cohort.ConfigurationError, r"0\.weight: got torch.float64, "
                     "want torch.float32", model)
        model = three_batch_norms()
        model[0].to(memory_format=torch.channels_last)
        model[3].to(memory_format=torch.channels_last)
        self.refuses(cohort.ConfigurationError, r"3\.weight: got strides", model)
        lazy = nn.Sequential(nn.LazyLinear(4))
        self.refuses(cohort.ConfigurationError, r"0\.weight: a lazy parameter",
                     lazy, torch.optim.SGD([torch.zeros(1)], lr=0.1))
        lazy_norm = nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d())
        self.refuses(cohort.ConfigurationError, "LazyBatchNorm1d", lazy_norm,
                     torch.optim.SGD(lazy_norm[0].parameters(), lr=0.1))

        class Own(nn.BatchNorm2d):
            pass
        self.refuses(cohort.ConfigurationError, "got a Own",
                     nn.Sequential(nn.Conv2d(1, 2, 1), Own(2)))

    def test_optimizers(self):
        model = three_batch_norms()
        some = list(model.parameters())[1:]
        self.refuses(cohort.ConfigurationError,
                     r"0\.weight: the optimizer does not have", model,
                     torch.optim.SGD(some, lr=0.1))
        self.refuses(cohort.ConfigurationError, "not in the model",
                     model, torch.optim.SGD(
                         [*model.parameters(), nn.Parameter(torch.zeros(1))],
                         lr=0.1))
        self.refuses(cohort.ConfigurationError, "got RMSprop", model,
                     torch.optim.RMSprop(model.parameters()))
        self.refuses(cohort.ConfigurationError, "got dampening", model,
                     sgd(model, momentum=0.9, dampening=0.5))
        self.refuses(cohort.ConfigurationError, "amsgrad", model,
                     torch.optim.Adam(model.parameters(), amsgrad=True))
        self.refuses(cohort.ConfigurationError, "one value", model,
                     torch.optim.SGD(
                         [{"params": model[0].parameters(), "momentum": 0.5},
                          {"params": some, "momentum": 0.9}], lr=0.1))

    def test_schedulers(self):
        model = three_batch_norms()
        optimizer = sgd(model)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        self.refuses(cohort.ConfigurationError, "ReduceLROnPlateau: needs a "
                     "measure", model, optimizer, schedulers=[plateau])
        other = torch.optim.lr_scheduler.StepLR(sgd(model), 1)
        self.refuses(cohort.ConfigurationError, "another optimizer", model,
                     optimizer, schedulers=[other])
        mine = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        cohort.join(model, optimizer, schedulers=[mine],
                    server="127.0.0.1:1").leave()
        with self.assertRaisesRegex(cohort.UsageError, "job.step.. advances"):
            mine.step()

    def test_joining_twice(self):
        model = three_batch_norms()
        job = cohort.join(model, sgd(model), server="127.0.0.1:1")
        self.refuses(cohort.UsageError, "belongs to a job", model)
        job.leave()
        cohort.join(model, sgd(model), server="127.0.0.1:1").leave()

    def test_a_launcher_without_an_address(self):
        model = three_batch_norms()
        for name, value in (("WORLD_SIZE", "2"), ("SLURM_NTASKS", "4"),
                            ("COHORT_RANK", "0")):
            with self.subTest(name=name):
                os.environ[name] = value
                try:
                    self.refuses(cohort.ConfigurationError,
                                 f"{name} says that other workers", model,
                                 server=None)
                finally:
                    del os.environ[name]

    def test_data(self):
        model = three_batch_norms()
        job = cohort.join(model, sgd(model), server="127.0.0.1:1")
        for arguments, pattern in (
                ({}, "want batch_size"),
                ({"batch_size": 0}, "got 0, want at least 1"),
                ({"batch_size": 2, "shuffle": True}, "shuffle"),
                ({"batch_size": 2, "accumulate": 0}, "accumulate")):
            with self.assertRaisesRegex(cohort.UsageError, pattern):
                job.data(Shapes(8), **arguments)
        with self.assertRaisesRegex(cohort.UsageError, "no batch is in progress"):
            job.step()
        with self.assertRaisesRegex(cohort.UsageError, "joins its run when"):
            print(job.rank)
        job.leave()

    def test_a_server_that_does_not_answer(self):
        model = three_batch_norms()
        job = cohort.join(model, sgd(model), server="127.0.0.1:1",
                          server_timeout=0.5)
        with self.assertRaisesRegex(cohort.ServerUnreachableError,
                                    "127.0.0.1:1"):
            next(iter(job.data(Shapes(8), batch_size=2)))


def misuse(rank, address, what):
    """The error of one wrong line in a training loop."""
    del rank
    model = three_batch_norms()
    model.register_buffer("count", torch.zeros(1))
    optimizer = sgd(model)
    job = cohort.join(model, optimizer, server=address, log_level="error")
    criterion = nn.CrossEntropyLoss()
    try:
        for x, y in job.data(Shapes(32), batch_size=4):
            if what == "buffer":
                model.count += 1
            loss = criterion(model(x), y)
            if what == "no step":
                continue
            if what == "step without backward":
                job.step()
            if what == "loss.backward":
                loss.backward()
            if what == "vector":
                job.backward(loss * torch.ones(2))
            if what == "weight":
                job.backward(loss, weight=-1)
            job.backward(loss)
            if what == "twice":
                job.backward(criterion(model(x), y))
            if what == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            if what == "optimizer.step":
                optimizer.step()
            job.step()
            if what == "weights":
                with torch.no_grad():
                    model[0].weight.mul_(2)
    except cohort.CohortError as error:
        return type(error).__name__, str(error)
    finally:
        job.leave()
    return "no error", ""


MISUSES = {
    "buffer": "count: the forward pass writes this buffer",
    "no step": "the batch was not trained",
    "step without backward": "no gradients yet",
    "loss.backward": r"call job.backward\(loss",
    "vector": "want a scalar loss",
    "weight": "weight: got -1",
    "twice": "a second call in one step",
    "clip": r"bias: its gradient was changed.*--clip_norm",
    "optimizer.step": r"call job.step\(\)",
    "weights": "0.weight: its values were changed by hand",
}


class WhileTraining(unittest.TestCase):
    def test_misuse(self):
        for what, pattern in MISUSES.items():
            with self.subTest(what=what), Server(1) as server:
                kind, text = Rank(misuse, 0, server.address, what).result()
                self.assertEqual(kind, "UsageError", text)
                self.assertRegex(text, pattern)


def register(rank, address, models, sizes):
    model = nn.Sequential(nn.Conv2d(1, models[rank], 3), nn.Flatten(),
                          nn.LazyLinear(4))
    model(torch.zeros(1, 1, 12, 12))
    job = cohort.join(model, sgd(model), server=address, log_level="error")
    try:
        for x, y in job.data(Shapes(sizes[rank]), batch_size=4):
            job.backward(nn.functional.cross_entropy(model(x), y))
            job.step()
    except cohort.RunMismatchError as error:
        return str(error)
    return "trained"


class OtherWorkers(unittest.TestCase):
    def differs(self, models, sizes, pattern):
        with Server(2, "--max_steps=2") as server:
            ranks = [Rank(register, rank, server.address, models, sizes)
                     for rank in range(2)]
            self.assertRegex(ranks[1].result(), pattern)
            # The others go on with one that fits.
            again = Rank(register, 1, server.address, [models[0]] * 2,
                         [sizes[0]] * 2)
            self.assertEqual([ranks[0].result(), again.result()],
                             ["trained"] * 2)

    def test_another_model_is_named(self):
        self.differs([2, 3], [32, 32], r"0\.weight: got shape \[3,1,3,3\], want "
                     r"\[2,1,3,3\]")

    def test_other_data_are_named(self):
        self.differs([2, 2], [32, 40], "the data or the loss differs")


class Processes(unittest.TestCase):
    def script(self, text, *flags):
        code = textwrap.dedent(text)
        return subprocess.run([sys.executable, "-c", code, *flags],
                              capture_output=True, text=True, timeout=120,
                              check=False, env={**os.environ, "PYTHONPATH":
                              os.environ["PYTHONPATH"] + os.pathsep +
                              os.path.dirname(os.path.abspath(__file__))})

    def test_a_data_set_that_cannot_be_sent_to_loaders(self):
        done = self.script("""
            import torch, cohort, networks
            class Data(networks.Shapes):
                def __init__(self):
                    super().__init__(32)
                    self.function = lambda x: x
            model = networks.three_batch_norms()
            job = cohort.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
            data = job.data(Data(), batch_size=4, num_workers=1,
                            multiprocessing_context="spawn")
            for x, y in data:
                job.backward(torch.nn.functional.cross_entropy(model(x), y))
                job.step()
            """)
        self.assertIn("cohort._errors.ConfigurationError: the data set cannot be "
                      "sent to loader processes", done.stderr)
        self.assertIn("num_workers=0", done.stderr)

    def test_an_embedded_server_with_a_bad_flag(self):
        done = self.script("""
            import torch, cohort, networks
            model = networks.three_batch_norms()
            cohort.join(model, torch.optim.SGD(model.parameters(), lr=0.1),
                        serve={"epochs": -1})
            """)
        self.assertIn("--epochs: got -1", done.stderr)


if __name__ == "__main__":
    unittest.main()
