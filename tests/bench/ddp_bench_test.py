"""ddp_bench.py runs with every kind of argument, and names what is missing."""

import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "integration"))

# pylint: disable=wrong-import-position
from processes import BIN, python_with_torch  # noqa: E402


class DdpBench(unittest.TestCase):
    def test_workers_model_and_way_are_arguments(self):
        if python_with_torch() is None:
            self.skipTest("no python3 here has PyTorch: python3-torch")
        told = subprocess.run(
            [sys.executable, "-B", pathlib.Path(__file__).with_name(
                "ddp_bench.py"), "--rounds=1", "--epochs=2", "--workers=3",
             "--model=resnet18", "--images=48", "--batch_size=8",
             "--local=tcp", "--load=1", "--tensorflow=/bin/false"],
            capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "COHORT_BIN_DIR": str(BIN)})
        self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
        self.assertIn("TensorFlow: skipped", told.stdout)
        self.assertIn("3 processes, 1 threads and 8 images", told.stdout)
        for name in ("DDP over gloo", "local", "global"):
            self.assertRegex(
                told.stdout, rf"\n{name} +[1-9]\d* +\d+\.\d\d +\d\.\d\d \(")


if __name__ == "__main__":
    unittest.main()
