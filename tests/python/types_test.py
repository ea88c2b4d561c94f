"""The package is typed: mypy --strict has nothing to say."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import cohort
import cohort_study

PACKAGE = pathlib.Path(cohort.__file__).parent

# What a script's author sees of the types.
SCRIPT = '''
import cohort
import torch

model = torch.nn.Linear(2, 2)
job = cohort.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
result: cohort.StepResult = job.step()
job.backward(torch.zeros(()), wait=1)
'''


def mypy(*arguments):
    return subprocess.run([sys.executable, "-m", "mypy", "--strict",
                           "--cache-dir=/dev/null", *arguments],
                          capture_output=True, text=True, check=False)


class Types(unittest.TestCase):
    def test_the_package(self):
        done = mypy(str(PACKAGE), cohort_study.__file__)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_wrong_argument_is_found(self):
        self.assertTrue((PACKAGE / "py.typed").exists())
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "script.py"
            script.write_text(SCRIPT)
            done = mypy(str(script))
        self.assertIn('Unexpected keyword argument "wait"', done.stdout)
        self.assertIn("Found 1 error", done.stdout)


if __name__ == "__main__":
    unittest.main()
