"""A model that several server processes share, with real processes."""

import json
import os
import pathlib
import re
import signal
import unittest

from processes import BIN, Cohort, kill, run
from shards import EPOCHS, Shards


class ShardsTest(unittest.TestCase):
    digest = None

    def digest_of(self, shards, *server_flags):
        with Shards(shards, *server_flags) as cohort:
            cohort.start()
            return cohort.complete(self)

    def one(self):
        """The digest of one server, computed once."""
        if self.digest is None:
            type(self).digest = self.digest_of(1)
        return self.digest

    def test_norms_over_all_shards_are_those_of_one_server(self):
        # Small enough that every gradient is clipped.
        flags = ("--epochs=2", "--optimizer=lars", "--clip_norm=0.01",
                 "--freeze=conv2.weight[0:4]")
        self.assertEqual(self.digest_of(2, *flags), self.digest_of(1, *flags))

    def test_all_may_be_stopped_at_once(self):
        """As engines do: the last checkpoint needs the parts of all shards."""
        one = self.one()
        with Shards(3) as cohort:
            cohort.start()
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 4,
                              "a checkpoint of step 4")
            # The server last, which is the hardest case.
            at = cohort.status()["version"]
            for process in cohort.data_shards.values():
                process.send_signal(signal.SIGTERM)
            cohort.server.send_signal(signal.SIGTERM)
            for process in (cohort.server, *cohort.data_shards.values()):
                self.assertEqual(process.wait(60), 0, cohort.log())
            self.assertGreaterEqual(cohort.newest_checkpoint(), at)
            for shard in cohort.data_shards:
                cohort.start_data_shard(shard)
            cohort.start_server("--resume")
            self.assertEqual(cohort.complete(self), one)

    def test_a_shard_that_is_stopped_is_in_a_checkpoint(self):
        """The others do not go back to the one before."""
        with Shards(3, "--checkpoint_every=0", "--epochs=5") as cohort:
            cohort.start()
            cohort.await_version(20)
            at = cohort.status()["version"]
            cohort.data_shards[1].send_signal(signal.SIGTERM)
            self.assertEqual(cohort.data_shards[1].wait(60), 0, cohort.log())
            self.assertGreaterEqual(cohort.newest_checkpoint(), at)
            cohort.start_data_shard(1)
            cohort.complete(self)
            self.assertIn("it is being stopped", cohort.log())

    def test_shard_0_killed_as_training_starts_continues_its_run(self):
        one = self.one()
        with Shards(2) as cohort:
            cohort.start()
            cohort.await_log("server", "training starts")
            kill(cohort.server)
            self.assertTrue(list(cohort.checkpoints.glob("checkpoint-*")))
            cohort.start_server("--resume")
            self.assertEqual(cohort.complete(self), one)

    def test_shard_0_killed_after_the_end_writes_the_results_alone(self):
        one = self.one()
        with Shards(3) as cohort:
            # Otherwise it would end by itself before it is killed.
            cohort.start("--exit_when_done=false")
            for rank in range(cohort.size):
                self.assertEqual(cohort.workers[rank].wait(180), 0)
            kill(cohort.server)
            for name in ("model.safetensors", "report.html"):
                (cohort.results / name).unlink(missing_ok=True)
            # No worker is there, and one of the shards.
            kill(cohort.data_shards.pop(1))
            cohort.start_server("--resume")
            self.assertEqual(cohort.complete(self), one)
            self.assertTrue((cohort.results / "report.html").exists())
            self.assertIn("data shard 1 at", cohort.log())

    def test_a_shard_killed_at_the_end_costs_nothing(self):
        one = self.one()
        with Shards(3) as cohort:
            cohort.start()
            cohort.await_log("server", "the run is over")
            kill(cohort.data_shards.pop(2))
            self.assertEqual(cohort.complete(self), one)

    def test_a_longer_run_continues_after_the_end(self):
        with Shards(2, "--schedule=constant") as cohort:
            cohort.start()
            cohort.complete(self)
            for shard in cohort.data_shards:
                cohort.start_data_shard(shard)
            cohort.server_flags.append(f"--epochs={EPOCHS + 1}")
            cohort.start("--resume")
            longer = cohort.complete(self)
        self.assertEqual(longer, self.digest_of(1, f"--epochs={EPOCHS + 1}",
                                                "--schedule=constant"))

    def test_a_shard_that_hangs_is_lost_and_comes_back(self):
        one = self.one()
        with Shards(3, "--shard_lease=3s") as cohort:
            cohort.start()
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 4,
                              "a checkpoint of step 4")
            cohort.data_shards[2].send_signal(signal.SIGSTOP)
            cohort.await_log("server", "it has said nothing for 3 s")
            self.assertIn(f"data shard 2 at {cohort.data_addresses[2]}",
                          cohort.log())
            cohort.data_shards[2].send_signal(signal.SIGCONT)
            self.assertEqual(cohort.complete(self), one)

    def test_a_run_continues_with_another_number_of_shards(self):
        one = self.one()
        with Shards(3) as cohort:
            cohort.start()
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 8,
                              "a checkpoint of step 8")
            kill(cohort.server)
            cohort.server_flags[-1] = ("--shard_addresses="
                                       + cohort.data_addresses[2])
            kill(cohort.data_shards.pop(1))
            cohort.start_server("--resume")
            self.assertEqual(cohort.complete(self), one)

    def test_pushes_of_one_worker_are_applied_alone_as_with_one_server(self):
        digests = []
        for shards in (1, 3):
            with Shards(shards, "--workers=1", "--aggregation=async",
                        "--staleness=compensate") as cohort:
                cohort.size = 1
                cohort.start()
                digests.append(cohort.complete(self))
        self.assertEqual(digests[0], digests[1])

    def test_settings_change_while_it_runs(self):
        with Shards(2, "--optimizer=sgd") as cohort:
            cohort.start()
            cohort.await_version(8)
            changed = run("cohortctl", "policy", "set", "--optimizer=adam",
                          "--learning_rate=0.001", f"--server={cohort.address}")
            self.assertEqual(changed.returncode, 0, changed.stderr)
            cohort.complete(self)
            self.assertIn("optimizer sgd -> adam", cohort.log())

    def test_a_lost_shard_does_not_undo_a_change(self):
        with Shards(2, "--checkpoint_every=0", "--epochs=5") as cohort:
            cohort.start()
            cohort.await_version(8)
            changed = run("cohortctl", "policy", "set", "--learning_rate=0.02",
                          f"--server={cohort.address}")
            self.assertEqual(changed.returncode, 0, changed.stderr)
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 8,
                              "a checkpoint with the change")
            cohort.kill_and_restart(1)
            cohort.await_log("server", "continuing from")
            kept = run("cohortctl", "policy", "get",
                       f"--server={cohort.address}")
            self.assertRegex(kept.stdout, r"learning_rate +0\.02\b")
            cohort.complete(self)

    def test_a_change_while_a_shard_is_away_outlives_the_server(self):
        with Shards(2, "--epochs=5") as cohort:
            cohort.start()
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 4,
                              "a checkpoint")
            kill(cohort.data_shards[1])
            cohort.await_log("server", "continuing from ")
            changed = run("cohortctl", "policy", "set", "--learning_rate=0.02",
                          f"--server={cohort.address}")
            self.assertEqual(changed.returncode, 0, changed.stderr)
            saved = run("cohortctl", "checkpoint", "save",
                        f"--server={cohort.address}")
            self.assertEqual(saved.returncode, 0, saved.stderr)
            kill(cohort.server)
            cohort.start_data_shard(1)
            cohort.start_server("--resume")
            kept = run("cohortctl", "policy", "get",
                       f"--server={cohort.address}")
            self.assertRegex(kept.stdout, r"learning_rate +0\.02\b")
            history = run("cohortctl", "policy", "history",
                          f"--server={cohort.address}")
            self.assertIn("learning_rate", history.stdout)
            cohort.complete(self)

    def test_workers_are_told_of_a_drain_before_all_shards_are_there(self):
        with Shards(2) as cohort:
            kill(cohort.data_shards.pop(1))
            server = cohort.start_process("server", [
                BIN / "cohort-server", "--listen=127.0.0.1:0",
                "--ops_listen=127.0.0.1:0", *cohort.server_flags])
            cohort.await_log("server", "waiting for data shard 1 at ")
            # It writes its address once all are there.
            cohort.address = re.search(r"listening on ([^,]+),",
                                       cohort.log())[1]
            for rank in range(cohort.size):
                cohort.start_worker(rank)
            cohort.await_log("worker0", "waiting for data shard 1 at ")
            drained = run("cohortctl", "run", "drain",
                          f"--server={cohort.address}")
            self.assertEqual(drained.returncode, 0, drained.stderr)
            for rank, worker in cohort.workers.items():
                self.assertEqual(worker.wait(60), 0,
                                 cohort.log(f"worker{rank}"))
            self.assertEqual(server.wait(60), 0, cohort.log())

    def test_cohortctl_run_starts_shards_and_restarts_one_that_ends(self):
        one = self.one()
        for end in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(end.name):
                self.restart_under_cohortctl(end, one)

    def restart_under_cohortctl(self, end, digest):
        with Cohort() as cohort:
            started = cohort.start_process("run", [
                BIN / "cohortctl", "run", "--shards=3", "--workers=2",
                f"--epochs={EPOCHS}", "--checkpoint_every=4",
                "--partition_kib=1", f"--checkpoint_dir={cohort.checkpoints}",
                f"--results_dir={cohort.results}", "--json", "--",
                *cohort.worker_flags])
            cohort.until(lambda: cohort.newest_checkpoint() >= 8,
                         "a checkpoint of step 8")
            lines = [json.loads(line) for line in
                     cohort.log("run").splitlines() if line.startswith("{")]
            pids = {line["process"]: line["pid"] for line in lines
                    if line.get("event") == "started"}
            os.kill(pids["shard 1"], end)
            self.assertEqual(started.wait(180), 0, cohort.log("run"))
            starts = [line for line in cohort.log("run").splitlines()
                      if '"started"' in line and '"shard 1"' in line]
            self.assertEqual(len(starts), 2, cohort.log("run"))
            self.assertEqual(cohort.model_digest(), digest)

    def test_flags_that_do_not_fit_are_refused(self):
        address = "127.0.0.1:9"
        for flags, text in (
                ([f"--shard_addresses={address}"], "want --checkpoint_dir"),
                ([f"--shard_addresses={address},{address}",
                  "--checkpoint_dir=x"], "twice"),
                ([f"--shard_addresses={address}", "--checkpoint_dir=x",
                  "--local=shm"], "want tcp or auto"),
                ([f"--shard_addresses={address}", "--data_shard"],
                 "--data_shard")):
            with self.subTest(text):
                refused = run("cohort-server", "--listen=127.0.0.1:0",
                              "--ops_listen=", *flags)
                self.assertEqual(refused.returncode, 3, refused.stderr)
                self.assertIn(text, refused.stderr)
        self.assertFalse(pathlib.Path("x").exists())


if __name__ == "__main__":
    unittest.main()
