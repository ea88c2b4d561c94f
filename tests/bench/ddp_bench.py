"""Images/s of two workers, beside PyTorch's DistributedDataParallel.

  COHORT_BIN_DIR=build/release/bin python3 tests/bench/ddp_bench.py

All sides are real processes on loopback, one thread of arithmetic each, that
train the network `cnn` with 64 images a process and SGD with momentum, and
score 512 images after each epoch: a server and two workers here (cohort-worker,
and where the Python front-end is built, the same script as PyTorch's), two
processes with the backend gloo there. They take turns, so that a machine whose
speed changes is fair to all; medians. PyTorch normalises each process's batch by
itself, as --normalization=local does; it has no batch norm over processes on
CPUs.
"""

import argparse
import csv
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "integration"))

# pylint: disable=wrong-import-position
from processes import Cohort, python_with_torch  # noqa: E402

BIN = pathlib.Path(os.environ["COHORT_BIN_DIR"]).resolve()
PACKAGE = BIN.parent / "python-package"
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
        return rate_of(cohort.results)


def rate_of(results):
    """Images/s of the epochs after the first, from a results folder."""
    with open(results / "history.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["train_loss"]]
    last = rows[-1]
    return ((int(last["samples"]) - int(rows[0]["samples"])) /
            (float(last["seconds"]) - float(rows[0]["seconds"])))


def script_rate(python, normalization, epochs):
    """The same of this script over the Python front-end."""
    with tempfile.TemporaryDirectory() as folder:
        address = pathlib.Path(folder) / "address"
        results = pathlib.Path(folder) / "results"
        # pylint: disable=consider-using-with
        server = subprocess.Popen(
            [BIN / "cohort-server", f"--workers={PROCESSES}", "--ops_listen=",
             "--listen=127.0.0.1:0", f"--address_file={address}",
             f"--results_dir={results}", f"--epochs={epochs}",
             f"--normalization={normalization}"], stderr=subprocess.DEVNULL)
        while not address.exists():
            time.sleep(0.01)
        run_both(python, "--script", epochs,
                 COHORT_SERVER=address.read_text().strip())
        server.wait()
        return rate_of(results)


def run_both(python, kind, *arguments, **environment):
    """What the first of two processes of this script prints."""
    started = [subprocess.Popen(
        [python, "-B", __file__, kind, str(rank), *map(str, arguments)],
        stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE), **environment})
        for rank in range(PROCESSES)]
    outputs = [process.communicate(timeout=600)[0] for process in started]
    if any(process.returncode != 0 for process in started):
        raise SystemExit(f"{kind} failed, see above")
    return outputs[0]


def ddp_rate(python, epochs):
    """The same of DDP, timed by its first process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return float(run_both(python, "--ddp", port, epochs))


def make_network():
    """`cnn`."""
    # pylint: disable=import-outside-toplevel
    import torch
    from torch import nn

    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    torch.set_num_threads(1)
    torch.manual_seed(1)
    return nn.Sequential(
        *block(1, 32), nn.MaxPool2d(2), *block(32, 64), nn.MaxPool2d(2),
        *block(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(128, CLASSES))


def make_optimizer(network):
    """SGD with momentum."""
    # pylint: disable=import-outside-toplevel
    import torch
    return torch.optim.SGD(network.parameters(), 0.1, momentum=0.9,
                           weight_decay=5e-4)


def make_images(size):
    """Images, and a label each."""
    # pylint: disable=import-outside-toplevel
    import torch
    generator = torch.Generator().manual_seed(size)
    return torch.utils.data.TensorDataset(
        torch.randn(size, 1, 28, 28, generator=generator),
        torch.randint(CLASSES, (size,), generator=generator))


def script_process(rank, _):
    """One worker of Cohort."""
    # pylint: disable=import-outside-toplevel
    import cohort
    from torch import nn
    network = make_network()
    criterion = nn.CrossEntropyLoss()
    job = cohort.join(network, make_optimizer(network), rank=rank,
                      log_level="error")
    job.evaluate_with(make_images(TEST_IMAGES), criterion)
    for x, y in job.data(make_images(IMAGES), batch_size=BATCH):
        job.backward(criterion(network(x), y))
        job.step()


def ddp_process(rank, port, epochs):
    """One process of DDP; the first prints images/s."""
    # pylint: disable=import-outside-toplevel
    import torch
    from torch import nn

    network = make_network()
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
        world_size=PROCESSES)
    network = nn.parallel.DistributedDataParallel(network)
    optimizer = make_optimizer(network)
    images, labels = make_images(IMAGES).tensors
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
    parser.add_argument("--script", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ddp:
        ddp_process(*options.ddp)
        return
    if options.script:
        script_process(*options.script)
        return
    python = python_with_torch()
    if python is None:
        print("skipped: no python3 here has PyTorch: install python3-torch")
        return
    measured = {"DDP over gloo": lambda: ddp_rate(python, options.epochs)}
    for kind in ("local", "global"):
        measured[kind] = lambda kind=kind: cohort_rate(kind, options.epochs)
        if PACKAGE.exists():
            measured[f"{kind}, Python"] = (
                lambda kind=kind: script_rate(python, kind, options.epochs))
    rates = {name: [] for name in measured}
    for _ in range(options.rounds):
        for name, measure in measured.items():
            rates[name].append(measure())
    base = statistics.median(rates["DDP over gloo"])
    print(f"training of cnn, {PROCESSES} processes of one thread, {BATCH} "
          f"images each (medians of {options.rounds})")
    print(f"{'':<16}{'images/s':>10}{'x DDP':>8}")
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"{name:<16}{median:>10.0f}{median / base:>8.2f}")


if __name__ == "__main__":
    main()
