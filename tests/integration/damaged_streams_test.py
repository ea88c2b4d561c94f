"""Real processes over a network that damages their bytes.

Whatever is damaged, a run ends with the weights of an undamaged one, or with
an error that says why. It never ends well with other weights.
"""

import json
import os
import random
import subprocess
import time
import unittest

import processes
from damaging_proxy import Damage, DamagingProxy, damages
from processes import KILLS, Cohort

# Short, because there are many. A worker that waits for a message lost in
# the damage is given up after a few seconds; the result does not depend on it.
FLAGS = ("--epochs=2", "--max_steps=60", "--step_deadline=4s", "--lease=3s",
         "--replacement_deadline=20s")
WORKERS = 2
# About as much as such a run sends in one direction.
BYTES_MAX = 400_000
DAMAGES_A_RUN = 5
RUNS = (KILLS + 1) // 2
RUN_SECONDS_MAX = 600


def undamaged_digest():
    with Cohort(workers=WORKERS, server_flags=FLAGS) as cohort:
        cohort.start()
        return cohort.complete()


class DamagedStreams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        given = os.environ.pop("COHORT_DAMAGE_SEED", "")
        # The long version looks for new cases, the short one repeats the same.
        cls.seed = int(given or (random.SystemRandom().randrange(1 << 30)
                                 if KILLS > 1 else 1))
        print(f"COHORT_DAMAGE_SEED={cls.seed}", flush=True)
        cls.digest = undamaged_digest()

    def finish(self, cohort: Cohort, proxy: DamagingProxy) -> int:
        """Waits for the end, and starts workers again that gave up."""
        restarts = 0
        end = time.monotonic() + RUN_SECONDS_MAX
        while cohort.server.poll() is None:
            self.assertLess(time.monotonic(), end,
                            "no end in sight: " + self.story(cohort, proxy))
            for rank, worker in list(cohort.workers.items()):
                try:
                    code = worker.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue
                if code != 0 and cohort.server.poll() is None:
                    restarts += 1
                    self.assertLess(restarts, 100, self.story(cohort, proxy))
                    cohort.start_worker(rank)
        return restarts

    def story(self, cohort: Cohort, proxy: DamagingProxy) -> str:
        return "\n".join([*proxy.done, cohort.log(),
                          *(cohort.log(f"worker{r}") for r in range(WORKERS))])

    def check(self, planned: list[Damage], seed: int):
        with Cohort(workers=WORKERS, server_flags=FLAGS) as cohort:
            # Shared memory passes no proxy.
            cohort.local = "tcp"
            cohort.start_server()
            with DamagingProxy(cohort.address, planned, seed) as proxy:
                cohort.address = proxy.address
                for rank in range(WORKERS):
                    cohort.start_worker(rank)
                restarts = self.finish(cohort, proxy)
                code = cohort.server.returncode
                story = self.story(cohort, proxy)
            print(f"seed {seed}: {len(proxy.done)} damages, {restarts} workers "
                  f"started again, exit code {code}", flush=True)
            if code == 0:
                self.assertEqual(cohort.model_digest(), self.digest, story)
            else:
                # The run ended early, and says why.
                self.assertIn("the run is over: ", story)

    def test_workers_streams(self):
        for run in range(RUNS):
            seed = self.seed + run
            with self.subTest(seed=seed):
                chance = random.Random(seed)
                self.check(damages(chance, DAMAGES_A_RUN,
                                   BYTES_MAX // DAMAGES_A_RUN), seed)

    def test_flips_in_small_messages(self):
        """Joins, registrations and assignments: the first bytes of a run."""
        for run in range(RUNS):
            seed = self.seed + 1000 + run
            with self.subTest(seed=seed):
                chance = random.Random(seed)
                self.check([Damage("flip", chance.random() < 0.5,
                                   chance.randrange(4000))
                            for _ in range(DAMAGES_A_RUN)], seed)

    def test_connections_that_swallow_everything(self):
        """The worker is given up, comes back, and must not meet the same
        connection again."""
        seed = self.seed + 2000
        chance = random.Random(seed)
        self.check([Damage("stall", to_server, chance.randrange(20000, 60000))
                    for to_server in (False, True)], seed)

    def test_operators_streams(self):
        """An operator's changes take effect as they were meant, or not at all;
        readers get what there is, or an error."""
        chance = random.Random(self.seed)
        with Cohort(workers=WORKERS,
                    server_flags=["--epochs=1000"]) as cohort:
            cohort.start()
            rates = [f"0.0{n}" for n in range(1, 6)]
            commands = [["status"], ["policy", "get"]]
            for number in range(4 * KILLS):
                change = ["policy", "set",
                          f"--learning_rate={chance.choice(rates)}"]
                self.damaged_command(cohort, chance, number, [
                    change, change, commands[number % 2]][number % 3])
            change = ["policy", "set", "--learning_rate=0.05"]
            self.assertEqual(self.command(cohort.address, change).returncode, 0)
            history = self.command(cohort.address, ["policy", "history"])
            self.assertEqual(history.returncode, 0, history.stderr)
            changes = json.loads(history.stdout)["changes"]
            self.assertGreater(len(changes), 1)
            for change in changes[1:]:
                settings = change["settings"]
                self.assertEqual(set(settings), {"learning_rate"}, change)
                self.assertIn(settings["learning_rate"], rates)

    @staticmethod
    def command(address: str, words: list[str], *flags: str):
        # Longer than the longest wait of cohortctl itself.
        return processes.run("cohortctl", f"--server={address}",
                             "--output=json", *flags, *words)

    def damaged_command(self, cohort, chance, number, words):
        """One command over a connection with one damage."""
        planned = damages(chance, 1, 600)
        with DamagingProxy(cohort.address, planned, number) as proxy:
            # An answer that was lost in the damage never comes.
            done = self.command(proxy.address, words, "--timeout=10s")
        # A signal would be negative.
        self.assertGreaterEqual(done.returncode, 0, done.stderr)
        if done.returncode != 0:
            self.assertTrue(done.stderr.strip(), words)
        self.assertIsNone(cohort.server.poll(), cohort.log())


if __name__ == "__main__":
    unittest.main(verbosity=2)
