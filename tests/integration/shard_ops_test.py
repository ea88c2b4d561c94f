"""What people and Prometheus see of a model that server processes share."""

import json
import signal
import unittest
import urllib.error

from monitored import monitoring_files, samples
from processes import BIN, get, kill, run
from shards import Shards

# More than any test waits for; each ends its run itself.
EPOCHS = "--epochs=1000"


class Watched(Shards):
    """Shards whose processes all have operations ports and timelines."""

    def __init__(self, shards):
        self.data_ops = {}
        super().__init__(shards, EPOCHS)
        self.server_flags.append(f"--trace={self.dir / 'shard0.json'}")

    def data_shard_flags(self, shard):
        file = self.dir / f"ops{shard}"
        file.unlink(missing_ok=True)
        # The same address again.
        listen = self.data_ops.get(shard, "127.0.0.1:0")
        return [f"--ops_listen={listen}", f"--ops_address_file={file}",
                f"--trace={self.dir / f'shard{shard}.json'}"]

    def start_data_shard(self, shard):
        super().start_data_shard(shard)
        # Written before the address that it was waited for.
        self.data_ops[shard] = (self.dir / f"ops{shard}").read_text().strip()

    def page(self, shard, path="/metrics"):
        """None while the port is closed."""
        try:
            return get(f"http://{self.data_ops.get(shard) or self.ops}{path}")
        except (urllib.error.URLError, ConnectionError):
            return None

    def series(self, shard):
        """Values by (name, label values)."""
        return {(name, *labels.values()): value for name, labels, value
                in samples(self.page(shard) or "")}

    def page_status(self):
        text = self.page(0, "/status.json?parts=all")
        return None if text is None else json.loads(text)


def lost_in(status):
    """The shard that the status says is gone, and its state; or None."""
    gone = [s for s in (status or {}).get("shards", ()) if not s["connected"]]
    return gone and (gone[0]["shard"], status)


