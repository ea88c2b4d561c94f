"""The training loop as scripts write it: epochs, scores of the script's own,
copies, and optimizers that are changed by hand."""

import copy
import io
import json
import operator
import queue
import threading
import unittest

import torch
from torch import nn

import cohort
from networks import Shapes, digest, joined, step, three_batch_norms
from ranks import Rank, Server, run

SAMPLES = 32


def begun(address):
    """A model, its job and its data."""
    model, job = joined(address, momentum=0.9)
    return model, job, job.data(Shapes(SAMPLES), batch_size=4)


# ---- epochs

def epochs_of(rank, address, stop_after):
    """(epoch, batches) of each turn; leaves after so many batches."""
    del rank
    model, job, data = begun(address)
    turns, batches = [], 0
    for epoch in job.epochs():
        turns.append([epoch, 0])
        assert job.epoch == epoch or not turns[-1][1]
        for batch in data:
            assert job.epoch == epoch
            step(model, job, batch)
            turns[-1][1] += 1
            batches += 1
            if batches == stop_after:
                job.leave()
                return turns
    return turns


class Epochs(unittest.TestCase):
    def test_a_replacement_begins_at_the_epoch_of_the_run(self):
        with Server(1, "--epochs=3") as server:
            first = Rank(epochs_of, 0, server.address, 11).result()
            self.assertEqual(first, [[0, 8], [1, 3]])
            self.assertEqual(Rank(epochs_of, 0, server.address, 0).result(),
                             [[1, 5], [2, 8]])

    def test_a_restarted_server_keeps_the_number_of_epochs(self):
        with Server(1, "--checkpoint_every=1", keeps=True) as server:
            server.kill()
            server.start_server("--epochs=2")
            Rank(epochs_of, 0, server.address, 11).result()
            server.resume_server()
            turns = Rank(epochs_of, 0, server.address, 0).result()
        # The last checkpoint may be missing.
        self.assertEqual(turns[-1][0], 1)

    def test_a_run_that_is_over_has_none(self):
        with Server(1, "--epochs=1", "--exit_when_done=false") as server:
            Rank(epochs_of, 0, server.address, 0).result()
            self.assertEqual(Rank(epochs_of, 0, server.address, 0).result(), [])

    def test_an_endless_loop_around_the_data_is_refused_after_the_run(self):
        with Server(1, "--epochs=2") as server:
            self.assertRegex(Rank(endless, 0, server.address).result(),
                             r"^16 steps: .*job\.finished")

    def test_other_data_is_refused_after_the_run(self):
        with Server(1, "--epochs=1") as server:
            self.assertEqual(Rank(with_test_data, 0, server.address).result(),
                             "refused")

    def test_an_epoch_that_is_left_early_has_none_after_it(self):
        for batches, wanted in ((3, r"^\[\(0, 3\)\] .*end of epoch 0.*num_samples"),
                                (8, r"^\[\(0, 8\), \(1, 8\)\] no error$")):
            with self.subTest(batches), Server(1, "--epochs=2") as server:
                self.assertRegex(Rank(left_early, 0, server.address,
                                      batches).result(), wanted)

    def test_bodies_without_the_data_are_refused(self):
        for what, pattern in (("no data", "the job has no data"),
                              ("not iterated", "did not iterate")):
            with self.subTest(what), Server(1, "--epochs=2") as server:
                self.assertRegex(Rank(misused, 0, server.address, what).result(),
                                 pattern)

    def test_reading_in_another_thread_ends_the_script_and_the_run(self):
        with Server(2, "--epochs=2") as server:
            ends = server.call(read_ahead)
        self.assertEqual(ends[0], "interrupted")
        self.assertRegex(ends[1], "another thread.*num_workers")

    def test_a_length_is_the_steps_of_an_epoch(self):
        for before, hint, inside, seen in run(lengths, 2, flags=["--epochs=1"]):
            self.assertRegex(before, "job.epochs.*cohort.steps")
            # list() and tqdm go on without.
            self.assertEqual(hint, -1)
            self.assertEqual((inside, seen), (4, 4))


def endless(rank, address):
    del rank
    model, job, data = begun(address)
    steps = 0
    try:
        while True:
            for batch in data:
                step(model, job, batch)
                steps += 1
    except cohort.UsageError as error:
        return f"{steps} steps: {error}"


def read_ahead(rank, address):
    """Rank 0 reads by a thread, for which it waits."""
    model, job, data = begun(address)
    batches = queue.Queue(1)
    try:
        if rank == 0:
            threading.Thread(target=lambda: [batches.put(batch) for batch in data],
                             daemon=True).start()
        for batch in data if rank else iter(batches.get, None):
            step(model, job, batch)
    except KeyboardInterrupt:
        return "interrupted"
    except cohort.CohortError as error:
        return str(error)
    return "no error"


