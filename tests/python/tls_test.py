"""Workers with certificates: the bits of plaintext, and nothing without one."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import torch
from torch import nn

import cohort
from networks import Shapes, digest, three_batch_norms
from ranks import BIN, Rank, Server, run


def certs(folder, verb, *words):
    """`cohortctl certs` for the run demo."""
    subprocess.run([BIN / "cohortctl", "certs", verb, f"--dir={folder}",
                    "--run=demo", *words], check=True, capture_output=True)


def files(folder, role):
    """Arguments of cohort.join for "worker-0" and the like."""
    own = pathlib.Path(folder) / role
    return {"tls_cert": str(own / "tls.crt"), "tls_key": str(own / "tls.key"),
            "tls_ca": str(own / "ca.crt")}


def train(rank, address, tls):
    model = three_batch_norms()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    job = cohort.join(model, optimizer, server=address, rank=rank,
                      server_timeout=60, log_level="error", **tls)
    for x, y in job.data(Shapes(64), batch_size=8):
        job.backward(criterion(model(x), y))
        job.step()
    return digest(model.state_dict())


def refused(rank, address, tls):
    """The name of the error and its text."""
    try:
        train(rank, address, tls)
    except cohort.CohortError as error:
        return type(error).__name__, str(error)
    return "", ""


class Tls(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.pki = os.path.join(self.folder.name, "pki")
        certs(self.pki, "init")
        certs(self.pki, "issue", "worker/0", "worker/1")

    def server(self, workers):
        own = files(self.pki, "server-0")
        return Server(workers, "--epochs=2",
                      *(f"--{name}={path}" for name, path in own.items()))

    def test_bits_are_those_of_plaintext(self):
        plain = run(train, 2, {}, flags=("--epochs=2",))
        with self.server(2) as server:
            ranks = [Rank(train, rank, server.address,
                          files(self.pki, f"worker-{rank}"))
                     for rank in range(2)]
            self.assertEqual([rank.result() for rank in ranks], plain)

    def test_another_ranks_certificate_is_refused(self):
        with self.server(1) as server:
            kind, text = Rank(refused, 0, server.address,
                              files(self.pki, "worker-1")).result()
            self.assertEqual(kind, "AccessDeniedError")
            self.assertIn("got rank 0 from spiffe://", text)
            kind, text = Rank(refused, 0, server.address,
                              files(self.pki, "viewer")).result()
            self.assertEqual(kind, "AccessDeniedError")
            self.assertIn("may not call", text)

    def test_missing_files_are_named(self):
        with self.server(1) as server:
            kind, text = Rank(refused, 0, server.address,
                              {"tls_ca": "/missing"}).result()
            self.assertEqual(kind, "ConfigurationError")
            self.assertIn("--tls_ca: /missing cannot be read", text)


if __name__ == "__main__":
    unittest.main()
