"""Elastic cohorts of real workers: more and fewer of them while they train."""

import collections
import signal
import unittest

import history_check
from processes import BIN, KILLS, Cohort, kill

LIMITS = "--workers=1:8"
EPOCHS = 1000
# In batches of 32: three batches of one worker, and parts of a batch of eight.
GLOBAL_BATCH = 96


class Elastic(unittest.TestCase):
    def trains_with(self, cohort, workers):
        """Whether so many are there, and no other, and all are at work. One that
        is frozen is there until its lease has ended, and one that waits is not
        at work."""
        live = [worker for worker in cohort.status()["workers"]
                if worker["state"] == "live"]
        return len(live) == workers and all(worker["sequence"] > 0
                                            for worker in live)

    def start_worker(self, cohort, name):
        """A worker that takes any free rank."""
        cohort.workers[name] = cohort.start_process(f"worker{name}", [
            BIN / "cohort-worker", f"--server={cohort.address}",
            *cohort.worker_flags,
            f"--exchange_log={cohort.dir}/{name}.jsonl"])

    def await_steps_of(self, cohort, workers):
        """Waits until all of `workers` train, and for a few steps then."""
        cohort.wait_until(lambda: self.trains_with(cohort, workers),
                          f"{workers} workers")
        cohort.await_version(cohort.status()["version"] + 5)

    def check_history(self, cohort, **bounds):
        logs = sorted(cohort.dir.glob("*.jsonl"))
        violations = history_check.check(history_check.load(logs), **bounds)
        self.assertEqual(violations, [], cohort.log())

    def sizes(self, cohort):
        return {int(row["workers"]) for row in cohort.rows() if row["workers"]}

    def resize(self, *flags, check=None):
        """From one worker to eight and down to three, by all ways to leave."""
        with Cohort(server_flags=[LIMITS, f"--epochs={EPOCHS}",
                                  *flags]) as cohort:
            cohort.start_server()
            self.start_worker(cohort, 0)
            self.await_steps_of(cohort, 1)
            self.await_epoch(cohort)
            for name in range(1, 8):
                self.start_worker(cohort, name)
            self.await_steps_of(cohort, 8)
            for name, signal_ in ((1, signal.SIGTERM), (2, signal.SIGKILL),
                                  (3, signal.SIGSTOP), (5, signal.SIGTERM),
                                  (6, signal.SIGKILL)):
                cohort.workers[name].send_signal(signal_)
            self.await_steps_of(cohort, 3)
            samples = cohort.status()["samples_total"] // EPOCHS
            # The first has had all sizes, the second only this one.
            for _ in range(2):
                self.await_epoch(cohort)
            kill(cohort.workers[3])
            cohort.drain()
            for name in (0, 4, 7):
                cohort.await_worker(name)
            self.check_history(cohort)
            history = history_check.History(history_check.load(
                sorted(cohort.dir.glob("*.jsonl"))))
            self.check_epochs(history, samples)
            if check is not None:
                check(history, samples)
            return self.sizes(cohort)

    def await_epoch(self, cohort):
        """Until the epoch in progress is over."""
        epoch = cohort.status()["data_epoch"] + 1
        cohort.wait_until(lambda: cohort.status()["data_epoch"] >= epoch,
                          f"epoch {epoch}")

    def check_epochs(self, history, samples):
        """Each sample of an epoch that is over was used; history_check sees that
        none was used twice."""
        used = collections.defaultdict(set)
        for push in history.pushes.values():
            # Where the answer was lost with its worker, the push may count.
            if push.assignment is not None and (push.applied or push.lost):
                used[push.assignment["epoch"]].update(
                    range(*push.assignment["range"]))
        self.assertGreater(max(used), 0)
        for epoch in range(max(used)):
            missing = set(range(samples)) - used[epoch]
            given = [push for push in history.pushes.values()
                     if push.assignment is not None and
                     push.assignment["epoch"] == epoch and
                     missing & set(range(*push.assignment["range"]))]
            self.assertFalse(missing, f"epoch {epoch} of {max(used)}: {given}")

    def check_step_samples(self, history, samples):
        """Each step has GLOBAL_BATCH samples, but the last of an epoch."""
        steps = collections.defaultdict(list)
        for push in history.pushes.values():
            if push.applied and push.assignment is not None:
                steps[push.version].append(push)
        sizes = set()
        for version, pushes in steps.items():
            members = pushes[0].assignment["members"]
            if len(pushes) < len(members):
                continue  # The answer of one was lost with it.
            ranges = [push.assignment["range"] for push in pushes]
            if max(end for _, end in ranges) == samples:
                continue
            self.assertEqual(sum(end - begin for begin, end in ranges),
                             GLOBAL_BATCH, f"version {version}: {ranges}")
            sizes.add(len(members))
        self.assertLessEqual({1, 3, 8}, sizes)

    def test_an_asynchronous_cohort(self):
        self.resize("--lease=5s", "--aggregation=async")

    def test_a_step_has_as_many_samples_whatever_the_size(self):
        # The history names the most in each of its rows.
        self.assertLessEqual({1, 3, 8}, self.resize(
            "--lease=5s", f"--global_batch={GLOBAL_BATCH}",
            check=self.check_step_samples))

    # Part kills.
    if KILLS > 1:
        def test_a_synchronous_cohort(self):
            self.assertLessEqual({1, 3, 8}, self.resize("--lease=5s"))

        def test_a_round_of_pushes_has_as_many_samples_whatever_the_size(self):
            self.resize("--lease=5s", "--aggregation=bounded", "--max_lead=2",
                        f"--global_batch={GLOBAL_BATCH}")

    def test_limits_change_live_and_too_few_workers_wait(self):
        with Cohort(server_flags=["--workers=2:3",
                                  "--epochs=1000"]) as cohort:
            cohort.start_server()
            for name in range(2):
                self.start_worker(cohort, name)
            self.await_steps_of(cohort, 2)
            cohort.workers[0].send_signal(signal.SIGTERM)
            cohort.wait_until(
                lambda: "1 here, want at least 2" in
                cohort.status()["state"], "the run to wait")
            cohort.ctl("policy", "set", "--workers=1:3")
            self.await_steps_of(cohort, 1)
            self.start_worker(cohort, 2)
            self.await_steps_of(cohort, 2)
            cohort.drain()
            self.check_history(cohort)

    def test_a_restarted_server_goes_on_with_fewer(self):
        with Cohort(server_flags=[LIMITS, "--epochs=1000",
                                  "--checkpoint_every=5"],
                    keeps=True) as cohort:
            cohort.start_server()
            for name in range(3):
                self.start_worker(cohort, name)
            self.await_steps_of(cohort, 3)
            kill(cohort.workers[0])
            cohort.resume_server()
            self.await_steps_of(cohort, 2)
            cohort.drain()
            self.check_history(cohort)


if __name__ == "__main__":
    unittest.main()
