"""Measures of the script's own, and a Python worker as an operator sees it."""

import json
import time
import unittest

from torch import nn

from networks import Shapes, joined
from ranks import Server


def train(rank, address, trace):
    model, job = joined(address, trace=f"{trace}.{rank}.json")
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
    def test_measures_and_phases_are_seen(self):
        server = Server(2, "--epochs=6", "--exit_when_done=false")
        server.server_flags.append(f"--tensorboard={server.dir / 'events'}")
        with server:
            ranks = server.ranks(train, str(server.dir / "trace"))
            phases = {}

            def told():
                phases.update((worker["rank"], worker["phase_seconds"])
                              for worker in server.status()["workers"]
                              if worker["phase_seconds"])
                return len(phases) == 2

            server.wait_until(told, "the phases of both")
            for rank in ranks:
                rank.result()
            status = server.status()
            self.assertEqual(status["measures"],
                             {"constant": 2.5, "share": 0.75})
            self.assertRegex(server.ctl("status").stdout, r"share +0\.75\n")
            for worker in phases.values():
                for phase in ("data", "backward", "rendezvous", "push", "wait"):
                    self.assertGreater(worker[phase], 0, worker)
            # 50 commits of weight 4.
            server.wait_until(
                lambda: ("share", "0.75", "200") in {
                    (row["measure"], row["mean"], row["weight"])
                    for row in server.rows_so_far("measures.csv")},
                "the row of the first measure")
            self.assertIn(b"share/train", b"".join(
                file.read_bytes()
                for file in (server.dir / "events").glob("*")))
            spans = json.loads((server.dir / "trace.0.json").read_text())
            names = {span.get("name") for span in spans}
            self.assertLessEqual({"step", "backward", "rendezvous"}, names)


if __name__ == "__main__":
    unittest.main()
