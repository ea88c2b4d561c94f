"""Times the exchange, the rendezvous, training, the core and the kernels, beside
plain TCP, memory, LibTorch and other systems.

  python3 tests/bench/cohort_bench.py
  ... cohort_bench.py --table=batch_norm
  ... cohort_bench.py --elements=1000000

All ratios compare numbers of one run; absolute numbers depend on the machine.
"""

import argparse
import itertools
import sys

import peers
from frame import Table, duel, median, quantile
from measures import (copy_seconds, exchange_steps, machine_steps, measure,
                      rendezvous_waits)


def exchange(options):
    copy = copy_seconds(options)
    print(f"exchange of {options.elements / 1e6:.1f} M float32 (median of "
          f"{options.steps} steps, loopback)")
    table = Table("workers:<10", "s/step:>10.4f", "TCP s:>10.4f",
                  "x memcpy:>12.1f", "x TCP:>12.2f")
    for workers in (1, 2, 4):
        tcp = median(machine_steps(
            "tcp_exchange", workers=workers, elements=options.elements,
            rounds=options.steps)[0])
        step = median(exchange_steps(options, workers)[0])
        table.row(workers, step, tcp, step / copy, step / tcp)
    print(f"memcpy of the same bytes: {copy:.4f} s")


def rendezvous(options):
    """Its ways, the number of contributions, and bare TCP without a gap."""
    print(f"rendezvous, {options.channels} channels, {options.rounds} rounds, "
          "in microseconds,\nby the time that workers compute before each (gap)")
    table = Table("workers:<8", "together:<9", "way:<5", "gap:>6", "p50:>10.1f",
                  "p99:>10.1f", "TCP p50:>10.1f", "TCP p99:>10.1f",
                  "x TCP:>8.2f")
    for workers in (1, 2):
        tcp, _ = machine_steps("tcp_rendezvous", workers=workers,
                               elements=options.channels * 4,
                               rounds=options.rounds)
        for together, way, gap in itertools.product(
                (1, 4), ("tcp", "shm"), options.gap):
            waits = rendezvous_waits(options, workers, together, local=way,
                                     gap=f"{gap}us")
            table.row(workers, together, way, gap, *(
                1e6 * quantile(values, q) for values in (waits, tcp)
                for q in (0.5, 0.99)), median(waits) / median(tcp))


def tls(options):
    print("certificates and plaintext, 2 workers (pairs in turns)")

    def costs(workers, side):
        encrypted = side == "TLS"
        return {"s/step": median(exchange_steps(options, workers,
                                                encrypted=encrypted)[0]),
                "us/wait p50": 1e6 * median(rendezvous_waits(
                    options, workers, encrypted=encrypted))}
    duel((2,), ("plaintext", "TLS"), options.pairs, costs)


def ways(options, sides):
    """The same exchange in two ways. `sides`: name -> what differs."""
    print(f"{' and '.join(sides)}, exchange of {options.elements / 1e6:.1f} M "
          "float32 by workers (pairs in turns)")

    def costs(workers, side):
        steps, cpu = exchange_steps(options, workers, **sides[side])
        return {"s/step": median(steps), "cpu s": cpu,
                "x memcpy": median(steps) / copy_seconds(options)}
    duel((1, 2), tuple(sides), options.pairs, costs)


def local_way(options):
    ways(options, {"TCP": {}, "shm": {"local": "shm"}})


def wire(options):
    ways(options, {"float32": {}, "bf16": {"wire": "bf16"}})


def training(options):
    print("training of cnn, 64 images a worker, sync, global batch norm")
    table = Table("workers:<10", "images/s:>12.0f", "x one:>12.2f")
    one = None
    for workers in (1, 2):
        rate = 64 * workers / measure("training", workers=workers,
                                      rounds=options.training_steps)["step"]
        one = one or rate
        table.row(workers, rate, rate / one)


def overlap(options):
    """The part of the exchange that the backward pass hides."""
    print("exchange that is left after the backward pass of resnet18, 4 images "
          "a worker,\nby workers, with gradients sent after it and during it "
          f"(medians of {options.pairs} pairs)")
    duel((1, 2), ("after", "during"), options.pairs,
         lambda workers, side: {"s/step": measure(
             "training", workers=workers, model="resnet18", batch_size=4,
             rounds=options.training_steps,
             send_after=side == "after")["exposed"]})


def backup(options):
    print("steps of cnn that need the first 2 pushes (--min_pushes=2): 2 "
          "workers,\nand with a third that is 10 times slower (medians of "
          f"{options.pairs} pairs)")
    # Seconds of a step of 2 workers in this turn.
    alone = {}

    def costs(kind, side):
        slow = {} if side == "2 alone" else {
            "min_pushes": 2, "pause_s": 10 * alone[kind]}
        step = measure("training", workers=3 if slow else 2,
                       rounds=options.training_steps, local=kind == "local",
                       **slow)["step"]
        if not slow:
            alone[kind] = step
        return {"s/step": step}
    duel(("global", "local"), ("2 alone", "with slow"), options.pairs, costs)


