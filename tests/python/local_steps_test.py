"""Local steps (cohort.join(local_steps=...)): weights and moving statistics against float64,
the same bits after kills, and what is refused."""

import functools
import math
import os
import signal
import threading
import unittest
from unittest import mock

import torch
from torch import nn

import cohort
from cohort import _local_steps, _signals
from networks import Shapes, digest, distance, joined, step, three_batch_norms
from processes import until
from ranks import Server, die_once

# 11 batches of 4 an epoch, so with 3 local steps the last of 4 steps has two.
SAMPLES, BATCH, LOCAL = 44, 4, 3
PLAIN = functools.partial(torch.optim.SGD, lr=1.0)
SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
ADAMW = functools.partial(torch.optim.AdamW, lr=0.01, eps=1e-3)
# How far a result may be from float64, in distances of torch's float32; and the least
# distance that counts.
TIMES, CLOSE = 8, 2e-5


def network(momentum=0.1):
    model = three_batch_norms()
    for layer in model:
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = momentum
    return model


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 4))


def batches_of(workers, local, epochs):
    """The samples of each step of the run: by local step and rank."""
    data = Shapes(SAMPLES)
    steps = []
    for _ in range(epochs):
        at = 0
        while at < SAMPLES:
            cuts = []
            while at < SAMPLES and len(cuts) < local:
                cuts.append([range(min(at + rank * BATCH, SAMPLES),
                                   min(at + (rank + 1) * BATCH, SAMPLES))
                             for rank in range(workers)])
                at += workers * BATCH
            steps.append(cuts)
    return [[[torch.utils.data.default_collate([data[i] for i in part]) if part else None
              for part in cut] for cut in cuts] for cuts in steps]


