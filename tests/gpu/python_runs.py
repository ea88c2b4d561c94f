#!/usr/bin/env python3
"""The Python front-end on a GPU: tests of tests/python there, and images/s.

The tests are those of parity with float64, of kills and of torch.compile. The
table compares processes that share the GPU, all with the same network and as
many images a process: one PyTorch process with the batch of two; two of
DistributedDataParallel over gloo, with its batch norm a process and with
SyncBatchNorm; two workers of Cohort, compiled and not; and one of each. Ends
with PASS or FAIL; exit code 0, 1 or 77.

COHORT_BIN_DIR and PYTHONPATH name the programs and the package cohort.
"""

import argparse
import os
import pathlib
import socket
import subprocess
import sys
import time

import gpu_torch

TESTS = pathlib.Path(__file__).resolve().parents[1] / "python"
# Each process needs seconds to load torch, so these are few.
CHOSEN = ("parity_test.Parity.test_uneven_batches",
          "parity_test.Parity.test_groups_and_a_schedule",
          "faults_test.Faults.test_killed_workers_leave_no_trace")
# With a cold cache of the compiler, a minute.
COMPILED = ("compile_test.Compile.test_generated_code",)
CLASSES = 10


class Setting:
    """What each process computes."""

    def __init__(self, rehearse: bool, bfloat16: bool, compiled: bool = False):
        self.device = "cpu" if rehearse else "cuda"
        self.batch, self.size, self.steps = (
            (2, 32, 4) if rehearse else (32, 224, 30))
        self.bfloat16 = bfloat16
        self.compiled = compiled

    def model(self):
        import torch
        from torchvision.models import resnet50
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.manual_seed(1)
        return resnet50(num_classes=CLASSES).to(self.device)

    def data(self, batch: int):
        """One batch, and the type of the arithmetic."""
        import torch
        x = torch.randn(batch, 3, self.size, self.size, device=self.device)
        y = torch.randint(CLASSES, (batch,), device=self.device)
        return x, y, torch.autocast(self.device, torch.bfloat16,
                                    enabled=self.bfloat16)

    def seconds(self, step) -> float:
        """Of the steps behind the first few."""
        import torch
        for _ in range(self.steps // 3):
            step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(self.steps):
            step()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin


def of_torch(setting: Setting, model, batch: int) -> float:
    """Seconds of the steps that torch makes itself."""
    import torch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y, autocast = setting.data(batch)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with autocast:
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return setting.seconds(step)


def plain(setting: Setting, batch: int) -> float:
    return of_torch(setting, setting.model(), batch)


def of_cohort(rank: int, address: str, setting: Setting) -> float:
    import torch
    import cohort
    model = setting.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    job = cohort.join(model, optimizer, server=address, rank=rank,
                      log_level="error")
    run = torch.compile(model) if setting.compiled else model
    x, y, autocast = setting.data(setting.batch)
    batches = iter(job.data(((x, y) for _ in iter(int, 1)),
                            batch_size=setting.batch))

    def train(images, labels):
        with autocast:
            loss = torch.nn.functional.cross_entropy(run(images), labels)
        job.backward(loss)
        job.step()

    elapsed = setting.seconds(lambda: train(*next(batches)))
    # Until the other has also measured.
    for images, labels in batches:
        train(images, labels)
    return elapsed


def of_ddp(rank: int, port: int, setting: Setting, workers: int,
           synchronised: bool) -> float:
    import torch
    from torch import distributed
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}",
                                   rank=rank, world_size=workers)
    model = setting.model()
    if synchronised:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = torch.nn.parallel.DistributedDataParallel(model)
    elapsed = of_torch(setting, model, setting.batch)
    distributed.barrier()
    distributed.destroy_process_group()
    return elapsed


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def compare(rehearse: bool, end: float) -> bool:
    """Prints images/s of all sides; whether each of them ran."""
    from ranks import Rank, run
    passed = True

    def show(name: str, images: int, measure) -> None:
        nonlocal passed
        if time.monotonic() > end:
            # What was not measured has not passed.
            passed = False
            print(f"  {name:52} no time was left", flush=True)
            return
        try:
            print(f"  {name:52} {images / measure():8.1f}", flush=True)
        except AssertionError as error:
            passed = False
            print(f"  {name:52} failed\n{error}", flush=True)
        finally:
            Rank.kill_all()

    def cohort_side(setting: Setting, workers: int) -> float:
        steps = setting.steps + setting.steps // 3 + 1
        return max(run(of_cohort, workers, setting,
                       flags=[f"--max_steps={steps}"]))

    def ddp_side(setting: Setting, workers: int, synchronised: bool) -> float:
        port = free_port()
        ranks = [Rank(of_ddp, rank, port, setting, workers, synchronised)
                 for rank in range(workers)]
        return max(rank.result() for rank in ranks)

    print("resnet50, processes that share one GPU: images/s")
    for bfloat16 in (False,) if rehearse else (False, True):
        setting = Setting(rehearse, bfloat16)
        compiled = Setting(rehearse, bfloat16, compiled=True)
        kind = "bfloat16" if bfloat16 else "float32"
        for workers in (2, 1):
            images = workers * setting.batch * setting.steps
            show(f"{kind}, PyTorch, one process of {workers * setting.batch}",
                 images, lambda s=setting, w=workers: plain(s, w * s.batch))
            show(f"{kind}, Cohort, {workers} x {setting.batch}", images,
                 lambda s=setting, w=workers: cohort_side(s, w))
            show(f"{kind}, DDP over gloo, {workers} x {setting.batch}", images,
                 lambda s=setting, w=workers: ddp_side(s, w, False))
            # SyncBatchNorm has no CPU side, and is plain batch norm alone.
            if workers > 1 and not rehearse:
                show(f"{kind}, DDP over gloo and SyncBatchNorm, {workers} x "
                     f"{setting.batch}", images,
                     lambda s=setting, w=workers: ddp_side(s, w, True))
        if not rehearse:
            show(f"{kind}, Cohort, compiled, 1 x {setting.batch}",
                 setting.batch * setting.steps,
                 lambda s=compiled: cohort_side(s, 1))
    return passed


def run_tests(names: tuple[str, ...], device: str, limit_s: float) -> bool:
    """Whether these tests of the front-end pass on the device."""
    print(f"{', '.join(names)} on {device}", flush=True)
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "unittest", "-v", *names], cwd=TESTS,
            env={**os.environ, "TEST_DEVICE": device}, check=False,
            timeout=limit_s)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        print(f"not over after {limit_s:.0f} s")
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rehearse", action="store_true",
                        help="a few small steps, on the CPU")
    parser.add_argument("--limit_s", type=float, default=180)
    options = parser.parse_args()
    gpu_torch.load(on_cpu=options.rehearse)
    end = time.monotonic() + options.limit_s
    sys.path[:0] = [str(TESTS), str(TESTS.parent / "integration")]
    device = "cpu" if options.rehearse else "cuda"
    passed = run_tests(CHOSEN, device, options.limit_s / 3)
    passed &= compare(options.rehearse, end - options.limit_s / 4)
    passed &= run_tests(COMPILED, device, max(10.0, end - time.monotonic()))
    print("PASS" if passed else "FAIL")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
