"""Steps and rendezvous of Cohort and of other systems that take turns: the table
peers of cohort_bench.py. A system that is not there is skipped with a line that
says what to install or pass."""

import os
import pathlib
import re
import resource
import tempfile

from frame import (Failed, Numbers, Processes, Table, busy_processes,
                   cpu_seconds, in_turns, median, over)
from measures import (WARM_UP_STEPS, exchange_steps, machine_steps,
                      rendezvous_waits)

# Behind the frame, which says where it is.
from ports import named_ports  # pylint: disable=C0411
from processes import python_with_torch  # pylint: disable=C0411

GLOO = pathlib.Path(__file__).with_name("gloo_bench.py")
SHM, TCP = "Cohort shm", "Cohort tcp"
# ps-lite's keys have about 2 MiB each, as Cohort's parameters.
KEY_ELEMENTS = 1 << 19


class PsLiteLines:
    """Reads the times that a benchmark of ps-lite prints in a worker. Three kinds
    of lines are understood:
      "step SECONDS"                       a program written for this table
      "... Application goodput: X Gbps"    bytedance's tests/test_benchmark
      "... num = N, Push average time cost: Xms", and the same of Pull
                                           dmlc's tests/test_kv_app_benchmark,
                                           whose N is fixed: times are scaled
    `size`: what a worker sends in a step, and gets, in bytes."""

    def __init__(self, elements, size):
        self._elements, self._size = elements, size
        # Seconds of the push whose pull is not printed yet.
        self._push = 0
        self.steps = []

    def add(self, line):
        if step := re.match(r"step ([\d.e+-]+)$", line):
            self.steps.append(float(step[1]))
        # Its "Avg latency" is in us although it says ns; the rate is right.
        elif rate := re.search(r"Application goodput: (\S+) Gbps", line):
            self.steps.append(8 * self._size / (float(rate[1]) * 1e9))
        elif cost := re.search(
                r"num = (\d+), (Push|Pull) average time cost: (\S+)ms", line):
            seconds = (1e-3 * float(cost[3]) * self._elements / int(cost[1]))
            if cost[2] == "Push":
                self._push = seconds
            else:
                self.steps.append(self._push + seconds)


