"""Small networks and data for the tests of the front-end."""

import array
import hashlib
import itertools
import os

import torch
from torch import nn

import cohort
from cohort import _core

CLASSES = 4
# Where the scripts of parity_test, faults_test and compile_test compute. The
# programs refuse variables COHORT_* that they do not know.
DEVICE = os.environ.get("TEST_DEVICE", "cpu")


class Shapes(torch.utils.data.Dataset):
    """Images [1, 12, 12] whose brightness is the class. With `noise`, each
    reading draws random numbers, as augmentation does."""

    def __init__(self, size, noise=0.0):
        generator = torch.Generator().manual_seed(1)
        self._labels = torch.randint(0, CLASSES, (size,), generator=generator)
        self._images = (torch.randn(size, 1, 12, 12, generator=generator) +
                        self._labels.view(-1, 1, 1, 1).float())
        self._noise = noise

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, index):
        image = self._images[index]
        if self._noise:
            image = image + self._noise * torch.randn(image.shape)
        return image, self._labels[index]


def three_batch_norms(dropout=0.0):
    """Smooth activations, as the sign of a ReLU's input would depend on
    rounding; and no bias before a batch norm, as its gradient is 0 but for
    rounding, which Adam would blow up."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6), nn.Tanh(),
        nn.Conv2d(6, 6, 3, bias=False), nn.BatchNorm2d(6), nn.Tanh(),
        nn.Dropout(dropout), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))


def joined(address, model=None, *, lr=0.01, momentum=0.0, **options):
    """A model with SGD that has joined a run, and its job."""
    model = three_batch_norms() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return model, cohort.join(model, optimizer, server=address,
                              **{"log_level": "error", **options})


def step(model, job, batch):
    """One training step."""
    x, y = batch
    job.backward(nn.functional.cross_entropy(model(x), y))
    return job.step()


def samples_of_steps(seed, size, count):
    """By step, for ever: the indices of its samples in the server's order, `count`
    of them or the rest of an epoch."""
    for epoch in itertools.count():
        order = array.array("q", _core.permutation(seed, epoch, size))
        for begin in range(0, size, count):
            yield order[begin:begin + count]


def digest(state):
    """SHA-256 of everything in a state dict."""
    total = hashlib.sha256()
    for name, value in state.items():
        total.update(name.encode())
        total.update(value.cpu().numpy().tobytes())
    return total.hexdigest()


def distance(ours, wanted):
    """Relative 2-norm of the difference."""
    ours, wanted = ours.double(), wanted.double()
    return float((ours - wanted).norm() / wanted.norm().clamp(min=1e-30))
