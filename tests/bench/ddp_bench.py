"""Images/s of two workers, beside PyTorch's DistributedDataParallel.

  COHORT_BIN_DIR=build/release/bin python3 tests/bench/ddp_bench.py

Both sides are real processes on loopback, one thread of arithmetic each, that
train the network `cnn` with 64 images a process and SGD with momentum, and
score 512 images after each epoch: a server and two workers here, two processes
with the backend gloo there. They take turns, so that a machine whose speed
changes is fair to both; medians. PyTorch normalises each process's batch by itself, as --normalization=local
does; it has no batch norm over processes on CPUs.
"""

import argparse
import csv
import pathlib
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "integration"))

# pylint: disable=wrong-import-position
from processes import Cohort, python_with_torch  # noqa: E402

BATCH, CLASSES, PROCESSES = 64, 10, 2
# The size of the data set `synthetic`.
IMAGES, TEST_IMAGES = 4096, 512


def cohort_rate(normalization, epochs):
    """Images/s of the epochs after the first, from history.csv."""
    with Cohort(workers=PROCESSES,
                server_flags=[f"--epochs={epochs}",
                              f"--normalization={normalization}"],
                worker_flags=["--model=cnn", "--dataset=synthetic",
                              f"--batch_size={BATCH}"]) as cohort:
        cohort.start()
        if cohort.finish(timeout_s=600) != 0:
            raise SystemExit(cohort.log())
        with open(cohort.results / "history.csv", newline="",
                  encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["train_loss"]]
    last = rows[-1]
    return ((int(last["samples"]) - int(rows[0]["samples"])) /
            (float(last["seconds"]) - float(rows[0]["seconds"])))


def ddp_rate(python, epochs):
    """The same of DDP, timed by its first process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [subprocess.Popen(
        [python, "-B", __file__, "--ddp", str(rank), str(port), str(epochs)],
        stdout=subprocess.PIPE, text=True) for rank in range(PROCESSES)]
    outputs = [process.communicate(timeout=600)[0] for process in started]
    if any(process.returncode != 0 for process in started):
        raise SystemExit("DistributedDataParallel failed, see above")
    return float(outputs[0])


def ddp_process(rank, port, epochs):
    """One process of DDP; the first prints images/s."""
    # pylint: disable=import-outside-toplevel
    import torch
    from torch import nn

    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
        world_size=PROCESSES)
    network = nn.Sequential(
        *block(1, 32), nn.MaxPool2d(2), *block(32, 64), nn.MaxPool2d(2),
        *block(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(128, CLASSES))
    network = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9,
                                weight_decay=5e-4)
    images = torch.randn(IMAGES, 1, 28, 28)
    labels = torch.randint(CLASSES, (IMAGES,))
    test = torch.randn(TEST_IMAGES // PROCESSES, 1, 28, 28)
    step = BATCH * PROCESSES
    begin = None
    for epoch in range(epochs):
        if epoch == 1:
            begin = time.perf_counter()
        order = torch.randperm(IMAGES)
        for at in range(rank * BATCH, IMAGES, step):
            chosen = order[at:at + BATCH]
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images[chosen]),
                                        labels[chosen]).backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            network.module(test)
        network.train()
    torch.distributed.barrier()
    if rank == 0:
        print(IMAGES * (epochs - 1) / (time.perf_counter() - begin))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5,
                        help="measurements of each, taking turns (default 5)")
    parser.add_argument("--epochs", type=int, default=4,
                        help=f"of {IMAGES} images; the first is not timed "
                        "(default 4)")
    parser.add_argument("--ddp", nargs=3, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ddp:
        ddp_process(*options.ddp)
        return
    python = python_with_torch()
    if python is None:
        print("skipped: no python3 here has PyTorch: install python3-torch")
        return
    rates = {"DDP over gloo": [], "local": [], "global": []}
    for _ in range(options.rounds):
        rates["DDP over gloo"].append(ddp_rate(python, options.epochs))
        for kind in ("local", "global"):
            rates[kind].append(cohort_rate(kind, options.epochs))
    base = statistics.median(rates["DDP over gloo"])
    print(f"training of cnn, {PROCESSES} processes of one thread, {BATCH} "
          f"images each (medians of {options.rounds})")
    print(f"{'':<16}{'images/s':>10}{'x DDP':>8}")
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"{name:<16}{median:>10.0f}{median / base:>8.2f}")


if __name__ == "__main__":
    main()