def shares(options):
    print("steps of cnn by 2 workers, 16 images a worker, that also wait 20 ms "
          "for each image,\nthe second 60 ms (medians of "
          f"{options.pairs} pairs)")
    duel(("1:3",), ("equal", "--shares=3,1"), options.pairs,
         lambda _, side: {"s/step": measure(
             "training", workers=2, batch_size=16, sample_pause_s=0.02,
             rounds=max(1, options.training_steps // 4),
             **({} if side == "equal" else {"shares": "3,1"}))["step"]})


def batch_norm(options):
    """One thread. 3 and 5 sweeps over the tensor are the minimum for forward and
    backward passes with statistics of a whole cohort."""
    print("batch norm of float32 in training, beside LibTorch's (medians of "
          f"{options.kernel_rounds} turns)")
    table = Table("images x channels:<22", "MiB:>6.1f", "forward s:>9.6f",
                  "x torch:>8.2f", "backw. s:>9.6f", "x torch:>8.2f",
                  "both x:>8.2f")
    for images, channels, side in ((16, 64, 16), (32, 512, 8), (32, 64, 32),
                                   (64, 2048, 7), (2, 64, 256)):
        for last in (False, True):
            of = measure("batch_norm", images=images, channels=channels,
                         side=side, channels_last=last,
                         rounds=options.kernel_rounds)
            forward, backward, both = (
                (own, other / own) for own, other in
                (of["forward"], of["backward"], of["both"]))
            table.row(
                f"{images}x{channels} {'channels_last' if last else 'NCHW'}",
                images * channels * side * side * 4 / (1 << 20), *forward,
                *backward, both[1])


def fold(options):
    print(f"fold and update of {options.elements / 1e6:.1f} M float32, with "
          "gradients whole and in 17 pieces a MiB,\nbeside a sweep over the "
          f"same memory (medians of {options.kernel_rounds} turns)")
    table = Table("optimizer:<10", "workers:>8", "whole s:>10.4f",
                  "pieces s:>10.4f", "sweep s:>10.4f", "x whole:>10.2f",
                  "x sweep:>10.2f")
    for optimizer in ("sgd", "momentum", "adam"):
        for workers in (1, 2, 4, 16):
            of = measure("fold", optimizer=optimizer, workers=workers,
                         elements=options.elements,
                         rounds=options.kernel_rounds)
            table.row(optimizer, workers, of["whole"], of["pieces"],
                      of["sweep"], of["whole"] / of["pieces"],
                      of["sweep"] / of["pieces"])


def scrape(options):
    """The cost of one scrape a second."""
    print("scrape of a server's metrics (medians and means of "
          f"{options.kernel_rounds})")
    table = Table("workers:<10", "page KiB:>10.0f", "ms:>10.2f",
                  "CPU ms:>10.2f", "% of a core:>14.2f",
                  "% for gathering:>16.2f")
    for workers in (2, 1000):
        of = measure("scrape", workers=workers, rounds=options.kernel_rounds)
        # Numbers are gathered four times a second with or without scrapes.
        table.row(workers, of["page_bytes"] // 1024, 1000 * of["seconds"],
                  1000 * of["cpu"], 100 * of["cpu"],
                  4 * 100 * of["gather_cpu"])


def core(options):
    """The state machine alone: costs that grow with the number of ranks or the
    size of the model."""
    print(f"events of the core in {options.core_steps} steps of ResNet-50's "
          "batch norm (CPU time; \"last\": rank 0\ncontributes last, so that "
          "nothing is folded before)")
    table = Table("workers:<8", "order:<6", "event:<18", "mean ns:>10.0f",
                  "longest us:>12.1f", "allocations:>12.1f")
    for workers in (2, 8, 64, options.core_workers):
        for order in ("rank", "last"):
            costs = measure("core", workers=workers, rounds=options.core_steps,
                            first_last=order == "last")
            for event, (mean, longest, allocations) in costs.items():
                table.row(workers, order, event, mean, longest / 1e3,
                          allocations)
    print("events of the core with 8 workers, by size of the model")
    table = Table("partitions:<10", "event:<18", "mean ns:>10.0f",
                  "longest us:>12.1f")
    for partitions in (4, options.core_partitions // 16,
                       options.core_partitions):
        costs = measure("core", workers=8, rounds=2, partitions=partitions)
        for event in ("open", "gradient", "fold_done", "close"):
            mean, longest, _ = costs[event]
            table.row(partitions, event, mean, longest / 1e3)


TABLES = {"exchange": exchange, "rendezvous": rendezvous, "tls": tls,
          "local": local_way, "wire": wire, "training": training,
          "overlap": overlap, "backup": backup, "shares": shares,
          "batch_norm": batch_norm, "fold": fold, "scrape": scrape, "core": core, "peers": peers.table}


def positive(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError("want at least 1")
    return int(text)


def microseconds(text):
    return [int(part) for part in text.split(",")]


def read_options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--table", choices=TABLES, help="the one table to make (all)")
    add("--server_program", default="", help="cohort-server of the exchange and "
        "the rendezvous, such as that of another build")
    for name, default, text in (
            ("elements", 25_600_000,
             "float32 weights of the exchange, as ResNet-50 has"),
            ("steps", 10, "timed steps of each exchange"),
            ("rounds", 5000, "timed rendezvous"),
            ("channels", 64, "of the rendezvous"),
            ("training_steps", 40, "timed training steps"),
            ("pairs", 3, "turns of tls, local, wire, overlap, backup, shares and peers"),
            ("kernel_rounds", 21, "timed turns of each kernel"),
            ("core_steps", 5, "timed steps of the core"),
            ("core_workers", 1000, "the largest cohort of the core's table"),
            ("core_partitions", 16_384, "of the core's largest model")):
        add(f"--{name}", type=positive, default=default,
            help=f"{text} ({default})")
    add("--gap", type=microseconds, default=[0], help="rendezvous: computing "
        "before each, in microseconds, several with commas (0)")
    add("--ps_lite_program", default="", help="peers: a benchmark built from "
        "ps-lite (tests/bench/README.md); without it,\nps-lite is skipped")
    add("--python", default="python3,/usr/bin/python3",
        help="peers: the interpreters to look for PyTorch in")
    add("--load", type=int, default=0,
        help="peers: busy processes beside the contenders (0)")
    return parser.parse_args()


def main():
    options = read_options()
    for name, table in TABLES.items():
        if options.table in (None, name):
            table(options)
            print(flush=True)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    main()
