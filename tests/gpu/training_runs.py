#!/usr/bin/env python3
"""Trains resnet20, resnet50 and unet on a GPU with one server and 2 and 4
workers, and prints the results.

Each run is one of cohortctl run: sync with global and async with local
normalisation, float32 and bfloat16, also channels_last, and once on the CPU for
the accuracy. One run is traced, and the trace must show gradients that leave
during the backward pass. Two runs are repeated, one of them with a worker that
is killed, and must end with the same weights. Prints a table; ends with PASS or
FAIL; exit code 0 or 1.
"""

import argparse
import csv
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
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
    test_limit: int = 0
    epochs: int = EPOCHS
    learning_rate: float = 0.1


RESNET20 = Network("resnet20", "synthetic", 128, "test_accuracy")
# Of the folder of --images. The same steps as those of torch_training.py.
RESNET50 = Network("resnet50", "imagefolder", 32, "test_accuracy", epochs=3,
                   learning_rate=0.02)
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
    # Must end with the weights of the same run without this; with a worker that
    # is killed after the first epoch, or without.
    again: str = ""

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
        if self.again:
            words.append(self.again)
        return ", ".join(words)


RUNS = (
    Run(RESNET20, 2, "sync", traced=True),
    Run(RESNET20, 4, "sync"),
    Run(RESNET20, 4, "sync", again="again"),
    Run(RESNET20, 4, "sync", again="killed"),
    Run(RESNET50, 2, "sync"),
    Run(RESNET50, 4, "sync"),
    Run(RESNET50, 4, "async"),
    Run(RESNET50, 4, "sync", precision="bfloat16", channels_last=True),
    Run(RESNET20, 4, "async"),
    Run(RESNET20, 2, "sync", precision="bfloat16"),
    Run(UNET, 2, "sync"),
    Run(UNET, 2, "sync", again="again"),
    Run(UNET, 4, "sync"),
    Run(UNET, 2, "async"),
    Run(UNET, 2, "sync", precision="bfloat16", channels_last=True),
    Run(RESNET50, 2, "sync", precision="bfloat16", channels_last=True),
    # Last: it is the slowest, and the others are useful without it.
    Run(RESNET20, 2, "sync", device="cpu"),
    Run(UNET, 2, "sync", device="cpu"),
)


def rehearsed(run: Run) -> Run:
    """The same on the CPU, of few small steps. Without a device: left out,
    since bfloat16 takes minutes there."""
    network = dataclasses.replace(run.network, batch_size=2, train_limit=32,
                                  test_limit=16, epochs=2)
    left_out = run.device == "cpu" or run.precision == "bfloat16"
    return dataclasses.replace(run, network=network,
                               device="" if left_out else "cpu")


@dataclasses.dataclass
class Outcome:
    accuracy: float | None = None
    images_per_second: float | None = None
    # Of the epochs.
    losses: tuple[float, ...] = ()
    # SHA-256 of the weights.
    digest: str = ""
    seconds: float = 0.0
    fault: str = ""


@dataclasses.dataclass(frozen=True)
class Setting:
    binaries: pathlib.Path
    images: pathlib.Path


def command(setting: Setting, folder: pathlib.Path, run: Run) -> list[str]:
    network = run.network
    worker = [f"--model={network.name}", f"--dataset={network.dataset}",
              f"--limit={network.train_limit}",
              f"--test_limit={network.test_limit}",
              f"--batch_size={network.batch_size}",
              f"--device={run.device}", f"--precision={run.precision}",
              f"--channels_last={str(run.channels_last).lower()}"]
    if network.dataset == "imagefolder":
        worker.append(f"--data_dir={setting.images}")
    server = []
    if run.traced:
        worker.append(f"--trace={folder / 'worker.json'}")
        # Small partitions: resnet20 would otherwise have only two.
        server.append("--partition_kib=64")
    return [str(setting.binaries / "cohortctl"), "run",
            f"--workers={run.workers}", f"--log_dir={folder}",
            f"--max_restarts={1 if run.again == 'killed' else 0}",
            "--listen=127.0.0.1:0", "--ops_listen=127.0.0.1:0",
            f"--results_dir={folder / 'results'}",
            f"--aggregation={run.aggregation}", f"--epochs={network.epochs}",
            f"--learning_rate={network.learning_rate}", "--schedule=constant", *server, "--",
            *worker]