class Reference:
    """The run by torch alone.

    Args:
        make: the inner optimizer of parameters.
        outer: called with an update's parameters and their gradients.
        keeps: one inner optimizer for all steps.
        kind: float64, or float32 for what rounding makes of it.
    """

    def __init__(self, make, outer, workers=1, local=LOCAL, epochs=2, momentum=0.1,
                 keeps=False, kind=torch.float64):
        self.model = network(momentum).to(kind)
        self.kind = kind
        self.momentum = momentum
        self.layers = [layer for layer in self.model
                       if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        self.statistics = [[torch.zeros_like(layer.running_mean),
                            torch.ones_like(layer.running_var), 0]
                           for layer in self.layers]
        self.workers, self.make, self.outer = workers, make, outer
        self.kept = make(self.model.parameters()) if keeps else None
        for cuts in batches_of(workers, local, epochs):
            self.train(cuts)

    def train(self, cuts):
        before = [p.detach().clone() for p in self.model.parameters()]
        changes = [torch.zeros_like(p) for p in before]
        total, calls = 0, []
        for rank in range(self.workers):
            samples = self.train_rank(rank, cuts, before, calls)
            total += samples
            for change, start, p in zip(changes, before, self.model.parameters()):
                change += samples * (start - p.detach())
        for p, start, change in zip(self.model.parameters(), before, changes):
            p.data.copy_(start)
            p.grad = change / total
        self.outer(self.model.parameters())
        self.move(calls, len(cuts))

    def train_rank(self, rank, cuts, before, calls):
        for p, start in zip(self.model.parameters(), before):
            p.data.copy_(start)
        optimizer = self.kept or self.make(self.model.parameters())
        samples = 0
        for number, cut in enumerate(cuts):
            if cut[rank] is None:
                continue
            x, y = cut[rank]
            optimizer.zero_grad()
            inputs = []
            handles = [layer.register_forward_pre_hook(
                lambda _, given: inputs.append(given[0].detach()))
                for layer in self.layers]
            nn.functional.cross_entropy(self.model(x.to(self.kind)), y).backward()
            for handle in handles:
                handle.remove()
            optimizer.step()
            samples += len(x)
            for layer, values in enumerate(inputs):
                values = values.transpose(0, 1).flatten(1)
                n = values.shape[1]
                unbiased = n * self.workers / (n * self.workers - 1)
                calls.append((layer, number, n, values.mean(1),
                              values.var(1, unbiased=False) * unbiased))
        return samples

    def move(self, calls, updates):
        """The statistics: one process by updates one after another; several by the
        sum of their weights."""
        for layer, held in enumerate(self.statistics):
            own = [call[1:] for call in calls if call[0] == layer]
            if self.workers == 1:
                for _, _, mean, variance in own:
                    held[2] += 1
                    a = 1 / held[2] if self.momentum is None else self.momentum
                    held[1] = (1 - a) * held[1] + a * variance + (
                        a * (1 - a) * (mean - held[0]) ** 2)
                    held[0] = (1 - a) * held[0] + a * mean
                continue
            a = self.momentum
            weights = [n * a * (1 - a) ** (updates - 1 - number)
                       for number, n, _, _ in own]
            mean = sum(w * call[2] for w, call in zip(weights, own)) / sum(weights)
            variance = sum(w * (call[3] + (call[2] - mean) ** 2)
                           for w, call in zip(weights, own)) / sum(weights)
            whole = 1 - (1 - a) ** updates
            held[1] = (1 - whole) * held[1] + whole * variance + (
                whole * (1 - whole) * (mean - held[0]) ** 2)
            held[0] = (1 - whole) * held[0] + whole * mean
            held[2] += updates

    def state(self):
        state = {name: p.detach() for name, p in self.model.named_parameters()}
        names = [name for name, layer in self.model.named_modules()
                 if layer in self.layers]
        for name, (mean, variance, tracked) in zip(names, self.statistics):
            state[f"{name}.running_mean"] = mean
            state[f"{name}.running_var"] = variance
            state[f"{name}.num_batches_tracked"] = torch.tensor(tracked)
        return state


def at_once(parameters):
    """The outer optimizer with rate 1: the mean itself."""
    for p in parameters:
        p.data.sub_(p.grad)


class Nesterov:
    """Source: Douillard et al., DiLoCo, 2023, in torch's order of operations."""

    def __init__(self):
        self.velocities = {}

    def __call__(self, parameters):
        for number, p in enumerate(parameters):
            v = 0.9 * self.velocities.get(number, torch.zeros_like(p)) + p.grad
            self.velocities[number] = v
            p.data.sub_(0.7 * (p.grad + 0.9 * v))


def train(rank, address, make=SGD, momentum=0.1, own=None, accumulate=1, **options):
    """(The state, what each job.step() returned with the step's number)"""
    del rank
    model = network(momentum)
    job = cohort.join(model, make(model.parameters()), log_level="error",
                      server_timeout=60, **{"server": address, **options})
    data = own() if own else Shapes(SAMPLES)
    results = []
    for x, y in job.data(data, batch_size=BATCH, accumulate=accumulate,
                         **({} if own else {"shuffle": False})):
        number = job.step_number
        job.backward(nn.functional.cross_entropy(model(x), y))
        results.append((number, job.step()))
    return model.state_dict(), results


def alone(make=SGD, epochs=2, **options):
    """The same of a script that starts its server."""
    return train(0, None, make, serve={"epochs": epochs}, **{
        "local_steps": LOCAL, "outer": PLAIN, **options})


def with_rates(rank, address, by_script):
    """44 samples of two ranks: rank 1 has no batch in the last local step of an
    epoch."""
    del rank
    model = network()
    optimizer = SGD(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    job = cohort.join(model, optimizer, server=address, log_level="error", local_steps=LOCAL,
                      schedulers=() if by_script else [scheduler])
    rates = []
    for x, y in job.data(Shapes(SAMPLES), batch_size=BATCH):
        rates.append((job.step_number, optimizer.param_groups[0]["lr"]))
        step(model, job, (x, y))
        if by_script:
            scheduler.step()
    return rates, digest(model.state_dict())


def stochastic(rank, address, loaders, deaths, folder):
    """Random augmentation, dropout and a schedule. Rank 1 dies once at each of
    `deaths`: in the step of this number, or behind it (+ 0.5). It has so many
    loader processes."""
    def die(at):
        if at in deaths:
            die_once(rank, folder / f"died{at}")

    model = three_batch_norms(dropout=0.2)
    optimizer = ADAMW(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=48)
    job = cohort.join(model, optimizer, schedulers=[scheduler], server=address, rank=rank,
                      server_timeout=60, log_level="error", local_steps=LOCAL)
    for x, y in job.data(Shapes(SAMPLES, noise=0.3), batch_size=BATCH,
                         num_workers=loaders * rank):
        number = job.step_number
        job.backward(nn.functional.cross_entropy(model(x), y))
        die(number)
        job.step()
        die(number + 0.5)
    return digest(model.state_dict())


def own_batches(rank, address, marker):
    """Rank 1 dies once, in the second local step of its second step. The names of
    the batches, and what became of them."""
    def batches():
        for number in range(1000):
            generator = torch.Generator().manual_seed(1000 * rank + number)
            yield (torch.randn(BATCH, 1, 12, 12, generator=generator),
                   torch.randint(0, 4, (BATCH,), generator=generator), number)

    model, job = joined(address, rank=rank, local_steps=LOCAL, server_timeout=60)
    seen = []
    for x, y, number in job.data(batches(), batch_size=BATCH):
        job.backward(nn.functional.cross_entropy(model(x), y))
        if job.step_number == LOCAL + 1:
            die_once(rank, marker)
        seen.append((number, job.step().verdict))
    return seen, digest(model.state_dict())


class Numbers(unittest.TestCase):
    def assert_close(self, state, wanted, rounded=None):
        """`rounded`: the same as `wanted` in float32."""
        for name, value in wanted.items():
            if name.endswith("num_batches_tracked"):
                self.assertEqual(int(state[name]), int(value), name)
                continue
            most = CLOSE if rounded is None else max(
                CLOSE, TIMES * distance(rounded[name], value))
            self.assertLess(most, 0.05, name)
            self.assertLess(distance(state[name], value), most, name)

    def assert_as(self, state, make, outer, skip=None, **options):
        """It is that of a Reference. `outer`: makes the outer optimizer; `skip`: the end of
        names that are not compared."""
        wanted, rounded = (Reference(make, outer(), kind=kind, **options).state()
                           for kind in (torch.float64, torch.float32))
        self.assert_close(state, {name: value for name, value in wanted.items()
                                  if skip is None or not name.endswith(skip)}, rounded)

    def test_one_worker_is_torch_with_a_new_optimizer_in_each_step(self):
        for make in SGD, ADAMW:
            for momentum in 0.1, None:
                with self.subTest(make=make, momentum=momentum):
                    state, results = alone(make, momentum=momentum)
                    self.assert_as(state, make, lambda: at_once, momentum=momentum)
                    self.assertEqual([number for number, _ in results],
                                     list(range(22)))
                    self.assertEqual(
                        [result.version for _, result in results[:11]],
                        [None, None, 1, None, None, 2, None, None, 3, None, 4])
                    self.assertEqual({(result.verdict, result.version is None)
                                      for _, result in results},
                                     {("local", True), ("applied", False)})

    def test_a_kept_state_is_torch_with_one_optimizer(self):
        state, _ = alone(keep_inner=True)
        self.assert_as(state, SGD, lambda: at_once, keeps=True)
        optimizer = ADAMW(network().parameters())
        texts = [_local_steps.text_of(_local_steps.Options(1, None, keeps), optimizer)
                 for keeps in (False, True)]
        self.assertTrue(texts[0].startswith("AdamW(betas=(0.9, 0.999), eps=0.001"))
        self.assertEqual(texts[1], texts[0] + ", keeps its state")

    def test_two_workers_and_the_default_outer_optimizer(self):
        with Server(2, "--epochs=2") as server:
            (state, results), (other, fewer) = server.call(
                functools.partial(train, local_steps=LOCAL))
        self.assert_as(state, SGD, Nesterov, workers=2)
        self.assertEqual(digest(state), digest(other))
        # The last local step of an epoch has no samples for rank 1.
        self.assertEqual([len(results), len(fewer)], [12, 10])

    def test_one_local_step_with_rate_1_is_a_step_of_the_server(self):
        plain = functools.partial(torch.optim.SGD, lr=0.02)
        state, _ = alone(plain, local_steps=1)
        wanted, _ = train(0, None, plain, serve={"epochs": 2, "normalization": "local"})
        self.assert_as(state, plain, lambda: at_once, local=1)
        # A step of the server moves the variance without that of the means.
        self.assert_as(wanted, plain, lambda: at_once, local=1, skip="running_var")

    def test_own_data_gives_the_same_bits(self):
        def batches():
            data = Shapes(SAMPLES)
            for at in range(0, SAMPLES, BATCH):
                yield torch.utils.data.default_collate(
                    [data[i] for i in range(at, at + BATCH)])

        state, _ = alone(epochs=1)
        # The data ends within the last step.
        own, results = train(0, None, own=batches, local_steps=LOCAL, outer=PLAIN,
                             serve={"max_steps": 100})
        self.assertEqual(digest(state), digest(own))
        self.assertEqual(len(results), 11)

    def test_parts_make_one_local_step(self):
        def run(**options):
            model = linear()
            _, job = joined(None, model, lr=0.1, momentum=0.9, outer=PLAIN,
                            local_steps=LOCAL, serve={"epochs": 1})
            for batch in job.data(Shapes(SAMPLES), batch_size=BATCH, shuffle=False,
                                  **options):
                step(model, job, batch)
            return model.state_dict()

        self.assert_close(run(accumulate=2), run())

    def test_parts_weigh_as_the_script_says(self):
        model, weights = linear(), (1.0, 3.0)
        _, job = joined(None, model, lr=0.1, outer=PLAIN, local_steps=LOCAL,
                        serve={"epochs": 1})
        for number, (x, y) in enumerate(job.data(Shapes(SAMPLES), batch_size=BATCH,
                                                 shuffle=False, accumulate=2)):
            job.backward(nn.functional.cross_entropy(model(x), y),
                         weight=weights[number % 2])
            self.assertEqual(job.step().verdict == "part", number % 2 == 0)

        def wanted(kind):
            wanted = linear().to(kind)
            optimizer = torch.optim.SGD(wanted.parameters(), lr=0.1)
            for (((x, y),),) in batches_of(1, 1, 1):
                optimizer.zero_grad()
                for part, weight in enumerate(weights):
                    loss = nn.functional.cross_entropy(
                        wanted(x[part::2].to(kind)), y[part::2])
                    (loss * weight / 4).backward()
                optimizer.step()
            return wanted.state_dict()

        self.assert_close(model.state_dict(), wanted(torch.float64),
                          wanted(torch.float32))

    def test_sums_weights_and_clipping_are_those_of_torch(self):
        def run(how):
            model = linear()
            _, job = joined(None, model, lr=0.1, outer=PLAIN, local_steps=LOCAL,
                            serve={"epochs": 1})
            for x, y in job.data(Shapes(SAMPLES), batch_size=BATCH, shuffle=False):
                loss = nn.functional.cross_entropy(
                    model(x), y, reduction="sum" if how == "sum" else "mean")
                # The second of a step does not count.
                skipped = how == "weight" and job.step_number % LOCAL == 1
                job.backward(loss, weight=0 if skipped else None,
                             reduction="sum" if how == "sum" else "mean")
                if how == "clip":
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                job.step()
            return model.state_dict()

        def wanted(how):
            model = linear().double()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for number, ((batch,),) in enumerate(batches_of(1, 1, 1)):
                x, y = batch
                if how == "weight" and number % LOCAL == 1:
                    continue
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x.double()), y).backward()
                if how == "clip":
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
            return model.state_dict()

        for how in "sum", "weight", "clip":
            with self.subTest(how):
                self.assert_close(run(how), wanted(how))

    def test_a_batch_norm_in_eval_mode_reads_its_statistics(self):
        def made():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(144), nn.Linear(144, 4))
            model[1].running_mean.fill_(0.25)
            return model

        model = made()
        _, job = joined(None, model, lr=0.1, outer=PLAIN, local_steps=LOCAL,
                        serve={"epochs": 1})
        for x, y in job.data(Shapes(SAMPLES), batch_size=BATCH, shuffle=False):
            model[1].eval()
            job.backward(nn.functional.cross_entropy(model(x), y))
            job.step()
        wanted = made().double()
        wanted[1].eval()
        optimizer = torch.optim.SGD(wanted.parameters(), lr=0.1)
        for ((x, y),), in batches_of(1, 1, 1):
            optimizer.zero_grad()
            nn.functional.cross_entropy(wanted(x.double()), y).backward()
            optimizer.step()
        self.assert_close(model.state_dict(), wanted.state_dict())

    def test_the_schedule_of_the_server_acts_on_the_local_rate(self):
        model = linear()
        _, job = joined(None, model, lr=0.1, outer=PLAIN, local_steps=LOCAL,
                        serve={"epochs": 2, "schedule": "cosine"})
        for batch in job.data(Shapes(SAMPLES), batch_size=BATCH, shuffle=False):
            step(model, job, batch)
        wanted, seen = linear().double(), 0
        for cuts in batches_of(1, LOCAL, 2):
            rate = 0.1 * (1 + math.cos(math.pi * seen / (2 * SAMPLES))) / 2
            optimizer = torch.optim.SGD(wanted.parameters(), lr=rate)
            for ((x, y),) in cuts:
                optimizer.zero_grad()
                nn.functional.cross_entropy(wanted(x.double()), y).backward()
                optimizer.step()
                seen += len(x)
        self.assert_close(model.state_dict(), wanted.state_dict())

    def test_schedulers_follow_local_steps(self):
        for by_script in False, True:
            with self.subTest(by_script=by_script), Server(2, "--epochs=2") as server:
                (rates, state), (fewer, other) = server.call(with_rates, by_script)
                self.assertEqual(state, other)
                self.assertEqual([number for number, _ in rates], list(range(12)))
                for number, rate in rates:
                    self.assertAlmostEqual(rate, 0.1 * 0.9 ** number, places=12)
                self.assertEqual(fewer, [pair for pair in rates if pair[0] not in (5, 11)])

    def test_a_loop_that_is_left_continues_with_the_rest(self):
        model = network()
        job = cohort.join(model, SGD(model.parameters()), log_level="error",
                          local_steps=LOCAL, outer=PLAIN, serve={"epochs": 1})
        data = job.data(Shapes(SAMPLES), batch_size=BATCH, shuffle=False)
        while not job.finished:
            for batch in data:
                step(model, job, batch)
                if job.step_number in (1, 6):
                    break
        self.assertEqual(digest(model.state_dict()), digest(alone(epochs=1)[0]))


