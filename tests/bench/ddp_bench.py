"""Images/s of workers, beside PyTorch's DistributedDataParallel.

  python3 tests/bench/ddp_bench.py
  ... ddp_bench.py --workers=4 --model=resnet18 --local=shm --load=2

All sides are real processes on this host, each with as many threads of
arithmetic, that train the same network with as many images a process and SGD
with momentum, and score 512 images after each epoch: a server and its workers
here (cohort-worker, and where the Python front-end is built and the network is
`cnn`, the same script as PyTorch's), processes with the backend gloo there.
They take turns, so that a machine whose speed changes is fair to all. PyTorch
normalises each process's batch by itself, as --normalization=local does; it has
no batch norm over processes on CPUs. With --tensorflow, an asynchronous run is
compared with TensorFlow's ParameterServerStrategy, too.

Images/s and CPU time are those of the epochs after the first, CPU time of all
processes of a side. Ratios are those of the same turn.
"""

import argparse
import csv
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time

from frame import (BIN, Numbers, Processes, Table, busy_processes, cpu_of,
                   cpu_seconds, in_turns, over, run)

# Behind the frame, which says where it is.
from ports import named_ports  # pylint: disable=C0411
from processes import python_with_torch  # pylint: disable=C0411

PACKAGE = BIN.parent / "python-package"
TENSORFLOW = pathlib.Path(__file__).with_name("tensorflow_training.py")
CLASSES = 10
# The size of the test split of the data set `synthetic`.
TEST_IMAGES = 512
DDP = "DDP over gloo"


def epochs_of(results):
    """The complete rows of history.csv that end an epoch."""
    try:
        with open(f"{results}/history.csv", newline="",
                  encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return []
    whole = text[:text.rfind("\n") + 1].splitlines()
    return [row for row in csv.DictReader(whole) if row["train_loss"]]


def rate_of(options, worker, *server_flags):
    """Images/s and CPU seconds for 1,000 images of a run, after the first epoch.
    `worker`: rank and address of the server -> its command and variables."""
    with tempfile.TemporaryDirectory() as results, Processes(600) as processes:
        server, address = processes.start_server(
            f"--workers={options.workers}", f"--results_dir={results}",
            f"--epochs={options.epochs}", *server_flags)
        pids = [server.pid]
        for rank in range(options.workers):
            command, variables = worker(rank, address)
            pids.append(processes.start(f"worker {rank}", command,
                                        **variables).pid)
        processes.wait_until(lambda: server.poll() is not None
                             or epochs_of(results))
        cpu = (cpu_seconds(resource.RUSAGE_CHILDREN)
               + sum(map(cpu_of, pids)))
        processes.wait()
        first, *_, last = epochs_of(results)
    cpu = cpu_seconds(resource.RUSAGE_CHILDREN) - cpu
    images = int(last["samples"]) - int(first["samples"])
    return (images / (float(last["seconds"]) - float(first["seconds"])),
            1000 * cpu / images)


def cohort_rate(options, *server_flags):
    """That of cohort-worker."""
    return rate_of(options, lambda rank, address: ([
        BIN / "cohort-worker", f"--server={address}", f"--rank={rank}",
        f"--local={options.local}", f"--model={options.model}",
        "--dataset=synthetic", f"--batch_size={options.batch_size}",
        f"--limit={options.images}", f"--threads={options.threads}"], {}),
        "--optimizer=momentum", *server_flags)


def script_command(python, options, kind, rank, *arguments):
    """One rank of this script."""
    return [python, "-B", __file__, kind, rank, *arguments,
            *same_shape(options)]


def script_rate(python, options, *server_flags):
    """That of this script over the Python front-end."""
    return rate_of(options, lambda rank, address: (
        script_command(python, options, "--script", rank),
        {"PYTHONPATH": str(PACKAGE), "COHORT_SERVER": address,
         "COHORT_LOCAL": options.local}), *server_flags)


def same_shape(options):
    """The flags that every side gets."""
    return [f"--{name}={getattr(options, name)}" for name in
            ("workers", "model", "batch_size", "images", "epochs", "threads")]


def ddp_rate(python, options):
    """The same of DDP, timed by its first process."""
    numbers, port = Numbers(), named_ports(1)[0]
    with Processes(600) as processes:
        for rank in range(options.workers):
            processes.start(
                f"DDP, rank {rank},",
                script_command(python, options, "--ddp", rank, port),
                None if rank else numbers.add)
        processes.wait()
    return numbers["rate"][0]


def tensorflow_rate(python, options):
    """The same of TensorFlow, timed by its coordinator."""
    return run("TensorFlow", python, "-B", TENSORFLOW,
               *same_shape(options))["rate"][0]


def has_tensorflow(python):
    """Without importing it, which takes seconds."""
    found = subprocess.run(
        [python, "-c", "import importlib.util, sys; "
         "sys.exit(importlib.util.find_spec('tensorflow') is None)"],
        capture_output=True, check=False)
    return found.returncode == 0


def make_network(options):
    """The network that --model names."""
    # pylint: disable=import-outside-toplevel
    import torch
    from torch import nn

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    if options.model == "resnet18":
        import torch_networks
        return torch_networks.ResNet(width=64)

    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

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


def script_process(options):
    """One worker of Cohort."""
    # pylint: disable=import-outside-toplevel
    import cohort
    from torch import nn
    network = make_network(options)
    criterion = nn.CrossEntropyLoss()
    job = cohort.join(network, make_optimizer(network), rank=options.script,
                      log_level="error")
    job.evaluate_with(make_images(TEST_IMAGES), criterion)
    for x, y in job.data(make_images(options.images),
                         batch_size=options.batch_size):
        job.backward(criterion(network(x), y))
        job.step()


def ddp_process(options):
    """One process of DDP; the first prints images/s and CPU seconds for 1,000
    images."""
    # pylint: disable=import-outside-toplevel
    import torch
    from torch import nn

    rank, port = options.ddp
    network = make_network(options)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
        world_size=options.workers)
    network = nn.parallel.DistributedDataParallel(network)
    optimizer = make_optimizer(network)
    images, labels = make_images(options.images).tensors
    test = torch.randn(TEST_IMAGES // options.workers, 1, 28, 28)
    step = options.batch_size * options.workers
    begin, cpu = None, None
    for epoch in range(options.epochs):
        if epoch == 1:
            begin, cpu = time.perf_counter(), cpu_seconds()
        order = torch.randperm(options.images)
        for at in range(rank * options.batch_size, options.images, step):
            chosen = order[at:at + options.batch_size]
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images[chosen]),
                                        labels[chosen]).backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            network.module(test)
        network.train()
    torch.distributed.barrier()
    trained = options.images * (options.epochs - 1)
    rate = trained / (time.perf_counter() - begin)
    cpu = torch.tensor(1000 * (cpu_seconds() - cpu) / trained)
    torch.distributed.all_reduce(cpu)
    if rank == 0:
        print("rate", rate, cpu.item())


