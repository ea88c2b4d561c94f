"""With Debian's torch, the bits of cohort-worker: the same network, data, seed
and threads."""

import json
import math
import struct
import subprocess
import unittest

import torch
from torch import nn

from networks import joined
from ranks import BIN, Server
from safetensors_file import tensors_of

# Whole steps of 16, so that both divide by a power of two.
SAMPLES = 64


def images():
    """Bytes [n, 1, 28, 28] and labels."""
    generator = torch.Generator().manual_seed(2)
    return (torch.randint(0, 256, (SAMPLES, 1, 28, 28), generator=generator,
                          dtype=torch.uint8),
            torch.randint(0, 10, (SAMPLES,), generator=generator))


class Images(torch.utils.data.Dataset):
    """The images as cohort-worker normalises them: exact integer sums."""

    def __init__(self):
        pixels, self.labels = images()
        total, squares = (int(values.sum()) for values in
                          (pixels.long(), pixels.long().square()))
        mean = total / pixels.numel()
        deviation = math.sqrt(squares / pixels.numel() - mean * mean)
        self.images = ((pixels.double() - mean) / deviation).float()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Smooth(nn.Module):
    """The built-in network of this name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        for number, (inputs, outputs) in enumerate(((1, 8), (8, 16), (16, 16)),
                                                   start=1):
            setattr(self, f"conv{number}",
                    nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))
            setattr(self, f"bn{number}", nn.BatchNorm2d(outputs))
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = torch.tanh(self.bn1(self.conv1(x)))
        x = nn.functional.avg_pool2d(x, 2)
        x = torch.tanh(self.bn2(self.conv2(x)))
        x = nn.functional.avg_pool2d(x, 2)
        x = torch.tanh(self.bn3(self.conv3(x)))
        return self.fc(x.mean((2, 3)))


def write_idx(folder):
    """The images as files of MNIST's format, train and test alike."""
    pixels, labels = images()
    for split in ("train", "t10k"):
        (folder / f"{split}-images-idx3-ubyte").write_bytes(
            struct.pack(">iiii", 0x803, SAMPLES, 28, 28) +
            pixels.numpy().tobytes())
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(
            struct.pack(">ii", 0x801, SAMPLES) +
            labels.to(torch.uint8).numpy().tobytes())


def write_safetensors(path, state):
    header, data = {}, b""
    for name, value in state.items():
        raw = value.numpy().tobytes()
        header[name] = {
            "dtype": {torch.float32: "F32", torch.int64: "I64"}[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def train(rank, address):
    model, job = joined(address, Smooth(), lr=0.1, momentum=0.9,
                        local="shm" if rank == 0 else "tcp")
    for x, y in job.data(Images(), batch_size=8):
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
        job.backward(loss, weight=len(y), reduction="sum")
        job.step()
    return rank


class WorkerBits(unittest.TestCase):
    FLAGS = ["--epochs=2", "--seed=5", "--optimizer=momentum",
             "--learning_rate=0.1", "--momentum=0.9", "--weight_decay=0",
             "--schedule=constant"]

    def trained(self, start):
        with Server(2, *self.FLAGS) as server:
            start(server)
            server.complete()
            return tensors_of(server.results / "model.safetensors")

    def test_both_front_ends_make_the_same_model(self):
        def with_python(server):
            server.call(train)

        def with_cpp(server):
            write_idx(server.dir)
            write_safetensors(server.dir / "init.safetensors",
                              Smooth().state_dict())
            workers = [subprocess.Popen(
                [BIN / "cohort-worker", f"--server={server.address}",
                 f"--rank={rank}", "--model=smooth", "--dataset=mnist",
                 f"--data_dir={server.dir}", "--batch_size=8", "--threads=1",
                 f"--init={server.dir / 'init.safetensors'}",
                 "--augment=none"], stderr=subprocess.PIPE, text=True)
                for rank in range(2)]
            for worker in workers:
                text = worker.communicate(timeout=120)[1]
                self.assertEqual(worker.returncode, 0, text)

        wanted = self.trained(with_cpp)
        ours = self.trained(with_python)
        self.assertEqual(ours.keys(), wanted.keys())
        for name, value in wanted.items():
            self.assertEqual(ours[name], value, name)


if __name__ == "__main__":
    unittest.main()
