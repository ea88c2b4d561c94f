"""Workers whose server listens on a Unix socket: the bits of TCP."""

import unittest

import torch
from torch import nn

import cohort
from networks import Shapes, digest, three_batch_norms
from ranks import Rank, Server, run


def train(rank, address, options):
    model = three_batch_norms()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    job = cohort.join(model, optimizer, server=address, rank=rank,
                      server_timeout=60, log_level="error", **options)
    for x, y in job.data(Shapes(64), batch_size=8):
        job.backward(criterion(model(x), y))
        job.step()
    return digest(model.state_dict())


class UnixSocket(unittest.TestCase):
    def test_bits_are_those_of_tcp(self):
        over_tcp = run(train, 2, {"local": "tcp"}, flags=("--epochs=2",))
        for local in ("auto", "tcp"):
            with self.subTest(local):
                server = Server(2, "--epochs=2")
                server.address = f"unix:{server.dir}/socket"
                with server:
                    ranks = [Rank(train, rank, server.address,
                                  {"local": local}) for rank in range(2)]
                    self.assertEqual([rank.result() for rank in ranks],
                                     over_tcp)

    def test_names_the_ways_that_there_are(self):
        with self.assertRaisesRegex(cohort.ConfigurationError,
                                    "want one of auto, shm, tcp"):
            train(0, "unix:/nowhere/cohort", {"local": "best"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
