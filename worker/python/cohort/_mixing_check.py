"""Losses that mix the samples of a batch, found by derivatives.

A mean over samples is a sum of functions of one sample each. So its derivative by what
the last layers give out for one sample does not depend on that for others, and what the
model computes of one sample has no derivative by others, but for batch norm, which is
the cohort's. Both hold for any function."""

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from cohort import _errors, _graph_check, _sums
from cohort._graphs import Saved, first_inputs, inputs_of, signed
from cohort._layers import (LAYERS, Found, Layer, Pass, Top, is_of_script,
                            layer_of, zeros)
from cohort._loss_check import OVERRIDE
from cohort._nodes import depends_on_samples, kind_of, matches

# Functions that choose some entries of a dimension, which are piecewise linear; and
# distances, which torch differentiates once.
_CHOICES = re.compile(r"(Amax|Amin|Max|Min|Median|Kthvalue|Topk|Sort)Backward0")
_DISTANCES = "CdistBackward0"
_ALL_DISTANCES = re.compile(r"Pdist(Forward)?Backward0")
# Losses that have no second derivative: what is beside them is looked at.
_ONCE = re.compile(r"(Cudnn)?CtcLossBackward\d")
# Layers of other rows than the samples' that are looked at.
_ALONE_MAX = 4
# Derivatives below this part of the greatest are rounding errors.
_ROUNDING = 1e-6


def check(loss: torch.Tensor, nodes: set[Any], samples: int, saved: Saved,
          has_saved_hooks: bool) -> None:
    """Raises UsageError for a loss that mixes samples.

    Not found: what is mixed before the first layer (but see _centred); what is mixed in compiled code, or in a model with
    functions that the script gives autograd, or activation checkpointing; most functions
    that are piecewise linear; detached factors; beside a function without a second
    derivative; and where samples have several rows, such as words, what does not reach
    from the first row to the last.

    Refused though right: the loss of a loop over samples that have as many rows each as
    there are samples, or over a layer of as many constants.

    Args:
        loss: of one element.
        nodes: of its graph.
        samples: in the batch, at least 2.
        saved: what was looked at.
        has_saved_hooks: as of Top.can_differentiate.
    """
    for node in nodes:
        if _is_over_samples(node, samples, saved):
            _refuse(f"{kind_of(node).partition('Backward')[0].lower()}()")
    top = Top(loss)
    if top.can_differentiate(saved, has_saved_hooks) and _are_coupled(
            loss, top, samples):
        _refuse("products, or functions of sums,")
    layers = [layer for node in nodes if (layer := layer_of(node)) is not None]
    if not has_saved_hooks and not any(
            is_of_script(node) or _graph_check.is_accepted(node) for node in nodes) and (
                _are_mixed(loss, top.layers, layers, samples)):
        _refuse("what the model computes")


def refuse_centred() -> NoReturn:
    """Raises UsageError: other workers have other constants that are centred."""
    _refuse("a tensor whose mean was taken off (advantages, inputs; if these are the "
            "answers to one question, one process has no others, so pass weight=len(x))")


def _refuse(what: str) -> NoReturn:
    raise _errors.UsageError(
        f"job.backward(): the loss depends on {what} across the samples of this "
        "worker's batch, but one process has those of all workers there; use "
        "job.sum() for sums over all samples and job.gather() for all of them "
        "(SimCLR, CLIP, Dice, variances), and a batch-norm module to normalise; "
        f"{OVERRIDE}")


def _are_coupled(loss: torch.Tensor, top: Top, samples: int) -> bool:
    """Whether the derivative by the outputs of layers for some samples depends on
    those for others."""
    try:
        with Pass(top.near) as passes:
            for node in top.nodes:
                if matches(_ONCE, kind_of(node)):
                    passes.add_hook(node, zeros)
            first = {key: gradient for key, gradient in
                     passes.run(loss, create_graph=True).items()
                     if gradient.requires_grad}
            keys = _with_samples(first, samples)
            if not keys:
                return False
            whole = len(first[keys[0]]) == samples
            for some, others in _all_pairs(samples) if whole else [
                    _two_rows([first[key] for key in keys], samples)]:
                second = passes.run(_any_function([first[key][some] for key in keys]))
                if any(_greatest(second[key][others]) > _ROUNDING * _greatest(second[key])
                       for key in keys if key in second):
                    return True
            return False
    except (RuntimeError, NotImplementedError):
        # A function has no second derivative, or there is no memory for it.
        return False


