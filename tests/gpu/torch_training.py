#!/usr/bin/env python3
"""Images/s of one PyTorch process on one GPU, for the networks, the batches of 2
and 4 workers together and the optimizer of training_runs.py; and the loss by
epoch of resnet50, which trains on the same images.

SGD with momentum; float32 without TF32, and bfloat16 by autocast (resnet50 as
channels_last). Exit code 77 without a PyTorch with a GPU; resnet50 needs
torchvision.
"""

import argparse
import pathlib
import sys
import time

import gpu_torch

STEPS = 20
EPOCHS = 3
CLASSES = 10


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
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)]
    return nn.Sequential(*layers)


def unet(torch):
    """Like worker/models/unet.cc."""
    nn = torch.nn

    def two_convolutions(channels_in: int, channels: int):
        layers = []
        for inputs in (channels_in, channels):
            layers += [nn.Conv2d(inputs, channels, 3, padding=1, bias=False),
                       nn.BatchNorm2d(channels), nn.ReLU()]
        return nn.Sequential(*layers)

    class Unet(nn.Module):
        def __init__(self, width: int = 64, classes: int = 4):
            super().__init__()
            widths = [width << stage for stage in range(5)]
            self.encoder = nn.ModuleList(
                two_convolutions(a, b) for a, b in zip([3] + widths, widths))
            self.up = nn.ModuleList(
                nn.ConvTranspose2d(2 * b, b, 2, 2) for b in widths[3::-1])
            self.decoder = nn.ModuleList(
                two_convolutions(2 * b, b) for b in widths[3::-1])
            self.classifier = nn.Conv2d(width, classes, 1)

        def forward(self, x):
            maps = []
            for number, stage in enumerate(self.encoder):
                x = stage(x if number == 0 else
                          nn.functional.max_pool2d(x, 2))
                maps.append(x)
            for number, (up, stage) in enumerate(zip(self.up, self.decoder)):
                x = stage(torch.cat([maps[3 - number], up(x)], 1))
            return self.classifier(x)

    return Unet()


def train_step(torch, model, optimizer, images, labels, bfloat16: bool):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def images_per_second(torch, device: str, model, images, labels,
                      bfloat16: bool, steps: int) -> float:
    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(steps // 4):
        train_step(torch, model, optimizer, images, labels, bfloat16)
    wait()
    begin = time.perf_counter()
    for _ in range(steps):
        train_step(torch, model, optimizer, images, labels, bfloat16)
    wait()
    return steps * len(images) / (time.perf_counter() - begin)


def read_images(torch, folder: pathlib.Path):
    """The training images of the folder as bytes, and their labels."""
    from torchvision.io import read_image  # pylint: disable=import-outside-toplevel
    classes = sorted((folder / "train").iterdir())
    images, labels = [], []
    for label, name in enumerate(classes):
        for path in sorted(name.iterdir()):
            images.append(read_image(str(path)))
            labels.append(label)
    return torch.stack(images), torch.tensor(labels)


def loss_by_epoch(torch, device: str, images, labels, batch: int,
                  bfloat16: bool) -> list[float]:
    """Of a resnet50 with other initial values and another order of images."""
    from torchvision.models import resnet50  # pylint: disable=import-outside-toplevel
    torch.manual_seed(1)
    memory_format = (torch.channels_last if bfloat16 else
                     torch.contiguous_format)
    model = resnet50(num_classes=CLASSES).to(device,
                                             memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9,
                                weight_decay=5e-4)
    losses = []
    for _ in range(EPOCHS):
        total = torch.zeros((), device=device)
        order = torch.randperm(len(images))
        for rows in order.split(batch):
            x = (images[rows].to(device).float() / 255 - 0.5) / 0.25
            total += len(rows) * train_step(
                torch, model, optimizer, x.to(memory_format=memory_format),
                labels[rows].to(device), bfloat16)
        losses.append(float(total) / len(images))
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--images", type=pathlib.Path,
                        help="what images.py wrote, for resnet50")
    parser.add_argument("--rehearse", action="store_true",
                        help="few small steps, on the CPU")
    options = parser.parse_args()
    torch = gpu_torch.load(on_cpu=options.rehearse)
    device = "cpu" if options.rehearse else "cuda"
    steps, share = (4, 16) if options.rehearse else (STEPS, 1)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        import torchvision  # pylint: disable=import-outside-toplevel
    except ImportError:
        torchvision = None
        print("no torchvision here: no resnet50")
    print(f"PyTorch {torch.__version__}, one process: images/s")

    def timed(name, make, batch, shape, label_shape, classes) -> None:
        batch //= share
        for bfloat16 in (False,) if options.rehearse else (False, True):
            last = bfloat16 and name == "resnet50"
            memory_format = (torch.channels_last if last else
                             torch.contiguous_format)
            model = make().to(device, memory_format=memory_format)
            images = torch.randn(batch, *shape, device=device).to(
                memory_format=memory_format)
            labels = torch.randint(classes, (batch, *label_shape),
                                   device=device)
            speed = images_per_second(torch, device, model, images, labels,
                                      bfloat16, steps)
            kind = "bfloat16" if bfloat16 else "float32"
            print(f"  {name:8} batch {batch:4}, {kind:8} {speed:10.0f}",
                  flush=True)

    for batch in (256, 512):
        timed("resnet20", lambda: resnet20(torch), batch, (1, 28, 28), (),
              CLASSES)
    if torchvision is not None:
        for batch in (64, 128):
            timed("resnet50",
                  lambda: torchvision.models.resnet50(num_classes=CLASSES),
                  batch, (3, 224, 224), (), CLASSES)
    for batch in (32, 64):
        timed("unet", lambda: unet(torch), batch, (3, 48, 48), (48, 48), 4)
    if torchvision is not None and options.images is not None:
        images, labels = read_images(torch, options.images)
        print("loss of training, by epoch: resnet50")
        for batch in (64 // share, 128 // share):
            for bfloat16 in (False,) if options.rehearse else (False, True):
                losses = loss_by_epoch(torch, device, images, labels, batch,
                                       bfloat16)
                kind = "bfloat16" if bfloat16 else "float32"
                print(f"  batch {batch:4}, {kind:8} "
                      f"{' '.join(f'{loss:.3f}' for loss in losses)}",
                      flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
