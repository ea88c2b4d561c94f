"""deploy/slurm on a real Slurm: the README's commands, requeued tasks, and
mistakes."""

import hashlib
import os
import pathlib
import re
import signal
import sys
import tempfile
import textwrap
import unittest
from importlib.util import find_spec

import slurm_cluster
from slurm_cluster import await_condition

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHY_NOT = slurm_cluster.why_not()
# In place of the editor that the README names: a small run.
EDITOR = """#!/bin/bash
sed -i '/^COHORT_\\(CHECKPOINT_EVERY\\|EPOCHS\\|BATCH_SIZE\\)=/d' "$1"
cat >>"$1" <<'END'
COHORT_MODEL=smooth
COHORT_DATASET=synthetic
COHORT_BATCH_SIZE=32
COHORT_TEST_LIMIT=64
COHORT_EPOCHS=1000
COHORT_MAX_STEPS=2000
COHORT_CHECKPOINT_EVERY=50
END
"""


# The first run's settings are for cohort-worker; a script has its own.
SCRIPT = '''import cohort
import torch
from torch import nn

torch.manual_seed(0)
images = torch.randn(512, 1, 8, 8)
data = torch.utils.data.TensorDataset(images, (images.mean((1, 2, 3)) > 0).long())
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
                      nn.Flatten(), nn.Linear(144, 2))
job = cohort.join(model, torch.optim.SGD(model.parameters(), lr=0.05))
for x, y in job.data(data, batch_size=8):
    job.backward(nn.functional.cross_entropy(model(x), y))
    job.step()
'''


