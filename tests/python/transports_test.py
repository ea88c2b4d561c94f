"""Workers with certificates, or whose server listens on a Unix socket: the bits
of plaintext over TCP; and what is refused."""

import tempfile
import unittest

import cohort
from networks import Shapes, digest, joined, step
from ranks import Rank, Server, run
from tls_files import Certificates


def train(rank, address, options):
    model, job = joined(address, lr=0.05, momentum=0.9, rank=rank,
                        server_timeout=60, **options)
    for batch in job.data(Shapes(64), batch_size=8):
        step(model, job, batch)
    return digest(model.state_dict())


def refused(rank, address, options):
    """The name of the error and its text."""
    try:
        train(rank, address, options)
    except cohort.CohortError as error:
        return type(error).__name__, str(error)
    return "", ""


class Transports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.certificates = Certificates(f"{folder.name}/pki")
        cls.certificates.issue("worker/0", "worker/1")
        cls.plain = run(train, 2, {"local": "tcp"}, flags=("--epochs=2",))

    def server(self, workers):
        return Server(workers, "--epochs=2",
                      *self.certificates.flags("server-0"))

    def files(self, role):
        """Arguments of cohort.join for "worker-0" and the like."""
        return dict(flag[2:].split("=")
                    for flag in self.certificates.flags(role))

    def test_bits_of_an_encrypted_run(self):
        with self.server(2) as server:
            ranks = [Rank(train, rank, server.address,
                          self.files(f"worker-{rank}")) for rank in range(2)]
            self.assertEqual([rank.result() for rank in ranks], self.plain)

    def test_bits_over_a_unix_socket(self):
        for local in ("auto", "tcp"):
            with self.subTest(local):
                server = Server(2, "--epochs=2")
                server.address = f"unix:{server.dir}/socket"
                with server:
                    self.assertEqual(server.call(train, {"local": local}),
                                     self.plain)

    def test_files_that_will_not_do(self):
        with self.server(1) as server:
            for options, kind, names in (
                    (self.files("worker-1"), "AccessDeniedError",
                     ("rank 0", "spiffe://")),
                    (self.files("viewer"), "AccessDeniedError", ("/cohort.v1",)),
                    ({"tls_ca": "/missing"}, "ConfigurationError",
                     ("--tls_ca", "/missing"))):
                got, text = Rank(refused, 0, server.address, options).result()
                self.assertEqual(got, kind, text)
                for name in names:
                    self.assertIn(name, text)

    def test_names_the_ways_that_there_are(self):
        with self.assertRaisesRegex(cohort.ConfigurationError, "auto, shm, tcp"):
            train(0, "unix:/nowhere/cohort", {"local": "best"})


if __name__ == "__main__":
    unittest.main()