def _are_mixed(loss: torch.Tensor, top: Sequence[Layer], layers: Sequence[Layer],
               samples: int) -> bool:
    """Whether what the last layers take for some samples depends on the outputs of
    layers below for more samples. These may be in another order there, as in packed
    sequences."""
    def passed(rows_of: Callable[[Layer, int], list[int]]) -> Found:
        """The gradients, where each of the last layers passes these rows of as many."""
        with Pass(layers) as passes:
            for layer in top:
                passes.add_hook(layer.node, functools.partial(
                    _keep_rows, layer, functools.partial(rows_of, layer)))
            return passes.run(loss)

    def reached(found: Found) -> float:
        """The number of samples that they come to. If all layers have more rows, of
        images, these are views or frames of samples."""
        below = [gradient for (node, _), gradient in found.items()
                 if node not in above and gradient.dim() > 1 and len(gradient) and
                 _has_samples_first(node, gradient, samples)]
        lengths = {len(gradient) for gradient in below}
        rows = samples if samples in lengths else lengths.pop() if len(lengths) == 1 else 0
        return 0 if not rows or rows % samples or rows != samples and any(
            gradient.dim() < 3 for gradient in below) else max(
            _rows_in(gradient) * samples / rows for gradient in below
            if len(gradient) == rows)

    above = {layer.node for layer in top}
    try:
        for some in (list(range(0, samples, 2)), list(range(samples // 2, samples))):
            # The first and the last row are of these samples, in any order.
            found = passed(lambda _, rows: some if rows == samples else
                           [some[0] and -1] if rows % samples == 0 else [])
            if reached(found) > len(some):
                return True
        # A row that is no sample's, such as one of weights from a mean, is that of one
        # sample in a loop over them, or one of its boxes.
        others = [layer for layer in top if len(found.get((layer.node, 0), ())) % samples]
        return any(reached(passed(lambda layer, _: [row] if layer is alone else [])) > 1
                   for alone in others[:_ALONE_MAX] for row in (0, -1))
    except (RuntimeError, NotImplementedError):
        return False


def _keep_rows(layer: Layer, rows_of: Callable[[int], list[int]], gradients: Any,
               _: Any) -> Any:
    """A hook by which the gradients of other rows are zeros."""
    kept = list(gradients)
    for number in layer.inputs:
        gradient = kept[number]
        if gradient is None:
            continue
        kept[number] = torch.zeros_like(gradient)
        rows = rows_of(len(gradient)) if gradient.dim() and len(gradient) else []
        kept[number][rows] = gradient[rows]
    return tuple(kept)


# ---- rows of outputs

def _with_samples(outputs: Found, samples: int) -> list[Any]:
    """Those whose rows belong to samples: one to each, or if there is no such output,
    equally many. In any order the first row is then one of the first sample, and the last
    of the last. Outputs of different lengths may have rows of something else."""
    rows = {key: len(output) for key, output in outputs.items()
            if output.dim() > 1 and len(output) and len(output) % samples == 0 and
            _has_samples_first(key[0], output, samples)}
    whole = [key for key, many in rows.items() if many == samples]
    return whole or (list(rows) if len(set(rows.values())) == 1 else [])


def _has_samples_first(node: Any, output: torch.Tensor, samples: int) -> bool:
    """An embedding may have positions there, or be a whole table."""
    if not kind_of(node).startswith("Embedding") or "Bag" in kind_of(node):
        return True
    if output.dim() > 2:
        return bool(len(output) == samples != output.shape[1])
    indices: torch.Tensor = node._saved_indices
    return indices.dim() == 1 and not torch.equal(
        indices, torch.arange(len(indices), dtype=indices.dtype, device=indices.device))


def _two_rows(outputs: Sequence[torch.Tensor], samples: int
              ) -> tuple[list[int], list[int]]:
    """Two rows of different samples, in whichever order rows are, that have derivatives
    if possible: the last word of a sentence may have none."""
    each = len(outputs[0]) // samples
    used = sum(one.detach().abs().nan_to_num(0, 0, 0).flatten(1).amax(1)
               for one in outputs).nonzero().flatten().tolist()
    return next((([used[0]], [row]) for row in reversed(used)
                 if row // each != used[0] // each and
                 row % samples != used[0] % samples), ([0], [-1]))


def _all_pairs(samples: int) -> Iterator[tuple[list[int], list[int]]]:
    """Some samples, and the others, so that any two are apart once."""
    for bit in range((samples - 1).bit_length()):
        yield ([row for row in range(samples) if not row >> bit & 1],
               [row for row in range(samples) if row >> bit & 1])


def _rows_in(output: torch.Tensor) -> int:
    """How many rows are not zeros."""
    if not output.numel():
        return 0
    rows = output.detach().abs().nan_to_num(0, 0, 0).flatten(1).amax(1)
    return int((rows > _ROUNDING * rows.max()).sum())


def _any_function(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A number that depends on all entries, by factors without a pattern."""
    total = torch.zeros((), device=tensors[0].device)
    for one in tensors:
        factors = torch.arange(one.numel(), device=one.device).cos().view(one.shape)
        total = total + (one * factors.to(one.dtype)).sum()
    return total


def _greatest(tensor: torch.Tensor) -> float:
    if not tensor.numel():
        return 0.0
    return float(tensor.detach().abs().nan_to_num(0, 0, 0).max())


# ---- functions whose second derivative tells nothing

def _is_over_samples(node: Any, samples: int, saved: Saved) -> bool:
    kind = kind_of(node)
    if matches(_ALL_DISTANCES, kind):
        rows = saved.shape_of(node, "self")
        return bool(rows) and rows[0] % samples == 0 and (
            _has_rows_of_layers(node, samples))
    if kind == _DISTANCES:
        first, second = (saved.shape_of(node, name) for name in ("x1", "x2"))
        return (len(first) > 1 and first[-2] == second[-2] and
                math.prod(first[:-1]) % samples == 0 and math.prod(first[:-2]) == 1 and
                all(other is not None and depends_on_samples(other)
                    for other in inputs_of(node)))
    if not _CHOICES.fullmatch(kind):
        return False
    dims = node._saved_dim
    shape = saved.shape_of(node, "self")
    over = dims if isinstance(dims, tuple) else (dims,)
    return bool(shape) and (shape[0] == samples or (
        len(shape) == 1 and shape[0] % samples == 0)) and (
            any(signed(dim) % len(shape) == 0 for dim in over) or dims == ()) and (
                _has_rows_of_layers(node, samples) and depends_on_samples(node))


def _are_views(split: Any, samples: int) -> bool:
    """Whether rows are split into parts that may have a row of each sample."""
    sizes = getattr(split, "_saved_split_sizes", None) or (split._saved_split_size,)
    return all(size == samples for size in sizes)


def _has_rows_of_layers(node: Any, samples: int) -> bool:
    """Whether its first dimension may be the samples: none was put there, and they were
    not taken apart."""
    for part in first_inputs(node):
        kind = kind_of(part)
        if _sums.is_sum(part):
            return False
        if kind in ("StackBackward0", "SelectBackward0", "UnbindBackward0"):
            return bool(part._saved_dim != 0)
        if kind in ("SplitBackward0", "SplitWithSizesBackward0") and (
                part._saved_dim == 0 and not _are_views(part, samples)):
            return False
        if kind == "TBackward0" or kind == "TransposeBackward0" and 0 in (
                part._saved_dim0, part._saved_dim1) or (
                    kind == "PermuteBackward0" and part._saved_dims[0] != 0):
            return False
        if LAYERS.fullmatch(kind):
            break
    return True
