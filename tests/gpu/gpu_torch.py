"""PyTorch for the scripts that need it on a GPU."""

import sys
from typing import Any

EXIT_SKIPPED = 77


def load(on_cpu: bool = False) -> Any:
    """The module torch. Ends the program with exit code 77 where there is none,
    or where it finds no GPU, which `on_cpu` does without."""
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError:
        print("skipped: this Python has no PyTorch")
        sys.exit(EXIT_SKIPPED)
    if not on_cpu and not torch.cuda.is_available():
        print("skipped: PyTorch finds no GPU here")
        sys.exit(EXIT_SKIPPED)
    return torch
