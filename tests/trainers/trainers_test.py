"""Trainers of public packages: two workers train as one process does with the
batches of both, and a killed worker changes no bit."""

import os

# One thread a process; before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import array
import itertools
import multiprocessing.connection
import pathlib
import sys
import tempfile
import unittest
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build/zoo/bin/python3"
if __name__ == "__main__" and PYTHON.exists() and sys.prefix != str(
        PYTHON.parent.parent):
    os.execv(PYTHON, [PYTHON, "-B", *sys.argv])

import torch

import cohort
from networks import digest, distance
from ranks import DEADLINE, Rank, Server, die_once
from shapes import script

try:
    import lightning.pytorch as pl
    import monai
    import segmentation_models_pytorch
    import timm
    import torchvision
    WHY_NOT = ""
    # The packages warn of numbers of processors, of files, of each other.
    warnings.simplefilter("ignore")
except ImportError as error:
    WHY_NOT = f"{error} (tests/python/zoo/make-env build/zoo)"
else:
    import cohort.lightning
    import with_lightning
    import with_monai
    import with_smp
    import with_timm
    import with_torchvision
    import with_torchvision_segmentation
    import zoo.networks
    from shapes import runner

    assert all((monai, timm, torchvision))

try:
    import with_gymnasium
    WHY_NO_GAMES = WHY_NOT
except ImportError as error:
    WHY_NO_GAMES = f"{error} (tests/python/zoo/make-env build/zoo)"

# Imports of these packages take many seconds of a processor.
Rank.method = "fork"
EPOCHS = 3


def quiet():
    import logging
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def results(ranks):
    """By rank; an error of any rank is raised at once."""
    pending, found = dict(enumerate(ranks)), {}
    while pending:
        ready = multiprocessing.connection.wait(
            [rank.pipe for rank in pending.values()], DEADLINE)
        for number in [number for number, rank in pending.items()
                       if rank.pipe in ready or not ready]:
            found[number] = pending.pop(number).result()
    return [found[number] for number in range(len(ranks))]


def in_child(function, *arguments):
    """What a function returns in a separate process: this one starts no
    threads."""
    return Rank(lambda _, *values: function(*values), 0, *arguments).result()


def check(test, function, alone, limit=1e-4):
    """Two workers, and one process in float64. function(rank, address, marker)
    returns the model's state."""
    wanted = in_child(alone)
    with Server(2, f"--epochs={EPOCHS}") as server:
        first, second = results(server.ranks(function, None))
    test.assertEqual(digest(first), digest(second))
    for name, value in first.items():
        if value.is_floating_point():
            test.assertLess(distance(value, wanted[name]), limit, name)
    return first


def check_kill(test, function, first):
    """The same where rank 1 dies in step 8: `first`, bitwise."""
    with Server(2, f"--epochs={EPOCHS}", "--lease=2s") as server:
        lower, killed = server.ranks(function, server.dir / "marker")
        for state in results([lower, killed.replaced()]):
            test.assertEqual(digest(state), digest(first))


# ---- Lightning