def with_test_data(rank, address):
    """The script takes a second job.data() for one of its loops over test data."""
    del rank
    model, job, data = begun(address)
    tests = job.data(Shapes(8), batch_size=4)
    for batch in data:
        step(model, job, batch)
    # As in a script's function for an epoch.
    assert not list(job.data(data.dataset, batch_size=4))
    try:
        return f"{len(list(iter(tests)))} batches"
    except cohort.UsageError:
        return "refused"


def left_early(rank, address, batches):
    """Leaves the loop over the first epoch after so many of 8."""
    del rank
    model, job, data = begun(address)
    turns = []
    try:
        for epoch in job.epochs():
            for number, batch in enumerate(data, 1):
                step(model, job, batch)
                if not turns and number == batches:
                    break
            turns.append((epoch, number))
    except cohort.UsageError as error:
        job.leave()
        return f"{turns} {error}"
    return f"{turns} no error"


def misused(rank, address, what):
    del rank
    model, job = joined(address, lr=0.1)
    if what != "no data":
        job.data(Shapes(SAMPLES), batch_size=4)
    try:
        for _ in job.epochs():
            pass
    except cohort.UsageError as error:
        job.leave()
        return str(error)
    return "no error"


def lengths(rank, address):
    del rank
    model, job, data = begun(address)
    assert data
    assert (data.num_workers, data.pin_memory, data.drop_last) == (0, False, False)
    assert data.collate_fn is torch.utils.data.default_collate
    try:
        before = str(len(data))
    except cohort.UsageError as error:
        before = str(error)
    hint = operator.length_hint(data, -1)
    inside, seen = 0, 0
    for _ in job.epochs():
        inside = len(data)
        for batch in data:
            seen += 1
            step(model, job, batch)
    return before, hint, inside, seen


def one_cycle(rank, address):
    """A schedule over the whole run: the steps counted before, those made, and
    the rate of the last one."""
    del rank
    model = three_batch_norms()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = cohort.steps(Shapes(SAMPLES), 4, server=address)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total)
    job = cohort.join(model, optimizer, schedulers=[scheduler], server=address,
                      log_level="error")
    made = 0
    for batch in job.data(Shapes(SAMPLES), batch_size=4):
        rate = optimizer.param_groups[0]["lr"]
        # With --global_batch a step has two parts.
        made += step(model, job, batch).counts
    return total, made, rate


class Lengths(unittest.TestCase):
    def test_the_server_knows_the_steps_of_the_run(self):
        for flags, wanted in ((["--epochs=3"], 12),
                              (["--epochs=2", "--global_batch=12"], 6)):
            with self.subTest(flags=flags):
                for total, made, rate in run(one_cycle, 2, flags=flags):
                    self.assertEqual(total, wanted)
                    self.assertEqual(made, total)
                    self.assertAlmostEqual(rate, 0.1 / 25 / 1e4)

    def test_steps_of_a_server_that_the_script_starts(self):
        self.assertEqual(cohort.steps(33, 4), 5 * 9)
        self.assertEqual(cohort.steps(range(32), 4, server_flags={
            "epochs": 2, "global_batch": 10}), 2 * 4)
        self.assertEqual(cohort.steps(32, 4, workers=2, epochs=3), 12)

    def test_steps_without_an_answer(self):
        with self.assertRaisesRegex(cohort.ConfigurationError,
                                    "steps.*workers= and epochs="):
            cohort.steps(8, 2, server="unix:/nowhere")
        with self.assertRaisesRegex(cohort.ConfigurationError, "0 samples"):
            cohort.steps([], 2)


# ---- moving statistics

def statistics_of_versions(rank, address):
    """Whether the buffers between steps, and after an epoch, are those of the
    server; and those of the end."""
    del rank
    model, job, data = begun(address)
    layer = model[1]
    same = []
    for _ in job.epochs():
        for number, batch in enumerate(data):
            step(model, job, batch)
            if number == 1:
                ours = layer.running_mean.clone()
                wanted = job.state_dict()["1.running_mean"]
                same.append(torch.equal(ours, wanted))
        ours = layer.running_mean.clone()
        same.append(torch.equal(ours, job.state_dict()["1.running_mean"]))
    return same, digest(model.state_dict())


