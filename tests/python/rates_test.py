"""The optimizer's numbers as the script sets them: by hand, and by a scheduler that it steps
itself, of time or of a measure. A worker is killed, so that a step is void for the other and a replacement
continues."""

import functools
import os
import unittest

import torch
from torch import nn

import cohort
from networks import Shapes, digest, distance, step, three_batch_norms
from processes import until
from ranks import Server, die_once

# 6 steps an epoch, of two workers.
SAMPLES, STEPS, EPOCHS = 48, 6, 3
FLAGS = (f"--epochs={EPOCHS}",)


BY_STEP = ("scheduler by step", "scheduler of momentum")


def make(how, model):
    """The optimizer, and its scheduler if there is one."""
    optimizer = torch.optim.SGD(
        [{"params": model[:4].parameters()},
         {"params": model[4:].parameters(), "lr": 0.03}],
        lr=0.0 if how == "by number" else 0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler
    scheduler = None
    if how == "scheduler by step":
        scheduler = schedule.SequentialLR(optimizer, [
            schedule.LinearLR(optimizer, 0.1, 1.0, total_iters=5),
            schedule.CosineAnnealingLR(optimizer, T_max=15)], milestones=[5])
    elif how == "scheduler by epoch":
        scheduler = schedule.ExponentialLR(optimizer, 0.5)
    elif how == "scheduler of momentum":
        scheduler = schedule.OneCycleLR(optimizer, [0.02, 0.05], 40)
    elif how in ("plateau of a test loss", "plateau of a score"):
        scheduler = schedule.ReduceLROnPlateau(optimizer, factor=0.5, patience=0,
                                               threshold=0.2)
    elif how == "plateau of a sum":
        scheduler = schedule.ReduceLROnPlateau(optimizer, factor=0.7, patience=0,
                                               cooldown=1, min_lr=[0.002, 0.01])
    return optimizer, scheduler


def write_rates(how, optimizer, number):
    """At the beginning of the body."""
    for index, group in enumerate(optimizer.param_groups):
        if how == "by number":
            group["lr"] = 0.01 * (1 + index) * min(1.0, number / 4)
            group["momentum"] = 0.5 + 0.1 * min(number, 4)
            group["weight_decay"] = 0.01 * number
        elif how == "by factor":
            group["lr"] *= 0.9


def write_rates_of_epoch(how, optimizer, epoch):
    for group in optimizer.param_groups:
        if how == "by epoch":
            group["lr"] = 0.02 / (1 + epoch)
        elif how == "by factor at an epoch" and epoch == 1:
            group["lr"] *= 0.5


def held_out():
    """Samples that are not trained."""
    data = Shapes(64)
    return [data[index] for index in range(48, 64)]


def test_loss(model):
    x, y = torch.utils.data.default_collate(held_out())
    model.eval()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(x.to(next(model.parameters()))), y)
    model.train()
    return loss


# Within an epoch, at its beginning, behind a step, and behind the call of a
# scheduler; each way has one of them, and all with COHORT_KILLS above 1.
KILLS = (4, 12, 8.5, 11.5, 7.75)
EVERY = int(os.environ.get("COHORT_KILLS", "1")) > 1


def alone(how):
    """The rates of each step, and the model, of one process in float64."""
    model = three_batch_norms().double()
    optimizer, scheduler = make(how, model)
    rates = []
    data = Shapes(SAMPLES)
    x, y = torch.utils.data.default_collate(
        [data[index] for index in range(SAMPLES)])
    total = 0.0
    for epoch in range(EPOCHS):
        write_rates_of_epoch(how, optimizer, epoch)
        for x_of, y_of in zip(x.split(8), y.split(8)):
            write_rates(how, optimizer, len(rates))
            rates.append([group["lr"] for group in optimizer.param_groups])
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x_of.double()), y_of)
            loss.backward()
            total += float(loss) * len(x_of)
            optimizer.step()
            if how in BY_STEP:
                scheduler.step()
            elif how == "plateau of a sum" and len(rates) % 2 == 0:
                scheduler.step(total)
                total = 0.0
        if how == "scheduler by epoch":
            scheduler.step()
        elif how in ("plateau of a test loss", "plateau of a score"):
            scheduler.step(test_loss(model))
    return rates, model.state_dict()