def ps_lite_steps(program, options, workers):
    """A scheduler, a server and the workers are the same program, started as
    PROGRAM BYTES STEPS 1 with BYTES of each of NUM_KEY_PER_SERVER keys."""
    keys = -(-options.elements // KEY_ELEMENTS)
    key_bytes = -(-options.elements // keys) * 4
    steps = options.steps + WARM_UP_STEPS
    variables = {
        "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(workers),
        "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(named_ports(1)[0]),
        "DMLC_NODE_HOST": "127.0.0.1",
        # Without a group size, bytedance's server aborts.
        "DMLC_GROUP_SIZE": "1", "SKIP_DEV_ID_CHECK": "1",
        "NUM_KEY_PER_SERVER": str(keys), "LOG_DURATION": "1",
        "TOTAL_DURATION": str(steps)}
    lines = PsLiteLines(options.elements, keys * key_bytes)
    before = cpu_seconds(resource.RUSAGE_CHILDREN)
    with Processes() as processes:
        for name in ("scheduler", "server",
                     *(f"worker {rank}" for rank in range(workers))):
            processes.start(
                f"ps-lite's {name}", [program, key_bytes, steps, 1],
                lines.add if name == "worker 0" else None,
                DMLC_ROLE=name.split()[0], **variables)
        processes.wait()
    if not lines.steps:
        raise Failed(f"{program}: printed no times in its worker; want lines "
                     'such as "step 0.25" (tests/bench/README.md, "Peers")')
    # dmlc's program has one step only.
    timed = lines.steps[WARM_UP_STEPS:] or lines.steps
    return timed, (cpu_seconds(resource.RUSAGE_CHILDREN) - before) / len(timed)


def gloo_steps(python, what, workers, elements, steps):
    """Those of gloo_bench.py, timed by its first process."""
    numbers = Numbers()
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        for rank in range(workers):
            processes.start("gloo", [
                python, "-B", GLOO, f"--what={what}", f"--workers={workers}",
                f"--elements={elements}", f"--steps={steps}", f"--rank={rank}",
                f"--store={folder}/store"], None if rank else numbers.add)
        processes.wait()
    return numbers.values("step"), numbers["cpu"][0][0]


def step_contenders(options, torch, workers):
    """Name -> what returns seconds of each step, and CPU seconds of one."""
    def machine(what):
        return machine_steps(what, workers=workers, elements=options.elements,
                             rounds=options.steps)

    def gloo(what):
        return gloo_steps(torch, what, workers, options.elements,
                          options.steps)

    def cohort(local):
        return exchange_steps(options, workers, local=local,
                              optimizer="momentum")

    all_ = {SHM: lambda: cohort("shm"), TCP: lambda: cohort("tcp"),
            "memory copy": lambda: machine("copy"),
            "bare TCP": lambda: machine("tcp_exchange")}
    program = options.ps_lite_program
    if program:
        all_["ps-lite"] = lambda: ps_lite_steps(program, options, workers)
    # A group of one has nothing to exchange.
    if torch and workers > 1:
        all_["gloo all-reduce"] = lambda: gloo("all_reduce")
        all_["DDP over gloo"] = lambda: gloo("ddp")
    return all_


def rendezvous_contenders(options, torch):
    """The same of rendezvous, whose moments are 16 bytes a channel."""
    elements, rounds = options.channels * 4, options.rounds
    all_ = {SHM: lambda: (rendezvous_waits(options, local="shm"), 0),
            TCP: lambda: (rendezvous_waits(options), 0),
            "bare TCP": lambda: machine_steps(
                "tcp_rendezvous", workers=2, elements=elements, rounds=rounds)}
    if torch:
        all_["gloo all-reduce"] = lambda: gloo_steps(
            torch, "all_reduce", 2, elements, rounds)
    return all_


def table(options):
    """Errors: those of Cohort at once; the first of another system after the
    tables, which then lack it."""
    program = options.ps_lite_program
    if program and not os.access(program, os.X_OK):
        raise Failed(f'--ps_lite_program: got "{program}", want an executable '
                     "file")
    torch = python_with_torch(options.python.split(","))
    if torch is None:
        print(f"gloo: skipped: no interpreter of --python={options.python} has "
              "PyTorch: install python3-torch, or pass one that has")
    if not program:
        print("ps-lite: skipped: pass --ps_lite_program=PATH, a benchmark built "
              'from ps-lite (tests/bench/README.md, "Peers")')
    else:
        print("ps-lite: upstream's benchmarks neither add the workers' "
              "gradients nor wait for all\nof them nor update weights, so they "
              "do less than a step of Cohort")
    failures = []

    def failed(name, error):
        if name in (SHM, TCP):
            raise error
        print(f"{name}: failed: {error}")
        failures.append(error)

    def rows(contenders):
        """Name, seconds, CPU seconds, and Cohort's times as factors of it."""
        turns = in_turns(contenders, options.pairs, failed=failed)
        seconds = {name: [median(steps) for steps, _ in own]
                   for name, own in turns.items()}
        for name, own in seconds.items():
            yield (name, median(own), median(cpu for _, cpu in turns[name]),
                   over(seconds[SHM], own), over(seconds[TCP], own))

    with busy_processes(options.load):
        print(f"step of {options.elements / 1e6:.1f} M float32 with momentum, "
              f"beside other systems (p50 of {options.steps} steps,\nmedian and "
              f"range of {options.pairs} turns, {options.load} busy processes "
              "beside)")
        steps = Table("contender:<16", "workers:>7", "s/step:>8.4f",
                      "cpu s:>8.4f", " shm / it:<18", " tcp / it:<18")
        for workers in (1, 2):
            for name, *values in rows(
                    step_contenders(options, torch, workers)):
                steps.row(name, workers, *values)
        print(f"rendezvous of 2 workers, {options.channels} channels, beside "
              f"other systems (p50 of {options.rounds} waits,\nmedian and range "
              f"of {options.pairs} turns)")
        waits = Table("contender:<16", "us:>10.1f", " shm / it:<18",
                      " tcp / it:<18")
        for name, seconds, _, *ratios in rows(
                rendezvous_contenders(options, torch)):
            waits.row(name, 1e6 * seconds, *ratios)
    if failures:
        raise failures[0]
