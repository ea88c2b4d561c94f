#!/usr/bin/env python3
"""Images/s of one PyTorch process that trains the same resnet20 on one GPU.

Random images of the size of `synthetic`, SGD with momentum, batches as large as
those of 2 and 4 workers together; float32 without TF32, and bfloat16 by
autocast. Exit code 77 without a PyTorch with a GPU.
"""

import sys
import time

EXIT_SKIPPED = 77
BATCH_SIZES = (256, 512)
STEPS = 60


def resnet20(torch):
    """Like worker/models/resnet.cc: shortcuts without parameters."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, channels_in: int, channels: int, stride: int):
            super().__init__()
            self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1,
                                   bias=False)
            self.bn1 = nn.BatchNorm2d(channels)
            self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(channels)
            self.stride = stride
            self.added = channels - channels_in

        def forward(self, x):
            y = self.bn1(self.conv1(x)).relu()
            y = self.bn2(self.conv2(y))
            shortcut = nn.functional.pad(
                x[:, :, ::self.stride, ::self.stride],
                (0, 0, 0, 0, 0, self.added))
            return (y + shortcut).relu()

    layers = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16),
              nn.ReLU()]
    channels_in = 16
    for stage in range(3):
        for block in range(3):
            channels = 16 << stage
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Block(channels_in, channels, stride))
            channels_in = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*layers)


def images_per_second(torch, batch_size: int, bfloat16: bool) -> float:
    model = resnet20(torch).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch_size, 1, 28, 28, device="cuda")
    labels = torch.randint(10, (batch_size,), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return STEPS * batch_size / (time.perf_counter() - begin)


def main() -> int:
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError:
        print("skipped: no PyTorch here")
        return EXIT_SKIPPED
    if not torch.cuda.is_available():
        print("skipped: PyTorch finds no GPU here")
        return EXIT_SKIPPED
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"PyTorch {torch.__version__}, resnet20, one process: images/s")
    for batch_size in BATCH_SIZES:
        for bfloat16 in (False, True):
            speed = images_per_second(torch, batch_size, bfloat16)
            name = "bfloat16" if bfloat16 else "float32"
            print(f"  batch {batch_size}, {name:8} {speed:10.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
