"""Kept state through kills: the bits are those of the run that nothing
disturbed."""

import copy
import signal
import time
import unittest

import torch
from torch import nn

import cohort
from networks import DEVICE, Shapes, digest, joined, step, three_batch_norms
from processes import until
from ranks import Rank, Server

RUN = ("--epochs=2", "--seed=5")
Rank.method = "fork"


def build():
    """A model whose passes write buffers, and its teacher."""
    torch.manual_seed(2)
    model = three_batch_norms()
    model[0] = nn.utils.spectral_norm(model[0])
    teacher = copy.deepcopy(model).requires_grad_(False)
    return model.to(DEVICE), teacher.to(DEVICE)


def train(rank, address, marks, pauses=False, slow=0.0):
    """A student, with a teacher that follows it after the step, and a rate that
    depends on a measure.

    Args:
        marks: a folder; files in it say what this rank has done.
        pauses: after step 5, before the teacher follows, it waits until the
            file "go" is there.
        slow: seconds in each step.
    """
    model, teacher = build()
    centre, mean = (torch.zeros(4, device=DEVICE) for _ in "ab")
    normalizer = cohort.RunningNormalizer(4).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.9, patience=1, cooldown=1)
    job = cohort.join(model, optimizer,
                      keep={"teacher": teacher, "centre": centre,
                            "normalizer": normalizer, "mean": mean},
                      buffers={"mean": "mean"},
                      server=address, rank=rank, server_timeout=60,
                      log_level="error")
    criterion = nn.CrossEntropyLoss()
    for x, y in job.data(Shapes(128, noise=0.3), batch_size=4):
        x, y = x.to(DEVICE), y.to(DEVICE)
        with torch.no_grad():
            soft = teacher(x)
            total = job.sum(soft.sum(0))
        out = model(x)
        # The mean of this worker's samples, until the step.
        mean.lerp_(soft.mean(0), 0.2)
        normalizer.update(out)
        job.backward(criterion(normalizer(out), y) + 0.1 * (
            out - soft + centre + mean).square().mean())
        result = job.step()
        if pauses and result.version == 5:
            (marks / f"paused{rank}").touch()
            while not (marks / "go").exists():
                time.sleep(0.01)
        time.sleep(slow)
        # A void step is undone.
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), model.parameters()):
                mine.lerp_(theirs, 0.1)
            centre.lerp_(total, 0.2)
        plateau.step(centre.norm())
    return (digest(model.state_dict()), digest(teacher.state_dict()),
            digest({"centre": centre, "mean": mean}), digest(normalizer.state_dict()),
            int(normalizer.count), plateau.state_dict(),
            optimizer.param_groups[0]["lr"])


def train_until_data_ends(rank, address):
    """Rank 1's data ends first, so that the last body of rank 0 is void."""
    model, teacher = build()
    _, job = joined(address, model, keep=[teacher], rank=rank, server_timeout=60)
    criterion = nn.CrossEntropyLoss()
    batches = [tuple(torch.stack(values) for values in zip(*(
        Shapes(64)[8 * step + 4 * rank + i] for i in range(4))))
        for step in range(8 if rank == 0 else 3)]
    for x, y in job.data(iter(batches), batch_size=4):
        with torch.no_grad():
            for mine in teacher.parameters():
                mine.mul_(0.5)
        job.backward(criterion(model(x.to(DEVICE)), y.to(DEVICE)))
        job.step()
    return digest(model.state_dict()), digest(teacher.state_dict())


class Ends(unittest.TestCase):
    def test_a_void_body_at_the_end_leaves_no_trace(self):
        with Server(2, "--max_steps=100") as server:
            first, second = server.call(train_until_data_ends)
        self.assertEqual(first, second)


def scored(rank, address, names):
    """With buffers that passes write, or a buffer that `keep` names; the error."""
    torch.manual_seed(2)
    model = three_batch_norms()
    if names:
        model.register_buffer("queue", torch.zeros(4))
    else:
        model[0] = nn.utils.spectral_norm(model[0])
    _, job = joined(address, model, rank=rank,
                    keep={name: getattr(model, name) for name in names})
    job.evaluate_with(Shapes(16), nn.CrossEntropyLoss(), batch_size=8)
    try:
        for batch in job.data(Shapes(32), batch_size=4):
            step(model, job, batch)
    except cohort.UsageError as error:
        return f"after step {job.version}: {error}"
    return "no error"