def frozen_layer(rank, address, dataset):
    """Modes of the layers after an evaluation."""
    del rank
    model, job, data = begun(address)
    job.evaluate_with(dataset, nn.CrossEntropyLoss(), batch_size=8)
    model[1].eval()
    modes = []
    for _ in job.epochs():
        modes.append([model[1].training, model[4].training])
        for batch in data:
            step(model, job, batch)
    return modes


class MovingStatistics(unittest.TestCase):
    def test_they_are_those_of_the_version_under_every_policy(self):
        for policy in ("sync", "async", "chief"):
            flags = {"sync": (), "async": ("--bn_statistics=async",),
                     "chief": ("--bn_statistics=chief",)}[policy]
            (first, end), (second, other) = run(
                statistics_of_versions, 2, flags=["--epochs=2", *flags])
            self.assertEqual(first, [True] * 4, policy)
            self.assertEqual(second, first)
            self.assertEqual(end, other)

    def test_an_evaluation_leaves_the_modes_of_layers_alone(self):
        with Server(1, "--epochs=2") as server:
            modes = Rank(frozen_layer, 0, server.address,
                         Shapes(16)).result()
        self.assertEqual(modes, [[False, True]] * 2)


# ---- the optimizer

def change_by_hand(rank, address, what):
    del rank
    model = three_batch_norms()
    make = torch.optim.AdamW if what == "betas" else torch.optim.SGD
    optimizer = make(model.parameters(), lr=0.1, weight_decay=0.01)
    schedulers = []
    if what in ("scheduled", "two calls"):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        schedulers = [scheduler] if what == "scheduled" else []
    fresh = optimizer.state_dict()
    job = cohort.join(model, optimizer, server=address, log_level="error",
                      schedulers=schedulers)
    group = optimizer.param_groups[0]
    try:
        for batch in job.data(Shapes(SAMPLES), batch_size=4):
            step(model, job, batch)
            if what == "lr":
                group["lr"] *= 0.5
            elif what == "weight_decay":
                group["weight_decay"] = 0.0
            elif what == "betas":
                group["betas"] = (0.8, 0.9)
            elif what == "momentum":
                group["momentum"] = 0.9
            elif what == "add_param_group":
                optimizer.add_param_group(
                    {"params": [nn.Parameter(torch.zeros(1))]})
            elif what == "load_state_dict":
                optimizer.load_state_dict(fresh)
            elif what == "two calls":
                scheduler.step()
                scheduler.step()
    except (cohort.ConfigurationError, cohort.UsageError) as error:
        return str(error)
    finally:
        job.leave()
    # It is the script's alone again.
    optimizer.load_state_dict(fresh)
    optimizer.step()
    return "no error"


class OptimizerByHand(unittest.TestCase):
    def test_changes_are_refused(self):
        for what, pattern in (
                ("lr", "lr of group 0 was changed from 0.1 to 0.05 between "
                 r"job.step.*before job.backward.*\*\* job.epoch.*schedulers="),
                ("weight_decay", "weight_decay of group 0.*from 0.01 to 0.0 "),
                ("betas", r"betas\[0\] of group 0.*from 0.9 to 0.8 "),
                # Its rule has none.
                ("momentum", "momentum of group 0.*from 0 to 0.9.*before "
                 "cohort.join"),
                ("add_param_group", r"optimizer.add_param_group\(\)"),
                ("load_state_dict", r"optimizer.load_state_dict\(\).*--resume"),
                ("two calls", "one call.*after each job.step"),
                ("scheduled", "no error"), ("nothing", "no error")):
            with self.subTest(what), Server(1, "--epochs=1") as server:
                self.assertRegex(
                    Rank(change_by_hand, 0, server.address, what).result(),
                    pattern)

    def test_a_rate_that_the_server_was_given_is_not_changed_by_the_script(self):
        by_number = rates_by_number, ("lr",), "ConfigurationError at step 2.*"
        decay = rates_by_number, ("weight_decay",), by_number[2]
        scheduled = change_by_hand, ("scheduled",), "the registration.*"
        for flag, cases in (("--learning_rate=0.2", (by_number, scheduled)),
                            ("--schedule=cosine", (by_number, scheduled)),
                            ("--weight_decay=0.2", (decay,))):
            for function, arguments, pattern in cases:
                with self.subTest(flag), Server(1, flag) as server:
                    self.assertRegex(
                        Rank(function, 0, server.address, *arguments).result(),
                        pattern + "given " + flag.partition("=")[0])

    def test_a_step_has_its_number(self):
        with Server(1, "--max_steps=5") as server:
            self.assertEqual(Rank(rates_by_number, 0, server.address,
                                  "lr").result(), "before, 0, 1, 2, 3, 4, after 5")


