"""Steps of PyTorch's gloo on this host, as a contender of cohort-bench.

  python3 tests/bench/gloo_bench.py --what=all_reduce --workers=2

Starts one process of one thread for each worker and prints, from the first
process, "step SECONDS" for each timed step, and "cpu SECONDS": CPU time of all
processes a step, without their start. Needs PyTorch.

all_reduce: the sum of --elements float32 over all processes. ddp: a step of
DistributedDataParallel with SGD and momentum on as many weights, in parameters
of 2 MiB, after gradients that cost no arithmetic. Both end with the result in
every process.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time

# As in the exchange that Cohort times.
PARAMETER = 1 << 19
WARM_UP = 2


def cpu_seconds():
    """CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def all_reduce(elements):
    """A function that makes one step."""
    # pylint: disable=import-outside-toplevel
    import torch
    # Written to, so that it does not share the system's page of zeros.
    values = torch.zeros(elements).fill_(0)
    return lambda: torch.distributed.all_reduce(values)


def ddp(elements):
    """A function that makes one step."""
    # pylint: disable=import-outside-toplevel
    import torch
    from torch import nn

    class Given(torch.autograd.Function):
        """Hands out gradients that are there already."""

        @staticmethod
        def forward(context, gradients, *parameters):
            context.gradients = gradients
            return parameters[0].new_zeros((), requires_grad=True)

        @staticmethod
        def backward(context, _):
            return None, *context.gradients

    class Network(nn.Module):
        """Weights, and no arithmetic."""

        def __init__(self):
            super().__init__()
            sizes = [min(PARAMETER, elements - at)
                     for at in range(0, elements, PARAMETER)]
            self.weights = nn.ParameterList(
                nn.Parameter(torch.zeros(size)) for size in sizes)
            self.gradients = [torch.full((size,), 1e-3) for size in sizes]

        def forward(self):
            return Given.apply(self.gradients, *self.weights)

    network = nn.parallel.DistributedDataParallel(Network())
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)

    def step():
        optimizer.zero_grad(set_to_none=True)
        network().backward()
        optimizer.step()
    return step


def process(options):
    """One process; the first prints the times."""
    # pylint: disable=import-outside-toplevel
    import torch
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{options.store}", rank=options.rank,
        world_size=options.workers)
    step = {"all_reduce": all_reduce, "ddp": ddp}[options.what](
        options.elements)
    for _ in range(WARM_UP):
        step()
    torch.distributed.barrier()
    seconds = []
    cpu = cpu_seconds()
    for _ in range(options.steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    cpu = torch.tensor((cpu_seconds() - cpu) / options.steps)
    torch.distributed.all_reduce(cpu)
    if options.rank == 0:
        print("\n".join(f"step {value:.9f}" for value in seconds))
        print(f"cpu {cpu.item():.9f}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--what", choices=("all_reduce", "ddp"),
                        default="all_reduce", help="(default all_reduce)")
    parser.add_argument("--workers", type=int, default=2,
                        help="processes (default 2)")
    parser.add_argument("--elements", type=int, default=25_600_000,
                        help="float32 of a step (default 25600000)")
    parser.add_argument("--steps", type=int, default=10,
                        help="timed steps (default 10)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        process(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        started = [subprocess.Popen(
            [sys.executable, "-B", __file__, *sys.argv[1:], f"--rank={rank}",
             f"--store={folder}/store"], env=os.environ)
            for rank in range(options.workers)]
        for _ in started:
            pid, status = os.wait()
            if status == 0:
                continue
            # The others would wait for it.
            for one in started:
                if one.pid != pid:
                    one.kill()
            sys.exit("a process of gloo failed, see above")


if __name__ == "__main__":
    main()
