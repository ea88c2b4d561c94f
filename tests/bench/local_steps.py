"""Local steps (cohort-server --local_steps) beside sync and async, over slow links.

  python3 tests/bench/local_steps.py --task=fashion-mnist --out=FOLDER
  ... local_steps.py --task=camvid --out=FOLDER --data_dir=FOLDER --seeds=1,2,3

Each policy trains once a seed, as fast as this machine can, because under sync
and local steps the link does not affect the weights. Then each policy runs for a
moment on each link: every worker is a host whose card passes --rates_mbit in each
direction (token buckets); the server's has no limit. The time of a point is its
batches times the seconds of a batch there, compute included. Under async the
weights do depend on the link, and its accuracy is that of the fast run.

FOLDER/study.csv has a line for each point. The same command continues a study
that was stopped. Needs root, for the namespaces.
"""

import argparse
import csv
import functools
import json
import pathlib
import shutil
import statistics
import tempfile

from frame import BIN, Processes, Table, in_turns, median
from slow_network import PORT, Network, missing_tool

WORKERS = 2
# Student's t, 0.975, by degrees of freedom from 1.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Task:
    """A network and its data. `rates`: the best learning rates of those that
    were tried on another seed; with local steps the local one."""

    def __init__(self, measure, batch_size, limit, epochs, flags, rates):
        self.measure = measure
        self.batch_size, self.limit, self.epochs = batch_size, limit, epochs
        self.flags = flags
        self.rates = rates


TASKS = {
    "fashion-mnist": Task(
        "test_accuracy", 8, 1024, 12,
        ["--model=cnn", "--dataset=fashion-mnist", "--test_limit=1000"],
        {"sync": 0.2, "async": 0.1, 4: 0.12, 16: 0.06, 64: 0.12}),
    "camvid": Task(
        "test_miou", 2, 256, 10,
        ["--model=unet", "--width=8", "--dataset=voc", "--image_size=44x60",
         "--test_limit=100"],
        {"sync": 0.05, "async": 0.05, 4: 0.06, 16: 0.03, 64: 0.03}),
    # Only to see that everything runs.
    "synthetic": Task(
        "test_accuracy", 2, 256, 1,
        ["--model=cnn", "--dataset=synthetic", "--test_limit=50"],
        {"sync": 0.01, "async": 0.01, 4: 0.01, 16: 0.01, 64: 0.01}),
}
POLICIES = ("sync, global normalisation", "sync, local normalisation", "async",
            "4 local steps", "16 local steps", "64 local steps")


class Policy:
    """Flags of a policy. `interval`: batches of a worker between exchanges."""

    def __init__(self, name, task):
        first = name.split()[0].rstrip(",")
        self.interval = int(first) if first.isdecimal() else 1
        self.kind = "async" if first == "async" else "sync"
        self.server = [f"--workers={WORKERS}", f"--aggregation={self.kind}"]
        self.worker = [*task.flags, f"--batch_size={task.batch_size}"]
        if self.interval > 1:
            rate = task.rates[self.interval]
            self.server.append(f"--local_steps={self.interval}")
            self.worker.append(f"--local_learning_rate={rate}")
        else:
            local = self.kind == "async" or "local" in name
            self.server += [f"--learning_rate={task.rates[first]}",
                            f"--normalization={'local' if local else 'global'}"]


def rows_of(history):
    """Evaluations so far."""
    try:
        with open(history, encoding="ascii", newline="") as lines:
            return [row for row in csv.DictReader(lines) if row["test_loss"]]
    except FileNotFoundError:
        return []


def train(task, policy, seed, folder):
    """Leaves folder/history.csv; a folder that exists was finished."""
    if folder.exists():
        return
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    with Processes(patience_s=1200) as processes:
        _, address = processes.start_server(
            *policy.server, f"--epochs={task.epochs}", f"--seed={seed}",
            f"--bn_statistics={policy.kind},after",
            f"--results_dir={unfinished}")
        for rank in range(WORKERS):
            processes.start(f"worker {rank}", [
                BIN / "cohort-worker", f"--server={address}", f"--rank={rank}",
                f"--limit={task.limit}", *policy.worker])
        processes.wait()
    unfinished.rename(folder)


def on_link(task, policy, rate_mbit):
    """Seconds, bytes sent and bytes received of a batch of a worker."""
    # An epoch has whole exchanges, and is the unit that is timed.
    batches = max(policy.interval, 8)
    limit = batches * WORKERS * task.batch_size
    with Network([None] + [rate_mbit] * WORKERS) as network, \
            tempfile.TemporaryDirectory() as folder, \
            Processes(patience_s=600) as processes:
        history = pathlib.Path(folder) / "history.csv"

        def after(epochs):
            processes.wait_until(lambda: len(rows_of(history)) >= epochs)
            each = [network.sent_and_received(rank + 1)
                    for rank in range(WORKERS)]
            return (float(rows_of(history)[epochs - 1]["seconds"]),
                    *map(statistics.fmean, zip(*each)))

        _, address = processes.start_server(
            *policy.server, "--insecure", "--epochs=1000",
            f"--bn_statistics={policy.kind}", f"--results_dir={folder}",
            command=network.on(0, "cohort-server"),
            listen=f"{network.address(0)}:{PORT}")
        for rank in range(WORKERS):
            processes.start(f"worker {rank}", [
                *network.on(rank + 1, "cohort-worker"), f"--server={address}",
                f"--rank={rank}", *policy.worker, "--test_limit=2",
                f"--limit={limit}"])
        first, second = after(1), after(2)
    return [(end - begin) / batches for begin, end in zip(first, second)]


