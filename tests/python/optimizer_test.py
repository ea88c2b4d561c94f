"""What the server receives of an optimizer, its groups and its schedulers."""

import pathlib
import unittest

import torch
from torch import nn

import cohort
from cohort import _core
from cohort._optimizer import GroupNumbers, StepNumbers, plan_of
from cohort._schedulers import Schedulers


def parameters(*shapes):
    return [nn.Parameter(torch.zeros(shape)) for shape in shapes]


class Plan(unittest.TestCase):
    def test_rules_and_their_settings(self):
        some = parameters((2, 2))
        for optimizer, wanted in (
                (torch.optim.SGD(some, lr=0.5),
                 {"optimizer": "sgd", "maximize": "false", "learning_rate": "0.5",
                  "weight_decay": "0.0", "schedule": "constant"}),
                (torch.optim.SGD(some, lr=0.5, momentum=0.9, nesterov=True,
                                 weight_decay=1e-4),
                 {"optimizer": "nesterov", "maximize": "false", "momentum": "0.9",
                  "learning_rate": "0.5", "weight_decay": "0.0001",
                  "schedule": "constant"}),
                (torch.optim.Adam(some, betas=(0.8, 0.99), eps=1e-6),
                 {"optimizer": "adam", "maximize": "false", "adam_beta1": "0.8", "adam_beta2": "0.99",
                  "adam_epsilon": "1e-06", "adam_amsgrad": "false", "learning_rate": "0.001",
                  "weight_decay": "0.0", "schedule": "constant"}),
                (torch.optim.AdamW(some),
                 {"optimizer": "adamw", "maximize": "false", "adam_beta1": "0.9",
                  "adam_beta2": "0.999", "adam_epsilon": "1e-08", "adam_amsgrad": "false",
                  "learning_rate": "0.001", "weight_decay": "0.01",
                  "schedule": "constant"}),
                (cohort.Lion(some, weight_decay=0.1),
                 {"optimizer": "lion", "maximize": "false", "lion_beta1": "0.9",
                  "lion_beta2": "0.99", "learning_rate": "0.0001",
                  "weight_decay": "0.1", "schedule": "constant"}),
                (cohort.LAMB(some, weight_decay=0.01),
                 {"optimizer": "lamb", "maximize": "false", "adam_beta1": "0.9",
                  "adam_beta2": "0.999", "lamb_epsilon": "1e-06",
                  "learning_rate": "0.001", "weight_decay": "0.01",
                  "schedule": "constant"}),
                (cohort.LARS(some, lr=2, weight_decay=1e-4),
                 {"optimizer": "lars", "maximize": "false", "momentum": "0.9", "lars_trust": "0.001",
                  "learning_rate": "2.0", "weight_decay": "0.0001",
                  "schedule": "constant"})):
            self.assertEqual(plan_of([optimizer], False).settings, wanted)

    def test_groups_are_multiples_of_the_first(self):
        first, second = parameters((2, 2), (3,))
        optimizer = torch.optim.SGD(
            [{"params": [first]},
             {"params": [second], "lr": 1.0, "weight_decay": 0.01}],
            lr=0.1, weight_decay=0.02)
        plan = plan_of([optimizer], False)
        self.assertEqual(plan.settings["learning_rate"], "0.1")
        self.assertEqual(plan.settings["weight_decay"], "0.02")
        rates = plan.rates[id(second)]
        self.assertEqual((rates.rate_multiplier, rates.decay_multiplier,
                          rates.decay_exempt, rates.rate_group), (10, 0.5, False, 1))
        self.assertFalse(plan.rates_by_workers)
        rates = plan_of([optimizer], True).rates[id(second)]
        self.assertEqual((rates.rate_multiplier, rates.rate_group), (1, 1))
        # No rate is a multiple of 0.
        optimizer.param_groups[0]["lr"] = 0
        plan = plan_of([optimizer], False)
        self.assertTrue(plan.rates_by_workers)
        self.assertEqual(plan.rates[id(second)].rate_multiplier, 1)

    def test_numbers_of_a_step_are_those_that_are_not_as_registered(self):
        first, second = parameters((2, 2), (3,))
        optimizer = torch.optim.Adam(
            [{"params": [first]}, {"params": [second], "betas": (0.8, 0.999)}],
            lr=0.1)
        self.assertEqual(plan_of([optimizer], False).settings["adam_beta1"], "0.9")
        numbers = GroupNumbers([optimizer])
        differs = [(1, "adam_beta1", 0.8)]
        self.assertEqual(numbers.of_step(False), StepNumbers([], differs))
        self.assertEqual(numbers.of_step(True), StepNumbers([0.1, 0.1], differs))
        values = numbers.now()
        one, other = optimizer.param_groups
        one["betas"], other["weight_decay"], one["lr"] = (0.7, 0.99), 0.5, 0.2
        other["betas"] = (0.9, 0.999)
        self.assertEqual(numbers.of_step(False), StepNumbers([0.2, 0.1], [
            (0, "adam_beta1", 0.7), (0, "adam_beta2", 0.99),
            (1, "weight_decay", 0.5)]))
        self.assertEqual(numbers.differing(values),
                         ("betas[0] of group 0", 0.9, 0.7))
        numbers.restore(values)
        self.assertEqual(numbers.now(), values)
        self.assertEqual(other["betas"], (0.8, 0.999))

    def test_lars_and_lamb_exempt_what_is_no_matrix(self):
        for of in (cohort.LARS, cohort.LAMB):
            matrix, vector = parameters((2, 2), (3,))
            plan = plan_of([of([matrix, vector], lr=1)], False)
            self.assertFalse(plan.rates[id(matrix)].decay_exempt)
            self.assertTrue(plan.rates[id(vector)].decay_exempt)


