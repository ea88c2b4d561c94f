"""A model that several server processes share, with real processes."""

import json
import os
import pathlib
import random
import re
import signal
import unittest

from processes import BIN, KILLS, Cohort, kill, run

EPOCHS = 3
# For runs of which only the bits count.
SHORT = "--epochs=2"

# Shards that are killed in one run, one after the other. The programs refuse
# variables that they do not know.
KILLS_A_RUN = int(os.environ.pop("COHORT_SHARD_KILLS", "3"))


class Shards(Cohort):
    """Shard 0 is the server of the cohort; the others have its machine too."""

    def __init__(self, shards, *server_flags, workers=2):
        super().__init__(workers=workers, server_flags=[
            f"--epochs={EPOCHS}", "--checkpoint_every=4", "--partition_kib=1",
            *server_flags])
        self.server_flags.append(f"--checkpoint_dir={self.checkpoints}")
        self.local = "tcp"
        self.data_shards = {}
        self.data_addresses = {}
        for shard in range(1, shards):
            self.start_data_shard(shard)
        if shards > 1:
            self.server_flags.append("--shard_addresses=" + ",".join(
                self.data_addresses[shard] for shard in range(1, shards)))

    def data_shard_flags(self, _shard):
        """Further flags of that data shard."""
        return []

    def start_data_shard(self, shard):
        """On its previous address if it had one."""
        file = self.dir / f"address{shard}"
        file.unlink(missing_ok=True)
        listen = self.data_addresses.get(shard, "127.0.0.1:0")
        self.data_shards[shard] = self.start_process(f"shard{shard}", [
            BIN / "cohort-server", "--data_shard", f"--listen={listen}",
            f"--address_file={file}", *self.data_shard_flags(shard)])
        self.until(lambda: file.exists() and file.read_text().strip(),
                   f"shard {shard} to listen")
        self.data_addresses[shard] = file.read_text().strip()

    def kill_and_restart(self, shard):
        if shard == 0:
            kill(self.server)
            self.start_server("--resume")
        else:
            kill(self.data_shards[shard])
            self.start_data_shard(shard)

    def complete(self, test):
        """The digest of the model, once the run is over."""
        test.assertEqual(self.finish(), 0, self.log())
        for shard, process in self.data_shards.items():
            test.assertEqual(process.wait(60), 0, self.log(f"shard{shard}"))
        return self.model_digest()


class ShardsTest(unittest.TestCase):
    digest = None

    @classmethod
    def setUpClass(cls):
        cls.seed = random.SystemRandom().randrange(1 << 30)
        print(f"seed {cls.seed}", flush=True)
        cls.random = random.Random(cls.seed)

    def digest_of(self, shards, *server_flags):
        with Shards(shards, *server_flags) as cohort:
            cohort.start()
            return cohort.complete(self)

    def one(self):
        """The digest of one server, computed once."""
        if self.digest is None:
            type(self).digest = self.digest_of(1)
        return self.digest

    def test_the_bits_of_one_server_for_any_number_of_shards(self):
        one = self.one()
        for shards in (2, 3, 5):
            with self.subTest(shards=shards):
                self.assertEqual(self.digest_of(shards), one)

    def test_optimizer_state_averages_and_bfloat16_are_those_of_one_server(self):
        for flags in (["--optimizer=adam", "--ema_decay=0.9"],
                      ["--wire=bf16"],
                      ["--optimizer=nesterov", "--bn_statistics=sync,after"]):
            with self.subTest(flags):
                self.assertEqual(self.digest_of(3, SHORT, *flags),
                                 self.digest_of(1, SHORT, *flags))

    def test_norms_over_all_shards_are_those_of_one_server(self):
        # Small enough that every gradient is clipped.
        clipped = "--clip_norm=0.01"
        digests = set()
        for shards, *flags in (
                ((2, 3), clipped), ((3,), "--optimizer=lars"),
                ((2,), "--optimizer=lars", clipped,
                 "--freeze=conv2.weight[0:4]")):
            with self.subTest(flags):
                one = self.digest_of(1, SHORT, *flags)
                for count in shards:
                    self.assertEqual(self.digest_of(count, SHORT, *flags), one)
                digests.add(one)
        self.assertEqual(len(digests), 3)

    def test_killed_shards_replay_to_the_same_bits(self):
        # Long enough for all of them: each kill waits for another checkpoint.
        epochs = f"--epochs={EPOCHS + KILLS_A_RUN // 5}"
        one = self.digest_of(1, epochs)
        for _ in range(KILLS):
            with Shards(3, epochs) as cohort:
                cohort.start()
                # Each at least once, if there are that many.
                victims = self.random.sample(range(3), min(3, KILLS_A_RUN))
                victims += self.random.choices(
                    range(3), k=KILLS_A_RUN - len(victims))
                for shard in victims:
                    at = cohort.newest_checkpoint() + 4
                    cohort.wait_until(
                        lambda at=at: cohort.newest_checkpoint() >= at,
                        f"a checkpoint of step {at}")
                    cohort.kill_and_restart(shard)
                self.assertEqual(cohort.complete(self), one)

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
