"""Certificates for processes, made as an operator makes them for a trial."""

import pathlib

from processes import run


class Certificates:
    """An authority in `folder`, and what it issues for one run."""

    def __init__(self, folder, run_name="demo"):
        self.folder = pathlib.Path(folder)
        self.run_name = run_name
        self._certs("init")

    def issue(self, *roles):
        """New files for "worker/0" and the like, in place of older ones."""
        self._certs("issue", *roles)

    def flags(self, role):
        """The flags that make a process `role`, such as "worker-0"."""
        own = self.folder / role
        return [f"--tls_cert={own}/tls.crt", f"--tls_key={own}/tls.key",
                f"--tls_ca={own}/ca.crt"]

    def _certs(self, verb, *words):
        made = run("cohortctl", "certs", verb, f"--dir={self.folder}",
                   f"--run={self.run_name}", *words)
        if made.returncode != 0:
            raise AssertionError(made.stderr)