def read_history(path: pathlib.Path, measure: str, outcome: Outcome) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    speeds = sorted(float(row["samples_per_second"]) for row in rows
                    if row["samples_per_second"])
    # The first steps tune algorithms and allocate memory.
    if speeds:
        outcome.images_per_second = speeds[len(speeds) // 2]
    scored = [row for row in rows if row[measure]]
    if scored:
        outcome.accuracy = float(scored[-1][measure])
    outcome.losses = tuple(float(row["train_loss"]) for row in scored
                           if row["train_loss"])


def worker_processes(server_log: pathlib.Path) -> list[int]:
    """Process ids of rank 1, in the order in which they joined."""
    return [int(process) for process in re.findall(
        r"rank 1\b[^\"]* joined as [^\"]*process (\d+)\)",
        server_log.read_text(errors="replace"))]


def kill_one(folder: pathlib.Path, over: threading.Event) -> None:
    """Kills rank 1 once an epoch was scored."""
    history = folder / "results" / "history.csv"
    while not over.wait(0.02):
        if history.exists() and len(history.read_text().splitlines()) > 1:
            os.kill(worker_processes(folder / "server.log")[0], signal.SIGKILL)
            return


def run_one(setting: Setting, run: Run, limit_s: float) -> Outcome:
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        begin = time.monotonic()
        over = threading.Event()
        killer = threading.Thread(target=kill_one, args=(folder, over))
        if run.again == "killed":
            killer.start()
        try:
            done = subprocess.run(command(setting, folder, run),
                                  capture_output=True, text=True,
                                  timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            outcome.fault = f"not over after {limit_s:.0f} s"
            done = None
        finally:
            over.set()
            if killer.ident is not None:
                killer.join()
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
        outcome.digest = hashlib.sha256(
            (folder / "results" / "model.safetensors").read_bytes()).hexdigest()
        if run.traced:
            outcome.fault = trace_fault(sorted(folder.glob("worker*.json")))
        if run.again == "killed" and len(worker_processes(
                folder / "server.log")) != 2:
            outcome.fault = "the killed worker was not replaced"
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


def judge(run: Run, outcomes: dict[Run, Outcome],
          on_cpu: Outcome | None) -> None:
    outcome = outcomes[run]
    if outcome.fault:
        return
    if outcome.accuracy is None:
        outcome.fault = f"no {run.network.measure} in history.csv"
    elif (compared(run, on_cpu)
          and outcome.accuracy < on_cpu.accuracy - ACCURACY_SLACK):
        outcome.fault = f"want {on_cpu.accuracy:.3f}, the CPU's"
    elif run.again:
        first = outcomes[dataclasses.replace(run, again="")]
        if first.digest != outcome.digest:
            outcome.fault = "other weights than the first time"


def print_table(outcomes: dict[Run, Outcome]) -> None:
    print(f"\n{'sync: global, async: local batch norm':48} "
          f"{'images/s':>9} {'measure':>9} {'seconds':>8}  weights")
    for run, outcome in outcomes.items():
        speed, accuracy = outcome.images_per_second, outcome.accuracy
        print(f"{run.name:48} {'-' if speed is None else f'{speed:.0f}':>9} "
              f"{'-' if accuracy is None else f'{accuracy:.3f}':>9} "
              f"{outcome.seconds:8.1f}  {outcome.digest[:8] or '-':8} "
              f"{outcome.fault}")
    print("\nloss of training, by epoch:")
    for run, outcome in outcomes.items():
        print(f"{run.name:48} "
              f"{' '.join(f'{loss:.3f}' for loss in outcome.losses) or '-'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True,
                        help="folder of cohortctl, server and worker")
    parser.add_argument("--images", type=pathlib.Path, required=True,
                        help="what images.py wrote, for resnet50")
    parser.add_argument("--limit_s", type=float, default=240,
                        help="of all runs together")
    parser.add_argument("--rehearse", action="store_true",
                        help="few small steps, on the CPU")
    arguments = parser.parse_args()
    setting = Setting(arguments.bin, arguments.images)
    runs = [r for r in map(rehearsed, RUNS) if r.device] if (
        arguments.rehearse) else list(RUNS)
    end = time.monotonic() + arguments.limit_s
    outcomes: dict[Run, Outcome] = {}
    for run in runs:
        left = end - time.monotonic()
        if left < 5:
            outcomes[run] = Outcome(fault="" if run.device == "cpu"
                                    else "no time was left")
            continue
        print(f"{run.name} ...", flush=True)
        outcomes[run] = run_one(setting, run, left)
    on_cpu = {} if arguments.rehearse else {
        r.network: o for r, o in outcomes.items() if r.device == "cpu"}
    # A CPU that needs longer is no evidence against the GPU.
    for outcome in on_cpu.values():
        if outcome.fault.startswith("not over"):
            outcome.fault = ""
    for run in outcomes:
        if arguments.rehearse or run.device != "cpu":
            judge(run, outcomes, on_cpu.get(run.network))
    print_table(outcomes)
    failed = any(outcome.fault for outcome in outcomes.values())
    print("FAIL" if failed else "PASS")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
