"""Commands that are refused: their exit codes, and what their messages name.
The wording of a message is tested where it is made."""

import gzip
import pathlib
import shutil
import struct
import unittest

from processes import Cohort, run, taken_address

SERVER = "cohort-server --listen=127.0.0.1:0 --ops_listen="
WORKER = "cohort-worker --dataset=synthetic"
ALONE = f"{SERVER} --shard_addresses=127.0.0.1:9"

# Exit code, a command that a user may type, and what stderr has to name.
BEFORE_A_RUN = [
    (1, "cohort-server --listen=TAKEN", "--listen TAKEN"),
    (1, "cohort-server --listen=127.0.0.1:0 --ops_listen=TAKEN",
     "--ops_listen TAKEN --ops_listen=127.0.0.1:0"),
    (3, "cohort-server --listen=0.0.0.0:7070",
     "--listen 0.0.0.0:7070 127.0.0.1 --insecure"),
    (3, "cohort-server --listen=127.0.0.1:0 --ops_listen=0.0.0.0:0",
     "--ops_listen 0.0.0.0:0 --insecure"),
    (1, "cohort-server --ops_listen= --listen=unix:DIR/no/server", "DIR/no"),
    (3, f"cohort-server --ops_listen= --listen=unix:/{'a' * 108}", "107"),
    (3, "cohort-server --ops_listen= --listen=unix:server", "unix:server"),
    (2, "cohort-server --agregation=sync", "--agregation --aggregation"),
    (3, "cohort-server --aggregation=sometimes",
     "--aggregation sometimes sync bounded async"),
    (3, "cohort-server --workers=many", "--workers many MIN:MAX"),
    (3, "cohort-server --workers=3:2", "--workers 3:2 MIN:MAX"),
    (3, "cohort-server --workers=0:2", "--workers 0:2 MIN:MAX"),
    (3, "cohort-server --workers=2:3 --on_worker_loss=wait",
     "--on_worker_loss continue --workers=2:3"),
    (3, "cohort-server --workers=2:8 --global_batch=7",
     "--global_batch 7 sum 8"),
    (3, "cohort-server --global_batch=all", "--global_batch all sum"),
    (3, "cohort-server --shares=1,3,5", "--shares 1,3,5 none 2 --workers"),
    (3, "cohort-server --shares=1,3 --normalization=local",
     "--shares 1,3 none --normalization=local --aggregation=sync"),
    (3, f"{SERVER} --policy_from=DIR/nothing", "--policy_from DIR/nothing"),
    (3, f"{WORKER} --batch_size=8 --batch_size_max=4",
     "--batch_size_max 4 8 --batch_size"),
    (3, "cohort-server --learning_rate=-1", "--learning_rate -1 0 1000"),
    (3, "cohort-server --aggregation=async --normalization=global",
     "--normalization global local auto --aggregation=async "
     "--aggregation=sync"),
    (3, "cohort-server --log_level=loud",
     "--log_level loud debug info warning error"),
    (3, f"{WORKER} --log_level=loud",
     "--log_level loud debug info warning error"),
    (2, "COHORT_WORKRS=2 cohort-server", "COHORT_WORKRS COHORT_WORKERS"),
    (2, "COHORT_SEVER=2 cohort-worker", "COHORT_SEVER COHORT_SERVER"),
    # A variable is a flag, and a flag wins.
    (3, f"COHORT_WORKERS=0 {SERVER}", "workers 0"),
    (3, "COHORT_WORKERS=0 cohort-server --workers=1 --listen=0.0.0.0:0",
     "--insecure"),
    (3, f"{SERVER} --results_dir=DIR/file", "--results_dir DIR/file"),
    (3, f"{SERVER} --results_dir=/proc/results",
     "--results_dir /proc/results"),
    (3, f"{SERVER} --tensorboard=DIR/file", "--tensorboard DIR/file"),
    (3, f"{SERVER} --trace=/no/such/t.json", "--trace /no/such/t.json"),
    (3, f"{WORKER} --trace=/no/such/t.json", "--trace /no/such/t.json"),
    (1, f"{SERVER} --local=shm --local_dir=/nowhere/at/all",
     "--local_dir /nowhere/at/all"),
    (3, "cohort-server --resume", "--resume --checkpoint_dir"),
    (3, ALONE, "--checkpoint_dir"),
    (3, f"{ALONE},127.0.0.1:9 --checkpoint_dir=DIR/none", "127.0.0.1:9"),
    (3, f"{ALONE} --checkpoint_dir=DIR/none --local=shm",
     "--local shm tcp auto"),
    (3, f"{ALONE} --data_shard", "--data_shard --shard_addresses"),
    (3, f"{WORKER} --model=transformer", "--model transformer cnn unet"),
    (3, "cohort-worker --dataset=imagenet",
     "--dataset imagenet fashion-mnist voc"),
    (3, "cohort-worker --data_dir=DIR/nothing", "DIR/nothing --data_dir"),
    (3, f"{WORKER} --server=127.0.0.1:1 --device=gpu",
     "--device gpu cpu cuda:N"),
    (3, f"{WORKER} --server=127.0.0.1:1 --device=cuda:99", "--device cuda:99"),
    (3, f"{WORKER} --precision=half", "--precision half float32 bfloat16"),
    (3, f"{WORKER} --batch_size=0", "--batch_size 0 1"),
    (3, f"{WORKER} --image_size=big", "--image_size big HEIGHTx"),
    (3, f"{WORKER} --augment=turn", "--augment turn"),
    (3, f"{WORKER} --bad_samples=keep", "--bad_samples keep stop skip"),
    (3, f"{WORKER} --loader_threads=-1", "--loader_threads -1"),
    (3, f"{WORKER} --classes=3", "--classes 3"),
    (3, f"{WORKER} --share=0", "--share 0"),
    (3, f"{WORKER} --init=DIR/file", "--init DIR/file 11"),
    (3, f"{WORKER} --ops_listen=0.0.0.0:0", "--ops_listen --insecure"),
    (1, f"{WORKER} --ops_listen=TAKEN", "--ops_listen TAKEN"),
    (3, f"{WORKER} --server=127.0.0.1",
     "--server 127.0.0.1 host:port unix:/path"),
    (5, f"{WORKER} --server=127.0.0.1:1 --server_timeout=1s", "127.0.0.1:1"),
    (5, "cohortctl status --server=127.0.0.1:1", "127.0.0.1:1 --server"),
    (5, "cohortctl status --server=unix:/nowhere/cohort",
     "unix:/nowhere/cohort"),
    (2, "cohortctl stauts", "stauts status"),
    (2, "cohortctl export --out=file", "export --out"),
    (3, "cohortctl checkpoint verify --dir=DIR/nothing",
     "--dir DIR/nothing --checkpoint_dir"),
]

