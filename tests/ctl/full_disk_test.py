#!/usr/bin/env python3
"""cohortctl doctor, with a folder on a disk that is full."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["COHORT_BIN_DIR"])


class FullDiskTest(unittest.TestCase):

    def on_small_disk(self, command: str) -> subprocess.CompletedProcess:
        """Runs it with $DISK, a temporary disk of 64 KiB."""
        with tempfile.TemporaryDirectory() as folder:
            return subprocess.run(
                ["unshare", "--mount", "--map-root-user", "bash", "-c",
                 f"mount -t tmpfs -o size=64k none '{folder}' || exit 77\n"
                 f"export DISK='{folder}'\n{command}"],
                stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=60, check=False)

    def test_doctor_finds_it_before_the_server_does(self):
        result = self.on_small_disk(
            f"'{BIN}/cohortctl' doctor --json --timeout=1s "
            "--server=127.0.0.1:1 --results_dir=$DISK/results; "
            "status=$?; ls -A $DISK >&2; exit $status")
        if result.returncode == 77 or "unshare:" in result.stderr:
            self.skipTest(f"no disk can be made here: {result.stderr}")
        self.assertEqual(result.returncode, 1, result.stderr)
        checks = {check["check"]: check
                  for check in json.loads(result.stdout)["checks"]}
        self.assertEqual(checks["results_dir"]["result"], "failed")
        self.assertIn("the disk is full", checks["results_dir"]["found"])
        # The check has removed its trial file.
        self.assertEqual(result.stderr, "")


if __name__ == "__main__":
    unittest.main()