def measure_links(options, task):
    """(policy, rate) -> seconds, bytes sent and received of a batch."""
    path = options.out / "links.json"
    if not path.exists():
        contenders = {
            (name, rate): functools.partial(on_link, task, Policy(name, task),
                                            rate)
            for name in POLICIES for rate in options.rates_mbit}
        turns = in_turns(contenders, options.turns, lambda turn, of, values:
                         print(f"turn {turn}: {of[0]}, {of[1]} Mbit/s: "
                               f"{values[0]:.4f} s a batch", flush=True))
        path.write_text(json.dumps([
            [*of, *map(median, zip(*values))] for of, values in turns.items()]),
            encoding="ascii")
    return {(name, rate): values for name, rate, *values in
            json.loads(path.read_text(encoding="ascii"))}


def points_of(task, history):
    """(batches of a worker, kind of statistics, percent) of each evaluation."""
    for row in rows_of(history):
        yield (int(row["samples"]) // (WORKERS * task.batch_size),
               "after" if row["bn_statistics"] == "after" else "own",
               100 * float(row[task.measure]))


def write_csv(options, task, links):
    """Writes and returns the lines of study.csv."""
    lines = []
    for name in POLICIES:
        for seed in options.seeds:
            history = options.out / f"{name}, seed {seed}" / "history.csv"
            for batches, kind, value in points_of(task, history):
                megabytes = sum(links[name, options.rates_mbit[0]][1:]) / 1e6
                lines.append({
                    "policy": name, "seed": seed, "batches": batches,
                    "statistics": kind, "percent": f"{value:.2f}",
                    "megabytes": f"{batches * megabytes:.1f}",
                    **{f"seconds_{rate}": f"{batches * links[name, rate][0]:.1f}"
                       for rate in options.rates_mbit}})
    with open(options.out / "study.csv", "w", encoding="ascii",
              newline="") as out:
        writer = csv.DictWriter(out, lines[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return lines


def estimate(values):
    """The mean and half its 95 % confidence interval (Student's t)."""
    half = (STUDENT[len(values) - 2] * statistics.stdev(values)
            / len(values) ** 0.5)
    return f"{statistics.fmean(values):.1f} ± {half:.1f}"


def reached(lines, target, rate):
    """Seconds until the mean over the seeds is at the target."""
    points = {}
    for line in lines:
        if line["statistics"] == "own":
            points.setdefault(line["batches"], []).append(line)
    for _, same in sorted(points.items()):
        if statistics.fmean(float(line["percent"]) for line in same) >= target:
            return f"{float(same[0][f'seconds_{rate}']):.0f}"
    return "never"


def finals(lines, name, kind):
    """The percent of each seed at the end, in the order of the seeds."""
    own = [line for line in lines
           if (line["policy"], line["statistics"]) == (name, kind)]
    end = max(line["batches"] for line in own)
    return [float(line["percent"]) for line in own if line["batches"] == end]


def print_tables(options, task, lines):
    """One table a link. `less sync`: own statistics, seed by seed."""
    for rate in options.rates_mbit:
        print(f"\n{task.measure} (%), {rate} Mbit/s a worker, "
              f"{len(options.seeds)} seeds; s to: {options.target:g} %")
        table = Table("policy:<27", "own:>12", "less sync:>12", "after:>12",
                      "s:>7", "s to:>7", "MB a worker:>12")
        for name in POLICIES:
            own = [line for line in lines if line["policy"] == name]
            last = max(own, key=lambda line: line["batches"])
            values = finals(lines, name, "own")
            less = [value - sync for value, sync in
                    zip(values, finals(lines, POLICIES[0], "own"))]
            table.row(name, estimate(values), estimate(less),
                      estimate(finals(lines, name, "after")),
                      f"{float(last[f'seconds_{rate}']):.0f}",
                      reached(own, options.target, rate),
                      f"{float(last['megabytes']):.0f}")


def read_options():
    def integers(text):
        return list(map(int, text.split(",")))

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="fashion-mnist")
    parser.add_argument("--out", type=pathlib.Path,
                        help="folder (default: deleted at the end)")
    parser.add_argument("--data_dir", help="of the data set")
    parser.add_argument("--seeds", type=integers, default=[1, 2, 3, 4, 5],
                        help="(default 1,2,3,4,5)")
    parser.add_argument("--rates_mbit", type=integers, default=[20, 200],
                        help="of each worker's card (default 20,200)")
    parser.add_argument("--turns", type=int, default=1,
                        help="runs on each link (default 1)")
    parser.add_argument("--target", type=float, default=75,
                        help="percent, for the time to reach it (default 75)")
    return parser.parse_args()


def main():
    options = read_options()
    why = missing_tool()
    if why is not None:
        print(f"skipped: {why}")
        return
    task = TASKS[options.task]
    if options.data_dir:
        task.flags.append(f"--data_dir={options.data_dir}")
    with tempfile.TemporaryDirectory() as folder:
        options.out = options.out or pathlib.Path(folder)
        options.out.mkdir(parents=True, exist_ok=True)
        for seed in options.seeds:
            for name in POLICIES:
                train(task, Policy(name, task), seed,
                      options.out / f"{name}, seed {seed}")
                print(f"seed {seed}: {name} has trained", flush=True)
        links = measure_links(options, task)
        print_tables(options, task, write_csv(options, task, links))


if __name__ == "__main__":
    main()
