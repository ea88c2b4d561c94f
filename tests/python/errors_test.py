"""Common mistakes: each is an error that says what to do."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest

import torch
from torch import nn
from torch.utils import data as torch_data

import cohort
from cohort import _model_checks
from networks import Shapes, joined, step, three_batch_norms
from ranks import BIN, Rank, Server


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.01, **options)


class _Stream(torch_data.IterableDataset):
    """Without samples."""

    def __iter__(self):
        return iter(())


class BeforeJoining(unittest.TestCase):
    """Found without a server."""

    def refuses(self, kind, pattern, model, optimizer=None, **options):
        options.setdefault("server", "127.0.0.1:1")
        with self.assertRaisesRegex(kind, pattern):
            cohort.join(model, sgd(model) if optimizer is None else optimizer,
                        **options)

    def test_models(self):
        lazy = nn.Sequential(nn.LazyLinear(4))
        self.refuses(cohort.ConfigurationError, r"0\.weight: a lazy parameter",
                     lazy, torch.optim.SGD([torch.zeros(1)], lr=0.1))
        norms = nn.ModuleList((nn.BatchNorm2d(2), nn.BatchNorm2d(2)))
        norms[1].running_mean = norms[0].running_mean
        self.refuses(cohort.ConfigurationError, "1: shares .* with 0", norms)

    def test_parameters_in_one_memory(self):
        matrix = torch.zeros(4, 6)
        model = nn.Linear(2, 2, bias=False)
        model.weight.data = matrix[:, :3]
        model.other = nn.Parameter(torch.zeros(0))
        model.other.data = matrix[:, 3:]
        # Columns have nothing in common.
        _model_checks.check_model(model)
        model.other.data = matrix[:, 2:]
        self.refuses(cohort.ConfigurationError,
                     "other: shares memory with weight.*assigning", model)

    def test_wrappers(self):
        model = three_batch_norms()
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            wrapped = nn.parallel.DistributedDataParallel(model)
            self.refuses(cohort.ConfigurationError, "^model: got a "
                         r"DistributedDataParallel.*pass .*model\.module", wrapped)
            self.refuses(cohort.ConfigurationError, "^0: got a Distributed",
                         nn.Sequential(wrapped))
        finally:
            torch.distributed.destroy_process_group()

        class FullyShardedDataParallel(nn.Module):
            def __init__(self):
                super().__init__()
                self.module = three_batch_norms()
        self.refuses(cohort.ConfigurationError, "got a FullyShardedDataParallel",
                     FullyShardedDataParallel())
        # Refused models are not changed.
        self.assertIs(type(model[1]), nn.BatchNorm2d)
        parallel = nn.DataParallel(model)
        parallel.device_ids = [0, 1]
        self.refuses(cohort.ConfigurationError, "DataParallel over 2 devices",
                     parallel)
        # On one device it calls its module.
        parallel.device_ids = []
        cohort.join(parallel, sgd(parallel), server="127.0.0.1:1").leave()

    def test_optimizers(self):
        model = three_batch_norms()
        some = list(model.parameters())[1:]
        self.refuses(cohort.ConfigurationError, "not in the model",
                     model, torch.optim.SGD(
                         [*model.parameters(), nn.Parameter(torch.zeros(1))],
                         lr=0.1))
        mixed = sgd(model, momentum=0.9, nesterov=True)
        mixed.param_groups[0]["dampening"] = 0.5
        self.refuses(cohort.ConfigurationError, "got dampening=0.5, want 0", model,
                     mixed)
        self.refuses(cohort.ConfigurationError, "amsgrad of .*one value", model,
                     torch.optim.Adam(
                         [{"params": model[0].parameters(), "amsgrad": True},
                          {"params": some}], lr=0.1))

    def test_several_optimizers(self):
        model = three_batch_norms()
        first, second = (list(part.parameters()) for part in (model[:4], model[4:]))
        adam = torch.optim.Adam(second, lr=0.1)
        for optimizers, text in (
                ([], "got none"), ([adam, "sgd"], "got a str"),
                ([torch.optim.SGD(first, lr=0.1), adam], "one class"),
                ([adam, torch.optim.Adam(second[:1], lr=0.1)], r"both have 4\.weight"),
                ([adam, torch.optim.Adam([nn.Parameter(torch.zeros(1))], lr=0.1)],
                 "not in the model")):
            self.refuses(cohort.ConfigurationError, text, model, optimizers)

    def test_schedulers(self):
        model = three_batch_norms()
        optimizer = sgd(model)
        other = torch.optim.lr_scheduler.StepLR(sgd(model), 1)
        self.refuses(cohort.ConfigurationError, "another optimizer", model,
                     optimizer, schedulers=[other])
        mine = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        job = cohort.join(model, optimizer, schedulers=[mine], server="127.0.0.1:1")
        with self.assertRaisesRegex(cohort.UsageError, "job.step.. advances"):
            mine.step()
        job.leave()

    def test_joining_twice(self):
        model = three_batch_norms()
        before = sgd(model)
        job = cohort.join(model, sgd(model), server="127.0.0.1:1")
        self.refuses(cohort.UsageError, "belongs to a job", model, before)
        with self.assertRaisesRegex(cohort.UsageError, "SGD: a new optimizer of 0.weight"):
            sgd(model)
        other = three_batch_norms()
        self.refuses(cohort.UsageError, "this process has a job already", other)
        # A refused model is not changed.
        self.assertIs(type(other[1]), nn.BatchNorm2d)
        job.leave()
        cohort.join(other, sgd(other), server="127.0.0.1:1").leave()
        cohort.join(model, sgd(model), server="127.0.0.1:1").leave()

    def test_a_way_that_there_is_not(self):
        self.refuses(cohort.ConfigurationError,
                     "local: got 'ram', want one of auto, shm",
                     nn.Linear(2, 2), local="ram")

    def test_a_launcher_without_an_address(self):
        model = three_batch_norms()
        for name, value in (("WORLD_SIZE", "2"), ("SLURM_NTASKS", "4"),
                            ("COHORT_RANK", "0")):
            with self.subTest(name=name):
                os.environ[name] = value
                try:
                    self.refuses(cohort.ConfigurationError,
                                 f"{name} says that other workers", model,
                                 server=None)
                finally:
                    del os.environ[name]

    def test_data(self):
        model = three_batch_norms()
        job = cohort.join(model, sgd(model), server="127.0.0.1:1")
        for arguments, pattern in (
                ({}, "batch_size is missing"),
                ({"batch_size": 0}, "got 0, want at least 1"),
                ({"batch_size": 2, "shuffle": True}, "shuffle"),
                ({"batch_size": 2, "acumulate": 2}, "acumulate"),
                ({"batch_size": 2, "accumulate": 0}, "accumulate")):
            with self.assertRaisesRegex(cohort.UsageError, pattern):
                job.data(Shapes(8), **arguments)
        with self.assertRaisesRegex(cohort.UsageError, "collate_fn"):
            job.data(iter([]), batch_size=2, collate_fn=list)
        with self.assertRaisesRegex(cohort.UsageError, "no batch is in progress"):
            job.step()
        for what in ("rank", "workers", "run_name", "step_number"):
            with self.assertRaisesRegex(cohort.UsageError,
                                        f"job.{what}.*loop.*COHORT_RANK"):
                getattr(job, what)
        for own in (iter([]), torch_data.DataLoader(_Stream())):
            with self.assertRaisesRegex(cohort.UsageError, "no len.*--max_steps"):
                len(job.data(own, batch_size=2))
        job.leave()

    def test_a_rank_that_is_no_number(self):
        os.environ["COHORT_RANK"] = "first"
        try:
            model = three_batch_norms()
            with cohort.join(model, sgd(model), server="127.0.0.1:1") as job:
                with self.assertRaisesRegex(cohort.ConfigurationError,
                                            "COHORT_RANK: got 'first'"):
                    next(iter(job.data(Shapes(8), batch_size=2)))
        finally:
            del os.environ["COHORT_RANK"]

    def test_a_server_that_does_not_answer(self):
        model = three_batch_norms()
        job = cohort.join(model, sgd(model), server="127.0.0.1:1",
                          server_timeout=0.5)
        with self.assertRaisesRegex(cohort.ServerUnreachableError,
                                    "127.0.0.1:1"):
            next(iter(job.data(Shapes(8), batch_size=2)))


def misuse(rank, address, what):
    """The error of one wrong line in a training loop."""
    del rank
    model, job = joined(address)
    criterion = nn.CrossEntropyLoss()
    try:
        for x, y in job.data(Shapes(32), batch_size=4):
            if what == "weights before the pass":
                with torch.no_grad():
                    model[0].weight.zero_()
            loss = criterion(model(x), y)
            if what == "step without backward":
                job.step()
            if what == "weight":
                job.backward(loss, weight=-1)
            job.backward(loss)
            if what == "weights after backward":
                model[0].weight.data.mul_(2)
            job.step()
    except cohort.CohortError as error:
        return type(error).__name__, str(error)
    finally:
        job.leave()
    return "no error", ""


# Others are rows of shapes/refusals.py.
MISUSES = {
    "step without backward": "no gradients yet",
    "weight": "weight: got -1",
    "weights before the pass": "0.weight: its values were changed",
    "weights after backward": "0.weight: its values were changed",
}


class WhileTraining(unittest.TestCase):
    def test_misuse(self):
        for what, pattern in MISUSES.items():
            with self.subTest(what=what), Server(1) as server:
                kind, text = Rank(misuse, 0, server.address, what).result()
                self.assertEqual(kind, "UsageError", text)
                self.assertRegex(text, pattern)


def register(rank, address, models, sizes):
    model = nn.Sequential(nn.Conv2d(1, models[rank], 3), nn.Flatten(),
                          nn.LazyLinear(4))
    model(torch.zeros(1, 1, 12, 12))
    model, job = joined(address, model)
    try:
        for batch in job.data(Shapes(sizes[rank]), batch_size=4):
            step(model, job, batch)
    except cohort.RunMismatchError as error:
        return str(error)
    return "trained"


def end_by(rank, address, error):
    """Rank 1 ends by an error in its third step. Returns that of the others."""
    model, job = joined(address)
    try:
        with job:
            for batch in job.data(Shapes(32), batch_size=4):
                if rank == 1 and job.step_number == 2 and error == "refused":
                    job.backward(None)
                if rank == 1 and job.step_number == 2 and error == "broken":
                    raise ValueError("a broken sample")
                step(model, job, batch)
    except cohort.TrainingError as its:
        return str(its)
    return "trained"


class OtherWorkers(unittest.TestCase):
    def test_a_script_that_is_refused_ends_the_run(self):
        with Server(2, "--max_steps=4") as server:
            ranks = server.ranks(end_by, "refused")
            self.assertRegex(ranks[0].result(), "worker 1 .*UsageError.*NoneType")
            with self.assertRaisesRegex(AssertionError, "UsageError"):
                ranks[1].result()
            self.assertEqual(server.server.wait(60), 3)

    def test_after_another_error_a_replacement_continues(self):
        with Server(2, "--max_steps=4") as server:
            ranks = server.ranks(end_by, "broken")
            with self.assertRaisesRegex(AssertionError, "ValueError"):
                ranks[1].result()
            again = Rank(end_by, 1, server.address, "")
            self.assertEqual([ranks[0].result(), again.result()],
                             ["trained"] * 2)
            self.assertIn("ValueError: a broken sample", server.log())

    def differs(self, models, sizes, pattern):
        with Server(2, "--max_steps=2") as server:
            ranks = server.ranks(register, models, sizes)
            self.assertRegex(ranks[1].result(), pattern)
            # The others continue with one that fits.
            again = Rank(register, 1, server.address, [models[0]] * 2,
                         [sizes[0]] * 2)
            self.assertEqual([ranks[0].result(), again.result()],
                             ["trained"] * 2)

    def test_another_model_is_named(self):
        self.differs([2, 3], [32, 32], r"0\.weight: got shape \[3,1,3,3\], want "
                     r"\[2,1,3,3\]")

    def test_other_data_are_named(self):
        self.differs([2, 2], [32, 40], "the data or the loss differs")


class Processes(unittest.TestCase):
    def script(self, text, *flags, **variables):
        code = textwrap.dedent(text)
        return subprocess.run([sys.executable, "-c", code, *flags],
                              capture_output=True, text=True, timeout=120,
                              check=False, env={**os.environ, **variables})

    def start(self, text, *flags, **variables):
        """The script with one stream for output and errors, and one for input."""
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text), *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, env={**os.environ, **variables})

    def test_a_data_set_that_cannot_be_sent_to_loaders(self):
        done = self.script("""
            import networks
            class Data(networks.Shapes):
                def __init__(self):
                    super().__init__(32)
                    self.function = lambda x: x
            model, job = networks.joined(None)
            for batch in job.data(Data(), batch_size=4, num_workers=1,
                                  multiprocessing_context="spawn"):
                networks.step(model, job, batch)
            """)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("cohort._errors.ConfigurationError: ", done.stderr)
        self.assertIn("num_workers=0", done.stderr)

    def test_exit_codes_of_uncaught_errors(self):
        script = """
            import sys, cohort, networks
            hook = sys.excepthook
            sys.excepthook = lambda *error: (print("before"), hook(*error))
            model, job = networks.joined("127.0.0.1:1", server_timeout=0.2)
            {line}
            """
        for line, code in (
                ("job.data(networks.Shapes(8))", 3),
                ("raise cohort.ConfigurationError('x')", 3),
                ("raise cohort.RunMismatchError('x')", 3),
                ("next(iter(job.data(networks.Shapes(8), batch_size=2)))", 5),
                ("raise cohort.TrainingError('x')", 1),
                ("raise ValueError('x')", 1), ("raise SystemExit(4)", 4)):
            with self.subTest(line):
                done = self.script(script.format(line=line))
                self.assertEqual(done.returncode, code, done.stderr)
                if code != 4:
                    self.assertEqual(done.stdout, "before\n")
                    self.assertEqual(done.stderr.count("Traceback"), 1)

    FAILING = """
            import networks
            model, job = networks.joined(None)
            for x, y in job.data(networks.Shapes(32), batch_size=4):
                job.backward(model(x).sum() * float("nan"))
                job.step()
            print("finished")
            """

    def test_a_run_that_failed_is_an_error(self):
        with Server(1) as server:
            done = self.script(self.FAILING, COHORT_SERVER=server.address)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertRegex(done.stderr, "TrainingError: .* 10 steps in a row")

    def under_cohortctl(self, text, *flags):
        """As a worker of `cohortctl run`."""
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "script.py"
            script.write_text(textwrap.dedent(text))
            return subprocess.run(
                [BIN / "cohortctl", "run", *flags, "--listen=127.0.0.1:0",
                 "--ops_listen=", "--", sys.executable, script],
                capture_output=True, text=True, timeout=120, check=False)

    def test_the_worker_of_a_run_that_failed_is_not_started_again(self):
        done = self.under_cohortctl(self.FAILING, "--workers=1")
        self.assertEqual(done.returncode, 8, done.stderr)
        self.assertNotIn("started again", done.stdout + done.stderr)

    def test_a_run_whose_scripts_leave_their_loops_is_over(self):
        script = """
            import networks
            model, job = networks.joined(None)
            for batch in job.data(networks.Shapes(64), batch_size=4):
                if networks.step(model, job, batch).version == 3:
                    break
            """
        with tempfile.TemporaryDirectory() as results:
            done = self.under_cohortctl(script, "--workers=2",
                                        f"--results_dir={results}")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("the model of step 3 was written", done.stdout)
            self.assertTrue((pathlib.Path(results) / "model.safetensors").exists())

    TWO_PHASES = """
            import networks
            for phase in range(2):
                model, job = networks.joined(None)
                for batch in job.data(networks.Shapes(16), batch_size=4):
                    networks.step(model, job, batch)
                print("phase", phase, "at step", job.version, flush=True)
            """

    def test_a_second_join_under_cohortctl_run_says_what_to_do(self):
        done = self.under_cohortctl(self.TWO_PHASES, "--workers=2", "--epochs=1")
        said = done.stdout + done.stderr
        self.assertEqual(said.count("phase 0"), 2, said)
        self.assertNotIn("phase 1", said)
        self.assertIn("UsageError: cohort.join(): ", said)
        self.assertIn("start the script once for each", said)
        self.assertEqual(done.returncode, 3, said)

    def test_a_second_join_alone_is_a_second_run(self):
        script = self.TWO_PHASES.replace("None", 'None, serve={"epochs": 1}')
        done = self.script(script)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("phase 1 at step 4", done.stdout)

    def test_a_second_join_of_a_server_that_stays_is_refused(self):
        with Server(1, "--epochs=1", "--exit_when_done=false") as server:
            done = self.script(self.TWO_PHASES, COHORT_SERVER=server.address)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("phase 0 at step 4", done.stdout)
        self.assertNotIn("phase 1", done.stdout)
        self.assertIn("a server has one run", done.stderr)

    def test_a_second_join_of_a_new_server_at_that_address_trains(self):
        script = self.TWO_PHASES.replace("flush=True)",
                                         "flush=True); input()")
        with Server(1, "--epochs=1") as server:
            process = self.start(script, COHORT_SERVER=server.address)
            lines = [process.stdout.readline()]
            server.complete()
            server.start_server()
            out, _ = process.communicate("\n\n", timeout=120)
        self.assertEqual(process.returncode, 0, lines + [out])
        self.assertIn("phase 1 at step 4", out)

    def test_two_scripts_with_servers_of_their_own(self):
        script = """
            import networks
            model, job = networks.joined(None, serve={"epochs": 1})
            for batch in job.data(networks.Shapes(8), batch_size=4):
                print("batch", flush=True)
                input()
                networks.step(model, job, batch)
            """
        scripts = [self.start(script) for _ in range(2)]
        heads = []
        for process in scripts:
            heads.append("")
            # Both are in a batch before one of them may continue.
            while "batch" not in heads[-1]:
                line = process.stdout.readline()
                self.assertTrue(line, heads[-1])
                heads[-1] += line
        outputs = [head + process.communicate("\n\n\n", timeout=120)[0]
                   for head, process in zip(heads, scripts)]
        pages = set()
        for process, text in zip(scripts, outputs):
            self.assertEqual(process.returncode, 0, text)
            page, = re.findall(r"page: (http://127.0.0.1:\d+)", text)
            pages.add(page)
        self.assertEqual(len(pages), 2)

    def test_an_embedded_server_with_a_bad_flag(self):
        done = self.script("""
            import networks
            networks.joined(None, serve={"epochs": -1})
            """)
        self.assertIn("--epochs: got -1", done.stderr)

    # Port 9 is served by nothing here.
    def test_an_embedded_server_without_its_data_shard(self):
        script = """
            import sys, networks
            networks.joined(None, log_level="info", serve={
                "shard_addresses": "127.0.0.1:9",
                "checkpoint_dir": sys.argv[1]})
            """
        with (tempfile.TemporaryDirectory() as folder,
              self.start(script, folder) as process):
            try:
                for line in process.stdout:
                    if "waiting for data shard 1 at 127.0.0.1:9" in line:
                        break
                else:
                    self.fail("it ended")
            finally:
                process.kill()


if __name__ == "__main__":
    unittest.main()
