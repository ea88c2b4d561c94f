"""The content of the log."""

import json
import signal
import unittest

from processes import Cohort


def lines(cohort, name):
    """The log's lines, without the server's progress lines."""
    return [json.loads(line) for line in cohort.log(name).splitlines()
            if line.startswith("{")]


class Logs(unittest.TestCase):
    def test_lines_say_whose_they_are(self):
        with Cohort(workers=1, server_flags=["--epochs=1"]) as cohort:
            cohort.start()
            cohort.complete()
            cohort.await_worker(0)
            server = lines(cohort, "server")
            worker = lines(cohort, "worker0")
        self.assertTrue(server)
        joined = [line for line in server if "joined as" in line["message"]]
        self.assertEqual([line["worker"] for line in joined], ["0"])
        start, number = divmod(int(joined[0]["incarnation"]), 1 << 32)
        people = f"{start}.{number + 1}"
        self.assertEqual(joined[0]["incarnation_text"], people)
        self.assertIn(f"incarnation {people} (", joined[0]["message"])
        for line in server:
            for field in ("time", "level", "run", "incarnation", "version"):
                self.assertIn(field, line)
            self.assertEqual(line["process"], "server")
        # From the moment when the worker knows its rank and run.
        last = worker[-1]
        self.assertEqual(last["message"], "left")
        self.assertEqual(last["run"], server[0]["run"])
        self.assertEqual(last["worker"], "0")
        self.assertGreater(int(last["version"]), 0)
        self.assertEqual(last["incarnation_text"], people)

    def test_a_planned_stop_is_no_fault(self):
        for name, stop in (
                ("SIGTERM", lambda cohort:
                 cohort.server.send_signal(signal.SIGTERM)),
                ("drain", lambda cohort: cohort.ctl("run", "drain"))):
            with self.subTest(name), Cohort(workers=2) as cohort:
                cohort.start()
                cohort.await_version(2)
                stop(cohort)
                self.assertEqual(cohort.finish(), 0)
                server = lines(cohort, "server")
                self.assertEqual(len([line for line in server if "joined as"
                                      in line["message"]]), 2)
                self.assertEqual([line["message"] for line in server if
                                  line["level"] in ("warning", "error")], [])

    def test_the_level_changes_while_the_run_goes_on(self):
        with Cohort(workers=1) as cohort:
            cohort.start_server("--log_level=warning")
            told = cohort.ctl("log", "level")
            self.assertEqual(told.stdout, "log level warning\n")
            cohort.ctl("log", "level", "info")
            cohort.wait_until(lambda: "log level warning -> info" in
                              cohort.log(), "the line that tells it")
            before = len(lines(cohort, "server"))
            cohort.start_worker(0)
            cohort.wait_until(lambda: len(lines(cohort, "server")) > before,
                              "a line of level info")


if __name__ == "__main__":
    unittest.main(verbosity=2)
