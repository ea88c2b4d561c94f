"""The front-end against one float64 PyTorch process on the joined batch."""

import inspect
import itertools
import unittest

import torch
from torch import nn

import cohort
from networks import DEVICE, Shapes, distance, samples_of_steps, three_batch_norms
from ranks import run

SAMPLES = 96
SEED = 7
STEPS = 20

# Rates at which float32 arithmetic by itself stays far below the tolerance.
OPTIMIZERS = {
    "momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "adagrad": ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    "rmsprop": ("RMSprop", {"lr": 1e-4}),
    "centered": ("RMSprop", {"lr": 0.001, "momentum": 0.9, "centered": True}),
    "adadelta": ("Adadelta", {"lr": 0.3}),
    "adamax": ("Adamax", {}),
    "nadam": ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.01}),
    "radam": ("RAdam", {}),
    "rprop": ("Rprop", {"lr": 1e-3}),
    "amsgrad": ("Adam", {"amsgrad": True}),
    "maximize": ("SGD", {"momentum": 0.9, "maximize": True}),
    "dampened": ("SGD", {"lr": 0.003, "momentum": 0.9, "dampening": 0.5}),
    "lamb": ("LAMB", {"weight_decay": 0.01}),
}


class Lamb(torch.optim.Optimizer):
    """Algorithm 2 of LAMB's paper, for one process."""

    def __init__(self, params, lr, weight_decay):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                state = self.state[w]
                grads = state.setdefault("grads", [])
                grads.append(w.grad.clone())
                t = len(grads)
                m = sum(0.1 * 0.9 ** (t - i) * g
                        for i, g in enumerate(grads, 1)) / (1 - 0.9 ** t)
                v = sum(0.001 * 0.999 ** (t - i) * g * g
                        for i, g in enumerate(grads, 1)) / (1 - 0.999 ** t)
                change, ratio = m / (v.sqrt() + 1e-6), 1
                if w.dim() > 1:
                    change += group["weight_decay"] * w
                    ratio = w.norm() / change.norm()
                w -= group["lr"] * ratio * change


def batch_sizes(workers, uneven):
    return [4 + 2 * rank if uneven else 6 for rank in range(workers)]


def make_optimizer(kind, model, groups, lamb=cohort.LAMB):
    parameters = model.parameters()
    if groups:
        head = [p for name, p in model.named_parameters()
                if name.startswith("12.")]
        body = [p for name, p in model.named_parameters()
                if not name.startswith("12.")]
        parameters = [{"params": body, "weight_decay": 0.01},
                      {"params": head, "lr": 0.03, "weight_decay": 0.0}]
    name, options = OPTIMIZERS[kind]
    made = lamb if kind == "lamb" else getattr(torch.optim, name)
    return made(parameters, **{"lr": 0.01} | options)


def make_schedulers(schedule, optimizer):
    if not schedule:
        return []
    scheduler = torch.optim.lr_scheduler
    return [scheduler.SequentialLR(optimizer, [
        scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=5),
        scheduler.CosineAnnealingLR(optimizer, T_max=15)], milestones=[5])]


def train(rank, address, workers, uneven, kind, groups, schedule):
    model = three_batch_norms().to(DEVICE)
    optimizer = make_optimizer(kind, model, groups)
    schedulers = make_schedulers(schedule, optimizer)
    criterion = nn.CrossEntropyLoss()
    job = cohort.join(model, optimizer, schedulers=schedulers, server=address,
                      log_level="warning")
    data = job.data(Shapes(SAMPLES),
                    batch_size=batch_sizes(workers, uneven)[rank])
    losses = []
    for x, y in data:
        loss = criterion(model(x.to(DEVICE)), y.to(DEVICE))
        job.backward(loss)
        losses.append(job.step().loss)
    rates = [group["lr"] for group in optimizer.param_groups]
    return {name: value.to("cpu", copy=True) for name, value in
            model.state_dict().items()}, losses, rates


def reference(workers, uneven, kind, groups, schedule):
    """The same in float64, on the batches of all workers together."""
    model = three_batch_norms().double()
    optimizer = make_optimizer(kind, model, groups, lamb=Lamb)
    schedulers = make_schedulers(schedule, optimizer)
    criterion = nn.CrossEntropyLoss()
    data = Shapes(SAMPLES)
    steps = samples_of_steps(SEED, SAMPLES, sum(batch_sizes(workers, uneven)))
    for indices in itertools.islice(steps, STEPS):
        x, y = torch.utils.data.default_collate([data[i] for i in indices])
        optimizer.zero_grad()
        criterion(model(x.double()), y).backward()
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    rates = [group["lr"] for group in optimizer.param_groups]
    return model.state_dict(), rates


class Parity(unittest.TestCase):
    def check(self, workers, uneven=False, kind="momentum", groups=False,
              schedule=False):
        results = run(train, workers, workers, uneven, kind, groups, schedule,
                      flags=[f"--seed={SEED}", "--epochs=1000",
                             f"--max_steps={STEPS}"])
        wanted, rates = reference(workers, uneven, kind, groups, schedule)
        # The last step of an epoch may leave nothing for the last ranks.
        self.assertEqual(len(results[0][1]), STEPS)
        for state, _, ours in results:
            for a, b in zip(ours, rates):
                self.assertAlmostEqual(a, b, places=12)
            for name, value in state.items():
                if name.endswith("num_batches_tracked"):
                    self.assertEqual(int(value), STEPS)
                    continue
                self.assertLess(distance(value, wanted[name]), 1e-4, name)

    def test_one_two_and_four_workers(self):
        for workers in (1, 2, 4):
            with self.subTest(workers=workers):
                self.check(workers)

    def test_uneven_batches(self):
        self.check(3, uneven=True)

    def test_groups_and_a_schedule(self):
        self.check(2, groups=True)
        self.check(2, uneven=True, groups=True, schedule=True)
        self.check(2, uneven=True, kind="lamb", groups=True, schedule=True)

    def test_other_optimizers(self):
        for kind, (name, options) in OPTIMIZERS.items():
            # An argument that this version of torch has not.
            made = getattr(torch.optim, name, None) or getattr(cohort, name)
            if not inspect.signature(made).parameters.keys() >= options.keys():
                continue
            with self.subTest(kind=kind):
                self.check(2, kind=kind)


if __name__ == "__main__":
    unittest.main()
