"""Workers and servers killed at any moment: same bits, and own data counts
once."""

import os
import random
import time
import unittest

import torch
from torch import nn

import cohort
from networks import DEVICE, Shapes, digest, joined, step, three_batch_norms
from ranks import Rank, Server

KILLS = int(os.environ.get("COHORT_KILLS", "2"))
SAMPLES = 256
RUN = ("--epochs=2", "--ema_decay=0.9")


def train(rank, address, loaders=0):
    """A script with random augmentation, dropout, a schedule and groups."""
    model = three_batch_norms(dropout=0.2).to(DEVICE)
    optimizer = torch.optim.SGD(
        [{"params": model[:4].parameters()},
         {"params": model[4:].parameters(), "lr": 0.03, "weight_decay": 0.01}],
        lr=0.01, momentum=0.9)
    steps = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=64)
    epochs = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)
    criterion = nn.CrossEntropyLoss()
    job = cohort.join(model, optimizer, schedulers=[steps],
                      epoch_schedulers=[epochs], server=address, rank=rank,
                      server_timeout=60, log_level="error")
    job.evaluate_with(Shapes(32), criterion)
    for x, y in job.data(Shapes(SAMPLES, noise=0.3), batch_size=4,
                         num_workers=loaders):
        job.backward(criterion(model(x.to(DEVICE)), y.to(DEVICE)))
        job.step()
        time.sleep(0.02)
    return (digest(model.state_dict()), digest(job.state_dict(averaged=True)),
            [group["lr"] for group in optimizer.param_groups])


def train_two(rank, address):
    """A GAN: two optimizers, which are stepped one after the other."""
    torch.manual_seed(1)
    judge, maker = three_batch_norms(), nn.Sequential(
        nn.Linear(4, 144), nn.Unflatten(1, (1, 12, 12)), nn.BatchNorm2d(1))
    both = nn.ModuleList([judge, maker]).to(DEVICE)
    opt_d, opt_g = (torch.optim.Adam(part.parameters(), lr=0.01, eps=1e-3)
                    for part in both)
    job = cohort.join(both, [opt_d, opt_g], server=address, rank=rank,
                      server_timeout=60, log_level="error")
    criterion = nn.CrossEntropyLoss()
    for x, y in job.data(Shapes(SAMPLES, noise=0.3), batch_size=4):
        x, y = x.to(DEVICE), y.to(DEVICE)
        made = maker(torch.randn(len(x), 4, device=DEVICE))
        job.backward(criterion(judge(x), y), optimizer=opt_d)
        job.backward(-criterion(judge(made.detach()), y), optimizer=opt_d)
        job.step(opt_d)
        time.sleep(0.02)
        if job.step_number % 3:
            job.backward(criterion(judge(made), y), optimizer=opt_g)
            job.step(opt_g)
    return digest(both.state_dict())


def own_batches(rank, incarnation, log):
    """Endless batches whose first number names them."""
    number = 0
    generator = torch.Generator().manual_seed(1000 * rank + incarnation)
    while True:
        x = torch.randn(3 + (number + rank) % 3, 1, 12, 12, generator=generator)
        name = f"{rank}.{incarnation}.{number}"
        with open(log, "a", encoding="utf-8") as out:
            print("drawn", name, len(x), file=out)
        yield x, torch.randint(0, 4, (len(x),), generator=generator), name
        number += 1


def train_own(rank, address, incarnation, folder):
    log = f"{folder}/rank{rank}.{incarnation}"
    model, job = joined(address, three_batch_norms().to(DEVICE), rank=rank,
                        server_timeout=60)
    for x, y, name in job.data(own_batches(rank, incarnation, log),
                               batch_size=4):
        result = step(model, job, (x.to(DEVICE), y.to(DEVICE)))
        with open(log, "a", encoding="utf-8") as out:
            print("step", name, result.verdict, result.version, file=out)
        time.sleep(0.01)
    return digest(model.state_dict())


class Faults(unittest.TestCase):
    def undisturbed(self, function):
        with Server(2, *RUN) as server:
            results = server.call(function)
        self.assertEqual(results[0], results[1])
        return results[0]

    def test_killed_workers_leave_no_trace(self):
        for function in (train, train_two):
            wanted = self.undisturbed(function)
            generator = random.Random(KILLS)
            with self.subTest(function.__name__), Server(
                    2, *RUN, "--lease=2s") as server:
                # Rank 1 has a loader process.
                ranks = [Rank(function, rank, server.address,
                              *(() if function is train_two else (rank,)))
                         for rank in range(2)]
                for _ in range(KILLS):
                    time.sleep(1 + generator.random())
                    victim = generator.randrange(2)
                    if not ranks[victim].process.is_alive():
                        break
                    ranks[victim].kill()
                    ranks[victim] = ranks[victim].replaced()
                for rank in ranks:
                    self.assertEqual(rank.result(), wanted, server.log())

    def test_a_killed_server_goes_on_from_its_checkpoint(self):
        for function in (train, train_two):
            wanted = self.undisturbed(function)
            with self.subTest(function.__name__), Server(
                    2, *RUN, "--checkpoint_every=3", keeps=True) as server:
                ranks = server.ranks(function)
                server.await_checkpoint()
                time.sleep(0.5)
                server.resume_server()
                for rank in ranks:
                    self.assertEqual(rank.result(), wanted, server.log())

    def test_own_data_counts_once_where_late_pushes_are_dropped(self):
        with Server(3, "--max_steps=60", "--min_pushes=2") as server:
            server.call(train_own, 0, server.dir)
            server.complete()
            counted = int(server.rows()[-1]["samples"])
            logs = [(server.dir / f"rank{rank}.0").read_text().splitlines()
                    for rank in range(3)]
        # Every batch that was drawn counts once, but for the last of each
        # worker, which may still be kept.
        sure = possible = 0
        for rank in range(3):
            drawn = [int(line.split()[2]) for line in
                     logs[rank] if line.startswith("drawn")]
            sure += sum(drawn[:-1])
            possible += sum(drawn)
        self.assertTrue(sure <= counted <= possible, (sure, counted, possible))

    def test_own_data_counts_once(self):
        steps = 100
        with Server(2, f"--max_steps={steps}", "--lease=2s") as server:
            ranks = server.ranks(train_own, 0, server.dir)
            time.sleep(2)
            ranks[1].kill()
            ranks[1] = Rank(train_own, 1, server.address, 1, server.dir)
            digests = [rank.result() for rank in ranks]
            self.assertEqual(digests[0], digests[1])
            versions = {0: [], 1: []}
            for rank in range(2):
                for log in sorted(server.dir.glob(f"rank{rank}.*")):
                    drawn, counted = [], []
                    for line in log.read_text().splitlines():
                        kind, name, *rest = line.split()
                        if kind == "drawn":
                            drawn.append(name)
                        elif rest[0] == "applied":
                            counted.append(name)
                            versions[rank].append(int(rest[1]))
                    # In order, each once; only the one in progress when the
                    # process ended may be missing.
                    self.assertEqual(counted, drawn[:len(counted)])
                    self.assertLessEqual(len(drawn) - len(counted), 1, log)
            # The killed process cannot write what became of its last step.
            self.assertEqual(versions[0], list(range(1, steps + 1)))
            self.assertLessEqual(set(versions[1]), set(versions[0]))
            self.assertGreaterEqual(len(versions[1]), steps - 1)


if __name__ == "__main__":
    unittest.main()
