#!/usr/bin/env python3
"""The programs train under the system-call filters of their systemd units."""

import pathlib
import subprocess
import sys
import unittest

import confined
from manifests import DEPLOY, ROOT

sys.path.append(str(ROOT / "tests/integration"))
import processes  # noqa: E402
from tls_files import Certificates  # noqa: E402

UNITS = {"server": DEPLOY / "systemd/cohort-server.service",
         "worker": DEPLOY / "systemd/cohort-worker@.service"}
WRAPPER = [sys.executable, pathlib.Path(confined.__file__)]
WHY_NOT = confined.why_not()


class ConfinedCohort(processes.Cohort):
    """Each process is filtered as its unit says."""

    def start_process(self, name, command):
        unit = UNITS[name.rstrip("0123456789")]
        return super().start_process(name, [*WRAPPER, unit, *command])


@unittest.skipIf(WHY_NOT, f"no filters: {WHY_NOT}")
class ConfinedTest(unittest.TestCase):

    def test_programs_train_encrypted(self):
        # A convolutional network, for the libraries that write code.
        with ConfinedCohort(
                server_flags=["--epochs=1"], worker_flags=[
                    "--model=cnn", "--dataset=synthetic",
                    "--batch_size=32"]) as cohort:
            certificates = Certificates(cohort.dir / "pki")
            cohort.server_flags += [
                *certificates.flags("server-0"), "--checkpoint_every=5",
                f"--checkpoint_dir={cohort.checkpoints}",
                f"--audit_log={cohort.dir}/audit.jsonl"]
            cohort.worker_flags += [*certificates.flags("worker-any"),
                                    "--ops_listen=127.0.0.1:0"]
            cohort.start()
            # A worker that fails leaves a server that waits for another.
            cohort.until(lambda: cohort.server.poll() is not None or any(
                worker.poll() for worker in cohort.workers.values()),
                "an end")
            self.assertEqual(cohort.server.poll(), 0,
                             cohort.log() + cohort.log("worker0"))
            self.assertTrue((cohort.results / "model.safetensors").exists())

    def test_a_call_outside_the_filter_ends_the_program(self):
        for unit in UNITS.values():
            for code, number in (("import os; os.chroot('/')", -31),
                                 ("print()", 0)):
                ended = subprocess.run(
                    [*WRAPPER, unit, sys.executable, "-c", code],
                    capture_output=True, check=False, timeout=60)
                self.assertEqual(ended.returncode, number, ended.stderr)

    def test_code_cannot_be_written(self):
        code = ("import mmap; mmap.mmap(-1, 4096, prot=mmap.PROT_READ | "
                "mmap.PROT_WRITE | mmap.PROT_EXEC)")
        for unit in UNITS.values():
            if confined.values(unit, "MemoryDenyWriteExecute"):
                ended = subprocess.run(
                    [*WRAPPER, unit, sys.executable, "-c", code],
                    capture_output=True, text=True, check=False, timeout=60)
                self.assertIn("Operation not permitted", ended.stderr)


if __name__ == "__main__":
    unittest.main()