def train(rank, address, how, at, marker):
    """The rates by step, and the model. Rank 1 dies in step `at`; at + 0.5: behind
    it; at + 0.75: behind the call of a scheduler that follows."""
    model = three_batch_norms()
    optimizer, scheduler = make(how, model)
    sums = how == "plateau of a sum"
    total = torch.zeros(())
    job = cohort.join(model, optimizer, keep={"total": total} if sums else (),
                      server=address, log_level="error", server_timeout=60)
    if how == "plateau of a score":
        job.evaluate_with(held_out(), nn.CrossEntropyLoss(), batch_size=3)
    data = job.data(Shapes(SAMPLES), batch_size=4, shuffle=False)
    rates = {}
    for epoch in job.epochs():
        write_rates_of_epoch(how, optimizer, epoch)
        for x, y in data:
            number = job.step_number
            write_rates(how, optimizer, number)
            loss = nn.functional.cross_entropy(model(x), y)
            if sums:
                total += job.sum(loss.detach() * len(x))
            if number == at:
                die_once(rank, marker)
            job.backward(loss)
            rates[number] = [group["lr"] for group in optimizer.param_groups]
            job.step()
            if number + 0.5 == at:
                die_once(rank, marker)
            if how in BY_STEP:
                scheduler.step()
            elif sums and number % 2:
                scheduler.step(total)
                total.zero_()
            if number + 0.75 == at:
                die_once(rank, marker)
        if how == "scheduler by epoch":
            scheduler.step()
        elif how == "plateau of a test loss":
            scheduler.step(test_loss(model))
        elif how == "plateau of a score":
            # The one of the last epoch, too.
            assert job.score.epochs == epoch + 1, job.score.epochs
            scheduler.step(job.score.loss)
    return rates, digest(model.state_dict()), model.state_dict()


def attempt(rank, address, how, at=-1, marker=None):
    """train, or the error's class and text."""
    try:
        return train(rank, address, how, at, marker)
    except cohort.CohortError as error:
        return f"{type(error).__name__}: {error}"


def rates_of_epochs(rank, address, marker=None):
    """With 44 samples rank 1 has no batch in the last step of an epoch. With a
    marker it dies behind its third step."""
    model = three_batch_norms()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    job = cohort.join(model, optimizer, server=address, log_level="error")
    data = job.data(Shapes(44), batch_size=5)
    rates = []
    for _ in job.epochs():
        for batch in data:
            step(model, job, batch)
            if job.step_number == 3:
                die_once(rank, marker)
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def rates_and_bits(rank, address, folder=None):
    """With a folder it stops in the first step of the second epoch, until there is a
    file "go"."""
    model = three_batch_norms()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    job = cohort.join(model, optimizer, server=address, log_level="error",
                      server_timeout=60)
    job.evaluate_with(held_out(), functools.partial(
        nn.functional.cross_entropy, ignore_index=-1))
    data = job.data(Shapes(44), batch_size=5)
    seen = {}
    for epoch in job.epochs():
        for x, y in data:
            job.backward(nn.functional.cross_entropy(model(x), y))
            if folder is not None and epoch == 1:
                (folder / f"here{rank}").touch()
                until(lambda: (folder / "go").exists(), "the signal to continue")
            job.step()
        scheduler.step()
        seen[epoch] = optimizer.param_groups[0]["lr"], job.score.loss
    return seen, digest(model.state_dict())


def one_loop(rank, address, calls):
    """The loop over the data goes through all epochs, so that `calls`, made behind
    it, would come after the run. The rates of the steps and how often the log names
    the loop, or the error."""
    del rank
    log = []
    cohort._core.log = lambda *text: log.append(text)
    model = three_batch_norms()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    job = cohort.join(model, optimizer, server=address, log_level="error",
                      epoch_schedulers=[] if calls else [scheduler])
    rates = []
    try:
        # With 44 samples rank 1 has no batch in the last step of an epoch.
        for batch in job.data(Shapes(44), batch_size=5):
            rates.append(optimizer.param_groups[0]["lr"])
            step(model, job, batch)
    except (cohort.UsageError, cohort.TrainingError) as error:
        # The first of them ends the run of the others.
        return f"{len(rates)} steps: {error}"
    return sorted(set(rates)), sum("job.epochs" in text for _, text in log)


