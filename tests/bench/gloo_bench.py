"""Steps of PyTorch's gloo on this host, as a contender of cohort_bench.py: one
process, of one thread.

The first prints "step SECONDS" for each timed step, and "cpu SECONDS": CPU time
of all processes a step, without their start. Needs PyTorch.

all_reduce: the sum of --elements float32 over all processes. ddp: a step of
DistributedDataParallel with SGD and momentum on as many weights, in parameters
of 2 MiB, after gradients that cost no arithmetic. Both end with the result in
every process.
"""

import argparse
import time

from frame import cpu_seconds

# As in the exchange that Cohort times.
PARAMETER = 1 << 19
WARM_UP = 2


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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=("all_reduce", "ddp"))
    for name in ("workers", "elements", "steps", "rank"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--store")
    options = parser.parse_args()
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
        print(f"cpu {cpu.item():.9f}", flush=True)
    # Otherwise threads of gloo may still run when the interpreter ends.
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