def processes_with(word, folder):
    """Ids of the processes that have a word in their command line and run in a
    folder."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            # Not those of srun, which has the words of its program.
            if (word.encode() in words and b"srun" not in words[0] and
                    (process / "cwd").resolve() == folder.resolve()):
                found.append(int(process.name))
        except OSError:  # It has just ended.
            continue
    return found


def commands(heading):
    """The first commands below a heading of the README."""
    page = (ROOT / "deploy/slurm/README.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}\n")[2]
    return textwrap.dedent(re.search(r"(?:^    .*\n)+", section, re.M).group())


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Slurm(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cohort-slurm-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.cluster = slurm_cluster.Cluster(folder.name)
        self.enterContext(self.cluster)
        (self.dir / "tools").mkdir()
        editor = self.dir / "tools/editor"
        editor.write_text(EDITOR)
        editor.chmod(0o755)
        environment = self.cluster.environment
        environment["PATH"] = f"{editor.parent}:{environment['PATH']}"

    def submit(self, name, more="", worker="sbatch worker.sbatch",
               server="sbatch server.sbatch"):
        """Types what the README says, with `server` and `worker` for its last
        lines; returns the run's folder, and the jobs of server and workers."""
        home = self.dir / name
        home.mkdir()
        self.cluster.environment["HOME"] = str(home)
        text = commands("First run")
        self.assertIn("sbatch server.sbatch\n", text)
        text = text.replace("sbatch server.sbatch", f"{more}\n{server}")
        submitted = self.cluster.run(
            text.replace("sbatch worker.sbatch", worker), cwd=ROOT)
        return (home / "runs/demo",
                *re.findall(r"Submitted batch job (\d+)", submitted))

    def await_end(self, folder):
        await_condition("the end of all jobs",
                        lambda: not self.cluster.output("squeue", "-h"), 300)
        self.assertTrue((folder / "server.done").exists(), self.logs(folder))
        return hashlib.sha256(
            (folder / "results/model.safetensors").read_bytes()).hexdigest()

    def logs(self, folder):
        return "".join(f"== {file.name}\n{file.read_text(errors='replace')}"
                       for file in sorted(folder.glob("*.log")))

    def await_checkpoints(self, folder, count):
        """Until so many were written, and with them so many steps done."""
        log = folder / "server.log"
        await_condition("checkpoints", lambda: log.exists() and log.read_text(
            errors="replace").count("is on disk") >= count)

    def test_requeued_tasks_change_no_bit(self):
        folder, _, _ = self.submit("plain")
        plain = self.await_end(folder)
        self.assertFalse((folder / "server.address").exists())
        self.assertNotIn("back into the queue", self.logs(folder))

        folder, server, workers = self.submit("disturbed")
        cluster = self.cluster
        self.await_checkpoints(folder, 2)
        cluster.run(f"scontrol requeue {workers}_1")  # As a preemption does.
        cluster.start_at_once(f"{workers}_1")
        self.await_checkpoints(folder, 5)
        # --signal sends it before the time limit; the script then puts its
        # task back.
        cluster.run(f"scancel --signal=TERM {workers}_0")
        cluster.start_at_once(f"{workers}_0")
        self.await_checkpoints(folder, 8)
        address = (folder / "server.address").read_text()
        cluster.run(f"scontrol requeue {server}")
        cluster.start_at_once(server)
        self.await_checkpoints(folder, 10)
        self.assertEqual((folder / "server.address").read_text(), address)
        self.assertEqual(self.await_end(folder), plain)
        self.assertIn("exit code 143: ", (folder / "worker-0.log").read_text())
        text = (folder / "server.log").read_text(errors="replace")
        for rank in range(2):
            self.assertIn(f"rank {rank} has left", text)

    def test_a_job_of_several_servers_loses_some_and_changes_no_bit(self):
        # So that each has a part of the small network.
        parts = "echo COHORT_PARTITION_KIB=1 COHORT_MAX_STEPS=800 >>run.env"
        plain = self.await_end(self.submit("one", parts)[0])
        self.assertEqual(commands("Several servers"), "sbatch --ntasks=3 "
                         "--ntasks-per-node=1 server.sbatch\n")
        # This cluster has one node.
        folder, server, _ = self.submit(
            "several", parts, server="sbatch --ntasks=3 server.sbatch")
        cluster = self.cluster
        self.await_checkpoints(folder, 2)
        shard, = processes_with("--address_file=shard-1.listens", folder)
        os.kill(shard, signal.SIGKILL)
        log = folder / "server.log"
        await_condition("the loss", lambda: "data shard 1: exit code 137" in
                        log.read_text(errors="replace"))
        written = log.read_text(errors="replace").count("is on disk")
        self.await_checkpoints(folder, written + 2)
        # All servers get this before the time limit, and one's checkpoint needs
        # the others; the script then puts the job back.
        cluster.run(f"scancel --signal=TERM {server}")
        cluster.start_at_once(server)
        step = re.findall(r"stopped at step (\d+)", log.read_text())[-1]
        self.assertIn(f"checkpoint of step {step} is on disk", log.read_text())
        await_condition("the second start", lambda: log.read_text(
            errors="replace").count("shared among 3 shards") >= 3)
        self.assertEqual(self.await_end(folder), plain)
        for name in ("shard-1.log", "shard-2.log"):
            self.assertTrue((folder / name).exists())
        # No data shard is left.
        self.assertEqual(processes_with("--data_shard", folder), [])

    def test_servers_that_cannot_start_end_the_workers(self):
        folder, _, _ = self.submit(
            "unshared", "echo COHORT_LISTENS=1 >>run.env",
            server="sbatch --ntasks=2 server.sbatch")
        await_condition("the end of all jobs",
                        lambda: not self.cluster.output("squeue", "-h"), 300)
        self.assertIn("1: exit code 2", (folder / "server.log").read_text())
        self.assertIn("COHORT_LISTENS", (folder / "shard-1.log").read_text())
        for rank in range(2):
            self.assertIn("the server has failed",
                          (folder / f"worker-{rank}.log").read_text())

    @unittest.skipUnless(find_spec("torch"), "no torch")
    def test_a_python_script_takes_the_place_of_the_program(self):
        script = self.dir / "train.py"
        script.write_text(SCRIPT)
        # The README's line for a Python script.
        line = f"sbatch worker.sbatch {sys.executable} {script}"
        self.assertIn("sbatch worker.sbatch python3 train.py\n",
                      (ROOT / "deploy/slurm/README.md").read_text())
        plain = self.await_end(self.submit("plain_script", worker=line)[0])
        folder, _, workers = self.submit("script", worker=line)
        self.await_checkpoints(folder, 2)
        self.cluster.run(f"scontrol requeue {workers}_1")
        self.cluster.start_at_once(f"{workers}_1")
        self.assertEqual(self.await_end(folder), plain)
        self.assertIn("rank 1 has left", (folder / "server.log").read_text())

    def test_a_mistake_fails_the_task_and_is_not_repeated(self):
        folder, server, workers = self.submit(
            "mistake", "echo COHORT_MODEL=nonsense >>run.env")
        await_condition("the workers' end", lambda: not self.cluster.output(
            "squeue", "-h", "-j", workers))
        self.assertIn("exit code 3: ", (folder / "worker-0.log").read_text())
        self.assertIn("FAILED", self.cluster.output(
            "scontrol", "show", "job", f"{workers}_0"))
        # The server waits for better ones; a cancelled job does not come back.
        self.assertEqual("RUNNING", self.cluster.output(
            "squeue", "-h", "-j", server, "-o", "%T"))
        self.cluster.run(f"scancel {server}")
        await_condition("the server's end",
                        lambda: not self.cluster.output("squeue", "-h"))
        self.assertNotIn("back into the queue", self.logs(folder))

    def test_workers_end_with_a_server_that_cannot_start(self):
        folder, _, _ = self.submit("failed",
                                   "echo COHORT_WORKERS=3:1 >>run.env")
        await_condition("the end of all jobs",
                        lambda: not self.cluster.output("squeue", "-h"), 300)
        for rank in range(2):
            self.assertIn("the server has failed",
                          (folder / f"worker-{rank}.log").read_text())

    def test_the_end_of_an_earlier_run_ends_no_worker(self):
        folder, _, _ = self.submit("longer")
        self.await_end(folder)
        cluster = self.cluster
        cluster.run("echo COHORT_EPOCHS=6 >>run.env; sbatch worker.sbatch",
                    cwd=folder)
        await_condition("a worker that waits", lambda: "waiting for" in (
            folder / "worker-0.log").read_text())
        cluster.run("sbatch server.sbatch", cwd=folder)
        self.await_end(folder)
        self.assertIn("all 6 epochs are done",
                      (folder / "server.log").read_text(errors="replace"))


if __name__ == "__main__":
    unittest.main()
