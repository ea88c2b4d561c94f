"""A GradScaler: its rule, the same state and bits after a kill, and what the server
gets."""

import os
import unittest

import torch
from torch import nn

import cohort
from cohort._scaler import loss_scale_of
from networks import Shapes, digest, three_batch_norms
from ranks import Server, die_once
from shapes import scalers

SAMPLES, EPOCHS = 32, 2
FLAGS = (f"--epochs={EPOCHS}",)
# In every step without an overflow one more of them would be.
SCALE = 2.0 ** 20
KILLS = (3, 4) if int(os.environ.get("COHORT_KILLS", "1")) > 1 else (3,)


def train(rank, address, scale, marker=None, at=-1):
    """By step the scale and the verdict; the scaler's state; the model's digest.
    Rank 1 dies in step `at`, once."""
    model = three_batch_norms()
    scaler = None if scale is None else scalers.of_a_script(
        init_scale=scale, growth_interval=2)
    job = cohort.join(model, torch.optim.Adam(model.parameters(), lr=0.003),
                      scaler=scaler, server=address, log_level="error")
    steps = {}
    for x, y in job.data(Shapes(SAMPLES), batch_size=4):
        number = job.step_number
        value = None if scaler is None else scaler.get_scale()
        # Four samples of each worker: gradients of at most an eighth.
        out = scalers.NarrowBackward.apply(model(x))
        job.backward(nn.functional.cross_entropy(out, y))
        if number == at:
            die_once(rank, marker)
        steps[number] = value, job.step().verdict
    return (steps, None if scaler is None else scaler.state_dict(),
            digest(model.state_dict()))


class Rule(unittest.TestCase):
    def test_the_scale_moves_as_torchs(self):
        # Growth ends at the greatest float32.
        for options in ({"growth_interval": 3}, {"growth_interval": 1},
                        {"growth_interval": 2, "growth_factor": 1.7,
                         "backoff_factor": 0.3, "init_scale": 2.0 ** 125}):
            with self.subTest(options):
                ours = scalers.of_a_script(**options)
                scale = loss_scale_of(ours)
                theirs = scalers.single_process(**options)
                weight = nn.Parameter(torch.zeros(1))
                optimizer = torch.optim.SGD([weight], lr=0.0)
                generator = torch.Generator().manual_seed(3)
                for _ in range(40):
                    self.assertEqual(scale.value, theirs.get_scale())
                    bad = bool(torch.rand((), generator=generator) < 0.2)
                    theirs.scale(weight.sum())
                    weight.grad = torch.full((1,), float("inf") if bad else 1.0)
                    theirs.step(optimizer)
                    theirs.update()
                    scale.update(bad)

    def test_a_state_of_before_the_run_is_the_first(self):
        before = loss_scale_of(scalers.of_a_script(growth_interval=3))
        for bad in (True, False, False):
            before.update(bad)
        ours = scalers.of_a_script()
        ours.load_state_dict(before.save())
        scale = loss_scale_of(ours)
        scale.update(False)
        self.assertEqual(scale.value, 65536.0)


class Runs(unittest.TestCase):
    def test_a_kill_leaves_no_trace(self):
        with Server(2, *FLAGS) as server:
            (steps, state, bits), second = server.call(train, SCALE)
        self.assertEqual((steps, state, bits), second)
        verdicts = [verdict for _, verdict in steps.values()]
        self.assertEqual(verdicts, ["skipped", "applied", "applied"] * 2 +
                         ["skipped", "applied"])
        self.assertEqual([scale for scale, _ in steps.values()], [
            SCALE if verdict == "skipped" else SCALE / 2 for verdict in verdicts])
        for at in KILLS:
            with self.subTest(at), Server(2, *FLAGS, "--lease=2s") as server:
                first, second = server.ranks(train, SCALE, server.dir / "marker", at)
                for rank in (second.replaced(), first):
                    seen, last, digested = rank.result()
                    self.assertEqual((last, digested), (state, bits))
                    self.assertEqual(
                        {step: seen[step][0] for step in seen},
                        {step: steps[step][0] for step in seen})

    def test_the_server_gets_gradients_without_the_scale(self):
        found = set()
        for scale in (None, 2.0 ** 10):
            with Server(2, *FLAGS, "--clip_norm=0.05", "--wire=bf16") as server:
                found |= {bits for _, _, bits in server.call(train, scale)}
        # Powers of two are exact.
        self.assertEqual(len(found), 1)


if __name__ == "__main__":
    unittest.main()