def lightning_worker(rank, address, marker, batch_size=4, **options):
    """The state; checks what Lightning counts."""
    quiet()
    seen = []

    class Seen(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            seen.append((trainer.current_epoch, trainer.global_step))
            job = trainer.strategy.job
            assert seen[-1] == (job.epoch, job.step_number), seen[-1]

        def on_before_optimizer_step(self, trainer, module, optimizer):
            if trainer.global_step == 8:
                die_once(rank, marker)

        def on_validation_end(self, trainer, module):
            if not trainer.sanity_checking:
                seen.append("validated")

    trainer, network = with_lightning.main(
        cohort.lightning.CohortStrategy(server=address, log_level="error",
                                        server_timeout=60),
        batch_size=batch_size, callbacks=[Seen()], **options)
    # Some steps have no batch for rank 1.
    assert seen[-1] == "validated" and trainer.global_step == 18, seen
    return network.state_dict()


def lightning_alone():
    quiet()
    _, network = with_lightning.main(batch_size=8, precision="64-true")
    return network.state_dict()


class Linear(getattr(globals().get("with_lightning"), "Module", object)):
    """Without batch norm; its loss is a mean over the labels below 3, and its rate
    is written by hand."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(144, 4))

    def on_train_batch_start(self, batch, batch_idx):
        self.optimizers().param_groups[0]["lr"] = 0.01 / (1 + self.global_step)

    def training_step(self, batch, batch_idx):
        x, y = batch
        n = (y < 3).sum()
        each = torch.nn.functional.cross_entropy(self.net(x.to(self.dtype)), y,
                                                 reduction="none")
        return {"loss": each[y < 3].sum() / n.clamp(min=1), "n": n}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Plateau(getattr(globals().get("with_lightning"), "Module", object)):
    """Its rate depends on the score of the validation."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return {"optimizer": optimizer, "lr_scheduler": {
            "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, factor=0.1, patience=0, threshold=0.5),
            "monitor": "score"}}


def plateau_worker(rank, address, marker):
    return lightning_worker(rank, address, marker, module=Plateau)


def plateau_alone():
    quiet()
    trainer, network = with_lightning.main(batch_size=8, precision="64-true",
                                           module=Plateau)
    # From the second epoch on the score is no better.
    assert 0.0004 < trainer.optimizers[0].param_groups[0]["lr"] < 0.006
    return network.state_dict()


def linear_worker(rank, address, marker):
    """Two parts of a batch of 4, with what the Trainer has beside."""
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        files = pl.callbacks.ModelCheckpoint(folder, save_last=True)
        trainer, network = with_lightning.main(
            cohort.lightning.CohortStrategy(
                "n", server=address, log_level="error", server_timeout=60),
            batch_size=2, module=Linear, samples=40, accumulate_grad_batches=2,
            callbacks=[files, pl.callbacks.LearningRateMonitor()],
            enable_checkpointing=True, sync_batchnorm=True,
            logger=pl.loggers.CSVLogger(folder))
        assert trainer.global_step == 15, trainer.global_step
        # Rank 0 alone writes.
        written = sorted(path.name for path in pathlib.Path(folder).rglob("*.*"))
        assert ("last.ckpt" in written) == (rank == 0), written
        assert ("metrics.csv" in written) == (rank == 0), written
        if rank == 0:
            saved = torch.load(f"{folder}/last.ckpt", weights_only=True)
            assert digest(saved["state_dict"]) == digest(network.state_dict())
    return network.state_dict()


def linear_alone():
    quiet()
    _, network = with_lightning.main(batch_size=8, module=Linear, samples=40,
                                     precision="64-true")
    return network.state_dict()


class Overrides:
    """Methods that a module may not have, by name."""

    def backward(self, loss):
        loss.backward()

    def configure_gradient_clipping(self, *args, **kwargs):
        pass

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()

    def log_of_all(self, batch, batch_idx):
        loss = super(type(self), self).training_step(batch, batch_idx)
        self.log("loss", loss, sync_dist=True)
        return loss

    def gathered(self, batch, batch_idx):
        self.all_gather(batch[1])

    def iterated(self, dataloader_iter):
        pass

    def clipped(self, optimizer):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1e-3)

    def rate_after_step(self, *args):
        self.optimizers().param_groups[0]["lr"] = 0.5

    manual = property(lambda self: False)

    def two(self):
        first, second = (torch.optim.SGD(self.parameters(), lr=0.1)
                         for _ in range(2))
        return [first, second]

    def stop(self):
        self.trainer.should_stop = True