class Rates(unittest.TestCase):
    def run_with(self, how, at):
        """The results of rank 1, which is killed in step `at`, and of rank 0, which
        waits for ever for a replacement if there is none."""
        with Server(2, *FLAGS, "--lease=2s") as server:
            first, second = server.ranks(attempt, how, at, server.dir / "marker")
            replacement = second.replaced().result()
            return [replacement] + ([] if isinstance(replacement, str) else
                                    [first.result()])

    def check(self, how, kill):
        """The rates of torch, and the same bits after a kill."""
        rates, wanted = alone(how)
        with Server(2, *FLAGS) as server:
            (ours, bits, state), second = server.call(attempt, how)
            server.complete()
            self.assertAlmostEqual(
                float(server.rows()[-1]["learning_rate"]), rates[-1][0], 7)
        self.assertEqual([ours[step] for step in range(len(rates))], rates)
        self.assertEqual(second[1], bits)
        for name, value in state.items():
            if value.is_floating_point():
                self.assertLess(distance(value, wanted[name]), 1e-4, name)
        for at in KILLS if EVERY else (kill,):
            with self.subTest(how, at=at):
                results = self.run_with(how, at)
                self.assertNotIsInstance(results[0], str)
                for seen, digested, _ in results:
                    self.assertEqual(digested, bits)
                    self.assertEqual(seen, {step: rates[step] for step in seen})

    def test_by_hand_in_each_step(self):
        self.check("by number", 4)
        self.check("by factor", 12)

    def test_by_hand_in_each_epoch(self):
        self.check("by epoch", 12)
        self.check("by factor at an epoch", 8.5)

    def test_by_a_scheduler_that_the_script_steps(self):
        self.check("scheduler by step", 11.5)
        self.check("scheduler of momentum", 8.5)
        self.check("scheduler by epoch", 12)

    def test_by_a_scheduler_that_acts_on_a_measure(self):
        self.check("plateau of a test loss", 11.5)
        self.check("plateau of a score", 11.5)
        self.check("plateau of a sum", 7.75)

    def test_a_worker_without_a_batch_knows_the_scheduler(self):
        with Server(2, *FLAGS) as server:
            for rates in server.call(rates_of_epochs):
                self.assertEqual(rates, [0.04, 0.02, 0.01])

    def test_a_replacement_in_the_first_epoch_sees_its_end(self):
        with Server(2, *FLAGS, "--lease=2s") as server:
            first, second = server.ranks(rates_of_epochs, server.dir / "marker")
            for rank in (second.replaced(), first):
                self.assertEqual(rank.result(), [0.04, 0.02, 0.01])

    def test_a_server_that_goes_back_to_another_epoch(self):
        """A loop that is over would not come to its end again."""
        with Server(2, *FLAGS) as server:
            (wanted, bits), _ = server.call(rates_and_bits)
        with Server(2, *FLAGS, "--checkpoint_every=3", keeps=True) as server:
            ranks = server.ranks(rates_and_bits, server.dir)
            until(lambda: all((server.dir / f"here{rank}").exists()
                              for rank in range(2)), "both ranks in the second epoch")
            server.await_checkpoint()
            server.resume_server()
            (server.dir / "go").touch()
            for rank in ranks:
                with self.assertRaisesRegex(AssertionError, "Stopped"):
                    rank.result()
            for seen, others in server.call(rates_and_bits):
                self.assertEqual(seen, wanted)
                self.assertEqual(others, bits)

    def test_a_scheduler_behind_a_loop_over_all_epochs_is_refused(self):
        for policy, steps in (("sync", "[45]"), ("async", "[0-9]+")):
            with self.subTest(policy), Server(
                    2, *FLAGS, "--aggregation=" + policy) as server:
                for refusal in server.call(one_loop, True):
                    self.assertRegex(refusal,
                                     f"^{steps} steps: .*StepLR.*job.epochs")
        with Server(2, *FLAGS) as server:
            for found in server.call(one_loop, False):
                self.assertEqual(found, ([0.02, 0.04, 0.08], 1))

    def test_a_replacement_before_the_first_call_of_a_scheduler_is_told_so(self):
        for how, at in (("scheduler by step", 1), ("scheduler by epoch", 6)):
            with self.subTest(how):
                self.assertRegex(self.run_with(how, at)[0],
                                 "UsageError.*continues at step")


if __name__ == "__main__":
    unittest.main()