def rows_of_the_page():
    """The table of OPTIMIZERS.md, as the server's rules have it."""
    def argument(of):
        name = of.name + (f"[{of.position}]" if of.position >= 0 else "")
        return f"`{name}`: `--{of.number}`"
    for rule in _core.optimizer_rules():
        for made in rule.torch_classes:
            only = ", ".join(f"`{value.name}={value.value:g}`"
                             for value in made.values)
            arguments = ", ".join(map(argument, made.arguments))
            slots = " to ".join(map(str, sorted(set(rule.slots))))
            yield (f"| `{made.name}` | {only} | `{rule.name}` | {slots} | "
                   f"{arguments} |")


class Page(unittest.TestCase):
    def test_the_table_of_optimizers_is_that_of_the_server(self):
        page = pathlib.Path(__file__).parents[2] / "worker/python/OPTIMIZERS.md"
        table = [line for line in page.read_text(encoding="utf-8").split("\n")
                 if line.startswith("| `")]
        self.assertEqual(table, list(rows_of_the_page()))


class SchedulerState(unittest.TestCase):
    def make(self):
        optimizer = torch.optim.SGD(parameters((2,)), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler
        steps = [scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=50)]
        epochs = [scheduler.MultiStepLR(optimizer, milestones=[1, 3])]
        return optimizer, Schedulers([optimizer], steps, epochs)

    def test_a_state_continues_as_the_original(self):
        optimizer, original = self.make()
        for step in range(10):
            original.begin_step(step // 4, step, step > 0, one_loop=False)
            original.advance(optimizer)
        saved = original.save()
        another, other = self.make()
        other.load(saved)
        self.assertEqual(other.save(), saved)
        for step in range(10, 30):
            for of, schedulers in ((optimizer, original), (another, other)):
                schedulers.begin_step(step // 4, step, True,
                                      one_loop=False)
                schedulers.advance(of)
            self.assertEqual(original.numbers.now(), other.numbers.now())

    def test_a_scheduler_that_was_not_passed_is_found(self):
        schedule = torch.optim.lr_scheduler
        optimizer, other = (torch.optim.SGD(parameters((2,)), lr=0.1)
                            for _ in "ab")
        mine, unrelated = (schedule.SequentialLR(
            of, [schedule.ConstantLR(of), schedule.ExponentialLR(of, 0.5)], [2])
            for of in (optimizer, other))
        kind, keys = type(mine), set(mine.state_dict())
        schedulers = Schedulers([optimizer], [], [])
        schedulers.find()
        self.assertIs(type(unrelated), kind)
        self.assertIsInstance(mine, kind)
        self.assertEqual(set(mine.state_dict()), keys)
        with self.assertRaisesRegex(cohort.UsageError, "after each job.step"):
            mine.step()
        for version in range(5):
            schedulers.begin_step(0, version, version > 0, one_loop=False)
            self.assertEqual(schedulers.numbers.of_step(True).rates,
                             [other.param_groups[0]["lr"]])
            unrelated.step()
            state = schedulers.finish()
            schedulers.end_step()
            mine.step()
        # As sent with the last step, the call behind it included.
        self.assertEqual(schedulers.save(), state)
        schedulers.begin_step(0, 5, True, one_loop=False)
        schedulers.finish()
        schedulers.end_step()
        with self.assertRaisesRegex(cohort.UsageError, "after each job.step"):
            schedulers.begin_step(0, 6, True, one_loop=False)
        schedulers.detach()
        self.assertIs(type(mine), kind)

    def test_schedulers_that_cannot_be_followed_say_so(self):
        schedule = torch.optim.lr_scheduler
        optimizer = torch.optim.SGD(parameters((2,)), lr=0.1)
        plateaus = [schedule.ReduceLROnPlateau(optimizer) for _ in "ab"]
        Schedulers([optimizer], [], []).find()
        for plateau in plateaus:
            with self.assertRaisesRegex(cohort.UsageError, "one of 2 schedulers"):
                plateau.step(1.0)
        passed, second = (schedule.ExponentialLR(optimizer, 0.5) for _ in "ab")
        Schedulers([optimizer], [passed], []).find()
        with self.assertRaisesRegex(cohort.UsageError, "one of 4 schedulers"):
            second.step()

    def test_a_step_back_and_again_is_the_same(self):
        optimizer, schedulers = self.make()
        schedulers.begin_step(0, 0, False, one_loop=False)
        before = schedulers.save()
        schedulers.advance(optimizer)
        after = schedulers.save()
        schedulers.load(before)
        self.assertEqual(schedulers.save(), before)
        schedulers.advance(optimizer)
        self.assertEqual(schedulers.save(), after)

    def test_another_number_of_schedulers_is_refused(self):
        optimizer, schedulers = self.make()
        with self.assertRaisesRegex(cohort.RunMismatchError, "got 0, but the run "
                                    "has 2"):
            Schedulers([optimizer], [], []).load(schedulers.save())

    def test_a_state_that_is_no_text_is_refused_by_name(self):
        optimizer, schedulers = self.make()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        scheduler.thing = object()
        with self.assertRaisesRegex(cohort.ConfigurationError,
                                    r"StepLR\['thing'\]: got a object"):
            Schedulers([optimizer], [scheduler], []).save()


if __name__ == "__main__":
    unittest.main()
