"""Trains under torchrun; for torchrun_test.py.

usage: gang.py FOLDER [--rank0 FLAGS] [--kill=RANK]

Writes FOLDER/digest.RANK, and a line a step to FOLDER/steps.RANK. Process RANK
kills itself, in the first start of the gang, after some steps.
"""

import argparse
import json
import os
import pathlib
import signal
import time

import cohort
import torch
from networks import Shapes, digest, three_batch_norms
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--rank0", type=json.loads)
    parser.add_argument("--kill", type=int, default=-1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    model = three_batch_norms(dropout=0.2)
    served = {} if options.rank0 is None else {
        "serve": "rank0", "server_flags": options.rank0}
    job = cohort.join(model, torch.optim.SGD(model.parameters(), lr=0.01,
                                             momentum=0.9),
                      server_timeout=60, **served)
    if job._run._reached.own is not None:
        (options.folder / f"server.{os.getpid()}").write_text(
            str(job._run._reached.own._process.pid))
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    steps = 0
    for x, y in job.data(Shapes(128, noise=0.3), batch_size=4):
        job.backward(nn.functional.cross_entropy(model(x), y))
        result = job.step()
        with open(options.folder / f"steps.{rank}", "a",
                  encoding="utf-8") as out:
            print(os.environ["TORCHELASTIC_RESTART_COUNT"], result.version,
                  file=out)
        steps += 1
        if first and rank == options.kill and steps == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
    assert job.rank == rank and job.workers == int(os.environ["WORLD_SIZE"])
    (options.folder / f"digest.{rank}").write_text(digest(model.state_dict()))


if __name__ == "__main__":
    main()
