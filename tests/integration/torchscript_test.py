"""PyTorch's own networks: exported, trained here, and read by it again."""

import gzip
import json
import pathlib
import random
import struct
import subprocess
import tempfile
import unittest

from processes import Cohort, python_with_torch, run
from safetensors_file import floats, tensors_of

SCRIPT = pathlib.Path(__file__).with_name("torch_networks.py")
TRAIN, TEST = 48, 24


PYTHON = python_with_torch()


def write_idx(path, magic, extents, content):
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(f">{1 + len(extents)}I", magic, *extents))
        file.write(content)


def write_images(folder):
    """Ten classes: a bright bar, in noise, at the height of its number."""
    chance = random.Random(1)
    for stem, count in (("train", TRAIN), ("t10k", TEST)):
        labels = bytes(i % 10 for i in range(count))
        pixels = bytearray()
        for label in labels:
            for row in range(28):
                bright = 150 if row // 3 == label else 0
                pixels += bytes(bright + chance.randrange(60)
                                for _ in range(28))
        write_idx(folder / f"{stem}-images-idx3-ubyte.gz", 0x803,
                  (count, 28, 28), bytes(pixels))
        write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", 0x801,
                  (count,), labels)


def networks(*arguments):
    result = subprocess.run([PYTHON, "-B", SCRIPT, *arguments],
                            capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return result.stdout


@unittest.skipIf(PYTHON is None, "no python3 here has PyTorch: install "
                 "python3-torch to run this test")
class TorchScript(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cohort-torch-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        write_images(self.dir)

    def data_flags(self, model, batch_size=8):
        return [f"--model={model}", "--dataset=mnist",
                f"--data_dir={self.dir}", f"--batch_size={batch_size}"]

    def train(self, model, *worker_flags, server_flags=(), batch_size=8,
              workers=2):
        """Two epochs of 48 images; returns the successfully ended cohort.

        By default that is six steps.
        """
        cohort = self.start(model, *worker_flags, server_flags=server_flags,
                            batch_size=batch_size, workers=workers)
        cohort.complete()
        return cohort

    def start(self, model, *worker_flags, server_flags=(), batch_size=8,
              workers=2):
        cohort = Cohort(
            workers=workers,
            server_flags=["--epochs=2", "--learning_rate=0.05",
                          *server_flags],
            worker_flags=[*self.data_flags(model, batch_size),
                          *worker_flags])
        self.enterContext(cohort)
        cohort.start()
        return cohort

    def check_evaluation(self, network, cohort):
        """The exported weights, scored by PyTorch in float64."""
        rows = [row for row in cohort.rows() if row["test_loss"]]
        wanted = json.loads(networks(
            "evaluate", network, cohort.results / "model.safetensors",
            self.dir))
        self.assertAlmostEqual(float(rows[-1]["test_loss"]), wanted["loss"],
                               delta=1e-5)
        # The file has six decimals.
        self.assertAlmostEqual(float(rows[-1]["test_accuracy"]),
                               wanted["accuracy"], delta=1e-6)

    def test_networks_train_and_load_back(self):
        for kind, network, batch_size in (
                ("export", "resnet", 8), ("export", "unet", 8),
                # A trace around scripted batch norms.
                ("mixed", "resnet", 8),
                # One of PyTorch's checks would refuse one element a channel: for
                # an image of 28x28, layer4 has a map of 1x1.
                ("export", "resnet", 1)):
            with self.subTest(kind=kind, network=network, size=batch_size):
                file = self.dir / f"{kind}.pt"
                networks(kind, network, file)
                self.check_evaluation(network, self.train(
                    file, batch_size=batch_size))

    def test_the_resnet_that_ships_with_the_worker_loads_into_pytorch(self):
        self.check_evaluation("resnet18", self.train("resnet18"))

    def test_a_run_begins_with_the_weights_of_another(self):
        file = self.dir / "resnet.pt"
        networks("export", "resnet", file)
        first = self.train(file).results / "model.safetensors"
        second = self.train(file, f"--init={first}",
                            server_flags=["--freeze=*"])
        wanted = tensors_of(first)
        seen = tensors_of(second.results / "model.safetensors")
        self.assertEqual(seen.keys(), wanted.keys())
        for name, content in wanted.items():
            if "running_" not in name and "num_batches" not in name:
                self.assertEqual(seen[name], content, name)
        # Six more steps were counted, from the end of the first run on.
        counts = [struct.unpack("<q", t["bn1.num_batches_tracked"])[0]
                  for t in (wanted, seen)]
        self.assertEqual(counts, [6, 12])

    def test_layers_that_some_workers_leave_out_are_those_of_one_process(self):
        """Five of 48 images take the way of the layer that is left out, so in
        six batches of eight at least one worker has none."""
        file = self.dir / "routed.pt"
        networks("export", "routed", file)
        one, two = (
            tensors_of(self.train(file, workers=workers, batch_size=size)
                       .results / "model.safetensors")
            for workers, size in ((1, 16), (2, 8)))
        self.assertEqual(one.keys(), two.keys())
        for name, content in one.items():
            if name.endswith("num_batches_tracked"):
                self.assertEqual(content, two[name], name)
                continue
            for wanted, seen in zip(floats(content), floats(two[name])):
                self.assertAlmostEqual(seen, wanted, delta=2e-5, msg=name)

    def test_unequal_calls_of_a_layer_end_the_run(self):
        file = self.dir / "unequal.pt"
        networks("export", "unequal", file)
        cohort = self.start(file)
        cohort.complete(3)
        self.assertIn("last: rank ", cohort.log())

    def test_a_trace_is_refused_with_the_node(self):
        file = self.dir / "trace.pt"
        networks("trace", "resnet", file)
        result = run("cohort-worker", *self.data_flags(file))
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("aten::batch_norm", result.stderr)
        self.assertIn("bn1: its input `training`", result.stderr)

    def test_an_init_file_of_another_network_is_refused(self):
        resnet, unet = self.dir / "resnet.pt", self.dir / "unet.pt"
        networks("export", "resnet", resnet)
        networks("export", "unet", unet)
        trained = self.train(unet).results / "model.safetensors"
        result = run("cohort-worker", *self.data_flags(resnet),
                     f"--init={trained}")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("missing (bn1.bias; ", result.stderr)
        self.assertIn("unknown (scale; down.0.0.weight; ", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
