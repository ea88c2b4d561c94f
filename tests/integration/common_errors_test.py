"""The commonest errors, word for word: common_errors.txt holds what users get.

After an intended change of texts, UPDATE_GOLDEN=1 rewrites that file; its
diff then shows what users will read.
"""

import os
import pathlib
import re
import shutil
import socket
import unittest

from processes import Cohort, run

GOLDEN = pathlib.Path(__file__).with_name("common_errors.txt")
COUNT_MIN = 25

# Each entry is a title and a command that a user may type.
BEFORE_A_RUN = [
    ("a port that another process uses", "cohort-server --listen=TAKEN"),
    ("an operations port that another process uses",
     "cohort-server --listen=127.0.0.1:0 --ops_listen=TAKEN"),
    ("an address that is open to other machines",
     "cohort-server --listen=0.0.0.0:7070"),
    ("a flag with a typing error", "cohort-server --agregation=sync"),
    ("a value that there is not", "cohort-server --aggregation=sometimes"),
    ("text for a number", "cohort-server --workers=many"),
    ("a number out of range", "cohort-server --learning_rate=-1"),
    ("settings that exclude each other",
     "cohort-server --aggregation=async --normalization=global"),
    ("a variable with a typing error", "COHORT_WORKRS=2 cohort-server"),
    ("a file where results should go",
     "cohort-server --listen=127.0.0.1:0 --results_dir=DIR/file"),
    ("--resume without checkpoints", "cohort-server --resume"),
    ("a model that there is not",
     "cohort-worker --dataset=synthetic --model=transformer"),
    ("a data set that there is not", "cohort-worker --dataset=imagenet"),
    ("data that is not there", "cohort-worker --data_dir=DIR/nothing"),
    ("a device that there is not",
     "cohort-worker --dataset=synthetic --device=gpu"),
    ("no images in a step",
     "cohort-worker --dataset=synthetic --batch_size=0"),
    ("weights that are none",
     "cohort-worker --dataset=synthetic --init=DIR/file"),
    ("an address without a port",
     "cohort-worker --dataset=synthetic --server=127.0.0.1"),
    ("no server there, for a worker",
     "cohort-worker --dataset=synthetic --server=127.0.0.1:1 "
     "--server_timeout=1s"),
    ("no server there, for an operator",
     "cohortctl status --server=127.0.0.1:1"),
    ("a verb with a typing error", "cohortctl stauts"),
    ("a flag of cohortctl that there is not", "cohortctl export --out=file"),
    ("a folder without checkpoints",
     "cohortctl checkpoint verify --dir=DIR/nothing"),
]

# The same next to a run of two workers whose rank 0 has joined.
BESIDE_A_RUN = [
    ("another model than the run's",
     "cohort-worker --server=SERVER --model=cnn --dataset=synthetic"),
    ("other data than the run's",
     "cohort-worker --server=SERVER --model=smooth --dataset=synthetic "
     "--limit=64"),
    ("a rank that is taken",
     "cohort-worker --server=SERVER --rank=0 --model=smooth "
     "--dataset=synthetic --server_timeout=5s"),
    ("checkpoints that another server writes",
     "cohort-server --listen=127.0.0.1:0 --checkpoint_dir=CHECKPOINTS"),
    ("the operations port for the server's",
     "cohortctl status --server=PAGE"),
    ("a setting with a typing error",
     "cohortctl policy set --server=SERVER --agregation=async"),
    ("a policy that cannot be",
     "cohortctl policy set --server=SERVER --aggregation=async "
     "--normalization=global"),
    ("nothing to set", "cohortctl policy set --server=SERVER"),
    ("a worker that there is not",
     "cohortctl workers evict --server=SERVER --rank=7"),
]

AFTER_A_RUN = [
    ("checkpoints of an earlier run",
     "cohort-server --listen=127.0.0.1:0 --checkpoint_dir=CHECKPOINTS"),
    ("a damaged checkpoint",
     "cohort-server --listen=127.0.0.1:0 --checkpoint_dir=DAMAGED --resume"),
]


def golden_text(told):
    return "\n".join(f"== {title}\n$ {command}\nexit {code}\n{text}"
                     for title, command, code, text in told)


class CommonErrors(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        # Placeholders for the parts of commands and texts that vary between
        # runs.
        self.names = {}
        self.told = []

    def tell(self, cases):
        for title, command in cases:
            real = command
            for name, value in self.names.items():
                real = real.replace(name, value)
            words = real.split()
            variables = {}
            while "=" in words[0]:
                name, value = words.pop(0).split("=", 1)
                variables[name] = value
            result = run(*words, environment=variables)
            # Longest first: a folder is a prefix of the folders in it.
            text = result.stderr
            for name, value in sorted(self.names.items(),
                                      key=lambda item: -len(item[1])):
                text = text.replace(value, name)
            # Log lines are not part of the answer to the command.
            text = "".join(line for line in text.splitlines(keepends=True)
                           if not line.startswith("{"))
            text = re.sub(r"in \d+(\.\d)? s ", "in N s ", text)
            text = re.sub(r"\(process \d+ on [\w.-]+\)", "(process N on HOST)",
                          text)
            text = re.sub(r"\([\w.-]+, process \d+\)", "(HOST, process N)",
                          text)
            self.told.append((title, command, result.returncode, text))

    def test_they_say_what_was_wrong_and_what_to_do(self):
        with socket.socket() as taken, Cohort(
                workers=2, server_flags=["--epochs=1"]) as cohort:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            (cohort.dir / "file").write_text("no tensors\n")
            self.names = {"TAKEN": f"127.0.0.1:{taken.getsockname()[1]}",
                          "DIR": str(cohort.dir)}
            self.tell(BEFORE_A_RUN)
            self.beside_and_after(cohort)
        self.assertGreaterEqual(len(self.told), COUNT_MIN)
        text = golden_text(self.told)
        if os.environ.get("UPDATE_GOLDEN"):
            GOLDEN.write_text(text)
        self.assertEqual(text, GOLDEN.read_text())

    def beside_and_after(self, cohort):
        page = cohort.dir / "page"
        cohort.start_server(f"--checkpoint_dir={cohort.checkpoints}",
                            f"--ops_address_file={page}")
        cohort.start_worker(0)
        cohort.wait_until(
            lambda: "waiting for worker 1 to join"
            in run("cohortctl", "status", f"--server={cohort.address}").stdout,
            "the first model")
        cohort.until(page.exists, "the page's address")
        self.names["SERVER"] = cohort.address
        self.names["PAGE"] = page.read_text().strip()
        self.names["CHECKPOINTS"] = str(cohort.checkpoints)
        self.tell(BESIDE_A_RUN)
        cohort.start_worker(1)
        self.assertEqual(cohort.finish(), 0, cohort.log())
        damaged = cohort.dir / "damaged"
        shutil.copytree(cohort.checkpoints, damaged)
        for path in damaged.glob("checkpoint-*/*"):
            path.write_bytes(path.read_bytes()[:-1])
        self.names["DAMAGED"] = str(damaged)
        self.tell(AFTER_A_RUN)


if __name__ == "__main__":
    unittest.main(verbosity=2)
