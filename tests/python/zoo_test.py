#!/usr/bin/env python3
"""Networks of torchvision, timm and segmentation-models-pytorch: two workers with
uneven batches train them as one process does.

usage: zoo_test.py [--together=N] [--verbose] [NETWORK...]

Three steps each; the change of the weights, and the statistics, have to be as near
to float64 as 20 times one float32 process is. Prints a line for each network, as shapes_test.py.
"""

import os

# One thread a process; before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import copy
import functools
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence

import segmentation_models_pytorch
import timm
import torch
import torchvision
from torch import nn

import shapes_test
from shapes import rows, runner
from shapes.script import Script
from zoo import networks

assert all((segmentation_models_pytorch, timm, torchvision))

# A network takes up to a minute of one core.
PATIENCE = 300.0


def rate_of(model: nn.Module, shape: Sequence[int]) -> float:
    """The power of ten by which a step changes the weights by about a thousandth.
    Gradients of random weights are of any size, and large steps are chaotic: then
    float32 is no better than chance."""
    other = copy.deepcopy(model)
    kind = next(other.parameters()).dtype
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(5))
    rows.error_of(networks.outputs_of(other(x.to(kind))),
                  torch.ones(5, 2, dtype=kind)).backward()
    weights = [p for p in other.parameters() if p.grad is not None]
    size, gradient = (math.sqrt(sum(float(v.square().sum()) for v in values))
                      for values in ([p.detach() for p in weights],
                                     [p.grad for p in weights]))
    return 10.0 ** round(math.log10(1e-3 * size / gradient))


def flat(values: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.detach().reshape(-1).cpu() for value in values])


def training_of(network: networks.Network) -> Callable[[Script], None]:
    """Three steps of SGD on it. Maxima have jumps, so that a single tensor may be
    off by one sample; all weights together are not."""
    def script(t: Script) -> None:
        torch.manual_seed(3)
        model = t.model(networks.comparable(network.make()))
        t.join(model, rows.sgd(model, lr=rate_of(model, network.shape)))
        t.trained = None
        before = flat(model.parameters())
        for x, y in t.data(network.shape):
            rows.train(t, rows.error_of(networks.outputs_of(model(x)), y))
        t.same("change of the weights", flat(model.parameters()) - before)
        for kind in ("running_mean", "running_var", "num_batches_tracked"):
            t.same(kind, flat(value for name, value in model.named_buffers()
                              if name.endswith(kind)))
    return script


def main() -> int:
    parser = shapes_test.arguments()
    parser.set_defaults(together=2)
    options = parser.parse_args()
    unknown = set(options.rows) - set(networks.NETWORKS)
    if unknown:
        parser.error(f"no networks {', '.join(sorted(unknown))}")
    chosen = [rows.Row(name, training_of(networks.NETWORKS[name]), {2: (2, 3)},
                       patience=PATIENCE)
              for name in options.rows or networks.NETWORKS]
    networks.replace_functions()
    bin_dir = pathlib.Path(os.environ["COHORT_BIN_DIR"])
    return shapes_test.report([functools.partial(runner.Trial, row, 2, bin_dir)
                               for row in chosen], options)


if __name__ == "__main__":
    sys.exit(main())