def read_between_epochs(rank, address):
    """With 60 samples rank 1 has no batch in the last step of an epoch, and lacks
    the buffers that the step has written. It asks for them in the next epoch, which
    rank 0 begins later: the attempt that rank 0 holds is void when it reads."""
    warnings = []
    cohort._core.log = lambda *text: warnings.append(text)
    model, job = joined(address, build()[0], rank=rank)
    data = job.data(Shapes(60), batch_size=4)
    versions = []
    for epoch in job.epochs():
        for x, y in data:
            step(model, job, (x.to(DEVICE), y.to(DEVICE)))
        if rank == 0 and epoch == 0:
            while job._run.waiting.attempt == 0:
                job.load()
                time.sleep(0.01)
        versions.append(job.load())
    return versions, [text for kind, text in warnings if kind == "warning"]


class BetweenEpochs(unittest.TestCase):
    def test_the_model_is_read_while_the_step_that_waits_becomes_void(self):
        with Server(2, "--epochs=2") as server:
            (versions, none), (second, warnings) = server.call(read_between_epochs)
        self.assertEqual((versions, second), ([8, 16], [8, 16]), server.log())
        # Rank 1 has older buffers then, and the weights of the version.
        self.assertEqual((none, len(warnings)), ([], 2))
        for warning, version in zip(warnings, versions):
            self.assertRegex(warning, rf"0\.weight_u.* {version}\b")


class Scores(unittest.TestCase):
    def test_workers_do_not_score_with_buffers_that_passes_write(self):
        for names, buffers in (((), r"0\.weight_u"), (("queue",), "queue")):
            with self.subTest(names), Server(2, "--epochs=1") as server:
                for refusal in server.call(scored, names):
                    self.assertRegex(refusal, "^after step 0: .*evaluate_with.*"
                                     f"{buffers}.*rank 0")


class Kills(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server(2, *RUN) as server:
            results = server.call(train, server.dir)
        assert results[0] == results[1]
        cls.wanted = results[0]
        # Each sample of two epochs once; the rate has changed more than once.
        assert cls.wanted[-3] == 2 * 128, cls.wanted
        assert cls.wanted[-1] < 0.0085, cls.wanted

    def paused(self, server):
        """All ranks, once they stand between step 5 and what follows."""
        ranks = server.ranks(train, server.dir, True)
        until(lambda: all((server.dir / f"paused{rank}").exists()
                          for rank in range(2)), "both ranks to pause")
        return ranks

    def go(self, server):
        (server.dir / "go").touch()

    def check(self, server, ranks):
        for rank in ranks:
            self.assertEqual(rank.result(), self.wanted, server.log())

    def test_a_worker_between_the_step_and_its_own_update(self):
        for victim in (1, 0):
            with self.subTest(victim), Server(2, *RUN, "--lease=2s") as server:
                ranks = self.paused(server)
                ranks[victim].kill()
                ranks[victim] = ranks[victim].replaced()
                self.go(server)
                self.check(server, ranks)

    def test_the_server_between_the_step_and_the_workers_update(self):
        with Server(2, *RUN, "--checkpoint_every=3", keeps=True) as server:
            ranks = self.paused(server)
            server.await_checkpoint()
            server.resume_server()
            self.go(server)
            self.check(server, ranks)

    def test_all_workers_at_once(self):
        """No process has the state of the version: the run continues from the
        checkpoint before, and so it does if the server was killed, too."""
        for with_server in (False, True):
            with self.subTest(with_server=with_server), Server(
                    2, *RUN, "--checkpoint_every=3", "--lease=2s",
                    keeps=True) as server:
                ranks = self.paused(server)
                server.await_checkpoint()
                for rank in ranks:
                    rank.kill()
                if with_server:
                    server.resume_server()
                self.go(server)
                self.check(server, server.ranks(train, server.dir))

    def test_all_workers_without_a_checkpoint_end_the_run(self):
        with Server(2, *RUN, "--lease=2s") as server:
            for rank in self.paused(server):
                rank.kill()
            self.go(server)
            for rank in server.ranks(train, server.dir):
                with self.assertRaisesRegex(AssertionError, "kept state of step 5"):
                    rank.result()

    def test_a_stopped_server_saves_the_state_of_a_version(self):
        """The checkpoint waits for the version that workers begin next."""
        with Server(2, *RUN, keeps=True) as server:
            ranks = server.ranks(train, server.dir, False, 0.05)
            until(lambda: any(int(row["version"]) >= 4
                              for row in server.rows_so_far()), "a few steps")
            server.server.send_signal(signal.SIGTERM)
            server.server.wait(60)
            server.await_checkpoint()
            server.resume_server()
            self.check(server, ranks)

    def test_a_finished_run_can_be_prolonged(self):
        """The last checkpoint has the state at the end."""
        with Server(2, "--seed=5", "--epochs=1", keeps=True) as server:
            server.call(train, server.dir)
            server.server.wait(60)
            server.server_flags.remove("--epochs=1")
            server.start_server("--epochs=2", "--resume")
            for result in server.call(train, server.dir):
                self.assertEqual(result, self.wanted, server.log())


if __name__ == "__main__":
    unittest.main()
