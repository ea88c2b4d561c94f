#!/usr/bin/env python3
"""Trains resnet20 and unet on a GPU with one server and 2 and 4 workers, and
prints the results.

Each run is one of cohortctl run: sync with global and async with local
normalisation, float32 and bfloat16, once channels_last, and once on the CPU for
the accuracy. One run is traced, and the trace must show gradients that leave
during the backward pass. Prints a table; ends with PASS or FAIL; exit code 0 or
1.
"""

import argparse
import csv
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import time

EPOCHS = 2
# How much accuracy noise may cost, compared with the CPU's.
ACCURACY_SLACK = 0.05


@dataclasses.dataclass(frozen=True)
class Network:
    name: str
    dataset: str
    batch_size: int
    # Column of history.csv.
    measure: str
    train_limit: int = 0


RESNET20 = Network("resnet20", "synthetic", 128, "test_accuracy")
UNET = Network("unet", "synthetic-segmentation", 16, "test_miou", 256)


@dataclasses.dataclass(frozen=True)
class Run:
    network: Network
    workers: int
    aggregation: str
    device: str = "cuda:0"
    precision: str = "float32"
    channels_last: bool = False
    traced: bool = False

    @property
    def name(self) -> str:
        words = [f"{self.network.name}, {self.workers} x "
                 f"{self.network.batch_size}, {self.aggregation}"]
        if self.precision != "float32":
            words.append(self.precision)
        if self.channels_last:
            words.append("channels_last")
        if self.device == "cpu":
            words.append("CPU")
        return ", ".join(words)


RUNS = (
    Run(RESNET20, 2, "sync", traced=True),
    Run(RESNET20, 4, "sync"),
    Run(RESNET20, 2, "async"),
    Run(RESNET20, 4, "async"),
    Run(RESNET20, 2, "sync", precision="bfloat16"),
    Run(UNET, 2, "sync"),
    Run(UNET, 2, "async"),
    Run(UNET, 4, "sync"),
    Run(UNET, 2, "sync", precision="bfloat16"),
    Run(UNET, 2, "sync", precision="bfloat16", channels_last=True),
    # Last: it is the slowest, and the others are useful without it.
    Run(RESNET20, 2, "sync", device="cpu"),
    Run(UNET, 2, "sync", device="cpu"),
)


@dataclasses.dataclass
class Outcome:
    accuracy: float | None = None
    images_per_second: float | None = None
    seconds: float = 0.0
    fault: str = ""


def command(binaries: pathlib.Path, folder: pathlib.Path, run: Run) -> list[str]:
    worker = [f"--model={run.network.name}", f"--dataset={run.network.dataset}",
              f"--limit={run.network.train_limit}",
              f"--batch_size={run.network.batch_size}",
              f"--device={run.device}", f"--precision={run.precision}",
              f"--channels_last={str(run.channels_last).lower()}"]
    server = []
    if run.traced:
        worker.append(f"--trace={folder / 'worker.json'}")
        # Small partitions: resnet20 would otherwise have only two.
        server.append("--partition_kib=64")
    return [str(binaries / "cohortctl"), "run", f"--workers={run.workers}",
            f"--log_dir={folder}", "--max_restarts=0",
            "--listen=127.0.0.1:0", "--ops_listen=127.0.0.1:0",
            f"--results_dir={folder / 'results'}",
            f"--aggregation={run.aggregation}", f"--epochs={EPOCHS}",
            "--learning_rate=0.1", *server, "--", *worker]