class Kills(unittest.TestCase):
    def test_workers_and_servers_leave_no_trace(self):
        with Server(2, "--epochs=4") as server:
            wanted = server.call(stochastic, 0, (), server.dir)
        self.assertEqual(wanted[0], wanted[1])
        # Within the first step, within a later one, and behind one.
        deaths = (1, 7, 10.5)
        with Server(2, "--epochs=4", "--lease=2s", "--checkpoint_every=1",
                    keeps=True) as server:
            ranks = server.ranks(stochastic, 1, deaths, server.dir)
            for _ in deaths:
                ranks[1] = ranks[1].replaced()
            server.await_checkpoint(4)
            server.resume_server()
            self.assertEqual([rank.result() for rank in ranks], wanted, server.log())

    def test_own_batches_of_a_step_come_again(self):
        with Server(2, "--max_steps=4", "--lease=2s") as server:
            ranks = server.ranks(own_batches, server.dir / "marker")
            # A replacement that comes before would be given the same step.
            server.await_log("server", "rank 1 is lost")
            ranks[1] = ranks[1].replaced()
            (seen, state), (_, other) = (rank.result() for rank in ranks)
        self.assertEqual(state, other)
        # Its push came before the loss was noticed, or after.
        again = [(number, verdict) for number, verdict in seen
                 if verdict not in ("local", "applied")]
        self.assertIn(again, ([(5, "void")], [(5, "dropped")]))
        self.assertEqual([number for number, _ in seen],
                         [*range(6), *range(3, 12)])


