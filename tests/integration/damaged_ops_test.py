"""Scrapers and readers of the live page over a network that damages bytes.

An answer is right, an HTTP error, or a closed connection; training continues.
Over plain HTTP only requests are damaged, because a client cannot tell that an
answer was. Over HTTPS both directions are.
"""

import http.client
import json
import os
import random
import unittest

import monitored
from damaging_proxy import Damage, DamagingProxy, damages
from monitored import MonitoredCohort
from processes import KILLS

PATHS = ("/metrics", "/status.json", "/", "/livez", "/readyz")
REQUESTS = 40 * KILLS
# A request, and what a handshake and the shorter answers take.
REQUEST_BYTES_MAX = 120
HTTPS_BYTES_MAX = 4000
# A request whose end was lost in the damage is not answered.
PATIENCE_S = 3


class DamagedOps(unittest.TestCase):
    def setUp(self):
        given = os.environ.pop("COHORT_DAMAGE_SEED", "")
        self.seed = int(given or (random.SystemRandom().randrange(1 << 30)
                                  if KILLS > 1 else 1))
        print(f"COHORT_DAMAGE_SEED={self.seed}", flush=True)
        self.chance = random.Random(self.seed)
        self.cohort = MonitoredCohort(server_flags=["--epochs=1000"])
        self.addCleanup(self.cohort.__exit__)

    def page(self, address, path):
        """The status and body of an answer; None: there was none."""
        context = self.cohort.viewer_context()
        if context is None:
            connection = http.client.HTTPConnection(address,
                                                    timeout=PATIENCE_S)
        else:
            connection = http.client.HTTPSConnection(
                address, timeout=PATIENCE_S, context=context)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def version(self):
        status, body = self.page(self.cohort.ops, "/status.json")
        self.assertEqual(status, 200, body)
        return json.loads(body)["version"]

    def check_right(self, path, body, begin):
        """The damaged request may have become one for another page."""
        end = self.version()
        if body.startswith("#"):
            told = {name: value for name, _, value in monitored.samples(body)}
            version = told["cohort_model_version"]
        elif body.startswith("{"):
            version = json.loads(body)["version"]
        else:
            self.assertTrue(body.rstrip().endswith(("</html>", "alive",
                                                    "ready")), (path, body))
            return
        self.assertLessEqual(begin, version, path)
        self.assertLessEqual(version, end, path)

    def damaged_request(self, number):
        """One request with one damage; returns its status."""
        https = self.cohort.certificates is not None
        planned = damages(self.chance, 1,
                          HTTPS_BYTES_MAX if https else REQUEST_BYTES_MAX)
        if not https:
            planned = [Damage(planned[0].kind, True, planned[0].at)]
        path = PATHS[number % len(PATHS)]
        begin = self.version()
        with DamagingProxy(self.cohort.ops, planned, number) as proxy:
            answer = self.page(proxy.address, path)
        self.assertIsNone(self.cohort.server.poll(), self.cohort.log())
        if answer is None:
            return "none"
        status, body = answer
        if status == 200:
            self.check_right(path, body, begin)
        else:
            self.assertIn(status // 100, (4, 5), (planned, status, body))
        return str(status)

    def check(self):
        self.cohort.start()
        self.cohort.wait_until(lambda: self.version() >= 5, "version 5")
        begin = self.version()
        counts = {}
        for number in range(REQUESTS):
            with self.subTest(seed=self.seed, number=number):
                status = self.damaged_request(number)
                counts[status] = counts.get(status, 0) + 1
        print(counts, flush=True)
        # Otherwise nothing was damaged.
        self.assertGreater(sum(counts.values()) - counts.get("200", 0), 0)
        self.cohort.wait_until(lambda: self.version() > begin + 5,
                               "further steps")
        self.assertEqual([worker.poll() for worker in
                          self.cohort.workers.values()], [None, None])

    def test_http(self):
        self.check()

    def test_https(self):
        self.cohort.encrypt()
        self.check()


if __name__ == "__main__":
    unittest.main(verbosity=2)
