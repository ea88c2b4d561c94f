"""Three scripts as people write them, and the same with Cohort, by a patch: few
changed lines, results alike, weights that load back."""

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


def with_cohort(name, folder):
    """The script with Cohort, written to a folder."""
    text = (SCRIPTS / f"{name}.py").read_text()
    patch = (SCRIPTS / f"{name}.patch").read_text()
    for hunk in re.split("^@@.*\n", patch, flags=re.M)[1:]:
        old, new = ("".join(line[1:] for line in hunk.splitlines(True)
                            if line[0] in kinds) for kinds in (" -", " +"))
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = pathlib.Path(folder) / f"{name}_cohort.py"
    path.write_text(text)
    return path


def changed_lines(*paths):
    """Lines to write or delete: a replaced block counts by its longer side."""
    old, new = (path.read_text().splitlines() for path in paths)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return sum(max(i2 - i1, j2 - j1)
               for tag, i1, i2, j1, j2 in matcher.get_opcodes()
               if tag != "equal")


def run_script(path, folder):
    """The figure that a script prints at its end, in percent."""
    done = subprocess.run(
        [sys.executable, "-B", path], cwd=folder,
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return float(re.findall(r"(\S+) %\n", done.stdout)[-1])


class Scripts(unittest.TestCase):
    def check(self, name, lines, least, model):
        plain = SCRIPTS / f"{name}.py"
        with tempfile.TemporaryDirectory() as folder:
            changed = with_cohort(name, folder)
            self.assertLessEqual(changed_lines(plain, changed), lines)
            for path in (plain, changed):
                self.assertGreaterEqual(run_script(path, folder), least)
            # The file loads into the network of the script without Cohort.
            script = runpy.run_path(str(plain))
            state = torch.load(pathlib.Path(folder) / "model.pt")
            script[model]().load_state_dict(state)

    def test_classification(self):
        self.check("classify", 5, 95, "ResNet")

    def test_segmentation(self):
        self.check("segment", 7, 60, "UNet")

    def test_detection(self):
        self.check("detect", 5, 80, "Detector")

    def test_two_workers_run_the_same_script(self):
        with Server(2, "--epochs=4") as server, \
                tempfile.TemporaryDirectory() as folder:
            script = with_cohort("classify", folder)
            started = [subprocess.Popen(
                [sys.executable, "-B", script],
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
