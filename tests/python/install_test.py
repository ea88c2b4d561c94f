"""pip install worker/python where something is missing."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECK = ROOT / "worker/python/CheckDependencies.cmake"


def configure(*options):
    """As the wheel's build begins."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            ["cmake", "-S", ROOT, "-B", folder, "-DSKBUILD=ON",
             "-DCOHORT_BUILD_TESTS=OFF", "-DCOHORT_BUILD_WORKER=OFF",
             f"-DPython_EXECUTABLE={sys.executable}", *options],
            capture_output=True, text=True, timeout=300, check=False)


class Install(unittest.TestCase):
    def test_all_that_is_missing_is_said_at_once(self):
        done = configure("-DCMAKE_IGNORE_PATH=/usr/include/hwy;/usr/include/prometheus")
        self.assertNotEqual(done.returncode, 0)
        text = " ".join(done.stderr.split())
        self.assertIn(": libhwy-dev prometheus-cpp-dev On", text)

    def test_nothing_is_missing_here(self):
        done = configure("-DSKBUILD_SCRIPTS_DIR=bin",
                         "-DCOHORT_USE_RELEASE_BUILD=OFF")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("archives of build/release", done.stdout)

    def test_the_set_python_has_all_that_is_looked_for(self):
        wanted = set(re.findall(r"^cohort_wheel_needs\w*\((\S+)",
                                CHECK.read_text(), re.M))
        self.assertIn("python3-dev", wanted)
        offered = set(subprocess.run(
            [ROOT / "deploy/install-deps", "--print", "python"],
            capture_output=True, text=True, check=True).stdout.split())
        self.assertEqual(wanted - offered, set())
        self.assertIn("python3-venv", offered)
        self.assertNotIn("libtorch-dev", offered)


if __name__ == "__main__":
    unittest.main()
