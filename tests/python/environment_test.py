"""What cohort.join() takes from the environment, and the port for probes."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

from ports import named_ports
from processes import BIN, get, until
from ranks import Server

# Waits for a file before the data is there, and for another after the run.
SCRIPT = """
    import pathlib, sys, time
    import torch
    import networks
    folder = pathlib.Path(sys.argv[1])
    model, job = networks.joined(None, log_level="info")
    print("threads", torch.get_num_threads(), flush=True)
    def await_file(name):
        while not (folder / name).exists():
            time.sleep(0.02)
    await_file("data")
    for batch in job.data(networks.Shapes(64), batch_size=4):
        networks.step(model, job, batch)
        (folder / "step").touch()
    await_file("end")
    """

# Two runs, each with a server of the process; the first job is still referenced.
TWO_RUNS = """
    import os, urllib.request
    import cohort, networks
    jobs = []
    for run in range(2):
        model, job = networks.joined(None, serve={"epochs": 1})
        jobs.append(job)
        with urllib.request.urlopen(
                f"http://{os.environ['COHORT_OPS_LISTEN']}/livez") as answer:
            print("run", run, answer.read().decode(), end="", flush=True)
        for batch in job.data(networks.Shapes(16), batch_size=4):
            networks.step(model, job, batch)
    """

DEPLOY = pathlib.Path(__file__).parents[2] / "deploy"
# Places, which differ here.
PLACES = frozenset({
    "COHORT_CHECKPOINT_DIR", "COHORT_LISTEN", "COHORT_LOCAL_DIR",
    "COHORT_OPS_LISTEN", "COHORT_RESULTS_DIR", "COHORT_RESUME", "COHORT_WORKERS"})


def of_the_base():
    text = (DEPLOY / "kubernetes/base/server.env").read_text()
    return dict(re.findall(r"^(COHORT_\w+)=(.*)$", text, re.M))


def tries_of_the_startup_probe():
    text = (DEPLOY / "kubernetes/base/worker.yaml").read_text()
    return int(re.search(r"startupProbe:\n(?: {12}.*\n)*? +failureThreshold: (\d+)",
                         text).group(1))


def of_compose():
    text = (DEPLOY / "compose.yaml").read_text()
    service = re.search(r"^  server:\n((?:    .*\n|\n)+)", text, re.M).group(1)
    # As without variables outside; one without a value is not set.
    return {name: value or default for name, default, value in re.findall(
        r"^      (COHORT_\w+): (?:\$\{\w+:-(.*)\}|\"?([^\"\n]+)\"?)$", service,
        re.M)}


class Environment(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, script=SCRIPT, **variables):
        with open(self.folder / "log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-B", "-c", textwrap.dedent(script),
                 self.folder],
                stdout=log, stderr=log, env={**os.environ, **variables})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def log(self):
        return (self.folder / "log").read_text()

    def await_log(self, pattern):
        return until(lambda: re.search(pattern, self.log()), pattern).group(1)

    def test_the_port_answers_from_join_until_the_end(self):
        """The startup probe of the manifests, at a shorter period, runs out of
        tries while the script still reads its data."""
        with Server(1, "--epochs=1") as server:
            script = self.start(COHORT_SERVER=server.address,
                                COHORT_OPS_LISTEN="127.0.0.1:0")
            url = self.await_log(r"operations port: (http://\S+)/metrics")
            for _ in range(tries_of_the_startup_probe()):
                self.assertEqual(get(url + "/livez"), "alive\n")
            self.assertFalse((self.folder / "step").exists())
            (self.folder / "data").touch()
            until(lambda: server.server.poll() is not None, "the end of the run")
            self.assertIn("cohort_worker_steps_total 16", get(url + "/metrics"))
            self.assertEqual(get(url + "/livez"), "alive\n")
            (self.folder / "end").touch()
            self.assertEqual(script.wait(60), 0, self.log())

    def test_jobs_one_after_another_have_the_port(self):
        script = self.start(TWO_RUNS,
                            COHORT_OPS_LISTEN=f"127.0.0.1:{named_ports(1)[0]}")
        self.assertEqual(script.wait(200), 0, self.log())
        self.assertIn("run 0 alive\n", self.log())
        self.assertIn("run 1 alive\n", self.log())

    def test_under_cohortctl_run_the_port_and_the_timeline_are_the_servers(self):
        trace = self.folder / "trace"
        (self.folder / "data").touch()
        (self.folder / "end").touch()
        done = subprocess.run(
            [BIN / "cohortctl", "run", "--listen=127.0.0.1:0", "--workers=2",
             "--epochs=1", "--", sys.executable, "-B", "-c",
             textwrap.dedent(SCRIPT), self.folder],
            capture_output=True, text=True, timeout=200, check=False,
            env={**os.environ, "COHORT_TRACE": str(trace),
                 "COHORT_OPS_LISTEN": f"127.0.0.1:{named_ports(1)[0]}"})
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, said)
        self.assertNotIn("started again", said)
        self.assertIn('"server"', trace.read_text())

    def test_a_script_with_a_scheduler_under_the_servers_of_deploy(self):
        script = DEPLOY / "kubernetes/overlays/python/train.py"
        for given in (of_the_base(), of_compose()):
            self.assertEqual(given["COHORT_AGGREGATION"], "sync")
            server = Server(1, keeps=True)
            server.environment = {name: value for name, value in given.items()
                                  if name not in PLACES}
            with self.subTest(given=given), server:
                done = subprocess.run(
                    [sys.executable, "-B", script], capture_output=True,
                    text=True, timeout=200, check=False,
                    env={**os.environ, "COHORT_SERVER": server.address,
                         "COHORT_OPS_LISTEN": "127.0.0.1:0"})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("epoch 4: loss", done.stdout)

    def test_threads_trace_and_the_exit_code_after_a_signal(self):
        with Server(1, "--epochs=100000") as server:
            script = self.start(COHORT_SERVER=server.address,
                                COHORT_THREADS="2",
                                COHORT_TRACE=str(self.folder / "trace"),
                                COHORT_STOPPED_EXIT_CODE="143")
            (self.folder / "data").touch()
            until((self.folder / "step").exists, "a step")
            script.send_signal(signal.SIGTERM)
            self.assertEqual(script.wait(60), 143, self.log())
        self.assertIn("threads 2\n", self.log())
        self.assertTrue((self.folder / "trace").read_text().endswith("]\n"))

    def test_the_time_to_wait_for_a_server(self):
        (self.folder / "data").touch()
        script = self.start(COHORT_SERVER="127.0.0.1:1",
                            COHORT_SERVER_TIMEOUT="200ms")
        self.assertEqual(script.wait(100), 5, self.log())

    def test_values_that_the_table_refuses(self):
        for name, value in (("THREADS", "0"), ("THREADS", "two"),
                            ("STOPPED_EXIT_CODE", "256"),
                            ("SERVER_TIMEOUT", "5 minutes"),
                            ("INSECURE", "perhaps"),
                            ("OPS_LISTEN", "0.0.0.0:0")):
            with self.subTest(name=name, value=value):
                script = self.start(COHORT_SERVER="127.0.0.1:1",
                                    **{f"COHORT_{name}": value})
                self.assertEqual(script.wait(60), 3, self.log())
                self.assertIn("ConfigurationError", self.log())

    def test_plaintext_for_others_is_allowed_by_its_variable(self):
        self.start(COHORT_SERVER="127.0.0.1:1", COHORT_OPS_LISTEN="0.0.0.0:0",
                   COHORT_INSECURE="true")
        self.await_log(r"operations port: (http://\S+)/metrics")


if __name__ == "__main__":
    unittest.main()
