"""A server with up to thousands of clients of the real library, as processes of
this machine: what the server spends on each.

  python3 tests/bench/load.py
  ... load.py --table=deaths --clients=1000
"""

import argparse
import math
import os
import pathlib
import signal
import sys
import time

from frame import (BIN, Failed, Numbers, Processes, Table, cpu_of,
                   quantile)

PATIENCE_S = 600
KIB = 1024
# Enough pushes and contributions to time them.
PUSHES = 8000
CONTRIBUTIONS = 120_000


class Costs:
    """Resources that a process has in use."""

    def __init__(self, pid):
        folder = pathlib.Path(f"/proc/{pid}")
        status = dict(line.split(":\t", 1) for line in (
            folder / "status").read_text(encoding="ascii").splitlines())
        self.memory = KIB * int(status["VmRSS"].split()[0])
        self.peak = KIB * int(status["VmHWM"].split()[0])
        self.threads = int(status["Threads"])
        self.files = len(os.listdir(folder / "fd"))


class Report(Numbers):
    """What the clients of a run have printed: see load_clients.cc. Instants are
    seconds of the machine's steady clock."""

    def begun(self, step):
        """When it has begun, by pack."""
        return [instant for of, instant in self["begun"] if of == step]

    def _cost(self, kind):
        """CPU seconds of the server, seconds, and for how many."""
        return [sum(numbers) for numbers in zip(*self[kind])] or [0, 0, 0]

    def rest_us(self, workers):
        """CPU time of the server a second that a worker does nothing."""
        cpu, seconds, _ = self._cost("rest")
        return 1e6 * cpu / (seconds * workers) if seconds else 0

    def each_us(self, kind, workers):
        """CPU time for one of a worker: all, and without what the time that it
        takes would have cost at rest."""
        cpu, seconds, count = self._cost(kind)
        if not count:
            return 0, 0
        whole = 1e6 * cpu / (count * workers)
        return whole, whole - self.rest_us(workers) * seconds / count

    def spreads(self):
        """From the first to the last answer of each rendezvous, ascending."""
        answers = {}
        for call, *times in self["answers"]:
            answers.setdefault(call, []).extend(times)
        return sorted(max(times) - min(times)
                      for times in answers.values()) or [0]


class Run(Processes):
    """A server, and packs of clients."""

    def __init__(self, options, workers, push_steps, rendezvous_steps):
        super().__init__(PATIENCE_S)
        self.options, self.workers = options, workers
        self.shape = {name: getattr(options, name) for name in (
            "layers", "channels", "elements", "repeats", "rest")}
        self.shape |= {"push_steps": push_steps,
                       "rendezvous_steps": rendezvous_steps}
        # Two steps come before the timed ones, and one after them.
        self.steps = push_steps + rendezvous_steps + 3
        self.report = Report()
        self.packs = []
        self._ranks = 0

    def __enter__(self):
        try:
            self.server, self._address = self.start_server(
                "--local=tcp", f"--workers={self.workers}",
                f"--max_steps={self.steps}", "--on_worker_loss=continue",
                "--optimizer=sgd", "--weight_decay=0",
                *self.options.server_flags.split(),
                command=[self.options.server_program or BIN / "cohort-server"])
        except BaseException:
            self.__exit__()
            raise
        self.before = self.costs()
        return self

    def add_pack(self, clients):
        """Starts a process with the next ranks."""
        self.packs.append(self.start(
            f"pack {len(self.packs)}",
            [BIN / "cohort-load-clients", f"--address={self._address}",
             f"--server_process={self.server.pid}",
             f"--first_rank={self._ranks}", f"--clients={clients}",
             *(f"--{name}={value}" for name, value in self.shape.items())],
            self.report.add))
        self._ranks += clients

    def add_packs(self, clients):
        share = math.ceil(clients / max(self.options.processes, 1))
        while clients > 0:
            self.add_pack(min(share, clients))
            clients -= share

    def await_step(self, version, packs):
        """Until so many packs have begun it; returns when the first did."""
        self.wait_until(lambda: len(self.report.begun(version)) >= packs)
        return min(self.report.begun(version))

    def kill(self, pack):
        self.may_fail.add(pack)
        pack.kill()

    def cpu(self):
        return cpu_of(self.server.pid)

    def costs(self):
        return Costs(self.server.pid)


def check(options, what, got, most):
    if options.check and got > most:
        raise Failed(f"{what}: got {got}, want at most {most}")


