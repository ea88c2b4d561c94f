"""What no door sees, found in the graph of a loss: batch norms by functions of torch
that the script has bound before the run, or in scripted code, and gradients that
torch divides by counts in this worker's batch.

A look at 300 nodes takes 0.25 ms; watching every call of torch instead took about
a fifth of a small network's step."""

import re
from typing import Any

import torch

from cohort import _errors
from cohort._graphs import nodes_of
from cohort._nodes import kind_of, matches

# Autograd's nodes for batch norm by torch's own operators.
_BATCH_NORM = re.compile(
    r"(Native|Cudnn|Miopen)?BatchNorm(Legit|WithUpdate)?Backward\d")

# An entry of a node's metadata: normalising alone is meant, or right.
_ACCEPTED = "cohort.accepted"


def accept(output: torch.Tensor) -> None:
    """The batch norm that has this output may normalise by this worker's batch."""
    if output.grad_fn is not None:
        output.grad_fn.metadata[_ACCEPTED] = True


def is_accepted(node: Any) -> bool:
    """Whether it is the node of such a batch norm."""
    return bool(node.metadata.get(_ACCEPTED))


def check(loss: torch.Tensor) -> set[Any]:
    """The nodes of the loss's graph.

    Raises UsageError if the loss depends on a batch norm that has normalised by
    this worker's batch alone, or on an embedding whose gradient is divided by how
    often an entry is in it.

    Not found: a batch norm in a graph of torch.compile, or within checkpointing with
    reentry, or of a single sample, which instance norm makes, too.
    """
    nodes = nodes_of([loss])
    for node in nodes:
        # Absent: no embedding.
        if getattr(node, "_saved_scale_grad_by_freq", False):
            raise _errors.UsageError(
                "job.backward(): the loss depends on F.embedding with "
                "scale_grad_by_freq=True, which divides gradients by how often an "
                "entry occurs in this worker's batch, not in the batches of all "
                "workers; leave it out")
        if not matches(_BATCH_NORM, kind_of(node)) or is_accepted(node):
            continue
        if not getattr(node, "_saved_training", True):
            continue  # in evaluation mode
        shape = tuple(node._saved_input.shape)
        # torch computes instance norm as batch norm of one sample with all
        # channels of all samples.
        if shape[0] > 1:
            raise _errors.UsageError(
                f"job.backward(): the loss depends on a batch norm of {shape} by "
                "this worker's batch alone, in code that was bound before "
                "cohort.join(), such as `from torch import batch_norm`, or "
                "scripted; call F.batch_norm with a module's buffers, or a "
                "batch-norm module. If that is intended, call F.batch_norm in "
                "`with cohort.local():`")
    return nodes
