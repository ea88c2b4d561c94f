"""Gradients in bfloat16, with real processes: the same bits however they
travel, and whoever is killed."""

import json
import random
import re
import unittest

import processes
from local_test import cohort_of, digest_of
from monitored import get
from processes import KILLS, kill, run

BF16 = "--wire=bf16"


class Wire(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.seed = random.SystemRandom().randrange(1 << 30)
        print(f"seed {cls.seed}", flush=True)
        cls.random = random.Random(cls.seed)
        cls.digest = digest_of("tcp", BF16)

    def versions(self):
        """The version after which to kill, for each run."""
        return [self.random.randrange(8, 50) for _ in range(KILLS)]

    def test_the_same_bits_on_every_path(self):
        for local in ("tcp", "shm", "mixed"):
            with self.subTest(local):
                self.assertEqual(digest_of(local, BF16), self.digest)
        # Otherwise nothing was rounded.
        self.assertNotEqual(digest_of("tcp"), self.digest)

    def test_the_same_bits_with_partitions_of_many_sizes(self):
        flags = (BF16, "--partition_kib=4", "--optimizer=adam",
                 "--learning_rate=0.001", "--clip_norm=1")
        self.assertEqual(digest_of("shm", *flags), digest_of("tcp", *flags))

    def test_killed_workers_replay_to_the_same_bits(self):
        for local in ("tcp", "shm"):
            for at in self.versions():
                with self.subTest(local, version=at), \
                        cohort_of(local, BF16) as cohort:
                    cohort.start()
                    cohort.wait_until(lambda: cohort.newest_checkpoint() >= at,
                                      f"version {at}")
                    kill(cohort.workers[1])
                    cohort.start_worker(1)
                    self.assertEqual(cohort.finish(), 0, cohort.log())
                    self.assertEqual(cohort.model_digest(), self.digest)

    def test_a_killed_server_resumes_to_the_same_bits(self):
        """With the setting of its checkpoint."""
        for at in self.versions():
            with self.subTest(version=at), cohort_of("tcp", BF16) as cohort:
                cohort.start()
                cohort.wait_until(lambda: cohort.newest_checkpoint() >= at,
                                  f"version {at}")
                kill(cohort.server)
                cohort.server_flags.remove(BF16)
                cohort.start_server("--resume")
                self.assertEqual(cohort.finish(), 0, cohort.log())
                self.assertEqual(cohort.model_digest(), self.digest)

    def ctl(self, cohort, *arguments):
        result = run("cohortctl", *arguments, f"--server={cohort.address}")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def sent_in_bfloat16(self, cohort, name):
        """Whether bytes of this metric were in bfloat16."""
        address = (cohort.dir / "ops").read_text().strip()
        page = get(f"http://{address}/metrics")
        match = re.search(name + r'{encoding="bfloat16"} (\S+)', page)
        self.assertIsNotNone(match, page)
        return float(match.group(1)) > 0

    def test_changes_live_and_back(self):
        """Both ways, and no byte of it before the change."""
        with cohort_of("tcp", epochs=100000) as cohort:
            cohort.server_flags.append(
                f"--ops_address_file={cohort.dir / 'ops'}")
            cohort.start()
            cohort.wait_until(lambda: cohort.newest_checkpoint() >= 4,
                              "version 4")
            names = ("cohort_push_bytes_total", "cohort_pull_bytes_total")
            for name in names:
                self.assertFalse(self.sent_in_bfloat16(cohort, name))
            for setting, in_text in (("bf16", True), ("float32", False)):
                self.ctl(cohort, "policy", "set", f"--wire={setting}")
                status = json.loads(self.ctl(cohort, "status", "--json"))
                self.assertEqual("in bf16" in status["policy"]["text"],
                                 in_text)
                version = status["version"]
                cohort.wait_until(
                    lambda: cohort.newest_checkpoint() > version + 4,
                    "further steps")
            for name in names:
                self.assertTrue(self.sent_in_bfloat16(cohort, name))
            self.ctl(cohort, "run", "drain")
            self.assertEqual(cohort.finish(), 0, cohort.log())
            with open(cohort.results / "policy.csv", encoding="utf-8") as file:
                changes = file.read()
            self.assertIn("wire=bf16", changes)
            self.assertIn("wire=float32", changes)


if __name__ == "__main__":
    assert processes.BIN.is_dir(), processes.BIN
    unittest.main(verbosity=2)
