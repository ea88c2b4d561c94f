#!/usr/bin/env python3
"""Benches of the CUDA kernels with other numbers in kernels/cuda/tuning.h.

    variants.py build DIR VARIANT...   builds a bench of each, without a GPU too
    variants.py run DIR                runs them there: a line a shape, a column
                                       a variant

A VARIANT is what differs, such as kLoadsInFlight=4, or several with commas.
The bench of today's numbers is always built, as `base`. DIR is a folder that
tests/gpu/run --bundle wrote: the benches use its libraries. The table shows the
share of a device copy's bandwidth. The better numbers go into tuning.h, whose
tests then show that the results are right.
"""

import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TUNING = pathlib.Path("kernels/cuda/tuning.h")
BUILD = SOURCE / "build/gpu-variants"
EXIT_SKIPPED = 77
# A line of the bench's table: work and tensor, us, GB/s, share.
LINE = re.compile(r"(\S.*?\])\s+[\d.]+\s+\d+\s+([\d.]+)%")
NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def changed(text: str, variant: str) -> str:
    """tuning.h with the numbers of a variant. Exits if it has no such name."""
    for change in filter(None, variant.split(",")):
        name, _, value = change.partition("=")
        text, found = re.subn(rf"(constexpr \w+ {re.escape(name)} = )[^;]+;",
                              rf"\g<1>{value};", text)
        if found != 1 or not value:
            sys.exit(f"variants: got '{change}', want NAME=NUMBER of {TUNING}")
    return text


def build(folder: pathlib.Path, variants: list[str],
          architectures: str) -> None:
    text = (SOURCE / TUNING).read_text(encoding="utf-8")
    texts = {variant: changed(text, "" if variant == "base" else variant)
             for variant in ["base", *variants]}
    overlay = BUILD / "include"
    # Found before the sources' own, in quotes.
    subprocess.run(
        ["cmake", "-S", SOURCE, "-B", BUILD, "-G", "Ninja",
         "-DCMAKE_BUILD_TYPE=Release", "-DCOHORT_BUILD_WORKER=OFF",
         f"-DCOHORT_CUDA_ARCHITECTURES={architectures}",
         f"-DCMAKE_CUDA_COMPILER={NVCC}",
         "-DCMAKE_BUILD_RPATH=$ORIGIN",
         "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags",
         f"-DCMAKE_CXX_FLAGS=-iquote {overlay}",
         f"-DCMAKE_CUDA_FLAGS=-Xcompiler -iquote -Xcompiler {overlay}"],
        check=True, stdout=subprocess.DEVNULL)
    for variant, content in texts.items():
        file = overlay / TUNING
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
        print(f"{variant} ...", flush=True)
        subprocess.run(["cmake", "--build", BUILD, "--parallel",
                        str(os.cpu_count()), "--target", "cohort_cuda_bench"],
                       check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["strip", "-o", folder / f"bench:{variant}",
                        BUILD / "bin/cohort_cuda_bench"], check=True)


def shares(output: str) -> dict[str, float]:
    """The shares in a bench's table, by work and tensor."""
    matches = map(LINE.match, output.splitlines())
    return {" ".join(m.group(1).split()): float(m.group(2))
            for m in matches if m}


def run(folder: pathlib.Path, rounds: int) -> int:
    benches = sorted(folder.glob("bench:*"),
                     key=lambda path: (path.name != "bench:base", path.name))
    if not benches:
        sys.exit(f"variants: {folder} has no benches, want what build wrote")
    columns: list[dict[str, float]] = []
    for bench in benches:
        done = subprocess.run([bench, f"--rounds={rounds}"],
                              capture_output=True, text=True, check=False)
        if done.returncode == EXIT_SKIPPED:
            print(done.stdout.strip())
            return EXIT_SKIPPED
        columns.append(shares(done.stdout))
        print(f"{len(columns):2}: {bench.name.partition(':')[2]}")
        if done.returncode not in (0, 1):
            print(f"failed: {done.stdout[-500:]} {done.stderr[-500:]}")
    works = list(columns[0])
    print(f"{'share of a device copy, %':64}" +
          "".join(f"{number + 1:7}" for number in range(len(columns))))
    for work in works:
        print(f"{work:64}" + "".join(
            f"{column[work]:7.1f}" if work in column else f"{'-':>7}"
            for column in columns))
    for name, of in (("median", statistics.median), ("lowest", min)):
        print(f"{name:64}" + "".join(
            f"{of(column.values()):7.1f}" if column else f"{'-':>7}"
            for column in columns))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("folder", type=pathlib.Path)
    building.add_argument("variants", nargs="+")
    building.add_argument("--architectures", default="90")
    running = commands.add_parser("run")
    running.add_argument("folder", type=pathlib.Path)
    running.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    if options.command == "run":
        return run(options.folder, options.rounds)
    if not pathlib.Path(NVCC).exists():
        sys.exit("variants: no nvcc here, want CUDA 13")
    if not (options.folder / "cohort_cuda_bench").exists():
        sys.exit(f"variants: {options.folder} has no bundle, want the folder of "
                 "tests/gpu/run --bundle=DIR")
    build(options.folder, options.variants, options.architectures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
