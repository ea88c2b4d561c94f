#!/usr/bin/env python3
"""Networks of torchvision, timm and segmentation-models-pytorch: two workers with
uneven batches train them as one process does.

usage: zoo_test.py [--together=N] [--verbose] [NETWORK...]

Three steps each; every weight and statistic has to be as near to float64 as 20
times one float32 process is. Prints a line for each network, as shapes_test.py.
"""

import os

# One thread a process; before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import functools
import pathlib
import sys
from collections.abc import Callable

import segmentation_models_pytorch
import timm
import torch
import torchvision

import shapes_test
from shapes import rows, runner
from shapes.script import Script
from zoo import networks

assert all((segmentation_models_pytorch, timm, torchvision))

# A network takes up to a minute of one core.
PATIENCE = 400.0


def training_of(network: networks.Network) -> Callable[[Script], None]:
    """Three steps of SGD on it."""
    def script(t: Script) -> None:
        torch.manual_seed(3)
        model = t.model(networks.without_chance(network.make()))
        t.join(model, rows.sgd(model, lr=1e-5))
        for x, y in t.data(network.shape):
            rows.train(t, rows.error_of(networks.outputs_of(model(x)), y))
    return script


def main() -> int:
    parser = shapes_test.arguments()
    parser.set_defaults(together=2)
    options = parser.parse_args()
    unknown = set(options.rows) - set(networks.NETWORKS)
    if unknown:
        parser.error(f"no networks {', '.join(sorted(unknown))}")
    chosen = [rows.Row(name, training_of(networks.NETWORKS[name]), {2: (2, 3)},
                       3, (), None, False, "", PATIENCE)
              for name in options.rows or networks.NETWORKS]
    bin_dir = pathlib.Path(os.environ["COHORT_BIN_DIR"])
    return shapes_test.report([functools.partial(runner.Trial, row, 2, bin_dir)
                               for row in chosen], options)


if __name__ == "__main__":
    sys.exit(main())
