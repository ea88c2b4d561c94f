"""A run that cohortctl inspects and changes while it goes on."""

import csv
import json
import re
import unittest

import processes
from processes import Cohort, run

# Long enough that the run is still training after both changes and the checks
# between them. The rest of it is then drained.
EPOCHS = "--epochs=1000"
RATE = "--learning_rate=0.02"


class LiveChange(unittest.TestCase):
    def ctl(self, cohort, *arguments, code=0):
        result = run("cohortctl", *arguments, f"--server={cohort.address}")
        self.assertEqual(result.returncode, code,
                         f"{arguments}: {result.stdout}{result.stderr}\n"
                         f"{cohort.log()}")
        return result

    def status(self, cohort):
        return json.loads(self.ctl(cohort, "status", "--json").stdout)

    def await_version(self, cohort, version):
        cohort.wait_until(
            lambda: self.status(cohort)["version"] >= version,
            f"version {version}")

    def set_policy(self, cohort, *settings):
        """Returns the version from which it is in force."""
        out = self.ctl(cohort, "policy", "set", *settings).stdout
        match = re.fullmatch(r"policy (.*) at step (\d+)\n", out)
        self.assertIsNotNone(match, out)
        return match.group(1), int(match.group(2))

    def test_policy_changes_and_changes_back_while_the_run_goes_on(self):
        with Cohort(server_flags=[EPOCHS, RATE]) as cohort:
            cohort.start()
            self.await_version(cohort, 5)
            text, to_async = self.set_policy(
                cohort, "--aggregation=async", "--normalization=local")
            self.assertEqual(text, "sync -> async, local normalisation")
            self.assertGreaterEqual(to_async, 5)
            status = self.status(cohort)
            self.assertEqual(status["policy"]["since_version"], to_async)
            self.assertIn("async, local", status["policy"]["text"])
            self.assertIn(f"since step {to_async}",
                          self.ctl(cohort, "status").stdout)
            self.await_version(cohort, to_async + 5)

            text, to_sync = self.set_policy(
                cohort, "--aggregation=sync", "--normalization=global")
            self.assertEqual(text, "async -> sync, global normalisation")
            self.assertGreater(to_sync, to_async)
            self.assertEqual(self.status(cohort)["policy"]["since_version"],
                             to_sync)
            self.await_version(cohort, to_sync + 5)
            history = json.loads(
                self.ctl(cohort, "policy", "history", "--json").stdout)
            self.assertEqual([c["version"] for c in history["changes"]],
                             [0, to_async, to_sync])

            self.ctl(cohort, "run", "drain")
            self.assertEqual(cohort.finish(), 0, cohort.log())
            for rank, worker in cohort.workers.items():
                self.assertEqual(worker.wait(30), 0,
                                 cohort.log(f"worker{rank}"))
            self.assertIn("policy sync -> async, local normalisation at "
                          f"step {to_async}\n", cohort.log())
            with open(cohort.results / "policy.csv", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self.assertEqual([int(row["version"]) for row in rows],
                             [0, to_async, to_sync])
            self.assertEqual(rows[1]["changes"],
                             "aggregation=async normalization=local")
            self.check_history(cohort, to_async, to_sync)

    def check_history(self, cohort, to_async, to_sync):
        """Each row names the policy that its commits were made under."""
        with open(cohort.results / "history.csv", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["samples"]]
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
            self.await_version(cohort, 5)
            before = self.status(cohort)
            result = run("cohort-worker", f"--server={cohort.address}",
                         "--evaluate", *cohort.worker_flags)
            self.assertEqual(result.returncode, 0, result.stderr)
            match = re.fullmatch(
                r"step (\d+): test loss \d+\.\d{4}, "
                r"top-5 accuracy \d+\.\d %, accuracy \d+\.\d %\n",
                result.stdout)
            self.assertIsNotNone(match, result.stdout)
            after = self.status(cohort)
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
        with Cohort(server_flags=["--epochs=2"]) as cohort:
            cohort.server_flags.append(f"--checkpoint_dir={cohort.checkpoints}")
            cohort.start()
            self.assertEqual(cohort.finish(), 0, cohort.log())
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
            self.assertEqual(cohort.finish(), 0, cohort.log())
            undisturbed = cohort.model_digest()
            self.assert_scored(cohort, "after")
        with Cohort(server_flags=["--epochs=3", RATE, "--precise_batches=4",
                                  "--bn_statistics=sync,after"]) as cohort:
            cohort.start()
            self.await_version(cohort, 2)
            out = self.ctl(cohort, "statistics", "collect").stdout
            match = re.fullmatch(r"collecting statistics over (\d+) batches "
                                 r"with the weights of step (\d+)\n", out)
            self.assertIsNotNone(match, out)
            self.assertEqual(match.group(1), "4")
            self.assertEqual(cohort.finish(), 0, cohort.log())
            self.assertEqual(cohort.model_digest(), undisturbed)
            with open(cohort.results / "history.csv",
                      encoding="utf-8") as file:
                rows = [row for row in csv.DictReader(file)
                        if row["test_loss"] and row["bn_statistics"] == "after"]
            self.assertIn(match.group(2), [row["version"] for row in rows])

    def assert_scored(self, cohort, kind):
        self.assertRegex(
            cohort.log(),
            rf"(?m)^test accuracy with {kind} statistics \d+\.\d %$")

    def test_evicted_worker_comes_back_and_the_run_goes_on(self):
        with Cohort(server_flags=[EPOCHS, RATE]) as cohort:
            cohort.start()
            self.await_version(cohort, 3)
            before = self.status(cohort)["workers"][1]["incarnation"]
            out = self.ctl(cohort, "workers", "evict", "--rank=1",
                           "--reason=trial").stdout
            version = int(re.fullmatch(
                r"worker 1 evicted at step (\d+)\n", out).group(1))
            self.await_version(cohort, version + 5)
            after = self.status(cohort)["workers"][1]
            self.assertGreater(after["incarnation"], before)
            self.assertEqual(after["state"], "live")
            self.assertIn("evicted: trial", cohort.log())

    def test_changed_policy_survives_a_killed_server(self):
        with Cohort(server_flags=[EPOCHS, "--checkpoint_every=2",
                                  "--aggregation=sync"]) as cohort:
            cohort.server_flags.append(f"--checkpoint_dir={cohort.checkpoints}")
            cohort.start()
            self.await_version(cohort, 3)
            self.set_policy(cohort, "--learning_rate=0.025")
            _, at = self.set_policy(cohort, "--aggregation=async")
            cohort.wait_until(lambda: cohort.newest_checkpoint() > at,
                              "a checkpoint under the new policy")
            processes.kill(cohort.server)
            # The same command line does not undo the change.
            cohort.start_server("--resume")
            policy = json.loads(
                self.ctl(cohort, "policy", "get", "--json").stdout)
            self.assertEqual(policy["settings"]["aggregation"], "async")
            self.assertEqual(policy["settings"]["learning_rate"], "0.025")
            self.assertEqual(policy["since_version"], at)
            self.await_version(cohort, at + 6)

    def test_run_that_has_shrunk_continues_from_its_checkpoint(self):
        with Cohort(server_flags=[EPOCHS, "--checkpoint_every=2"]) as cohort:
            cohort.server_flags.append(f"--checkpoint_dir={cohort.checkpoints}")
            cohort.start()
            self.await_version(cohort, 3)
            _, at = self.set_policy(cohort, "--workers=1")
            self.assertEqual(cohort.workers[1].wait(30), 0,
                             cohort.log("worker1"))
            cohort.wait_until(lambda: cohort.newest_checkpoint() > at,
                              "a checkpoint after the change")
            processes.kill(cohort.server)
            cohort.start_server("--resume")
            self.assertEqual(len(self.status(cohort)["workers"]), 1)
            self.await_version(cohort, at + 6)

    def test_errors_say_what_to_do_and_have_their_exit_codes(self):
        with Cohort(server_flags=[EPOCHS, RATE]) as cohort:
            cohort.start_server()
            conflict = self.ctl(
                cohort, "policy", "set", "--aggregation=async",
                "--normalization=global", code=3)
            self.assertIn("needs --aggregation=sync", conflict.stderr)
            self.assertIn("Nothing was changed", conflict.stderr)
            typo = self.ctl(cohort, "policy", "set", "--agregation=async",
                            code=2)
            self.assertIn("did you mean --aggregation?", typo.stderr)
            # Before the first step no work is in flight that the change waits
            # for.
            at_once = self.ctl(cohort, "policy", "set", "--aggregation=async")
            self.assertIn("policy sync -> async, local normalisation at step 0", at_once.stdout)
            self.ctl(cohort, "checkpoint", "save", code=3)
            processes.kill(cohort.server)
            gone = self.ctl(cohort, "status", code=5)
            self.assertIn("cannot be reached", gone.stderr)
            # It noticed, rather than waiting for a timeout.
            self.assertNotIn("no answer", gone.stderr)


if __name__ == "__main__":
    assert processes.BIN.is_dir(), processes.BIN
    unittest.main(verbosity=2)