# The same next to a run of two workers whose rank 0 has joined.
BESIDE_A_RUN = [
    (3, f"{WORKER} --server=SERVER --model=cnn",
     "conv1.weight [32,1,3,3] [8,1,3,3] --model"),
    (3, f"{WORKER} --server=SERVER --model=smooth --limit=64", "64 4096"),
    (5, f"{WORKER} --server=SERVER --model=smooth --rank=0 "
     "--server_timeout=5s", "SERVER --rank"),
    (3, f"{SERVER} --checkpoint_dir=CHECKPOINTS",
     "--checkpoint_dir CHECKPOINTS"),
    (5, "cohortctl status --server=PAGE", "PAGE HTTP/1 --server"),
    (2, "cohortctl policy set --server=SERVER --agregation=async",
     "--agregation --aggregation"),
    (3, "cohortctl policy set --server=SERVER --aggregation=async "
     "--normalization=global", "--normalization global --aggregation=sync"),
    (2, "cohortctl policy set --server=SERVER", "--aggregation=async"),
    (3, "cohortctl workers evict --server=SERVER --rank=7", "7 0 1"),
    (3, "cohortctl workers drain --server=SERVER --rank=1", "rank 1"),
    (3, "cohortctl log level loud --server=SERVER", "loud debug info"),
]

