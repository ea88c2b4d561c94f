"""What a backward pass waits for other workers, and a step takes, where gradients of
weights are computed in the waits (_convolution.py of the Python front-end), and not.

  python3 tests/bench/waits_bench.py --python=PYTHON [--networks=resnet18,...]

Two workers of one thread on this host train a network of torchvision, or timm's if it
has none of the name, with 4 images each. Both orders take turns, step by step, in one
run. The sums of the other worker are given no earlier than `--delay_us` after this
one's were sent, in place of a network. PYTHON must have torch 2.4 or later,
torchvision and timm.
"""

import argparse
import os
import sys
import time

# Front-end and torch are imported in workers alone.
# pylint: disable=C0415


def train(options):
    """A worker. Prints the seconds of each step and of its waits, by order."""
    import timm
    import torch
    import torchvision

    import cohort
    from cohort import _layer_calls, _order, _passes

    assert _order.can_move, f"torch {torch.__version__} does not move nodes"
    torch.set_num_threads(1)
    delay, waited = 1e-6 * options.delay_us, []
    send_backward = _passes.send_backward

    def send(step, calls):
        passes = send_backward(step, calls)
        end = time.monotonic() + delay
        for sent in passes:
            def receive(receive=sent.receive):
                begin = time.monotonic()
                if begin < end:
                    time.sleep(end - begin)
                    waited.append(time.monotonic() - begin)
                return receive()
            sent.receive = receive
        return passes
    _passes.send_backward = send
    torch.manual_seed(0)
    model = (torchvision.models if hasattr(torchvision.models, options.network)
             else timm.models).__dict__.get(options.network)
    model = model() if model else timm.create_model(options.network)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    job = cohort.join(model, optimizer, server=options.address, rank=options.rank,
                      log_level="warning", local="shm")
    x = torch.randn(4, 3, options.side, options.side)
    y = torch.randint(0, 1000, (4,))
    batches = ((x, y) for _ in range(options.steps))
    for number, (x, y) in enumerate(job.data(batches, batch_size=4)):
        moves = number % 2
        _layer_calls.can_move = bool(moves)
        waited.clear()
        begin = time.monotonic()
        outputs = model(x)
        outputs = getattr(outputs, "logits", outputs)
        job.backward(torch.nn.functional.cross_entropy(outputs, y), weight=len(x))
        job.step()
        print("step", moves, time.monotonic() - begin, sum(waited), flush=True)


def measure(options, network, delay_us):
    """Of rank 0, by order: [seconds of a step, seconds of its waits], in turns."""
    from frame import BIN, Numbers, Processes

    numbers = Numbers()
    with Processes(1200) as processes:
        _, address = processes.start_server(
            "--workers=2", f"--max_steps={options.steps}", "--checkpoint_every=0")
        for rank in range(2):
            processes.start(f"worker {rank}", [
                options.python, __file__, f"--rank={rank}", f"--network={network}",
                f"--address={address}", f"--delay_us={delay_us}",
                f"--steps={options.steps}", f"--side={options.side}"],
                numbers.add if rank == 0 else None, PYTHONPATH=os.pathsep.join(
                    [str(BIN.parent / "python-package"), *sys.path]))
        processes.wait()
    # The first steps are the loss checks'.
    return [[row[1:] for row in numbers["step"][4:] if row[0] == moves]
            for moves in (0, 1)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--python", default=sys.executable, help="with torch and its networks")
    add("--networks", default="resnet18,resnet50,googlenet,hrnet_w18_small",
        help="of torchvision and timm")
    add("--delays_us", default="0,500", help="simulated round trips")
    add("--steps", type=int, default=44, help="of a run")
    add("--side", type=int, default=64, help="of an image, in pixels")
    for flag, kind in (("rank", int), ("network", str), ("address", str),
                       ("delay_us", float)):
        add(f"--{flag}", type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.network is not None:
        train(options)
        return
    from frame import Table, median, quantile

    table = Table("network:<18", "delay us:>9", "wait ms:>8.1f", "moved:>8.1f",
                  "step ms:>8.0f", "moved:>8.0f", "ratio:>6.2f", "quartiles:>12")
    for network in options.networks.split(","):
        for delay_us in options.delays_us.split(","):
            plain, moved = measure(options, network, delay_us)
            ratios = [ours[0] / theirs[0] for ours, theirs in zip(moved, plain)]
            waits, steps = ([1e3 * median([row[at] for row in side])
                             for side in (plain, moved)] for at in (1, 0))
            table.row(network, delay_us, *waits, *steps, median(ratios),
                      f"{quantile(ratios, 0.25):.2f} to {quantile(ratios, 0.75):.2f}")


if __name__ == "__main__":
    main()
