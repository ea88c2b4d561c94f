"""Ten scripts in the shape of public ones. With the few lines that a patch
changes, two workers train as one process does with the batches of both, also if
one of them is killed, twice. SCRIPTS.md has the numbers of lines."""

import os

# One thread a process; before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import array
import contextlib
import dataclasses
import io
import pathlib
import re
import runpy
import tempfile
import unittest

import torch
from torch import overrides

import cohort
from cohort import _batches, _core, _data
from ranks import Rank, Server, die_once
from scripts_test import SCRIPTS, changed_lines, with_cohort
from shapes import runner
from shapes.script import SEED

Rank.method = "fork"
LINES_MAX = 10
COLUMNS_MAX = 100
GUIDE = pathlib.Path(__file__).parents[2] / "worker/python/SCRIPTS.md"
# The kills of rank 1: numbers of steps, and whether it was in job.step().
DEATHS = ((3, "after"), (7, "before"))


@dataclasses.dataclass(frozen=True)
class Public:
    """One script.

    Attributes:
        flags: of the server.
        accumulate: batches of the script that make up a step.
        differs: a pattern of the values that SCRIPTS.md says are others.
    """
    flags: str
    accumulate: int = 1
    differs: str = "(?!)"


TABLE = {
    "dcgan": Public("--epochs=2",
                    differs=r".* (samples$|g .*(running|num_batches))"),
    "simclr": Public("--epochs=3"),
    "moco": Public("--epochs=3"),
    "byol": Public("--epochs=3"),
    "mean_teacher": Public("--epochs=3"),
    "wgan_gp": Public("--epochs=3"),
    "pspnet": Public("--epochs=2"),
    "yolo": Public("--epochs=3", accumulate=2),
    "imagenet": Public("--epochs=3"),
    "pointnet2": Public("--epochs=4"),
}


# ---- one process

class Draws(overrides.TorchFunctionMode):
    """Random numbers of float32 in the precision of the process; in a step those
    that each worker draws for its samples."""

    FILLS = ("uniform_", "normal_", "kaiming_uniform_")

    def __init__(self):
        super().__init__()
        # For each worker: its samples, and its generator.
        self.rows = []
        self.generators = []

    def begin(self, step, rows):
        self.rows = rows
        self.generators = [
            torch.Generator().manual_seed(_core.mix_seed(SEED, step, rank))
            for rank in range(len(rows))]

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in self.FILLS:
            tensor, others = kwargs.pop("tensor", None), args
            if tensor is None:
                tensor, *others = args
            drawn = torch.empty(tensor.shape, dtype=torch.float32)
            function(drawn, *others, **kwargs)
            with torch.no_grad():
                return tensor.copy_(drawn)
        if name in ("rand", "randn"):
            size = torch.Size(args[0] if len(args) == 1 and not isinstance(
                args[0], int) else args)
            kwargs["dtype"] = torch.float32
            drawn = function(size, **kwargs) if size[0] != sum(self.rows) else (
                torch.cat([function((rows, *size[1:]), generator=generator, **kwargs)
                           for rows, generator in zip(self.rows, self.generators)]))
            return drawn.to(torch.get_default_dtype())
        return function(*args, **kwargs)