def read_history(path: pathlib.Path, measure: str, outcome: Outcome) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    speeds = sorted(float(row["samples_per_second"]) for row in rows
                    if row["samples_per_second"])
    # The first steps tune algorithms and allocate memory.
    if speeds:
        outcome.images_per_second = speeds[len(speeds) // 2]
    scored = [row[measure] for row in rows if row[measure]]
    if scored:
        outcome.accuracy = float(scored[-1])


def run_one(binaries: pathlib.Path, run: Run, limit_s: float) -> Outcome:
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        begin = time.monotonic()
        try:
            done = subprocess.run(command(binaries, folder, run),
                                  capture_output=True, text=True,
                                  timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            outcome.fault = f"not over after {limit_s:.0f} s"
            done = None
        outcome.seconds = time.monotonic() - begin
        if done is not None and done.returncode != 0:
            outcome.fault = f"exit code {done.returncode}"
        if outcome.fault:
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}")
                print("\n".join(log.read_text(errors="replace").splitlines()[-15:]))
            if done is not None:
                print(done.stdout[-2000:], done.stderr[-2000:], sep="\n")
            return outcome
        read_history(folder / "results" / "history.csv", run.network.measure,
                     outcome)
        if run.traced:
            outcome.fault = trace_fault(sorted(folder.glob("worker*.json")))
    return outcome


def trace_fault(paths: list[pathlib.Path]) -> str:
    """Empty if gradients leave while a backward pass is on, in every worker."""
    if not paths:
        return "no trace was written"
    for path in paths:
        text = path.read_text(encoding="utf-8")
        spans = [e for e in json.loads(text) if e.get("ph") == "X"]
        passes = [(e["ts"], e["ts"] + e["dur"]) for e in spans
                  if e["name"] == "backward"]
        gradients = [e["ts"] for e in spans
                     if e["name"] == "push" and "partition" in e["args"]]
        during = sum(any(begin <= at <= end for begin, end in passes)
                     for at in gradients)
        print(f"{path.name}: {len(passes)} backward passes, {len(gradients)} "
              f"gradients sent, {during} of them during one")
        if during == 0:
            return f"{path.name}: no gradient left during a backward pass"
    return ""


def compared(run: Run, on_cpu: Outcome | None) -> bool:
    """Whether the CPU's accuracy is this run's, too, and is known."""
    return (run.aggregation == "sync" and on_cpu is not None
            and on_cpu.accuracy is not None)


def judge(run: Run, outcome: Outcome, on_cpu: Outcome | None) -> None:
    if outcome.fault:
        return
    if outcome.accuracy is None:
        outcome.fault = f"no {run.network.measure} in history.csv"
    elif (compared(run, on_cpu)
          and outcome.accuracy < on_cpu.accuracy - ACCURACY_SLACK):
        outcome.fault = f"want {on_cpu.accuracy:.3f}, the CPU's"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True,
                        help="folder of cohortctl, server and worker")
    parser.add_argument("--limit_s", type=float, default=180,
                        help="of all runs together")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.limit_s
    outcomes = {}
    for run in RUNS:
        left = end - time.monotonic()
        if left < 5:
            outcomes[run] = Outcome(fault="" if run.device == "cpu"
                                    else "no time was left")
            continue
        print(f"{run.name} ...", flush=True)
        outcomes[run] = run_one(arguments.bin, run, left)
    on_cpu = {r.network: o for r, o in outcomes.items() if r.device == "cpu"}
    # A CPU that needs longer is no evidence against the GPU.
    for outcome in on_cpu.values():
        if outcome.fault.startswith("not over"):
            outcome.fault = ""
    print(f"\n{'sync: global, async: local batch norm':44} "
          f"{'images/s':>9} {'measure':>9} {'seconds':>8}")
    failed = False
    for run, outcome in outcomes.items():
        if run.device != "cpu":
            judge(run, outcome, on_cpu.get(run.network))
        failed = failed or bool(outcome.fault)
        speed = outcome.images_per_second
        accuracy = outcome.accuracy
        note = outcome.fault
        if not note and run.device != "cpu" and not compared(
                run, on_cpu.get(run.network)):
            note = "not compared with the CPU's"
        print(f"{run.name:44} {'-' if speed is None else f'{speed:.0f}':>9} "
              f"{'-' if accuracy is None else f'{accuracy:.3f}':>9} "
              f"{outcome.seconds:8.1f} {note}")
    print("FAIL" if failed else "PASS")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
