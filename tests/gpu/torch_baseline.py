#!/usr/bin/env python3
"""Compares PyTorch's own sync-BN kernels with cohort_cuda_bench's results.

Reads the file that cohort_cuda_bench --csv wrote, times batch_norm_stats +
batch_norm_elemt and batch_norm_backward_reduce + batch_norm_backward_elemt on
tensors of the same shapes, and prints how many times faster Cohort's kernels
are. Ends with PASS or FAIL; exit code 0, or 1 if a goal was missed, and 77
without a PyTorch with a GPU.
"""

import argparse
import pathlib
import re
import statistics
import sys
from collections.abc import Callable

import gpu_torch

GOAL_RATIO = 1.5
TENSOR = re.compile(r"(float32|bfloat16) (contiguous|channels_last) "
                    r"\[(\d+), (\d+), (\d+), (\d+)\]")


def median_seconds(torch, work: Callable[[], object], rounds: int) -> float:
    """Median time of work on the device, all of it queued before it begins."""
    for _ in range(3):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(
        before.elapsed_time(after) * 1e-3
        for before, after in zip(marks, marks[1:]))


class Layer:
    """One batch-norm layer's tensors, and PyTorch's operations on them."""

    def __init__(self, torch, match: re.Match[str]):
        dtype, layout, *sizes = match.groups()
        memory_format = (torch.channels_last if layout == "channels_last"
                         else torch.contiguous_format)

        def new():
            tensor = torch.randn([int(size) for size in sizes], device="cuda")
            return tensor.to(getattr(torch, dtype),
                             memory_format=memory_format)

        self.torch = torch
        self.x, self.dy = new(), new()
        channels = int(sizes[1])
        self.weight = torch.rand(channels, device="cuda")
        self.bias = torch.rand(channels, device="cuda")
        self.mean, self.invstd = torch.batch_norm_stats(self.x, 1e-5)
        self.count = torch.tensor([self.x.numel() // channels], device="cuda",
                                  dtype=torch.int32)

    def forward(self):
        mean, invstd = self.torch.batch_norm_stats(self.x, 1e-5)
        return self.torch.batch_norm_elemt(
            self.x, self.weight, self.bias, mean, invstd, 1e-5)

    def backward(self):
        sum_dy, sum_dy_xmu, _, _ = self.torch.batch_norm_backward_reduce(
            self.dy, self.x, self.mean, self.invstd, self.weight, True, True,
            True)
        return self.torch.batch_norm_backward_elemt(
            self.dy, self.x, self.mean, self.invstd, self.weight, sum_dy,
            sum_dy_xmu, self.count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--csv", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch = gpu_torch.load()
    print(f"{'work':<10} {'tensor':<46} {'PyTorch us':>10} {'Cohort us':>10} "
          f"{'ratio':>6} goal")
    missed = judged = 0
    for line in options.csv.read_text(encoding="utf-8").splitlines():
        work, tensor, seconds = line.split(";")
        match = TENSOR.fullmatch(tensor)
        if work not in ("forward", "backward") or match is None:
            continue
        theirs = median_seconds(torch, getattr(Layer(torch, match), work),
                                options.rounds)
        ratio = theirs / float(seconds)
        judged += 1
        missed += ratio < GOAL_RATIO
        print(f"{work:<10} {tensor:<46} {theirs * 1e6:>10.1f} "
              f"{float(seconds) * 1e6:>10.1f} {ratio:>6.2f} "
              f"{'MISSED' if ratio < GOAL_RATIO else 'met'}")
    if judged == 0:
        print(f"FAIL: {options.csv} holds nothing to compare")
        return 1
    print(f"{'FAIL' if missed else 'PASS'}: {judged - missed} of {judged} "
          f"goals of {GOAL_RATIO} times PyTorch's speed are met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
