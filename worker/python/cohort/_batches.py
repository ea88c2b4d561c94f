"""What a batch consists of: its samples, and how it is cut in parts."""

from collections.abc import Iterator, Sized
from typing import Any

import torch

from cohort import _errors


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, in its order."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from tensors_in(value)


def samples_in(batch: Any) -> int | None:
    """The number of samples in a batch: the length of its first tensor or
    sequence; None if it has none."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() > 0 else None
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)) and batch:
        first = batch[0]
        if isinstance(first, (list, tuple)):
            return len(first)
        return samples_in(first)
    return None


def _first_is_a_list(batch: Any) -> bool:
    if isinstance(batch, dict):
        batch = list(batch.values())
    return (isinstance(batch, (list, tuple)) and bool(batch) and
            isinstance(batch[0], (list, tuple)))


def doubt_of_samples(batch: Any, declared: int) -> str:
    """Why the length of a batch's first tensor may not be its number of samples:
    another tensor has the length that the script has declared. Empty: no reason.
    """
    first = samples_in(batch)
    lengths = _lengths_in(batch)
    if first is None or first == declared or declared not in lengths:
        return ""
    return (f"the batch has tensors of lengths {_listed(lengths)}: {first} samples "
            "by the first of them, but job.data() was given batch_size="
            f"{declared}; pass weight=, the number of samples, or put a tensor "
            "with samples first at the beginning of the batch")


def counted_samples(batch: Any, read: int) -> tuple[int | None, str]:
    """The number of samples in a batch that was collated from `read` samples, and
    why it is in doubt; empty: it is not."""
    first = samples_in(batch)
    if first is None or first == read or read == 0 or _first_is_a_list(batch):
        return first, ""
    lengths = _lengths_in(batch)
    # A tensor with steps of time or edges may come first. Views of a sample
    # count together.
    if read in lengths or first % read == 0 or all(
            tensor.dim() > 1 and tensor.shape[1] == read
            for tensor in tensors_in(batch)):
        return read, ""
    # A collate_fn leaves out what cannot be read.
    if first < read and set(lengths) == {first}:
        return first, ""
    return first, (
        f"the batch was made of {read} samples, but has tensors of lengths "
        f"{_listed(lengths)}; pass weight=, what the loss is a mean over")


def _lengths_in(batch: Any) -> list[int]:
    return [len(tensor) for tensor in tensors_in(batch) if tensor.dim() > 0]


def _listed(lengths: list[int]) -> str:
    shown = ", ".join(map(str, lengths[:8]))
    return shown if len(lengths) <= 8 else f"{shown} and so on"


def split(batch: Any, part: int, parts: int,
          samples: int | None = None) -> Any:
    """Part `part` of `parts` of a batch whose tensors and lists have samples
    first.

    Args:
        batch: a tensor, or dictionaries, lists and tuples of such.
        samples: in the batch; by default the length of its first tensor.

    Raises:
        UsageError: a part of the batch has another length.
    """
    if parts == 1:
        return batch
    if samples is None:
        samples = samples_in(batch)
    if samples is None:
        raise _errors.UsageError(
            "accumulate, or the server's --global_batch: got a batch without a "
            f"first tensor to cut in {parts} parts, want tensors or lists with "
            "samples first")
    return _cut(batch, samples, slice(samples * part // parts,
                                      samples * (part + 1) // parts))


def _cut(value: Any, samples: int, part: slice, outermost: bool = True) -> Any:
    if isinstance(value, dict):
        return {key: _cut(item, samples, part, False)
                for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        inside = _has_samples_first(value, samples)
        if len(value) == samples and not inside:
            return value[part]
        # A pair of tensors is the usual batch, of two samples, too. Further
        # inside, three images of three channels look like three fields.
        if len(value) != samples or outermost:
            items = [_cut(item, samples, part, False) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else (
                type(value)(items))
        got = f"a list of {samples} tensors that have {samples} entries each"
    elif isinstance(value, torch.Tensor):
        if value.dim() == 0:
            return value
        if len(value) == samples:
            return value[part]
        got = f"a tensor of shape {tuple(value.shape)}"
    elif isinstance(value, Sized) and not isinstance(value, (str, bytes)):
        got = f"a {type(value).__name__}"
    else:
        return value
    raise _errors.UsageError(
        "accumulate, or the server's --global_batch: cannot cut a batch of "
        f"{samples} samples in parts: got {got}, want tensors and lists with one "
        "entry a sample; make such batches, and transpose or join their parts in "
        "the loop, or leave out accumulate")


def _has_samples_first(value: Any, samples: int) -> bool:
    """Whether all tensors have one entry a sample, and there are some."""
    tensors = list(tensors_in(value))
    return bool(tensors) and all(tensor.dim() > 0 and len(tensor) == samples
                                 for tensor in tensors)