def refused(options, overrides):
    """The error of a run of this process alone."""
    quiet()
    os.environ.pop("COHORT_RANK", None)
    module = type("Changed", (with_lightning.Module,), {
        name: getattr(Overrides, function) for name, function in overrides.items()})
    try:
        with_lightning.main(cohort.lightning.CohortStrategy(log_level="error"),
                            epochs=1, module=module, **options)
    except (cohort.ConfigurationError, cohort.UsageError) as error:
        return str(error)
    return "right"


def refusals():
    callbacks = pl.callbacks
    cases = {
        "gradient_clip_val": {"gradient_clip_val": 0.5},
        "limit_train_batches": {"limit_train_batches": 2},
        "fast_dev_run": {"fast_dev_run": True},
        "devices": {"devices": 2},
        "EarlyStopping": {"callbacks": [callbacks.EarlyStopping("score")]},
        "StochasticWeightAveraging": {
            "callbacks": [callbacks.StochasticWeightAveraging(0.1)]},
        "accumulate_grad_batches was changed": {
            "callbacks": [callbacks.GradientAccumulationScheduler({0: 2})]},
        "float32": {"precision": "64-true"},
        "backward": ("backward", "backward"),
        "configure_gradient_clipping": ("configure_gradient_clipping",) * 2,
        "lr_scheduler_step": ("lr_scheduler_step",) * 2,
        "sync_dist": ("training_step", "log_of_all"),
        "all_gather": ("training_step", "gathered"),
        "dataloader_iter": ("training_step", "iterated"),
        "--clip_norm": ("on_before_optimizer_step", "clipped"),
        "lr of group 0": ("on_train_batch_end", "rate_after_step"),
        "2 optimizers": ("configure_optimizers", "two", "automatic_optimization",
                         "manual"),
    }
    return {word: refused(case, {}) if isinstance(case, dict) else
            refused({}, dict(zip(case[::2], case[1::2])))
            for word, case in cases.items()}


def stops_early(rank, address):
    quiet()
    module = type("Changed", (with_lightning.Module,), {
        "on_train_epoch_end": Overrides.stop} if rank == 1 else {})
    try:
        with_lightning.main(cohort.lightning.CohortStrategy(
            server=address, log_level="error"), batch_size=4, module=module)
    except cohort.ConfigurationError as error:
        return str(error)
    return "right"


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Lightning(unittest.TestCase):
    def test_the_numbers_of_one_process(self):
        check_kill(self, lightning_worker,
                   check(self, lightning_worker, lightning_alone))

    def test_a_rate_by_the_score_of_the_validation(self):
        check_kill(self, plateau_worker,
                   check(self, plateau_worker, plateau_alone))

    def test_parts_weights_and_rates_by_hand(self):
        check(self, linear_worker, linear_alone, 1e-5)

    def test_what_would_train_wrongly_is_refused(self):
        for word, text in in_child(refusals).items():
            with self.subTest(word):
                self.assertIn(word, text)

    def test_a_worker_that_stops_early_says_so(self):
        with Server(2, f"--epochs={EPOCHS}", "--lease=2s",
                    "--on_worker_loss=continue") as server:
            self.assertIn("should_stop",
                          results(server.ranks(stops_early))[1])


# ---- loops

class Pictures(torch.utils.data.Dataset):
    """Images of 32 samples; 4 steps an epoch of two workers.

    Args:
        target: makes a label or a mask of an image.
        shape: of an image.
        make: a sample of both.
    """

    def __init__(self, target, shape=(3, 32, 32), make=lambda x, y: (x, y)):
        self.images = torch.randn(32, *shape,
                                  generator=torch.Generator().manual_seed(1))
        self.target, self.make = target, make

    def __len__(self):
        return 32

    def __getitem__(self, index):
        image = self.images[index].clone()
        return self.make(image, self.target(image))


def side(image):
    return (image[0].sum() > 0).long()


def mask(image):
    return (image[:1] > 0).float()


def partial_mask(image):
    """Another number of ignored pixels in each sample."""
    found = (image[0] > 0).long()
    found[:, : int(image[0, 0, 0].abs() * 8)] = 255
    return found


