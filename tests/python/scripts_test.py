"""Three scripts as people write them, and the same with Cohort: few changed
lines, results alike, weights that load back."""

import difflib
import os
import pathlib
import re
import runpy
import subprocess
import sys
import tempfile
import unittest

import torch

from ranks import Server

SCRIPTS = pathlib.Path(__file__).parent / "scripts"


def changed_lines(name):
    """Lines to write or delete: a replaced block counts by its longer side."""
    old, new = ((SCRIPTS / f"{name}_{kind}.py").read_text().splitlines()
                for kind in ("torch", "cohort"))
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return sum(max(i2 - i1, j2 - j1)
               for tag, i1, i2, j1, j2 in matcher.get_opcodes()
               if tag != "equal")


def run_script(name, folder, environment=None):
    """The figure that a script prints at its end, in percent."""
    done = subprocess.run(
        [sys.executable, "-B", SCRIPTS / f"{name}.py"], cwd=folder,
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return float(re.findall(r"(\S+) %\n", done.stdout)[-1])


class Scripts(unittest.TestCase):
    def check(self, name, lines, least, model):
        self.assertLessEqual(changed_lines(name), lines)
        with tempfile.TemporaryDirectory() as folder:
            plain = run_script(f"{name}_torch", folder)
            with_cohort = run_script(f"{name}_cohort", folder)
            self.assertGreaterEqual(plain, least)
            self.assertGreaterEqual(with_cohort, least)
            # The file loads into the network of the script without Cohort.
            script = runpy.run_path(str(SCRIPTS / f"{name}_torch.py"))
            state = torch.load(pathlib.Path(folder) / "model.pt")
            script[model]().load_state_dict(state)
        return with_cohort

    def test_classification(self):
        self.check("classify", 5, 95, "ResNet")

    def test_segmentation(self):
        self.check("segment", 7, 60, "UNet")

    def test_detection(self):
        self.check("detect", 5, 80, "Detector")

    def test_two_workers_run_the_same_script(self):
        with Server(2, "--epochs=4") as server, \
                tempfile.TemporaryDirectory() as folder:
            started = [subprocess.Popen(
                [sys.executable, "-B", SCRIPTS / "classify_cohort.py"],
                cwd=folder, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "COHORT_SERVER": server.address,
                     "COHORT_RANK": str(rank), "OMP_NUM_THREADS": "1"})
                for rank in range(2)]
            lines = [process.communicate(timeout=300)[0].splitlines()[-1]
                     for process in started]
            self.assertEqual(lines[0], lines[1])
            self.assertGreaterEqual(float(lines[0].split()[1]), 95)


if __name__ == "__main__":
    unittest.main()