AFTER_A_RUN = [
    (3, f"{SERVER} --checkpoint_dir=CHECKPOINTS",
     "--checkpoint_dir CHECKPOINTS --resume"),
    (7, f"{SERVER} --checkpoint_dir=DAMAGED --resume",
     "DAMAGED/checkpoint- manifest"),
]


class Refusals(unittest.TestCase):
    def check(self, cases):
        for code, command, names in cases:
            with self.subTest(command):
                for name, value in self.names.items():
                    command = command.replace(name, value)
                    names = names.replace(name, value)
                words = command.split()
                variables = {}
                while "=" in words[0]:
                    name, value = words.pop(0).split("=", 1)
                    variables[name] = value
                done = run(*words, environment=variables)
                self.assertEqual(done.returncode, code, done.stderr)
                for name in names.split():
                    self.assertIn(name, done.stderr)
                if words[0] == "cohort-server" and code == 1:
                    # Nothing is logged before.
                    self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_before_beside_and_after_a_run(self):
        with taken_address() as taken, Cohort(
                server_flags=["--epochs=1"], keeps=True) as cohort:
            (cohort.dir / "file").write_text("no tensors\n")
            self.names = {"TAKEN": taken, "DIR": str(cohort.dir)}
            self.check(BEFORE_A_RUN)
            self.assertEqual((cohort.dir / "file").read_text(), "no tensors\n")
            self.assertFalse((cohort.dir / "none").exists())
            cohort.start_server()
            cohort.start_worker(0)
            cohort.wait_until(lambda: "worker 1 to" in cohort.status()["state"],
                              "the first model")
            self.names |= {"SERVER": cohort.address,
                           "PAGE": cohort.ops,
                           "CHECKPOINTS": str(cohort.checkpoints),
                           "DAMAGED": str(cohort.dir / "damaged")}
            self.check(BESIDE_A_RUN)
            # The run continues, whatever else connects.
            cohort.start_worker(1)
            cohort.complete()
            shutil.copytree(cohort.checkpoints, self.names["DAMAGED"])
            for path in (cohort.dir / "damaged").glob("checkpoint-*/*"):
                path.write_bytes(path.read_bytes()[:-1])
            self.check(AFTER_A_RUN)


def write_idx(path, magic, extents, content):
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(f">{1 + len(extents)}I", magic, *extents))
        file.write(content)


class Data(unittest.TestCase):
    def setUp(self):
        cohort = Cohort()
        self.addCleanup(cohort.__exit__)
        self.folder = pathlib.Path(cohort.dir)

    def refused(self, *names, flags):
        done = run("cohort-worker", f"--data_dir={self.folder}", *flags)
        self.assertEqual(done.returncode, 3, done.stderr)
        for name in names:
            self.assertIn(name, done.stderr)

    def test_a_truncated_file(self):
        for stem in ("train", "t10k"):
            write_idx(self.folder / f"{stem}-images-idx3-ubyte.gz", 0x803,
                      (10, 28, 28), bytes(10 * 28 * 28))
            write_idx(self.folder / f"{stem}-labels-idx1-ubyte.gz", 0x801,
                      (10,), bytes(10))
        write_idx(self.folder / "train-images-idx3-ubyte.gz", 0x803,
                  (10, 28, 28), bytes(1000))
        self.refused("train-images-idx3-ubyte.gz", "1000", "7840",
                     flags=["--dataset=mnist"])

    def test_damaged_images_and_empty_lists(self):
        lists = self.folder / "ImageSets/Segmentation"
        for path in (lists, self.folder / "JPEGImages",
                     self.folder / "SegmentationClass"):
            path.mkdir(parents=True)
        (self.folder / "JPEGImages/street.jpg").write_bytes(b"\xff\xd8\xff\xe0")
        (self.folder / "SegmentationClass/street.png").write_bytes(b"")
        (lists / "train.txt").write_text("street\n")
        (lists / "val.txt").write_text("")
        self.refused("val.txt", flags=["--dataset=voc"])
        (lists / "val.txt").write_text("street\n")
        self.refused("street.jpg", flags=["--dataset=voc"])
        self.refused("1 samples", flags=["--dataset=voc", "--bad_samples=skip"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
