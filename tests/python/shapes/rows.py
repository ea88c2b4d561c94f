"""The table: rows, and the small models that they train."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from shapes.script import Script

# Seconds after which a row counts as stuck; those of one that is compiled.
PATIENCE = 20.0
PATIENCE_TO_COMPILE = 120.0

SIZES = {2: (3, 5), 3: (2, 3, 4)}
TWO = {2: (3, 5)}


@dataclasses.dataclass(frozen=True)
class Refusal:
    """An error of the package that a row has to end with.

    Attributes:
        error: the class, or a base of it.
        words: what its text has to contain.
    """
    error: str
    words: tuple[str, ...]

    def matches(self, classes: Sequence[str], text: str) -> bool:
        return self.error in classes and all(
            word.lower() in text.lower() for word in self.words)


@dataclasses.dataclass(frozen=True)
class Row:
    """One training shape.

    Attributes:
        script: the training script.
        sizes: by number of workers, the samples of each rank's batches.
        steps: of the run.
        flags: of the server.
        refused: the error that it ends with; None: its numbers are right.
        or_right: right numbers are as good as the error.
        needs: what the installed torch must have, such as "func".
        patience: seconds after which it counts as stuck.
        survives: its numbers are right, too, if a worker is replaced.
    """
    name: str
    script: Callable[[Script], None]
    sizes: Mapping[int, Sequence[int]]
    steps: int = 3
    flags: Sequence[str] = ()
    refused: Refusal | None = None
    or_right: bool = False
    needs: str = ""
    patience: float = PATIENCE
    survives: bool = False


TABLE: dict[str, Row] = {}


def row(*, sizes: Mapping[int, Sequence[int]] = SIZES, needs: str = "",
        **options: Any) -> Any:
    """Adds a function to the table: its numbers are those of one process. The
    options are those of Row."""
    patience = PATIENCE_TO_COMPILE if needs == "compile" else PATIENCE

    def add(script: Callable[[Script], None]) -> Callable[[Script], None]:
        name = script.__name__
        assert name not in TABLE, name
        TABLE[name] = Row(name, script, sizes, needs=needs, patience=patience, **options)
        return script
    return add


def refused(error: str, *words: str, or_right: bool = False, **options: Any) -> Any:
    """Adds a function that has to end with an error of this class and these
    words; with `or_right`, with right numbers instead."""
    options.setdefault("sizes", SIZES if or_right else TWO)
    return row(refused=Refusal(error, words), or_right=or_right, **options)


# ---- models

CHANNELS = 4


class Net(nn.Module):
    """Two convolutions and batch norms, and a linear head. Smooth activations: a
    ReLU's sign at rounding distance from 0 would differ."""

    def __init__(self, norm: Callable[..., nn.Module] = nn.BatchNorm2d,
                 **options: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv1 = nn.Conv2d(3, CHANNELS, 3, bias=False)
        self.norm1 = norm(CHANNELS, **options)
        self.conv2 = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
        self.norm2 = norm(CHANNELS, **options)
        self.head = nn.Linear(CHANNELS, 2)

    def first(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm1(self.conv1(x)))

    def second(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm2(self.conv2(x)))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))

    def out(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.mean((2, 3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.features(x))


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    # The decay shows which parameters have no gradient.
    return torch.optim.SGD(model.parameters(), **{
        "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, **options})


def started(t: Script, model: nn.Module | None = None, **options: Any) -> Any:
    """A model that has joined, with SGD."""
    model = t.model(model if model is not None else Net())
    t.join(model, sgd(model, **options))
    return model


def error_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The mean over samples of a smooth loss."""
    return (out - y).square().sum(1).mean()


def train(t: Script, loss: torch.Tensor, **options: Any) -> None:
    t.backward(loss, **options)
    t.step()


def steps(t: Script, model: nn.Module | None = None, saliency: bool = False,
          **options: Any) -> Iterator[tuple[Any, torch.Tensor, torch.Tensor]]:
    """A model that has joined, with SGD, and the batch of each step; with
    `saliency` the input gets gradients, too."""
    model = started(t, model, **options)
    for x, y in t.data():
        yield model, x.requires_grad_() if saliency else x, y


def one_step_each(t: Script, model: nn.Module) -> None:
    """A step for each batch, of a model that has joined."""
    for x, y in t.data():
        train(t, error_of(model(x), y))


def trained(t: Script, model: nn.Module | None = None, **options: Any) -> None:
    """Every step of the plainest training."""
    one_step_each(t, started(t, model, **options))
