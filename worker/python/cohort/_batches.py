"""What a batch consists of: its samples, and how it is cut in parts."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch.nn.utils import rnn

from cohort import _errors


def _fields(value: Any) -> list[Any] | None:
    """What a container holds; None: it is none."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return None


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, in its order."""
    if isinstance(batch, torch.Tensor):
        yield batch
    else:
        for value in _fields(batch) or ():
            yield from tensors_in(value)


def _length(value: Any) -> int | None:
    """Of a field with samples first; None: it has no such length."""
    if isinstance(value, torch.Tensor):
        return len(value) if value.dim() > 0 else None
    if isinstance(value, rnn.PackedSequence):
        return int(value.batch_sizes[0])
    return len(value) if isinstance(value, (list, tuple)) else None


def _is_record(value: Any) -> bool:
    """Whether it is a sample, with fields of its own, rather than a field of
    several samples, whose entries are of one kind."""
    if isinstance(value, Mapping) or dataclasses.is_dataclass(value):
        return True
    return (isinstance(value, (list, tuple)) and
            not isinstance(value, rnn.PackedSequence) and len({
                (type(item), item.dim() if isinstance(item, torch.Tensor) else 0)
                for item in value}) > 1)


def _is_list_of_samples(batch: Any) -> bool:
    return (isinstance(batch, (list, tuple)) and len(batch) > 0 and
            not hasattr(batch, "_fields") and all(map(_is_record, batch)))


def samples_in(batch: Any) -> int | None:
    """The number of samples in a batch: the length of its first tensor; of a list
    of samples or of a field that is a list, if all fields agree. None: it cannot
    be told."""
    if isinstance(batch, torch.Tensor):
        return _length(batch)
    fields = _fields(batch) or []
    if _is_list_of_samples(batch):
        return len(batch)
    if fields and isinstance(fields[0], torch.Tensor):
        return samples_in(fields[0])
    if fields and isinstance(fields[0], Mapping):
        return samples_in(fields[0])
    lengths = {_length(field) for field in fields} - {None}
    # Two views in a list, and labels.
    inside = set(_lengths_in(batch))
    if len(lengths) == 1 and not (
            len(inside) == 1 and inside != lengths and _columns(fields)):
        return lengths.pop()
    return inside.pop() if len(lengths) > 1 and len(inside) == 1 else None


def _columns(fields: Sequence[Any]) -> bool:
    """Whether each field is a list of tensors: of samples, or of views."""
    return all(isinstance(field, (list, tuple)) for field in fields)


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


def shows_samples_first(batch: Any, declared: int) -> bool:
    """Whether a batch of the declared number of samples has them first; one whose
    second extent is the same shows nothing."""
    first = next(tensors_in(batch), None)
    return samples_in(batch) == declared and not (
        first is not None and first.dim() > 1 and first.shape[1] == declared)


def counted_samples(batch: Any, read: int) -> tuple[int | None, str]:
    """The number of samples in a batch that was collated from `read` samples, and
    why it is in doubt; empty: it is not."""
    if read == 0:
        return samples_in(batch), ""
    if _is_list_of_samples(batch):
        # A collate_fn leaves out what cannot be read.
        return min(read, len(batch)), ""
    fields = [batch] if isinstance(batch, torch.Tensor) else _fields(batch) or []
    lengths = {_length(field) for field in fields} - {None}
    inside = _lengths_in(batch)
    if read in lengths or read in inside:
        return read, ""
    if not inside and not lengths:
        return read, ""  # Nothing to count in.
    first = samples_in(batch)
    if first is not None and first < read and {*lengths, *(
            () if _columns(fields) else inside)} == {first}:
        return first, ""
    # A tensor with steps of time may come first. Views of a sample count
    # together; all of one sample may as well be its tokens.
    if (first is not None and first % read == 0 and read > 1) or all(
            tensor.dim() > 1 and tensor.shape[1] == read
            for tensor in tensors_in(batch)):
        return read, ""
    return first, (
        f"the batch was made of {read} samples, but has tensors of lengths "
        f"{_listed(inside)}; pass weight=, what the loss is a mean over")


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