def rates_by_number(rank, address, what):
    """The numbers of the steps, or the error. `what` changes in step 2."""
    del rank
    model = three_batch_norms()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = cohort.join(model, optimizer, server=address, log_level="error")
    seen = []
    try:
        job.step_number
    except cohort.UsageError:
        seen.append("before")
    try:
        for batch in job.data(Shapes(SAMPLES), batch_size=4):
            seen.append(str(job.step_number))
            if job.step_number == 2:
                optimizer.param_groups[0][what] = 0.05
            step(model, job, batch)
    except cohort.CohortError as error:
        return f"{type(error).__name__} at step {job.step_number}: {error}"
    finally:
        job.leave()
    return ", ".join([*seen, f"after {job.step_number}"])


# ---- where the time goes

def traced(rank, address, trace):
    """Steps of two parts each."""
    del rank
    model, job = joined(address, trace=str(trace))
    for batch in job.data(Shapes(SAMPLES), batch_size=16, accumulate=2):
        step(model, job, batch)


class Phases(unittest.TestCase):
    def test_computing_the_loss_is_the_forward_phase(self):
        with Server(1, "--epochs=1") as server:
            trace = server.dir / "trace"
            Rank(traced, 0, server.address, trace).result()
            events = json.loads(trace.read_text())
        spans = {name: [(event["ts"], event["ts"] + event["dur"])
                        for event in events if event["name"] == name]
                 for name in ("data", "forward", "rendezvous", "backward")}
        # Two steps of two parts: one reading of data a step.
        self.assertEqual([len(spans[name]) for name in
                          ("data", "forward", "backward")], [2, 4, 4])
        passes = sorted(spans["forward"] + spans["backward"])
        self.assertEqual(passes[::2], sorted(spans["forward"]))
        # Batch norm meets within the passes: nothing of them is outside.
        for begin, end in spans["rendezvous"]:
            self.assertTrue(any(outer[0] <= begin and end <= outer[1]
                                for outer in passes))


# ---- copies

def copies_in_a_step(rank, address):
    """Types of a copy, and whether it may be run while a step is open."""
    model, job, data = begun(address)
    plain = three_batch_norms()
    kinds, same = set(), []
    for number, (x, y) in enumerate(data):
        if rank == 0 and number == 1:
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            for other in (copy.deepcopy(model), load(file)):
                kinds |= {type(module) for module in other.modules()
                          if isinstance(module, nn.modules.batchnorm._NormBase)}
                other.train()
                with cohort.local():
                    # Otherwise it would wait for rank 1.
                    other(x[:2])
                same.append(list(other.state_dict()) == list(plain.state_dict()))
        job.backward(nn.functional.cross_entropy(model(x), y))
        job.step()
    return sorted(kind.__module__ + "." + kind.__name__ for kind in kinds), same


def load(file):
    # From torch 2.6 on only tensors are loaded unless this says otherwise.
    try:
        return torch.load(file, weights_only=False)
    except TypeError:
        return torch.load(file)


def loaded_after_the_run(rank, address):
    """What job.load() returns, and whether the model is what it was."""
    del rank
    model, job, data = begun(address)
    for batch in data:
        step(model, job, batch)
    before = digest(model.state_dict())
    return job.load(), job.version, before == digest(model.state_dict())


class Copies(unittest.TestCase):
    def test_the_last_version_can_be_loaded_after_the_run(self):
        for found in run(loaded_after_the_run, 2, flags=["--max_steps=3"]):
            self.assertEqual(found, (3, 3, True))

    def test_a_copy_takes_no_part_in_the_step(self):
        (kinds, same), _ = run(copies_in_a_step, 2, flags=["--max_steps=3"])
        self.assertEqual(kinds, ["torch.nn.modules.batchnorm.BatchNorm1d",
                                 "torch.nn.modules.batchnorm.BatchNorm2d"])
        self.assertEqual(same, [True, True])

    def test_a_copy_has_the_values_and_is_converted_again(self):
        model = cohort.convert_batch_norm(nn.Sequential(
            nn.BatchNorm2d(3), nn.SyncBatchNorm(3)))
        model[0].running_mean.fill_(2)
        for other in (copy.deepcopy(model), copy.copy(model[0])):
            first = other[0] if isinstance(other, nn.Sequential) else other
            self.assertIs(type(first), nn.BatchNorm2d)
            self.assertEqual(first.running_mean.tolist(), [2, 2, 2])
        again = cohort.convert_batch_norm(copy.deepcopy(model))
        self.assertEqual([type(module) for module in again],
                         [cohort.BatchNorm2d, cohort.BatchNorm])


if __name__ == "__main__":
    unittest.main()