class Refusals(unittest.TestCase):
    def refused(self, kind, body=None, model=None, make=SGD, flags=None, **options):
        """The error of join, or of the loop."""
        model = network() if model is None else model
        options = {"local_steps": LOCAL, **options}
        optimizer = make(model.parameters())
        job = None
        with self.assertRaises(kind) as raised:
            job = cohort.join(model, optimizer, log_level="error",
                              serve={"epochs": 1, **(flags or {})}, **options)
            for x, y in job.data(Shapes(SAMPLES), batch_size=BATCH):
                loss = nn.functional.cross_entropy(model(x), y)
                if body is not None:
                    loss = body(job, model, optimizer, loss)
                job.backward(loss)
                job.step()
        if job is not None:
            job.leave()
        self.assertIs(type(raised.exception), kind)

    def test_of_join(self):
        refuse = functools.partial(self.refused, cohort.ConfigurationError)
        model = network()
        halves = [torch.optim.SGD(part.parameters(), lr=0.1)
                  for part in (model[:4], model[4:])]
        with self.assertRaises(cohort.ConfigurationError):
            cohort.join(model, halves, local_steps=2)
        same = SGD(model.parameters())
        with self.assertRaises(cohort.ConfigurationError):
            cohort.join(model, same, local_steps=2, outer=same)
        for steps in -1, "4", True, 2.5, 5000:
            refuse(local_steps=steps)

        def without_rate(parameters):
            raise ValueError("parameter group didn't specify a value of lr")
        refuse(outer=without_rate)
        refuse(local_steps=0, keep_inner=True)
        refuse(scaler=_EnabledScaler())
        for make in (torch.optim.LBFGS, functools.partial(cohort.LARS, lr=1.0), _used):
            refuse(make=make)
        for outer in (functools.partial(PLAIN, weight_decay=0.1),
                      functools.partial(cohort.LARS, lr=1.0),
                      functools.partial(torch.optim.SGD, lr=0.0),
                      PLAIN(nn.Linear(1, 1).parameters()), len, SGD.keywords.get,
                      torch.optim.LBFGS):
            refuse(outer=outer)

    def test_of_the_loop(self):
        def sums(job, model, optimizer, loss):
            return job.sum(loss)

        def losses(job, model, optimizer, loss):
            job.backward([(loss, 1.0), (loss, 2.0)])

        def own_step(job, model, optimizer, loss):
            optimizer.step()

        def evaluation(job, model, optimizer, loss):
            model.eval()
            model(torch.zeros(1, 1, 12, 12))

        def weights(job, model, optimizer, loss):
            model[0].weight.data.mul_(2)
            return loss

        for body in sums, losses, own_step, evaluation, weights:
            with self.subTest(body.__name__):
                self.refused(cohort.UsageError, body)
        self.refused(cohort.UsageError, keep={"centre": torch.zeros(3)})
        self.refused(cohort.UsageError, buffers={"1.extra": "mean"},
                     model=_with_buffer())

        def with_plateau(parameters):
            optimizer = SGD(parameters)
            optimizer.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return optimizer
        self.refused(cohort.UsageError, make=with_plateau)

    def test_between_local_steps(self):
        def rates(job, model, optimizer):
            optimizer.param_groups[0]["lr"] = 0.5

        def load(job, model, optimizer):
            job.load()

        def evaluate(job, model, optimizer):
            model.eval()
            model(torch.zeros(1, 1, 12, 12))

        def call(job, model, optimizer):
            model(torch.zeros(4, 1, 12, 12))

        for what in rates, load, evaluate, call:
            with self.subTest(what.__name__):
                model = network()
                optimizer = SGD(model.parameters())
                job = cohort.join(model, optimizer, log_level="error", local_steps=LOCAL,
                                  serve={"epochs": 1})
                with self.assertRaises(cohort.UsageError):
                    for batch in job.data(Shapes(SAMPLES), batch_size=BATCH):
                        self.assertEqual(step(model, job, batch).verdict, "local")
                        what(job, model, optimizer)
                job.leave()

    def test_a_signal_waits_for_the_end_of_the_step_for_a_while(self):
        for patience, wanted in (1e6, [None, None, 1]), (0.01, [None]):
            with self.subTest(patience=patience), mock.patch.object(
                    _signals, "_PATIENCE", patience):
                model, job = joined(None, local_steps=LOCAL, serve={"epochs": 1})
                results = []
                with self.assertRaises(cohort.Stopped):
                    for batch in job.data(Shapes(SAMPLES), batch_size=BATCH):
                        results.append(step(model, job, batch))
                        if len(results) == 1:
                            os.kill(os.getpid(), signal.SIGTERM)
                            until(lambda: (
                                job._run._watcher.signal if patience > 1 else
                                job._run._stops_now), "the signal")
                self.assertEqual([result.version for result in results], wanted)

    def test_a_signal_during_a_push_waits_for_its_verdict(self):
        for local in 0, LOCAL:
            with self.subTest(local=local):
                model, job = joined(None, local_steps=local, serve={"epochs": 1})
                run, decided = job._run, threading.Event()
                stop, await_weights = run._stop, run.model.await_weights

                def decide(*arguments):
                    enough = stop(*arguments)
                    decided.set()
                    return enough

                def push():
                    if run.step.closes and not decided.is_set():
                        os.kill(os.getpid(), signal.SIGTERM)
                        until(decided.is_set, "the signal")
                    await_weights()

                results = []
                with mock.patch.object(run, "_stop", decide), \
                        mock.patch.object(run.model, "await_weights", push), \
                        self.assertRaises(cohort.Stopped):
                    for batch in job.data(Shapes(SAMPLES), batch_size=BATCH):
                        results.append(step(model, job, batch))
                self.assertEqual([result.version for result in results],
                                 [None, None, 1] if local else [1])

    def test_a_job_that_leaves_within_a_step_has_the_weights_of_its_version(self):
        model, job = joined(None, local_steps=LOCAL, serve={"epochs": 1})
        before = digest(model.state_dict())
        for batch in job.data(Shapes(SAMPLES), batch_size=BATCH):
            step(model, job, batch)
            self.assertNotEqual(digest(model.state_dict()), before)
            job.leave()
        self.assertEqual(digest(model.state_dict()), before)

    def test_of_layers_that_change(self):
        def momentum(job, model, optimizer, loss):
            model[1].momentum = 0.5
            return loss
        self.refused(cohort.ConfigurationError, momentum)

    def test_where_server_and_script_differ(self):
        self.refused(cohort.ConfigurationError, local_steps=0,
                     make=functools.partial(torch.optim.SGD, lr=0.1),
                     flags={"local_steps": 2})
        self.refused(cohort.ConfigurationError, flags={"local_steps": 0})
        self.refused(cohort.ConfigurationError, flags={"optimizer": "momentum"})


class _EnabledScaler(torch.cuda.amp.GradScaler):
    """One that stays enabled without a GPU."""

    def __init__(self):
        super().__init__(enabled=False)
        self._enabled = True


def _used(parameters):
    """An optimizer that has made a step."""
    parameters = list(parameters)
    optimizer = SGD(parameters)
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _with_buffer():
    model = network()
    model[1].register_buffer("extra", torch.zeros(3))
    return model


if __name__ == "__main__":
    unittest.main()
