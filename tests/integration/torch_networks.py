"""Networks as a PyTorch user writes them, for torchscript_test.py.

  torch_networks.py export NETWORK FILE           TorchScript, by scripting
  torch_networks.py trace NETWORK FILE            TorchScript, by tracing
  torch_networks.py mixed NETWORK FILE            a trace around scripted
                                                  batch norms
  torch_networks.py evaluate NETWORK WEIGHTS DIR  prints {"loss", "accuracy"}

DIR holds the MNIST files of the run. Needs PyTorch.
"""

import gzip
import json
import struct
import sys

import torch
import torch.nn.functional as F
from safetensors_file import entries
from torch import nn

CLASSES = 10


class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(
                nn.Conv2d(inplanes, planes, 1, stride, bias=False),
                nn.BatchNorm2d(planes))

    def forward(self, x):
        identity = x
        if self.downsample is not None:
            identity = self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + identity)


class ResNet(nn.Module):
    """ResNet-18 in the layout and the names of torchvision."""

    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inplanes = width
        for number in range(4):
            planes = width << number
            setattr(self, f"layer{number + 1}", nn.Sequential(
                BasicBlock(inplanes, planes, 1 if number == 0 else 2),
                BasicBlock(planes, planes, 1)))
            inplanes = planes
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inplanes, CLASSES)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class DoubleConv(nn.Sequential):
    def __init__(self, inplanes, planes):
        super().__init__(
            nn.Conv2d(inplanes, planes, 3, padding=1, bias=False),
            nn.BatchNorm2d(planes, eps=1e-3, momentum=None),
            nn.ReLU(),
            nn.Conv2d(planes, planes, 3, padding=1, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU())


class UNet(nn.Module):
    """Scores of the pixels, averaged: a class for each image."""

    def __init__(self, width):
        super().__init__()
        self.down = nn.ModuleList([DoubleConv(1, width)])
        self.up = nn.ModuleList()
        self.decode = nn.ModuleList()
        for level in range(3):
            planes = width << level
            self.down.append(DoubleConv(planes, 2 * planes))
            self.up.insert(0, nn.ConvTranspose2d(2 * planes, planes, 2, 2))
            self.decode.insert(0, DoubleConv(2 * planes, planes))
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Conv2d(width, CLASSES, 1)
        # A buffer: no parameter, but part of the state dict.
        self.register_buffer("scale", torch.full((1,), 4.0))

    def forward(self, x):
        skips = []
        for number, stage in enumerate(self.down):
            if number > 0:
                x = F.max_pool2d(x, 2)
            x = stage(x)
            skips.append(x)
        skips.pop()
        for up, decode in zip(self.up, self.decode):
            x = up(x)
            skip = skips.pop()
            x = F.pad(x, (0, skip.size(3) - x.size(3),
                          0, skip.size(2) - x.size(2)))
            x = decode(torch.cat((skip, x), 1))
        logits = self.out(self.dropout(x)) * self.scale
        return {"out": logits.mean((2, 3)), "pixels": logits}


class ScaledNorm(nn.BatchNorm2d):
    """A subclass with another forward, which counts no batches."""

    def forward(self, x):
        return 2.0 * F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias,
            self.training, 0.2, self.eps)


class Routed(nn.Module):
    """Images with a bright top take another way, so workers without any leave
    out a batch norm. `twice`: they also call the last one once less."""

    def __init__(self, width, twice):
        super().__init__()
        self.twice = twice
        self.conv1 = nn.Conv2d(1, width, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bright = ScaledNorm(width)
        self.last = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, CLASSES)

    def forward(self, x):
        chosen = x[:, 0, :3].mean((1, 2)) > 0.5
        x = torch.relu(self.bn1(self.conv1(x)))
        if bool(chosen.any()):
            other = self.bright(self.conv2(x[chosen]))
            if self.twice:
                other = self.last(other)
            x = x.masked_scatter(chosen[:, None, None, None], other)
        return self.fc(torch.relu(self.last(x)).mean((2, 3)))


NETWORKS = {
    "resnet": lambda: ResNet(8),
    "routed": lambda: Routed(6, twice=False),
    "unequal": lambda: Routed(6, twice=True),
    "resnet18": lambda: ResNet(64),
    "unet": lambda: UNet(4),
}


def read_safetensors(path):
    types = {"F32": torch.float32, "I64": torch.int64}
    return {name: torch.frombuffer(bytearray(content), dtype=types[entry["dtype"]])
            .reshape(entry["shape"]) for name, entry, content in entries(path)}


def read_idx(path):
    with gzip.open(path, "rb") as file:
        content = file.read()
    dimensions = content[3]
    extents = struct.unpack(f">{dimensions}I",
                            content[4:4 + 4 * dimensions])
    values = torch.frombuffer(bytearray(content[4 + 4 * dimensions:]),
                              dtype=torch.uint8)
    return values.reshape(extents)


def evaluate(network, weights, folder):
    network.load_state_dict(read_safetensors(weights), strict=True)
    network.double().eval()
    train = read_idx(f"{folder}/train-images-idx3-ubyte.gz").double()
    images = read_idx(f"{folder}/t10k-images-idx3-ubyte.gz").double()
    labels = read_idx(f"{folder}/t10k-labels-idx1-ubyte.gz").long()
    images = (images - train.mean()) / train.std(unbiased=False)
    with torch.no_grad():
        logits = network(images.unsqueeze(1))
    if isinstance(logits, dict):
        logits = logits["out"]
    return {"loss": F.cross_entropy(logits, labels).item(),
            "accuracy": (logits.argmax(1) == labels).double().mean().item()}


def main():
    verb, network_name, path = sys.argv[1:4]
    torch.manual_seed(1)
    torch.set_num_threads(1)
    network = NETWORKS[network_name]()
    if verb == "export":
        torch.jit.script(network).save(path)
    elif verb == "mixed":
        for module in list(network.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.BatchNorm2d):
                    setattr(module, name, torch.jit.script(child))
        torch.jit.trace(network, torch.zeros(2, 1, 56, 56),
                        check_trace=False).save(path)
    elif verb == "trace":
        torch.jit.trace(network.eval(), torch.zeros(1, 1, 28, 28)).save(path)
    else:
        print(json.dumps(evaluate(network, path, sys.argv[4])))


if __name__ == "__main__":
    main()