def contenders(python, options):
    """Name -> what measures it; the sides that are not there are named."""
    measured = {DDP: lambda: ddp_rate(python, options)}
    for kind in ("local", "global"):
        flag = f"--normalization={kind}"
        measured[kind] = lambda flag=flag: cohort_rate(options, flag)
        if PACKAGE.exists() and options.model == "cnn":
            measured[f"{kind}, Python"] = (
                lambda flag=flag: script_rate(python, options, flag))
    if not options.tensorflow:
        print("TensorFlow: skipped: pass --tensorflow=PYTHON, an interpreter "
              "that has it")
    elif not has_tensorflow(options.tensorflow):
        print(f"TensorFlow: skipped: {options.tensorflow} does not have it: "
              "pip install tensorflow in a virtual environment, and pass its "
              "python")
    elif options.model != "cnn":
        print("TensorFlow: skipped: it trains --model=cnn only")
    else:
        measured["async"] = lambda: cohort_rate(options,
                                                "--aggregation=async")
        measured["TensorFlow PS"] = (
            lambda: tensorflow_rate(options.tensorflow, options))
    return measured


def print_table(rates, options):
    """`rates`: name -> images/s and CPU seconds of each turn."""
    print(f"training of {options.model}, {options.workers} processes, "
          f"{options.threads} threads and {options.batch_size} images each, "
          f"gradients by {options.local},\n{options.load} busy processes "
          f"beside (medians of {options.rounds} turns)")
    table = Table(":<16", "images/s:>10.0f", "cpu s/1000:>12.2f",
                  " x DDP:<20")
    images = {name: [rate for rate, _ in values]
              for name, values in rates.items()}
    for name, values in rates.items():
        table.row(name, statistics.median(images[name]),
                  statistics.median(cpu for _, cpu in values),
                  over(images[name], images[DDP]))
    if "async" in rates:
        print("async, x TensorFlow PS: "
              + over(images["async"], images["TensorFlow PS"]))


def read_options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2,
                        help="processes of each side (default 2)")
    parser.add_argument("--model", choices=("cnn", "resnet18"), default="cnn",
                        help="(default cnn)")
    parser.add_argument("--local", choices=("auto", "shm", "tcp"),
                        default="auto", help="how Cohort's gradients travel "
                        "(default auto)")
    parser.add_argument("--threads", type=int, default=1,
                        help="of each process's arithmetic (default 1)")
    parser.add_argument("--batch_size", type=int, default=64,
                        help="images of a process and step (default 64)")
    parser.add_argument("--images", type=int, default=4096,
                        help="of an epoch, at most 4096 (default 4096)")
    parser.add_argument("--epochs", type=int, default=4,
                        help="at least 2; the first is not timed (default 4)")
    parser.add_argument("--rounds", type=int, default=5,
                        help="turns of each side (default 5)")
    parser.add_argument("--load", type=int, default=0,
                        help="busy processes beside (default 0)")
    parser.add_argument("--tensorflow", metavar="PYTHON", default="",
                        help="an interpreter that has TensorFlow (default: "
                        "skipped)")
    parser.add_argument("--ddp", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--script", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = read_options()
    if options.ddp:
        ddp_process(options)
        return
    if options.script is not None:
        script_process(options)
        return
    python = python_with_torch()
    if python is None:
        print("skipped: no python3 here has PyTorch: install python3-torch")
        return
    with busy_processes(options.load):
        rates = in_turns(
            contenders(python, options), options.rounds,
            lambda turn, name, rate: print(
                f"turn {turn}: {name}: {rate[0]:.0f} images/s", flush=True))
    print_table(rates, options)


if __name__ == "__main__":
    main()
