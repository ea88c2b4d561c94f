"""Timelines of a server and its workers, merged and read as a viewer would."""

import collections
import json
import unittest

from processes import Cohort, kill, run

PHASES = ("data", "forward", "rendezvous", "backward", "push", "wait")


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def check_schema(test, events):
    """Checks the fields that the format requires of each kind of event."""
    test.assertTrue(events)
    for event in events:
        test.assertIn(event["ph"], ("X", "M", "C"), event)
        test.assertIsInstance(event["name"], str)
        test.assertIsInstance(event["pid"], int)
        test.assertIsInstance(event["tid"], int)
        test.assertIsInstance(event["args"], dict)
        if event["ph"] != "M":
            test.assertGreaterEqual(event["ts"], 0, event)
        if event["ph"] == "X":
            test.assertGreaterEqual(event["dur"], 0, event)
    named = {(e["pid"], e["tid"]) for e in events
             if e["ph"] == "M" and e["name"] == "thread_name"}
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    test.assertLessEqual(used, named)


def tracks(events):
    """Spans by (pid, tid), the outer ones before the inner ones."""
    found = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    for spans in found.values():
        spans.sort(key=lambda e: (e["ts"], -e["dur"]))
    return found


def end_of(span):
    return span["ts"] + span["dur"]


def own_times(test, spans):
    """Yields (span, outermost span, time outside inner spans), and checks
    that the spans of a track nest."""
    stack = []
    own = []
    # Times are rounded to nanoseconds in the file.
    slack = 0.01
    for span in spans:
        while stack and span["ts"] + slack >= end_of(stack[-1][0]):
            stack.pop()
        entry = [span, stack[0][0] if stack else span, span["dur"]]
        if stack:
            outer = stack[-1]
            test.assertLessEqual(end_of(span), end_of(outer[0]) + slack)
            outer[2] -= span["dur"]
        stack.append(entry)
        own.append(entry)
    return own


class Timeline(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cohort = Cohort(server_flags=["--epochs=2"], keeps=True)
        cohort = cls.cohort
        cls.files = [cohort.dir / f"{name}.json"
                     for name in ("server", "worker0", "worker1")]
        cohort.start_server(f"--trace={cls.files[0]}")
        for rank in (0, 1):
            cohort.start_worker(rank, f"--trace={cls.files[1 + rank]}")
        cohort.complete()
        for worker in cohort.workers.values():
            worker.wait(60)
        cls.merged = cohort.dir / "run.json"
        cls.merge = run("cohortctl", "trace", "merge", *cls.files,
                        f"--out={cls.merged}", "--json")

    @classmethod
    def tearDownClass(cls):
        cls.cohort.__exit__(None, None, None)

    def events(self):
        self.assertEqual(self.merge.returncode, 0, self.merge.stderr)
        return load(self.merged)["traceEvents"]

    def test_each_file_is_whole_and_all_are_merged(self):
        for path in self.files:
            self.assertIsInstance(load(path), list)
        events = self.events()
        check_schema(self, events)
        names = [e["args"]["name"] for e in events
                 if e["name"] == "process_name"]
        self.assertEqual(names, ["server", "worker 0", "worker 1"])
        report = json.loads(self.merge.stdout)
        self.assertEqual([p["name"] for p in report["processes"]], names)
        for process in report["processes"][1:]:
            # Half of the shortest round trip: less than the whole run.
            self.assertLess(process["clock_error_us"], max(
                e["ts"] + e["dur"] for e in events if e["ph"] == "X"))

    def test_phases_add_up_to_the_steps(self):
        by_worker = collections.Counter()
        for (pid, _), spans in tracks(self.events()).items():
            seconds = collections.Counter()
            for span, outermost, own in own_times(self, spans):
                if outermost["name"] != "step":
                    continue
                if span is outermost:
                    seconds["step"] += span["dur"]
                else:
                    self.assertIn(span["name"], PHASES)
                    seconds[span["name"]] += own
            if not seconds["step"]:
                continue
            by_worker[pid] += 1
            phases = sum(seconds[phase] for phase in PHASES)
            self.assertAlmostEqual(phases / seconds["step"], 1, delta=0.05)
            for phase in PHASES:
                self.assertGreater(seconds[phase], 0, phase)
        self.assertEqual(len(by_worker), 2)

    def test_the_server_shows_what_the_workers_wait_for(self):
        events = self.events()
        server = collections.Counter(
            e["name"] for e in events if e["ph"] == "X" and e["pid"] == 1)
        for name in ("fold", "apply", "rendezvous", "checkpoint"):
            self.assertGreater(server[name], 0, name)
        # Each rendezvous of a worker encloses the server's part of it.
        steps = [e for e in events if e["name"] == "step"]
        self.assertEqual(len(steps), 2 * server["apply"])
        for step in steps[:10]:
            for fact in ("sequence", "attempt", "version"):
                self.assertIn(fact, step["args"])
        waits = [e for e in events if e["name"] == "rendezvous"]
        at_server = sum(e["dur"] for e in waits if e["pid"] == 1)
        at_workers = sum(e["dur"] for e in waits if e["pid"] != 1)
        self.assertEqual(sum(e["pid"] == 1 for e in waits) * 2, len(waits))
        self.assertLessEqual(at_server, at_workers)


class Interrupted(unittest.TestCase):
    def test_what_a_killed_worker_left_is_merged(self):
        with Cohort(workers=1, server_flags=["--epochs=50"]) as cohort:
            trace = cohort.dir / "worker.json"
            cohort.start_server()
            cohort.start_worker(0, f"--trace={trace}")
            cohort.wait_until(lambda: trace.exists() and
                              '"name":"step"' in trace.read_text(),
                              "the first step")
            kill(cohort.workers[0])
            out = cohort.dir / "run.json"
            merged = run("cohortctl", "trace", "merge", trace, f"--out={out}")
            self.assertEqual(merged.returncode, 0, merged.stderr)
            self.assertIn("worker 0", merged.stdout)
            check_schema(self, load(out)["traceEvents"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
