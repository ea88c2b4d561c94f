"""A model that several server processes share, with real processes."""

import json
import os
import pathlib
import random
import signal
import unittest

from processes import BIN, KILLS, Cohort, kill, run

EPOCHS = 4

# Shards that are killed in one run, one after the other. The programs refuse
# variables that they do not know.
KILLS_A_RUN = int(os.environ.pop("COHORT_SHARD_KILLS", "3"))


class Shards(Cohort):
    """Shard 0 is the server of the cohort; the others have its machine too."""

    def __init__(self, shards, *server_flags):
        super().__init__(workers=2, server_flags=[
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

    def start_data_shard(self, shard):
        """On its previous address if it had one."""
        file = self.dir / f"address{shard}"
        file.unlink(missing_ok=True)
        listen = self.data_addresses.get(shard, "127.0.0.1:0")
        self.data_shards[shard] = self.start_process(f"shard{shard}", [
            BIN / "cohort-server", "--data_shard", f"--listen={listen}",
            f"--address_file={file}"])
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
    @classmethod
    def setUpClass(cls):
        cls.seed = random.SystemRandom().randrange(1 << 30)
        print(f"seed {cls.seed}", flush=True)
        cls.random = random.Random(cls.seed)

    def digest_of(self, shards, *server_flags):
        with Shards(shards, *server_flags) as cohort:
            cohort.start()
            return cohort.complete(self)

    def test_the_bits_of_one_server_for_any_number_of_shards(self):
        one = self.digest_of(1)
        for shards in (2, 3, 5):
            with self.subTest(shards=shards):
                self.assertEqual(self.digest_of(shards), one)

    def test_optimizer_state_averages_and_bfloat16_are_those_of_one_server(self):
        for flags in (["--optimizer=adam", "--ema_decay=0.9"],
                      ["--wire=bf16"],
                      ["--optimizer=nesterov", "--bn_statistics=sync,after"]):
            with self.subTest(flags):
                self.assertEqual(self.digest_of(3, *flags),
                                 self.digest_of(1, *flags))

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

    def test_a_run_continues_with_another_number_of_shards(self):
        one = self.digest_of(1)
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

    def test_cohortctl_run_starts_shards_and_restarts_a_killed_one(self):
        one = self.digest_of(1)
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
            os.kill(pids["shard 1"], signal.SIGKILL)
            self.assertEqual(started.wait(180), 0, cohort.log("run"))
            self.assertIn('"shard 1"', cohort.log("run"))
            self.assertEqual(cohort.model_digest(), one)

    def test_what_needs_norms_over_all_shards_is_refused(self):
        with Shards(2) as cohort:
            cohort.start()
            changed = run("cohortctl", "policy", "set", "--clip_norm=1",
                          f"--server={cohort.address}")
            self.assertEqual(changed.returncode, 3, changed.stderr)
            self.assertIn("clip_norm", changed.stderr)
            cohort.complete(self)

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