def cost_row(options, workers, table):
    pushes = options.push_steps or min(max(PUSHES // workers, 4), 400)
    meetings = options.rendezvous_steps or min(max(
        CONTRIBUTIONS // (2 * options.layers * workers), 2), 100)
    with Run(options, workers, pushes, meetings) as run:
        begin, cpu = time.monotonic(), run.cpu()
        run.add_packs(workers)
        joined = run.await_step(0, len(run.packs)) - begin
        joined_cpu = run.cpu() - cpu
        run.await_step(run.steps - 1, 1)
        used = run.costs()
        run.wait()
    before, report = run.before, run.report
    spreads = report.spreads()
    files, threads = used.files - before.files, used.threads - before.threads
    memory = used.memory - before.memory
    table.row(workers, report.rest_us(workers),
              *report.each_us("push", workers),
              *report.each_us("rendezvous", workers),
              *(1e3 * quantile(spreads, q) for q in (0.5, 0.99)), joined,
              1e3 * joined_cpu / workers, memory / KIB / workers,
              files / workers, threads)
    # Three connections each. One more of each may be on its way out.
    if options.check and files < 3 * workers:
        raise Failed(f"got {files} further files, want 3 a worker")
    check(options, "further files", files, 3 * workers + 8)
    check(options, "further threads", threads, 16)
    check(options, "further memory", memory, (2 * workers + 64) << 20)


def cost_table(options):
    print(f"{options.layers} batch-norm layers of {options.channels} channels, "
          f"{options.elements} weights. The server's CPU time\n"
          "by worker: us a second at rest; us a push and a contribution to a\n"
          "rendezvous, with and without what the same time costs at rest; ms a\n"
          "join. Of a rendezvous: ms from the first to the last answer. Start: s\n"
          "until all have begun. A worker's further memory, files and threads.")
    table = Table("workers:<8", "rest:>8.0f", "push:>8.0f", "net:>8.0f",
                  "rendez.:>8.1f", "net:>8.1f", "p50 ms:>7.2f",
                  "p99 ms:>7.2f", "start s:>7.2f", "join:>7.2f", "KiB:>7.0f",
                  "files:>6.2f", "thr.:>4d")
    for workers in options.clients:
        cost_row(options, workers, table)


def lose(options, last, what, harm, mend=None):
    """Harms the last pack, of `last` clients, in a step: how long it takes until
    the others have begun the next one."""
    workers = options.clients[-1]
    with Run(options, workers, max(options.push_steps, 1),
             max(options.rendezvous_steps, 4)) as run:
        run.add_packs(workers - last)
        run.add_pack(last)
        step = max(options.push_steps, 1) + 2
        run.await_step(step, len(run.packs))
        cpu, begin = run.cpu(), time.monotonic()
        harm(run, run.packs[-1])
        took = run.await_step(step + 1, len(run.packs) - 1) - begin
        spent, peak = run.cpu() - cpu, run.costs().peak
        if mend is not None:
            mend(run.packs[-1])
        run.wait()
    repeated = int(sum(run.report.values("repeated")))
    print(f"{last} of {workers} workers {what} in step {step}: the next step "
          f"began after {took:.2f} s ({spent:.2f} s of the server's CPU time); "
          f"{repeated} assignments were repeated; the server's "
          f"memory was at most {peak >> 20} MiB")
    # Each of the others has begun the step again at least once.
    if options.check and repeated < workers - last:
        raise Failed(f"got {repeated} repeated assignments, want "
                         f"at least {workers - last}")


def deaths_table(options):
    lose(options, min(options.killed, options.clients[-1] - 1), "killed",
         lambda run, pack: run.kill(pack))


def stall_table(options):
    lose(options, 1, "stopped",
         lambda run, pack: pack.send_signal(signal.SIGSTOP),
         lambda pack: pack.send_signal(signal.SIGCONT))


def pulls_table(options):
    workers = options.clients[-1]
    with Run(options, workers, max(options.push_steps, 1),
             options.rendezvous_steps) as run:
        run.add_packs(workers)
        run.wait_until(lambda: run.report["registered"])
        cpu = run.cpu()
        run.wait_until(lambda: len(run.report["pulled"]) == len(run.packs))
        spent, peak = run.cpu() - cpu, run.costs().peak
        registered = max(run.report.values("registered"))
        first = min(begin for begin, _ in run.report["pulled"]) - registered
        last = max(end for _, end in run.report["pulled"]) - registered
        print(f"{workers} workers read {options.elements} weights each: the "
              f"first had them {first:.2f} s after all had registered, the last "
              f"{last:.2f} s ({4e-6 * options.elements * workers / last:.0f} "
              f"MB/s, {spent:.2f} s of the server's CPU time); the server's "
              f"memory was at most {peak >> 20} MiB")
        run.wait()
    # The weights are not copied for each of those that read them.
    check(options, "further memory", peak - run.before.memory,
          8 * options.elements * 4 + (128 << 20))


TABLES = {"cost": cost_table, "deaths": deaths_table, "stall": stall_table,
          "pulls": pulls_table}


def sizes(text):
    """Sizes of cohorts, "8,1000"."""
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 2:
        raise argparse.ArgumentTypeError("want numbers of at least 2")
    return numbers


def read_options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--table", choices=TABLES, default="cost",
        help="cost: what a worker costs the server (default). deaths: many are\n"
        "killed in one step. stall: one reads nothing more. pulls: all read the\n"
        "weights at once")
    add("--clients", type=sizes, default="8,1000",
        help="cost: sizes of the cohort; the others use the last (8,1000)")
    for name, default, text in (
            ("processes", 4, "that the clients are spread over"),
            ("killed", 100, "deaths: workers that are killed"),
            ("layers", 20, "batch-norm layers"),
            ("channels", 64, "of each layer"),
            ("elements", 20_000, "float32 weights"),
            ("push_steps", 0, "timed, a push only; 0: by the cohort's size"),
            ("rendezvous_steps", 0, "timed, with batch norm; 0: likewise"),
            ("repeats", 1, "calls of each layer in those")):
        add(f"--{name}", type=int, default=default, help=f"{text} ({default})")
    add("--rest", default="2s", help="time without messages but heartbeats (2s)")
    add("--server_program", default="", help="such as that of another build")
    add("--server_flags", default="", help="separated by blanks")
    add("--check", action="store_true", help="fail if a worker costs more "
        "descriptors, threads or memory than it should")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = read_options()
    sys.stdout.reconfigure(line_buffering=True)
    TABLES[chosen.table](chosen)
