"""The content of the log."""

import json
import socket
import unittest

from processes import Cohort, run


def lines(cohort, name):
    """The log's lines, without the server's progress lines."""
    return [json.loads(line) for line in cohort.log(name).splitlines()
            if line.startswith("{")]


class Logs(unittest.TestCase):
    def test_lines_say_whose_they_are(self):
        with Cohort(workers=1, server_flags=["--epochs=1"]) as cohort:
            cohort.start()
            self.assertEqual(cohort.finish(), 0, cohort.log())
            self.assertEqual(cohort.workers[0].wait(60), 0)
            server = lines(cohort, "server")
            worker = lines(cohort, "worker0")
        self.assertTrue(server)
        joined = [line for line in server if "joined as" in line["message"]]
        self.assertEqual([line["worker"] for line in joined], ["0"])
        self.assertIn(f"incarnation {joined[0]['incarnation']} (",
                      joined[0]["message"])
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
        self.assertIn("incarnation", last)

    def test_the_level_changes_while_the_run_goes_on(self):
        with Cohort(workers=1) as cohort:
            cohort.start_server("--log_level=warning")
            flag = f"--server={cohort.address}"
            told = run("cohortctl", "log", "level", flag)
            self.assertEqual(told.stdout, "log level warning\n", told.stderr)
            set_ = run("cohortctl", "log", "level", "info", flag)
            self.assertEqual(set_.stdout, "log level warning -> info\n")
            cohort.wait_until(lambda: "log level warning -> info" in
                              cohort.log(), "the line that tells it")
            before = len(lines(cohort, "server"))
            cohort.start_worker(0)
            cohort.wait_until(lambda: len(lines(cohort, "server")) > before,
                              "a line of level info")
            loud = run("cohortctl", "log", "level", "loud", flag)
            self.assertEqual(loud.returncode, 3)
            self.assertIn("got 'loud', want debug, info", loud.stderr)

    def test_a_port_in_use_is_told_in_one_line(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            refused = run("cohort-server", f"--listen={address}",
                          "--ops_listen=")
        self.assertEqual(len(refused.stderr.splitlines()), 1, refused.stderr)
        self.assertIn(f"cannot listen on {address}", refused.stderr)

    def test_a_level_that_does_not_exist_is_refused(self):
        for program in ("cohort-server", "cohort-worker"):
            result = run(program, "--log_level=loud")
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertIn("--log_level: got 'loud', want one of "
                          "debug, info, warning, error", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
