"""A run that cohortctl inspects and changes while it trains."""

import re
import unittest

import processes
from processes import Cohort, run

# Long enough that the run is still training after both changes and the checks
# between them. The rest of it is then drained.
EPOCHS = "--epochs=1000"
RATE = "--learning_rate=0.02"


class LiveChange(unittest.TestCase):
    def set_policy(self, cohort, *settings):
        """Returns the version from which it is in force."""
        out = cohort.ctl("policy", "set", *settings).stdout
        match = re.fullmatch(r"policy (.*) at step (\d+)\n", out)
        self.assertIsNotNone(match, out)
        return match.group(1), int(match.group(2))

    def test_policy_changes_and_changes_back_while_the_run_goes_on(self):
        with Cohort(server_flags=[EPOCHS, RATE]) as cohort:
            cohort.start()
            cohort.await_version(5)
            text, to_async = self.set_policy(
                cohort, "--aggregation=async", "--normalization=local")
            self.assertEqual(text, "sync -> async, local normalisation")
            self.assertGreaterEqual(to_async, 5)
            status = cohort.status()
            self.assertEqual(status["policy"]["since_version"], to_async)
            self.assertIn("async, local", status["policy"]["text"])
            self.assertIn(f"since step {to_async}",
                          cohort.ctl("status").stdout)
            cohort.await_version(to_async + 5)

            text, to_sync = self.set_policy(
                cohort, "--aggregation=sync", "--normalization=global")
            self.assertEqual(text, "async -> sync, global normalisation")
            self.assertGreater(to_sync, to_async)
            self.assertEqual(cohort.status()["policy"]["since_version"],
                             to_sync)
            cohort.await_version(to_sync + 5)
            history = cohort.json("policy", "history")
            self.assertEqual([c["version"] for c in history["changes"]],
                             [0, to_async, to_sync])

            cohort.ctl("run", "drain")
            cohort.complete()
            cohort.await_workers()
            self.assertIn("policy sync -> async, local normalisation at "
                          f"step {to_async}\n", cohort.log())
            rows = cohort.rows("policy.csv")
            self.assertEqual([int(row["version"]) for row in rows],
                             [0, to_async, to_sync])
            self.assertIn("aggregation=async", rows[1]["changes"])
            self.check_history(cohort, to_async, to_sync)

    def check_history(self, cohort, to_async, to_sync):
        """Each row names the policy that its commits were made under."""
        rows = [row for row in cohort.rows() if row["samples"]]
        seen = set()
        for row in rows:
            version = int(row["version"])
            # Rows of an epoch span changes; rows of commits do not.
            if row["test_loss"]:
                continue
            wanted = "async" if to_async < version <= to_sync else "sync"
            self.assertEqual(row["policy"].split(",")[0], wanted, row)
            seen.add(wanted)
        self.assertEqual(seen, {"sync", "async"})

    def test_live_run_is_scored_without_being_joined(self):
        with Cohort(server_flags=[EPOCHS, RATE]) as cohort:
            cohort.start()
            cohort.await_version(5)
            before = cohort.status()
            result = run("cohort-worker", f"--server={cohort.address}",
                         "--evaluate", *cohort.worker_flags)
            self.assertEqual(result.returncode, 0, result.stderr)
            match = re.fullmatch(
                r"step (\d+): test loss \d+\.\d{4}, "
                r"top-5 accuracy \d+\.\d %, accuracy \d+\.\d %\n",
                result.stdout)
            self.assertIsNotNone(match, result.stdout)
            after = cohort.status()
            self.assertLessEqual(before["version"], int(match.group(1)))
            self.assertLessEqual(int(match.group(1)), after["version"])
            self.assertEqual([w["incarnation"] for w in before["workers"]],
                             [w["incarnation"] for w in after["workers"]])

            other = run("cohort-worker", f"--server={cohort.address}",
                        "--evaluate", "--model=cnn", "--dataset=synthetic")
            self.assertEqual(other.returncode, 3, other.stdout)
            self.assertIn("got shape", other.stderr)

    def test_score_of_a_finished_version_is_that_of_the_run_itself(self):
        """Weights and statistics fit together: the evaluation by the server's
        workers gives the same accuracy."""
        with Cohort(server_flags=["--epochs=2"], keeps=True) as cohort:
            cohort.start()
            cohort.complete()
            own = re.search(r"^test accuracy ([\d.]+ %)$", cohort.log(), re.M)
            # No worker joins the resumed server: it holds the last version.
            cohort.start_server("--resume")
            result = run("cohort-worker", f"--server={cohort.address}",
                         "--evaluate", *cohort.worker_flags)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue(
                result.stdout.endswith(f"accuracy {own.group(1)}\n"),
                f"{result.stdout} {own.group(0)}")

    def test_precise_statistics_are_collected_by_command_and_at_the_end(self):
        """In addition to the statistics of training. Each kind is scored, and
        collecting does not change the weights."""
        with Cohort(server_flags=["--epochs=3", RATE, "--precise_batches=4",
                                  "--bn_statistics=sync,after"]) as cohort:
            cohort.start()
            undisturbed = cohort.complete()
            self.assert_scored(cohort, "after")
        with Cohort(server_flags=["--epochs=3", RATE, "--precise_batches=4",
                                  "--bn_statistics=sync,after"]) as cohort:
            cohort.start()
            cohort.await_version(2)
            out = cohort.ctl("statistics", "collect").stdout
            match = re.fullmatch(r"collecting statistics over (\d+) batches "
                                 r"with the weights of step (\d+)\n", out)
            self.assertIsNotNone(match, out)
            self.assertEqual(match.group(1), "4")
            self.assertEqual(cohort.complete(), undisturbed)
            rows = [row for row in cohort.rows()
                    if row["test_loss"] and row["bn_statistics"] == "after"]
            self.assertIn(match.group(2), [row["version"] for row in rows])

    def assert_scored(self, cohort, kind):
        self.assertRegex(
            cohort.log(),
            rf"(?m)^test accuracy with {kind} statistics \d+\.\d %$")

    def test_evicted_worker_comes_back_and_the_run_goes_on(self):
        with Cohort(server_flags=[EPOCHS, RATE]) as cohort:
            cohort.start()
            cohort.await_version(3)
            before = cohort.status()["workers"][1]["incarnation"]
            out = cohort.ctl("workers", "evict", "--rank=1",
                           "--reason=trial").stdout
            version = int(re.fullmatch(
                r"worker 1 evicted at step (\d+)\n", out).group(1))
            cohort.await_version(version + 5)
            after = cohort.status()["workers"][1]
            self.assertGreater(after["incarnation"], before)
            self.assertEqual(after["state"], "live")
            self.assertIn("evicted: trial", cohort.log())

    def test_changed_policy_survives_a_killed_server(self):
        with Cohort(server_flags=[EPOCHS, "--checkpoint_every=2",
                                  "--aggregation=sync"],
                    keeps=True) as cohort:
            cohort.start()
            cohort.await_version(3)
            self.set_policy(cohort, "--learning_rate=0.025")
            _, at = self.set_policy(cohort, "--aggregation=async")
            cohort.await_checkpoint(at + 1)
            processes.kill(cohort.server)
            # The same command line does not undo the change.
            cohort.start_server("--resume")
            policy = cohort.json("policy", "get")
            self.assertEqual(policy["settings"]["aggregation"], "async")
            self.assertEqual(policy["settings"]["learning_rate"], "0.025")
            self.assertEqual(policy["since_version"], at)
            cohort.await_version(at + 6)

    def test_run_that_has_shrunk_continues_from_its_checkpoint(self):
        with Cohort(server_flags=[EPOCHS, "--checkpoint_every=2"],
                    keeps=True) as cohort:
            cohort.start()
            cohort.await_version(3)
            _, at = self.set_policy(cohort, "--workers=1")
            cohort.await_worker(1)
            cohort.await_checkpoint(at + 1)
            cohort.resume_server()
            self.assertEqual(len(cohort.status()["workers"]), 1)
            cohort.await_version(at + 6)

    def test_exit_codes_before_the_start_and_after_the_end(self):
        with Cohort(server_flags=[EPOCHS, RATE]) as cohort:
            cohort.start_server()
            # Before the first step no work is in flight that the change waits
            # for.
            _, at = self.set_policy(cohort, "--aggregation=async")
            self.assertEqual(at, 0)
            cohort.ctl("checkpoint", "save", code=3)
            processes.kill(cohort.server)
            gone = cohort.ctl("status", code=5)
            self.assertIn("cannot be reached", gone.stderr)
            # It noticed, rather than waiting for a timeout.
            self.assertNotIn("no answer", gone.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
