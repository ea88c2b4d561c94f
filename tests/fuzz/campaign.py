#!/usr/bin/env python3
"""Runs the fuzz targets of a build and prints a table of what they did.

A target starts from its own seeds, from the inputs that once failed
(regressions/TARGET) and from what earlier campaigns found worth keeping. Fails
if an input crashes a target, breaks a property, takes too long or needs too
much memory; the input is kept, and the last lines of the target's output say
what is wrong with it.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PREFIX = "cohort-fuzz-"

# A single input, in seconds: ten thousand times what most of them need.
INPUT_SECONDS_MAX = 20
# The largest image that a reader accepts needs 400 MB.
MEMORY_MIB_MAX = 2048
LINES_SHOWN = 60


@dataclasses.dataclass
class Result:
    """What libFuzzer says of one target."""

    target: str
    inputs: int = 0
    per_second: int = 0
    features: int = 0
    corpus: int = 0
    failed: bool = False


def result_of(target: str, output: str, failed: bool) -> Result:
    """Reads libFuzzer's output."""

    def number(pattern: str) -> int:
        found = re.findall(pattern, output)
        return int(found[-1]) if found else 0

    return Result(target=target,
                  inputs=number(r"stat::number_of_executed_units:\s+(\d+)"),
                  per_second=number(r"stat::average_exec_per_sec:\s+(\d+)"),
                  features=number(r"\bft: (\d+)"),
                  corpus=number(r"\bcorp: (\d+)"), failed=failed)


def table(results: list[Result]) -> str:
    """One line a target, and the sum."""
    lines = [f"{'target':<12} {'inputs':>11} {'inputs/s':>9} {'features':>9} "
             f"{'kept':>6}"]
    for r in results:
        lines.append(f"{r.target:<12} {r.inputs:>11} {r.per_second:>9} "
                     f"{r.features:>9} {r.corpus:>6}"
                     f"{'  FAILED' if r.failed else ''}")
    lines.append(f"{'all':<12} {sum(r.inputs for r in results):>11}")
    return "\n".join(lines)


class Campaign:
    """The targets of one build folder."""

    def __init__(self, build: pathlib.Path, seconds: int):
        self.bin = build / "bin"
        self.corpora = build / "corpus"
        self.found = build / "found"
        self.seconds = seconds
        # The packaged protobuf and gRPC fill containers without the
        # sanitizer's book-keeping.
        # Where each block was allocated costs a tenth of the time; the failing
        # input, run alone, tells it.
        options = ["detect_container_overflow=0", "detect_leaks=1",
                   "malloc_context_size=0",
                   os.environ.get("ASAN_OPTIONS", "")]
        self.environment = {**os.environ,
                            "ASAN_OPTIONS": ":".join(filter(None, options))}

    def targets(self) -> list[str]:
        return sorted(path.name.removeprefix(PREFIX)
                      for path in self.bin.glob(f"{PREFIX}*"))

    def run(self, target: str) -> Result:
        program = self.bin / f"{PREFIX}{target}"
        corpus = self.corpora / target
        corpus.mkdir(parents=True, exist_ok=True)
        self.found.mkdir(exist_ok=True)
        subprocess.run([program, f"--write_seeds={corpus}"], check=True,
                       env=self.environment)
        limit = subprocess.run([program, "--input_bytes_max"], check=True,
                               env=self.environment, capture_output=True,
                               text=True).stdout.strip()
        regressions = HERE / "regressions" / target
        done = subprocess.run(
            [program, corpus, *([regressions] if regressions.exists() else []),
             f"-max_total_time={self.seconds}", f"-max_len={limit}",
             f"-timeout={INPUT_SECONDS_MAX}",
             f"-rss_limit_mb={MEMORY_MIB_MAX}", "-print_final_stats=1",
             # Its book-keeping for each input took most of the time of core.
             "-entropic=0",
             f"-artifact_prefix={self.found}/{target}-"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env=self.environment, check=False)
        output = done.stdout.decode(errors="replace")
        (self.found / f"{target}.log").write_text(output)
        if done.returncode != 0:
            print("\n".join(output.splitlines()[-LINES_SHOWN:]), flush=True)
        return result_of(target, output, done.returncode != 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True,
                        help="a build of the preset fuzz")
    parser.add_argument("--seconds", type=int, default=60,
                        help="of each target")
    parser.add_argument("targets", nargs="*", help="all if none is named")
    arguments = parser.parse_args()
    campaign = Campaign(arguments.build.resolve(), arguments.seconds)
    known = campaign.targets()
    if not known or not set(arguments.targets) <= set(known):
        parser.error(f"got {arguments.targets}, want some of {known}")
    results = []
    for target in arguments.targets or known:
        print(f"{target}: {arguments.seconds} s", flush=True)
        results.append(campaign.run(target))
    print(table(results))
    failed = [r.target for r in results if r.failed]
    if failed:
        print(f"failed: {', '.join(failed)}; the inputs are in "
              f"{campaign.found}. Mend the fault and put the input into "
              "tests/fuzz/regressions/TARGET.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