def dictionary(x, y):
    """A sample, or a batch, of MONAI."""
    return {"image": monai.data.MetaTensor(x), "label": monai.data.MetaTensor(y)}


def loop_worker(rank, address, marker, example, dataset):
    """The modules' state, and the batches of all steps of this process."""
    zoo.networks.replace_functions()
    batches = {}

    def watch(step, x, y):
        batches[step] = x.clone(), y.clone()
        if step == 8:
            die_once(rank, marker)
    modules = example.main(dataset, watch, server=address, log_level="error",
                           server_timeout=60)
    return state_of(modules), batches


def state_of(modules):
    return {f"{number}.{name}": value for number, module in enumerate(modules)
            for name, value in module.state_dict().items()}


class Alone:
    """The package and the job of a script in one process, which has the batches
    of both workers."""

    def __init__(self, batches, dtype, make):
        self._steps = len(batches)
        self._batches = iter(batches)
        self._dtype, self._make = dtype, make
        self.step_number = -1

    def join(self, model, optimizer, keep=(), **_):
        for module in (model, *keep):
            module.to(self._dtype)
        self._optimizer = optimizer
        self.before = {name: value.clone() for name, value in
                       state_of((model, *keep)).items()}
        return self

    def data(self, *_, **__):
        return self

    def epochs(self):
        self._steps //= EPOCHS
        return range(EPOCHS)

    def __iter__(self):
        for x, y in itertools.islice(self._batches, self._steps):
            self.step_number += 1
            self._optimizer.zero_grad()
            y = y.to(self._dtype) if y.is_floating_point() else y
            yield self._make(x.to(self._dtype), y)

    def backward(self, loss, weight=None):
        loss.backward()

    def step(self):
        self._optimizer.step()

    def sum(self, tensor):
        return tensor


def loop_alone(batches, example, dtype, make, replaced):
    """The state after and before the script."""
    zoo.networks.replace_functions()
    job = Alone(batches, dtype, make)
    for name, value in {"cohort": job, **replaced}.items():
        setattr(example, name, value)
    return state_of(example.main(None)), job.before


def flat(state, kinds):
    """The tensors whose names end so; all others without any."""
    known = ("running_mean", "running_var", "num_batches_tracked", "n_averaged")
    return torch.cat([value.double().flatten() for name, value in state.items()
                      if name.endswith(kinds or known) == bool(kinds)])


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Loops(unittest.TestCase):
    def check(self, example, dataset, make=lambda x, y: (x, y), **replaced):
        """Two workers, and the same script in one process, which is given what
        they have trained on.

        Args:
            example: its module.
            make: a batch of its tensors.
            replaced: names of the module, in one process: what has made the
                batches, or of what a loss consists.
        """
        with Server(2, f"--epochs={EPOCHS}") as server:
            (first, own), (second, others) = results(server.ranks(
                loop_worker, None, example, dataset))
        self.assertEqual(digest(first), digest(second))
        union = [[torch.cat(pair) for pair in zip(own[step], others[step])]
                 for step in range(4 * EPOCHS)]
        single, double = (
            in_child(loop_alone, union, example, dtype, make, replaced)
            for dtype in (torch.float32, torch.float64))
        # As tests/python/zoo_test.py.
        for kinds in ((), ("running_mean",), ("running_var",)):
            ours, theirs, wanted, before = (flat(state, kinds) for state in (
                first, single[0], double[0], double[1]))
            unit = max(float((theirs - wanted).norm()),
                       runner.FLOOR * float((wanted - before).norm()))
            off = float((ours - wanted).norm()) / unit
            self.assertLess(off, runner.FACTOR, kinds or "change of the weights")
        counts = ("num_batches_tracked", "n_averaged")
        self.assertTrue(torch.equal(flat(first, counts), flat(double[0], counts)))
        check_kill(self, lambda *arguments: loop_worker(*arguments, example,
                                                        dataset)[0], first)

    def test_timm(self):
        self.check(with_timm, Pictures(side), mixup=lambda x, y: (x, y))

    def test_segmentation_models_pytorch(self):
        dice = segmentation_models_pytorch.losses.DiceLoss("binary")
        self.check(with_smp, Pictures(mask), dice=lambda out, y, total: dice(out, y))

    def test_monai(self):
        self.check(with_monai, Pictures(lambda image: (image > 0).long(), (1, 16, 16),
                                        dictionary), dictionary)

    def test_classification_of_torchvision(self):
        self.check(with_torchvision, Pictures(side))

    def test_segmentation_of_torchvision(self):
        self.check(with_torchvision_segmentation, Pictures(partial_mask))


