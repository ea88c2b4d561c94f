"""A model that several server processes share, with real processes."""

import json
import os
import re
import signal
import unittest

from processes import BIN, Cohort, kill
from shards import EPOCHS, Shards


class ShardsTest(unittest.TestCase):
    digest = None

    def digest_of(self, shards, *server_flags):
        with Shards(shards, *server_flags) as cohort:
            cohort.start()
            return cohort.complete()

    def one(self):
        """The digest of one server, computed once."""
        if self.digest is None:
            type(self).digest = self.digest_of(1)
        return self.digest

    def test_norms_over_all_shards_are_those_of_one_server(self):
        # Small enough that every gradient is clipped.
        flags = ("--epochs=2", "--optimizer=lamb", "--clip_norm=0.01",
                 "--freeze=conv2.weight[0:4]")
        self.assertEqual(self.digest_of(2, *flags), self.digest_of(1, *flags))

    def test_all_may_be_stopped_at_once(self):
        """As engines do: the last checkpoint needs the parts of all shards."""
        one = self.one()
        with Shards(3) as cohort:
            cohort.start()
            cohort.await_checkpoint(4)
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
            self.assertEqual(cohort.complete(), one)

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
            cohort.complete()
            self.assertIn("it is being stopped", cohort.log())

    def test_shard_0_killed_as_training_starts_continues_its_run(self):
        one = self.one()
        with Shards(2) as cohort:
            cohort.start()
            cohort.await_log("server", "training starts")
            kill(cohort.server)
            self.assertTrue(list(cohort.checkpoints.glob("checkpoint-*")))
            cohort.start_server("--resume")
            self.assertEqual(cohort.complete(), one)

    def test_shard_0_killed_after_the_end_writes_the_results_alone(self):
        one = self.one()
        with Shards(3) as cohort:
            # Otherwise it would end by itself before it is killed.
            cohort.start("--exit_when_done=false")
            cohort.await_workers()
            kill(cohort.server)
            for name in ("model.safetensors", "report.html"):
                (cohort.results / name).unlink(missing_ok=True)
            # No worker is there, and one of the shards.
            kill(cohort.data_shards.pop(1))
            cohort.start_server("--resume")
            self.assertEqual(cohort.complete(), one)
            self.assertTrue((cohort.results / "report.html").exists())
            self.assertIn("data shard 1 at", cohort.log())

    def test_a_shard_killed_at_the_end_costs_nothing(self):
        one = self.one()
        with Shards(3) as cohort:
            cohort.start()
            cohort.await_log("server", "the run is over")
            kill(cohort.data_shards.pop(2))
            self.assertEqual(cohort.complete(), one)

    def test_a_longer_run_continues_after_the_end(self):
        with Shards(2, "--schedule=constant") as cohort:
            cohort.start()
            cohort.complete()
            for shard in cohort.data_shards:
                cohort.start_data_shard(shard)
            cohort.server_flags.append(f"--epochs={EPOCHS + 1}")
            cohort.start("--resume")
            longer = cohort.complete()
        self.assertEqual(longer, self.digest_of(1, f"--epochs={EPOCHS + 1}",
                                                "--schedule=constant"))

    def test_a_shard_that_hangs_is_lost_and_comes_back(self):
        one = self.one()
        with Shards(3, "--shard_lease=3s") as cohort:
            cohort.start()
            cohort.await_checkpoint(4)
            cohort.data_shards[2].send_signal(signal.SIGSTOP)
            cohort.await_log("server", "it has said nothing for 3 s")
            self.assertIn(cohort.data_addresses[2], cohort.log())
            cohort.data_shards[2].send_signal(signal.SIGCONT)
            self.assertEqual(cohort.complete(), one)

    def test_a_run_continues_with_another_number_of_shards(self):
        one = self.one()
        with Shards(3) as cohort:
            cohort.start()
            cohort.await_checkpoint(8)
            kill(cohort.server)
            cohort.server_flags[-1] = ("--shard_addresses="
                                       + cohort.data_addresses[2])
            kill(cohort.data_shards.pop(1))
            cohort.start_server("--resume")
            self.assertEqual(cohort.complete(), one)

    def test_settings_change_while_it_runs(self):
        with Shards(2, "--optimizer=sgd") as cohort:
            cohort.start()
            cohort.await_version(8)
            cohort.ctl(
                "policy", "set", "--optimizer=adam", "--learning_rate=0.001")
            cohort.complete()
            self.assertIn("optimizer sgd -> adam", cohort.log())

    def test_a_lost_shard_does_not_undo_a_change(self):
        with Shards(2, "--checkpoint_every=0", "--epochs=5") as cohort:
            cohort.start()
            cohort.await_version(8)
            cohort.ctl("policy", "set", "--learning_rate=0.02")
            cohort.await_checkpoint(8)
            cohort.kill_and_restart(1)
            cohort.await_log("server", "continuing from")
            self.assertEqual(cohort.json("policy", "get")["settings"][
                "learning_rate"], "0.02")
            cohort.complete()

    def test_a_change_while_a_shard_is_away_outlives_the_server(self):
        with Shards(2, "--epochs=5") as cohort:
            cohort.start()
            cohort.await_checkpoint(4)
            kill(cohort.data_shards[1])
            cohort.await_log("server", "continuing from ")
            cohort.ctl("policy", "set", "--learning_rate=0.02")
            cohort.ctl("checkpoint", "save")
            kill(cohort.server)
            cohort.start_data_shard(1)
            cohort.start_server("--resume")
            self.assertEqual(cohort.json("policy", "get")["settings"][
                "learning_rate"], "0.02")
            self.assertIn("learning_rate",
                          cohort.ctl("policy", "history").stdout)
            cohort.complete()

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
            cohort.ctl("run", "drain")
            cohort.await_workers()
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


if __name__ == "__main__":
    unittest.main()
