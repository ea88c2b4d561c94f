"""Time of a step where the servers' network cards are the limit, by shards.

  COHORT_BIN_DIR=build/release/bin python3 tests/bench/slow_network.py
  ... slow_network.py --shards=1,2,4 --rate_mbit=200 --workers=2

Every server process (shard) has a host of its own: a network namespace with one
card, which passes --rate_mbit in each direction (token buckets). All workers
share a further host, whose card has no limit. Workers are clients of the real
library (cohort-load-clients) that push zeros and compute nothing. The contenders take
turns; ratios are those of the same turn. Needs root, for the namespaces.
"""

import argparse
import contextlib
import functools
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from frame import BIN, in_turns, over

# Only inside the namespaces.
NETWORK = "10.98.76"
PORT = 7070
# Time that a queue may hold a packet; longer than TCP's buffers need.
LATENCY = "20ms"
BURST = "64kb"
START_TIMEOUT_S = 60


def missing_tool():
    """Why no namespaces can be made, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"there is no {tool}: install iproute2"
    try:
        with Network(1, 1000):
            return None
    except subprocess.CalledProcessError as error:
        return f"{' '.join(map(str, error.cmd))}: {error.stderr.strip()}"


def command(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


class Network:
    """Hosts on one switch: server 1 to N, and host 0 with the workers."""

    def __init__(self, servers, rate_mbit):
        self._prefix = f"cohort{os.getpid()}-"
        self._stack = contextlib.ExitStack()
        self._servers = servers
        self._rate = f"{rate_mbit}mbit"

    def __enter__(self):
        try:
            self._make("switch")
            self._ip("switch", "link", "add", "bridge", "type", "bridge")
            self._ip("switch", "link", "set", "bridge", "up")
            for host in range(self._servers + 1):
                self._connect(host)
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
        command("ip", "-n", self._prefix + name, *words)

    def _connect(self, host):
        name = f"host{host}"
        self._make(name)
        self._ip(name, "link", "add", "card", "type", "veth", "peer", "name",
                 name, "netns", self._prefix + "switch")
        self._ip(name, "addr", "add", f"{self.address(host)}/24", "dev", "card")
        self._ip(name, "link", "set", "card", "up")
        self._ip("switch", "link", "set", name, "master", "bridge", "up")
        if host > 0:
            self._limit(name, "card")
            self._limit("switch", name)

    def _limit(self, name, device):
        command("tc", "-n", self._prefix + name, "qdisc", "add", "dev", device,
                "root", "tbf", "rate", self._rate, "burst", BURST, "latency",
                LATENCY)

    @staticmethod
    def address(host):
        return f"{NETWORK}.{host + 1}"

    def start(self, host, *words, **options):
        """A process on a host."""
        # pylint: disable=consider-using-with
        return subprocess.Popen(
            ["ip", "netns", "exec", f"{self._prefix}host{host}", *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            **options)


def stop(process):
    process.kill()
    process.wait()
    process.stdout.close()


def step_seconds(options, shards, wire):
    """Mean time of a timed step of a run with so many shards."""
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(shards, options.rate_mbit))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        addresses = [f"{network.address(i)}:{PORT}"
                     for i in range(1, shards + 1)]

        def start(host, *words):
            process = network.start(host, *words)
            stack.callback(stop, process)
            return process

        for shard in range(1, shards):
            start(shard + 1, BIN / "cohort-server", "--data_shard",
                  f"--listen={addresses[shard]}", "--ops_listen=",
                  "--insecure")
        # Two further steps begin, and one ends the run: see load_clients.cc.
        steps = options.steps + 4
        flags = [f"--listen={addresses[0]}", "--ops_listen=", "--insecure",
                 f"--workers={options.workers}", f"--max_steps={steps}",
                 "--optimizer=momentum", f"--wire={wire}", "--local=tcp"]
        if shards > 1:
            flags += ["--shard_addresses=" + ",".join(addresses[1:]),
                      f"--checkpoint_dir={folder}"]
        server = start(1, BIN / "cohort-server", *flags)
        await_line(server, "listening on")
        clients = start(0, BIN / "cohort-load-clients", f"--address={addresses[0]}",
                        f"--server_process={server.pid}", "--first_rank=0",
                        f"--clients={options.workers}", "--layers=1",
                        "--channels=1", f"--elements={options.elements}",
                        f"--push_steps={options.steps}",
                        "--rendezvous_steps=1", "--rest=1ms")
        seconds = None
        lines = []
        for line in clients.stdout:
            lines.append(line)
            words = line.split()
            if words[:2] == ["cost", "push"]:
                seconds = float(words[3]) / float(words[4])
        if clients.wait() != 0 or seconds is None:
            raise SystemExit("".join(lines))
        return seconds


def await_line(process, text):
    """Reads what it prints until a line has `text`."""
    lines = []
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        line = process.stdout.readline()
        if not line:
            break
        lines.append(line)
        if text in line:
            return
    raise SystemExit("".join(lines))


def print_table(times, options):
    """`times`: (shards, wire) -> seconds of each turn."""
    megabytes = options.elements * 4 / 1e6
    print(f"a step of {megabytes:g} MB of float32 with {options.workers} "
          f"workers; {options.rate_mbit} Mbit/s a server\n"
          f"in each direction (medians of {options.turns} turns)")
    print(f"{'shards':<8}{'wire':<10}{'s':>8}  x first")
    first = next(iter(times.values()))
    for (shards, wire), values in times.items():
        print(f"{shards:<8}{wire:<10}{statistics.median(values):>8.3f}  "
              f"{over(values, first)}")


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