# ---- reinforcement learning

# 4 steps an epoch of two workers, 8 a rollout.
GAMES = {"environments": 4, "length": 32, "epochs": 2}
GAMES_SEED = 3


def games_worker(rank, address, marker):
    def after_backward(step):
        # The first step of the second rollout, whose samples are not kept yet.
        if step == 8:
            die_once(rank, marker)
    return state_of(with_gymnasium.main(
        GAMES_SEED, batch_size=16, after_backward=after_backward, server=address,
        log_level="error", server_timeout=60, **GAMES))


def games_alone(steps, seed=GAMES_SEED, environments=4, length=32, epochs=2, batch_size=32,
                dtype=torch.float64):
    """The policy and normalisers of one process with all environments, and another
    kind of normaliser."""
    torch.manual_seed(seed)
    policy = with_gymnasium.Policy().to(dtype)
    observations, returns = script.OneProcess((4,)), script.OneProcess(())
    optimizer = with_gymnasium.adam(policy)
    games = [with_gymnasium.Environment(number) for number in range(environments)]
    parts = environments * length // batch_size
    for step in range(steps):
        epoch, part = divmod(step, parts)
        if step % (epochs * parts) == 0:
            rows = with_gymnasium.rollout(policy, observations, returns, games, seed,
                                          step, length)
            returns.sync()
            samples = with_gymnasium.prepared(rows, returns)
        order = array.array("q", cohort._core.permutation(seed, epoch, len(samples)))
        optimizer.zero_grad()
        with_gymnasium.loss_of(policy, samples[torch.tensor(
            order[batch_size * part:batch_size * (part + 1)])]).backward()
        optimizer.step()
        observations.sync()
    return policy, observations, returns


@unittest.skipIf(WHY_NO_GAMES, WHY_NO_GAMES)
class Games(unittest.TestCase):
    def run_of(self, steps, **options):
        return Server(2, f"--max_steps={steps}", "--epochs=1000",
                      f"--seed={GAMES_SEED}", "--lease=2s", **options)

    def test_the_first_updates_are_those_of_one_process(self):
        """10 of them, over two rollouts."""
        wanted = in_child(lambda: state_of(games_alone(10)))
        with self.run_of(10) as server:
            first, second = results(server.ranks(games_worker, None))
        self.assertEqual(digest(first), digest(second))
        self.assertEqual(first["1.count"], 2 * 4 * 33)
        for name, value in first.items():
            self.assertLess(distance(value, wanted[name]), 1e-4, name)

    def test_a_kill_and_a_resume(self):
        with self.run_of(18) as server:
            wanted = results(server.ranks(games_worker, None))[0]
        with self.run_of(13, keeps=True) as server:
            lower, killed = server.ranks(games_worker, server.dir / "marker")
            results([lower, killed.replaced()])
            server.server.wait(60)
            # In the middle of a rollout's epochs.
            server.server_flags[server.server_flags.index("--max_steps=13")] = (
                "--max_steps=18")
            server.start_server("--resume")
            for state in results(server.ranks(games_worker, None)):
                self.assertEqual(digest(state), digest(wanted))


if __name__ == "__main__":
    unittest.main()
