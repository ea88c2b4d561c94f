"""Measures of the script's own, and a Python worker as an operator sees it."""

import json
import subprocess
import time
import unittest

import torch
from torch import nn

import cohort
from networks import Shapes, three_batch_norms
from ranks import BIN, Rank, Server


def train(rank, address, trace):
    model = three_batch_norms()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    job = cohort.join(model, optimizer, server=address, log_level="error",
                      trace=f"{trace}.{rank}.json")
    for x, y in job.data(Shapes(256), batch_size=4):
        logits = model(x)
        correct = int((logits.argmax(1) == y).sum())
        job.backward(nn.functional.cross_entropy(logits, y), correct=correct,
                     labels=len(y))
        # The mean over both workers is 0.75.
        job.report(share=float(rank), weight=1 + 2 * rank)
        job.report(constant=2.5)
        job.step()
        time.sleep(0.01)


class Measures(unittest.TestCase):
    def status(self, server):
        done = subprocess.run([BIN / "cohortctl", "status", "--json",
                               f"--server={server.address}"],
                              capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def test_measures_and_phases_are_seen(self):
        with Server(2, "--epochs=6") as server:
            server.kill()
            results = server.dir / "results"
            server.start(f"--results_dir={results}",
                         f"--tensorboard={server.dir / 'events'}",
                         "--exit_when_done=false")
            trace = server.dir / "trace"
            ranks = [Rank(train, rank, server.address, str(trace))
                     for rank in range(2)]
            phases = {}
            deadline = time.monotonic() + 60
            while len(phases) < 2:
                self.assertLess(time.monotonic(), deadline, server.log())
                for worker in self.status(server)["workers"]:
                    if worker["phase_seconds"]:
                        phases[worker["rank"]] = worker["phase_seconds"]
                time.sleep(0.2)
            for rank in ranks:
                rank.result()
            status = self.status(server)
            self.assertEqual(status["measures"],
                             {"constant": 2.5, "share": 0.75})
            text = subprocess.run(
                [BIN / "cohortctl", "status", f"--server={server.address}"],
                capture_output=True, text=True, check=True).stdout
            self.assertRegex(text, r"share +0\.75\n")
            for worker in phases.values():
                for phase in ("data", "backward", "rendezvous", "push", "wait"):
                    self.assertGreater(worker[phase], 0, worker)
            rows = (results / "measures.csv").read_text().splitlines()
            self.assertEqual(rows[0], "version,samples,measure,mean,weight")
            # 50 commits of weight 4.
            self.assertEqual(rows[2].split(",")[2:], ["share", "0.75", "200"])
            self.assertIn(b"share/train", b"".join(
                file.read_bytes()
                for file in (server.dir / "events").glob("*")))
            spans = json.loads((server.dir / "trace.0.json").read_text())
            names = {span.get("name") for span in spans}
            self.assertLessEqual({"step", "backward", "rendezvous"}, names)


if __name__ == "__main__":
    unittest.main()