class ShardOpsTest(unittest.TestCase):
    def setUp(self):
        self.cohort = Watched(3)
        self.addCleanup(self.cohort.__exit__)

    def until(self, poll, what):
        return self.cohort.until(poll, what)

    def test_a_lost_shard_is_named_until_it_is_back(self):
        cohort = self.cohort
        cohort.start()
        cohort.await_checkpoint(4)
        kill(cohort.data_shards[1])
        address = cohort.data_addresses[1]

        def named(state):
            return state.startswith(
                f"waiting for data shard 1 at {address}, gone for ")

        shard, page = self.until(lambda: lost_in(cohort.page_status()),
                                 "the page to say so")
        self.assertEqual(shard, 1)
        self.assertTrue(named(page["state"]), page["state"])
        self.assertEqual(page["shards"][1]["losses"], 1)
        self.assertEqual(
            self.until(lambda: cohort.series(0).get(
                ("cohort_shard_connected", "1")) == 0 and cohort.series(0),
                "the metric")[("cohort_shard_connected", "2")], 1)
        # cohortctl is served while the run waits, and workers are not.
        status = self.until(
            lambda: (told := json.loads(self.ask("status", "--json").stdout
                                        or "{}")).get("shards")
            and told, "cohortctl to say so")
        self.assertTrue(named(status["state"]), status["state"])
        self.assertEqual([s["connected"] for s in status["shards"]],
                         [True, False, True])
        self.assertRegex(cohort.ctl("status").stdout, rf"\n1 +gone for [\d.]+ s .* {address}\n")
        self.until(self.not_ready, "shard 0 to be not ready")
        at = cohort.newest_checkpoint()
        cohort.start_data_shard(1)
        cohort.await_checkpoint(at + 1)
        status = cohort.page_status()
        self.assertEqual([s["connected"] for s in status["shards"]],
                         [True] * 3)
        self.assertEqual([s["losses"] for s in status["shards"]], [0, 1, 0])
        texts = [event["text"] for event in status["events"]]
        lost = next(i for i, text in enumerate(texts)
                    if text.startswith(f"lost data shard 1 at {address}"))
        back = next(i for i, text in enumerate(texts) if text.startswith(
            f"data shard 1 at {address} is back after "))
        self.assertLess(lost, back, texts)
        self.assertTrue(any(text.startswith("all shards continue from step ")
                            for text in texts[lost:]), texts)
        cohort.drain()
        self.check_timelines(at)

    def lose_shard_1(self):
        """Once there is a checkpoint; the server has noticed then."""
        cohort = self.cohort
        cohort.start()
        cohort.await_checkpoint(4)
        kill(cohort.data_shards.pop(1))
        # Said by the server that takes over.
        cohort.await_log("server", "continuing from ")

    def ask(self, *words):
        return run("cohortctl", *words, f"--server={self.cohort.address}")

    def test_a_lost_shard_comes_first_at_the_doctor(self):
        cohort = self.cohort
        self.lose_shard_1()
        named = f"data shard 1 at {cohort.data_addresses[1]}, gone for "
        # With the reason, which is found by looking.
        status = self.until(
            lambda: (state := json.loads(self.ask(
                "status", "--json").stdout or "{}").get("state", ""))
            and "cannot be reached" in state and state, "the reason")
        self.assertIn(named, status)
        checks = json.loads(self.ask("doctor", "--json").stdout)["checks"]
        first = next(c for c in checks if c["result"] != "ok")
        self.assertEqual(first["check"], "shards", checks)
        self.assertIn(named, first["found"])
        self.assertIn("cannot be reached", first["found"])
        cohort.start_data_shard(1)
        cohort.wait_until(lambda: self.ask("run", "drain").returncode == 0,
                          "the drain")
        cohort.complete()

    def test_a_drain_needs_no_shard_that_is_away(self):
        cohort = self.cohort
        self.lose_shard_1()
        cohort.ctl("export")
        cohort.ctl("run", "drain")
        # The server and shard 2 end by themselves, with the results.
        cohort.complete()
        self.assertIn(cohort.data_addresses[1] + " does not answer", cohort.log())

    def not_ready(self):
        """/readyz answers 503 and names the shard."""
        try:
            get(f"http://{self.cohort.ops}/readyz")
        except urllib.error.HTTPError as error:
            return "waiting for data shard 1" in error.read().decode()
        except (urllib.error.URLError, ConnectionError):
            return False
        return False

    def check_timelines(self, version):
        """The file has spans from the first version to later than this one."""
        merged = self.cohort.dir / "run.json"
        merge = run("cohortctl", "trace", "merge", "--json",
                    *(str(self.cohort.dir / f"shard{i}.json")
                      for i in range(3)), f"--out={merged}")
        self.assertEqual(merge.returncode, 0, merge.stderr)
        self.assertEqual([p["name"] for p in json.loads(
            merge.stdout)["processes"]], ["server", "shard 1", "shard 2"])
        spans = [e for e in json.loads(merged.read_text())["traceEvents"]
                 if e["ph"] == "X"]
        # Each shard prepares each version, and some twice.
        versions = {i: [e["args"]["version"] for e in spans
                        if e["name"] == "prepare" and e["args"]["shard"] == i]
                    for i in range(3)}
        self.assertEqual(versions[0], versions[1])
        self.assertEqual(versions[0], versions[2])
        self.assertEqual(min(versions[0]), 1)
        self.assertGreater(max(versions[0]), version)
        folds = {e["pid"] for e in spans if e["name"] == "fold"}
        self.assertEqual(len(folds), 3)

    def test_a_server_that_waits_for_a_shard_is_stopped_as_ever(self):
        cohort = self.cohort
        kill(cohort.data_shards[2])
        server = cohort.start_process("waits", [
            BIN / "cohort-server", "--listen=127.0.0.1:0",
            *cohort.server_flags, "--stopped_exit_code=5"])
        cohort.await_log("waits", "waiting for data shard 2 at ")
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(30), 5, cohort.log("waits"))
        self.assertIn("given up waiting", cohort.log("waits"))

    def test_every_shard_exports_its_part(self):
        cohort = self.cohort
        self.assertEqual(cohort.page(1, "/readyz"), "ready\n")
        before = cohort.series(1)
        self.assertEqual(before[("cohort_data_shard_connected",)], 0)
        self.assertNotIn("cohort_data_shard_info",
                         [name for name, *_ in before])
        cohort.start()
        cohort.await_version(4)
        # The page may be a second old.
        own = self.until(
            lambda: (s := cohort.series(0)).get(
                ("cohort_shard_prepare_seconds", "0")) is not None and s,
            "the first commit")
        run_id = cohort.status()["run_id"]
        for shard in (1, 2):
            seen = self.until(
                lambda shard=shard: (s := cohort.series(shard)).get(
                    ("cohort_data_shard_version",), 0) >= 4 and s,
                "the version")
            self.assertIn(run_id, [key[1] for key in seen
                                   if key[0] == "cohort_data_shard_info"])
            self.assertEqual(seen[("cohort_data_shard_connected",)], 1)
            self.assertEqual(seen[("cohort_data_shard_connections_total",)], 1)
            for what in ("partitions", "weights_bytes"):
                of_shard_0 = own[(f"cohort_shard_{what}", str(shard))]
                self.assertGreater(of_shard_0, 0)
            self.assertEqual(seen[("cohort_data_shard_partitions",)],
                             own[("cohort_shard_partitions", str(shard))])
            self.assertEqual(seen[("cohort_state_bytes", "weights")],
                             own[("cohort_shard_weights_bytes", str(shard))])
            folds = seen[("cohort_apply_duration_seconds_count",)]
            self.assertGreaterEqual(
                folds, 4 * seen[("cohort_data_shard_partitions",)] / 2)
            # Two workers send each partition in each step.
            self.assertGreater(
                seen[("cohort_push_bytes_total", "float32")], 0)
            self.assertGreater(
                seen[("cohort_pull_bytes_total", "float32")], 0)
            self.assertGreater(seen[("process_resident_memory_bytes",)], 0)
            self.assertNotIn("cohort.v1.Admin",
                             [key[2] for key in seen
                              if key[0] == "grpc_server_started_total"])
            self.assertTrue(any(
                key[0] == "grpc_server_started_total" and "Attach" in key
                for key in seen))
        self.check_names(own)
        services = {key[2] for key in own
                    if key[0] == "grpc_server_started_total"}
        self.assertIn("cohort.v1.Admin", services)
        self.assertNotIn("cohort.v1.DataShards", services)
        cohort.drain()

    def check_names(self, exported):
        """Rules and dashboards ask for series that exist."""
        names = {name for name, *_ in exported}
        wanted = {name for _, query in monitoring_files.all_queries()
                  for name in monitoring_files.metric_names(query)
                  if name.startswith("cohort_shard_")}
        self.assertGreater(len(wanted), 2)
        self.assertEqual(wanted - names, set())


if __name__ == "__main__":
    unittest.main()
