"""Time of a step where the servers' network cards are the limit, by shards.

  python3 tests/bench/slow_network.py
  ... slow_network.py --shards=1,2,4 --rate_mbit=200 --workers=2

Every server process (shard) has a separate host: a network namespace with one
card, which passes --rate_mbit in each direction (token buckets). All workers
share a further host, whose card has no limit. Workers are clients of the real
library (cohort-load-clients) that push zeros and compute nothing. The contenders take
turns; ratios are those of the same turn. Needs root, for the namespaces.
"""

import argparse
import contextlib
import functools
import json
import os
import shutil
import subprocess
import tempfile

from frame import BIN, Numbers, Processes, Table, in_turns, median, over

# Only inside the namespaces.
NETWORK = "10.98.76"
PORT = 7070
# Time that a queue may hold a packet; longer than TCP's buffers need.
LATENCY = "20ms"
BURST = "64kb"


def missing_tool():
    """Why no namespaces can be made, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"there is no {tool}: install iproute2"
    try:
        with Network([1000]):
            return None
    except subprocess.CalledProcessError as error:
        return f"{' '.join(map(str, error.cmd))}: {error.stderr.strip()}"


def command(*words):
    """What a command prints."""
    return subprocess.run(words, check=True, capture_output=True,
                          text=True).stdout


class Network:
    """Hosts on one switch. `rates_mbit`: what the card of each passes in each
    direction; None: no limit."""

    def __init__(self, rates_mbit):
        self._prefix = f"cohort{os.getpid()}-"
        self._stack = contextlib.ExitStack()
        self._rates_mbit = rates_mbit

    def __enter__(self):
        try:
            self._make("switch")
            self._ip("switch", "link", "add", "bridge", "type", "bridge")
            self._ip("switch", "link", "set", "bridge", "up")
            for host, rate_mbit in enumerate(self._rates_mbit):
                self._connect(host, rate_mbit)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error):
        self._stack.close()

    def _make(self, name):
        full = self._prefix + name
        command("ip", "netns", "add", full)
        self._stack.callback(command, "ip", "netns", "del", full)
        self._ip(name, "link", "set", "lo", "up")

    def _ip(self, name, *words):
        return command("ip", "-n", self._prefix + name, *words)

    def _connect(self, host, rate_mbit):
        name = f"host{host}"
        self._make(name)
        self._ip(name, "link", "add", "card", "type", "veth", "peer", "name",
                 name, "netns", self._prefix + "switch")
        self._ip(name, "addr", "add", f"{self.address(host)}/24", "dev", "card")
        self._ip(name, "link", "set", "card", "up")
        self._ip("switch", "link", "set", name, "master", "bridge", "up")
        if rate_mbit is not None:
            self._limit(name, "card", rate_mbit)
            self._limit("switch", name, rate_mbit)

    def _limit(self, name, device, rate_mbit):
        command("tc", "-n", self._prefix + name, "qdisc", "add", "dev", device,
                "root", "tbf", "rate", f"{rate_mbit}mbit", "burst", BURST,
                "latency", LATENCY)

    def sent_and_received(self, host):
        """Bytes so far through a host's card, with all headers."""
        card, = json.loads(self._ip(f"host{host}", "-s", "-j", "link", "show",
                                    "card"))
        return (card["stats64"]["tx"]["bytes"], card["stats64"]["rx"]["bytes"])

    @staticmethod
    def address(host):
        return f"{NETWORK}.{host + 1}"

    def on(self, host, program):
        """A command that starts a program on a host."""
        return ["ip", "netns", "exec", f"{self._prefix}host{host}",
                BIN / program]


def step_seconds(options, shards, wire):
    """Mean time of a timed step of a run with so many shards."""
    numbers = Numbers()
    # Host 0 has the workers.
    rates_mbit = [None] + [options.rate_mbit] * shards
    with Network(rates_mbit) as network, \
            tempfile.TemporaryDirectory() as folder, \
            Processes() as processes:
        addresses = []
        # The first server comes last, as it connects to the others.
        for shard in (*range(1, shards), 0):
            # Two further steps begin, and one ends the run: see load_clients.cc.
            flags = ["--data_shard"] if shard else [
                f"--workers={options.workers}",
                f"--max_steps={options.steps + 4}", "--optimizer=momentum",
                f"--wire={wire}", "--local=tcp"]
            if not shard and shards > 1:
                flags += ["--shard_addresses=" + ",".join(addresses),
                          f"--checkpoint_dir={folder}"]
            server, address = processes.start_server(
                "--insecure", *flags,
                command=network.on(shard + 1, "cohort-server"),
                listen=f"{network.address(shard + 1)}:{PORT}")
            addresses.append(address)
        processes.start("the clients", [
            *network.on(0, "cohort-load-clients"),
            f"--address={addresses[-1]}", f"--server_process={server.pid}",
            "--first_rank=0", f"--clients={options.workers}", "--layers=1",
            "--channels=1", f"--elements={options.elements}",
            f"--push_steps={options.steps}", "--rendezvous_steps=1",
            "--rest=1ms"], numbers.add)
        processes.wait()
    _, seconds, count = numbers["push"][0]
    return seconds / count


def print_table(times, options):
    """`times`: (shards, wire) -> seconds of each turn."""
    megabytes = options.elements * 4 / 1e6
    print(f"a step of {megabytes:g} MB of float32 with {options.workers} "
          f"workers; {options.rate_mbit} Mbit/s a server\n"
          f"in each direction (medians of {options.turns} turns)")
    table = Table("shards:<8", "wire:<10", "s:>8.3f", " x first:<18")
    first = next(iter(times.values()))
    for (shards, wire), values in times.items():
        table.row(shards, wire, median(values), over(values, first))


def read_options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shards", default="1,2,4",
                        help="numbers of server processes (default 1,2,4)")
    parser.add_argument("--wires", default="float32,bf16",
                        help="encodings (default float32,bf16)")
    parser.add_argument("--rate_mbit", type=int, default=200,
                        help="of each server's card (default 200)")
    parser.add_argument("--workers", type=int, default=2, help="(default 2)")
    parser.add_argument("--elements", type=int, default=25_600_000,
                        help="weights (default 25,600,000, as ResNet-50 has)")
    parser.add_argument("--steps", type=int, default=4,
                        help="timed, of each run (default 4)")
    parser.add_argument("--turns", type=int, default=3,
                        help="runs of each contender (default 3)")
    return parser.parse_args()


def main():
    options = read_options()
    why = missing_tool()
    if why is not None:
        print(f"skipped: {why}")
        return
    contenders = {
        (int(shards), wire): functools.partial(step_seconds, options,
                                               int(shards), wire)
        for wire in options.wires.split(",")
        for shards in options.shards.split(",")}
    print_table(in_turns(
        contenders, options.turns,
        lambda turn, name, seconds: print(
            f"turn {turn}: {name[0]} shards, {name[1]}: {seconds:.3f} s",
            flush=True)), options)


if __name__ == "__main__":
    main()