class Together:
    """In place of a DataLoader that shuffles: the batches of all workers, in the
    order of the run."""

    step = 0

    def __init__(self, dataset, batch_size, draws, accumulate):
        self.dataset = dataset
        self.draws = draws
        self.sizes = [batch_size * accumulate] * 2
        self.accumulate = accumulate
        self.epoch = 0

    def __len__(self):
        return -(-len(self.dataset) // sum(self.sizes)) * self.accumulate

    def __iter__(self):
        seeded = _data._Seeded(self.dataset, SEED)
        order = array.array("q", _core.permutation(
            SEED, self.epoch, len(self.dataset)))
        begin = 0
        while begin < len(order):
            batches, firsts = [], range(begin, len(order), self.sizes[0])
            self.draws.begin(0, [])
            for size in self.sizes:
                items = [seeded[self.epoch, index, index]
                         for index in order[begin:begin + size]]
                if items:
                    batches.append(torch.utils.data.default_collate(items))
                begin += size
            sizes = [len(next(_batches.tensors_in(batch))) for batch in batches]
            self.draws.begin(self.step, sizes)
            self.step += 1
            for part in range(self.accumulate):
                pieces = [_batches.split(batch, part, self.accumulate, first=first)
                          for batch, first in zip(batches, firsts)]
                self.draws.rows = [len(next(_batches.tensors_in(piece)))
                                   for piece in pieces]
                yield join(pieces)
        self.epoch += 1


def join(batches):
    """One batch of several."""
    if isinstance(batches[0], torch.Tensor):
        return torch.cat(batches)
    return [join(values) for values in zip(*batches)]


def run_alone(_, script, folder, dtype, accumulate):
    """The script as it is, with the batches of two workers."""
    os.chdir(folder)
    draws = Draws()
    loader = torch.utils.data.DataLoader

    def make(dataset, batch_size, shuffle=False, **options):
        if not shuffle:
            return loader(dataset, batch_size, **options)
        return Together(dataset, batch_size, draws, accumulate)
    torch.utils.data.DataLoader = make
    torch.set_default_dtype(dtype)
    torch.set_num_threads(1)
    with draws, contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(script), run_name="__main__")


# ---- workers

def run_worker(rank, address, script, folder, deaths):
    """The script with Cohort. Rank 1 dies once at each of `deaths`."""
    os.chdir(folder)
    # As torchrun sets it.
    os.environ["RANK"] = str(rank)
    os.environ["COHORT_SERVER"] = address
    step = cohort.Job.step

    def die(job, *death):
        if death in deaths:
            die_once(rank, pathlib.Path(f"died-{death}"))

    def step_and_die(job, *arguments, **options):
        number = job.step_number
        die(job, number, "before")
        result = step(job, *arguments, **options)
        if result.verdict != "part":
            die(job, number, "after")
        return result
    cohort.Job.step = step_and_die
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(str(script), run_name="__main__")


def values_in(folder, differs):
    """What the script's files have, but for the state of optimizers."""
    found = []

    def visit(name, value):
        if isinstance(value, dict):
            for key, one in value.items():
                if key not in ("optimizer", "scheduler"):
                    visit(f"{name} {key}", one)
        elif not re.match(differs, name):
            found.append((0, "same", name, torch.as_tensor(value)))
    for path in sorted(pathlib.Path(folder).glob("*.pt")):
        visit(path.name, torch.load(path))
    return found


class PublicScripts(unittest.TestCase):
    def folder(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        return pathlib.Path(made.name)

    def alone(self, name, dtype):
        public, folder = TABLE[name], self.folder()
        Rank(run_alone, 0, SCRIPTS / f"{name}.py", folder, dtype,
             public.accumulate).result()
        return values_in(folder, public.differs)

    def together(self, script, name, deaths):
        public, folder = TABLE[name], self.folder()
        with Server(2, public.flags, f"--seed={SEED}", "--lease=2s") as server:
            ranks = server.ranks(run_worker, script, folder, deaths)
            for _ in deaths:
                ranks[1] = ranks[1].replaced()
            for rank in ranks:
                rank.result()
        return values_in(folder, public.differs)

    def check(self, name):
        plain = SCRIPTS / f"{name}.py"
        script = with_cohort(name, self.folder())
        lines = changed_lines(plain, script)
        self.assertLessEqual(lines, LINES_MAX)
        self.assertLessEqual(max(map(len, script.read_text().splitlines())),
                             COLUMNS_MAX)
        self.assertRegex(GUIDE.read_text(), rf"/{name}\.patch\) \| {lines} \|")
        single, double = (self.alone(name, dtype)
                          for dtype in (torch.float32, torch.float64))
        for deaths in ((), DEATHS):
            with self.subTest(name, deaths=deaths):
                ours = self.together(script, name, deaths)
                text, right = runner.compare([ours], single, double)
                self.assertTrue(right, text)


for name in TABLE:
    setattr(PublicScripts, f"test_{name}",
            lambda self, name=name: self.check(name))


if __name__ == "__main__":
    unittest.main()
