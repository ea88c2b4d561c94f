"""What a batch consists of: its samples, and how it is cut in parts."""

import copy
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


def _top(batch: Any) -> list[Any]:
    """The fields of a batch; a tensor is its only field."""
    return [batch] if isinstance(batch, torch.Tensor) else _fields(batch) or []


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
        return int(value.size(0)) if value.dim() > 0 else None
    if isinstance(value, rnn.PackedSequence):
        return int(value.batch_sizes[0])
    return len(value) if isinstance(value, (list, tuple)) else None


def _lengths_in(batch: Any) -> list[int]:
    lengths = map(_length, tensors_in(batch))
    return [length for length in lengths if length is not None]


def _is_record(value: Any) -> bool:
    """Whether it has different fields, rather than entries of one kind."""
    if isinstance(value, Mapping) or dataclasses.is_dataclass(value):
        return True
    return (isinstance(value, (list, tuple)) and
            not isinstance(value, rnn.PackedSequence) and len({
                (type(item), item.dim() if isinstance(item, torch.Tensor) else 0)
                for item in value}) > 1)


def _is_list_of_records(batch: Any) -> bool:
    """Each may be a sample; or a view, with samples first in its fields."""
    return (isinstance(batch, (list, tuple)) and len(batch) > 0 and
            not hasattr(batch, "_fields") and all(map(_is_record, batch)))


def _in_each(records: Sequence[Any]) -> set[int]:
    """Lengths that tensors of each record have."""
    return set.intersection(*(set(_lengths_in(record)) for record in records))


def _second_extent(batch: Any) -> int | None:
    """That of all tensors, which have time first if it is the samples."""
    extents = {int(tensor.size(1)) if tensor.dim() > 1 and not tensor.is_nested
               else None for tensor in tensors_in(batch)}
    return extents.pop() if len(extents) == 1 else None


def counts_of(batch: Any) -> dict[str, int]:
    """What the number of samples in a batch may be, by how it is counted."""
    found: dict[str, int] = {}

    def add(rule: str, count: int | None) -> None:
        if count is not None:
            found[rule] = count

    fields = _top(batch)
    records = _is_list_of_records(batch)
    head = fields[0] if fields else None
    while isinstance(head, Mapping) and not records:
        head = next(iter(head.values()), None)
    if isinstance(head, torch.Tensor):
        add("first", _length(head))
    shapes = {item.shape if isinstance(item, torch.Tensor) and not item.is_nested
              else None for item in fields}
    if records or (isinstance(batch, list) and len(shapes) == 1 and
                   None not in shapes):
        add("list", len(fields))
    else:
        lists = {_length(item) for item in fields if isinstance(item, (list, tuple))}
        if len(lists) == 1:
            add("lists", lists.pop())
    inside = set(_lengths_in(batch))
    if len(inside) == 1:
        add("inside", inside.pop())
    add("second", _second_extent(batch))
    return found


def samples_in(batch: Any) -> int | None:
    """The number of samples in a batch: the length of its first tensor; or what
    every way to count it says. None: that is not clear."""
    return _chosen(batch, counts_of(batch))


def _chosen(batch: Any, counts: dict[str, int]) -> int | None:
    if _is_list_of_records(batch):
        return None  # Samples, or parts with samples first.
    if "first" in counts and "list" not in counts:
        return counts["first"]
    # Views in a list, and labels; or images of one size, and targets.
    if {"lists", "inside"} <= counts.keys() and any(
            isinstance(field, torch.Tensor) for field in _top(batch)):
        return counts["inside"]
    values = {count for rule, count in counts.items() if rule != "second"}
    return values.pop() if len(values) == 1 else None


class OwnCounter:
    """Counts the samples in batches of the script's own, of which it may have
    declared the length: a whole batch shows how they are counted, and a later one
    may be shorter."""

    def __init__(self) -> None:
        # The ways that have agreed with what was declared.
        self._rules: set[str] = set()

    def count(self, batch: Any, declared: int | None) -> tuple[int | None, str]:
        """The samples, and why they are in doubt; empty: they are not."""
        counts = counts_of(batch)
        first = _chosen(batch, counts)
        lengths = _lengths_in(batch)
        # The first tensor may have time or edges first, or be of the whole batch.
        agree = first is None or set(lengths) <= {first}
        if declared is None:
            return first, "" if agree else (
                f"the batch has {_listed(lengths)}, so its "
                "number of samples is not clear; pass it as weight=, or pass "
                "job.data(batch_size=...)")
        known = {counts[rule] for rule in self._rules if rule in counts}
        matching = {rule for rule, count in counts.items() if count == declared}
        if len(known) == 1:
            if known == {declared}:
                self._rules &= matching
            return known.pop(), ""
        if not known and matching:
            self._rules = matching
            return declared, ""
        head = next(tensors_in(batch), None)
        time_first = head is not None and _second_extent(head) == declared
        if not known and "first" in counts and agree and not time_first:
            return first, ""
        return first, (
            f"the batch has {_listed(lengths)}, but job.data() "
            f"was given batch_size={declared}, so its number of samples is not "
            "clear; pass it as weight=, or begin the batch with a tensor whose "
            "first dimension is the samples")


@dataclasses.dataclass(frozen=True)
class Counted:
    """What is known of a batch that a worker trains.

    Attributes:
        parts: forward and backward passes that it is cut into.
        samples: in all parts; None if they cannot be counted.
        doubt: why that number may be wrong, or empty.
        first: the number of its first sample in the epoch; None if they have none.
    """
    parts: int
    samples: int | None = None
    doubt: str = ""
    first: int | None = None

    def check(self, what: str, weight: float | None) -> None:
        """Raises UsageError if the default weight is in doubt."""
        if weight is None and self.doubt:
            raise _errors.UsageError(f"{what}(): {self.doubt}")

    def weight_of(self, part: int, weight: float | None) -> float:
        """The weight of a part as the script gives it; None: its samples.

        Raises:
            UsageError: there is no such weight.
        """
        if weight is None:
            if self.samples is None:
                raise _errors.UsageError(
                    "job.backward(): the number of samples in the batch is not "
                    "clear; pass weight=")
            weight = len(range(self.samples)[part_of(part, self.parts, self.samples,
                                                     self.first)])
        weight = float(weight)
        if not 0 <= weight < float("inf"):
            raise _errors.UsageError(
                f"weight: got {weight}, want a number of samples, labels or "
                "pixels")
        return weight

    def samples_of(self, part: int, what: str) -> float:
        """Of a part. Raises UsageError if they cannot be counted."""
        if self.samples is None or self.doubt:
            raise _errors.UsageError(
                f"{what}: {self.doubt or 'the number of samples is not clear'}; want "
                "job.data(batch_size=...) and batches whose tensors have that length")
        return self.weight_of(part, None)


def counted_samples(batch: Any, read: int) -> tuple[int | None, str]:
    """The number of samples in a batch that was collated from `read` samples, and
    why it is in doubt; empty: it is not."""
    if read == 0:
        return samples_in(batch), ""
    counts = counts_of(batch)
    chosen = _chosen(batch, counts)
    inside = _lengths_in(batch)
    fields = _top(batch)
    lengths = {_length(field) for field in fields} - {None}
    if _is_list_of_records(batch):
        if set(inside) == {read} or read == len(fields) or read in _in_each(fields):
            return read, ""
    elif read in lengths or read in inside or not (lengths or inside):
        return read, ""
    elif counts.get("list") != read:
        first = counts.get("first", chosen)
        lists = all(isinstance(field, (list, tuple)) for field in fields)
        alike = {*lengths, *(() if lists else inside)} == {first}
        time_first = counts.get("second") == read
        if first is not None and first < read and alike:
            # A collate_fn leaves out what cannot be read. It may have time first
            # as well.
            if not time_first:
                return first, ""
        # Views of a sample count together; all of one sample may be its tokens.
        elif time_first or first is not None and first % read == 0 and read > 1:
            return read, ""
    return chosen, (
        f"the batch was made of {read} samples, but has "
        f"{_listed(inside)}; pass weight=, the number that the loss is a mean over")


def _listed(lengths: list[int]) -> str:
    if not lengths:
        return "no tensors in dictionaries, lists or dataclasses"
    shown = ", ".join(map(str, lengths[:8]))
    return f"tensors of lengths {shown}" + (" and so on" if len(lengths) > 8 else "")


def copied(value: Any, clones: bool) -> Any:
    """A batch in other containers, which the script may change (`batch.pop("y")`).

    Args:
        clones: of tensors, too.
    """
    if isinstance(value, torch.Tensor):
        # One with a history is not the loader's alone.
        return value.clone() if clones and not value.requires_grad else value
    if type(value) is dict:
        return {key: copied(item, clones) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(copied(item, clones) for item in value))
    if type(value) in (list, tuple):
        return type(value)(copied(item, clones) for item in value)
    if isinstance(value, Mapping) or (
            dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return copy.copy(value)
    return value


def split(batch: Any, part: int, parts: int, samples: int | None = None,
          first: int | None = None) -> Any:
    """Part `part` of `parts` of a batch whose tensors and lists have samples
    first.

    Args:
        batch: a tensor, or dictionaries, lists and tuples of such.
        samples: in the batch; by default as `samples_in` counts them.
        first: as in `part_of`.

    Raises:
        UsageError: a part of the batch has another length.
    """
    if parts == 1:
        return batch
    if samples is None:
        samples = samples_in(batch)
    if samples is None:
        raise _errors.UsageError(
            "accumulate, or the server's --global_batch: cannot split a batch into "
            f"{parts} parts: got one without tensors, want tensors or lists whose "
            "first dimension is the samples")
    return _cut(batch, samples, part_of(part, parts, samples, first))


def part_of(part: int, parts: int, samples: int, first: int | None) -> slice:
    """The positions of its samples.

    Args:
        first: the number of the first sample in the epoch. The samples of a part
            go by these numbers, so a part of the step has the same ones however
            the step is divided among the workers. None: they have no numbers, and
            a part lies together.
    """
    if first is None:
        return slice(samples * part // parts, samples * (part + 1) // parts)
    return slice((part - first) % parts, None, parts)


def _cut(value: Any, samples: int, part: slice, outermost: bool = True) -> Any:
    if isinstance(value, Mapping):
        items = {key: _cut(item, samples, part, False)
                 for key, item in value.items()}
        # Such as a tokenizer's, whose fields are attributes, too.
        return items if isinstance(value, dict) else type(value)(
            items)  # type: ignore[call-arg]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{
            field.name: _cut(getattr(value, field.name), samples, part, False)
            for field in dataclasses.fields(value)})
    if isinstance(value, (list, tuple)):
        inside = _has_samples_first(value, samples)
        # As many fields as samples, each with an entry for each sample.
        fields = outermost and not _is_list_of_records(value) and all(
            _length(item) == samples for item in value)
        # Such as the boxes and labels of an image.
        records = not outermost and all(isinstance(item, Mapping) for item in value)
        if len(value) == samples and not fields and (records or not inside):
            return value[part]
        # A pair of tensors is the usual batch, of two samples, too. Further
        # inside, three images of three channels look like three fields.
        if len(value) != samples or outermost:
            parts = [_cut(item, samples, part, False) for item in value]
            return type(value)(*parts) if hasattr(value, "_fields") else (
                type(value)(parts))
        got = f"a list of {samples} tensors that have {samples} entries each"
    elif isinstance(value, torch.Tensor):
        if value.dim() == 0:
            return value
        if len(value) == samples:
            # Scripts may call view().
            return value[part] if part.step is None else value[part].clone()
        got = f"a tensor of shape {tuple(value.shape)}"
    elif isinstance(value, Sized) and not isinstance(value, (str, bytes)):
        got = f"a {type(value).__name__}"
    else:
        return value
    raise _errors.UsageError(
        "accumulate, or the server's --global_batch: cannot split a batch of "
        f"{samples} samples into parts: got {got}, want tensors and lists with one "
        "entry a sample; make such batches, and transpose or concatenate in the "
        "loop, or leave out accumulate")


def _has_samples_first(value: Any, samples: int) -> bool:
    """Whether all tensors have one entry a sample, and there are some."""
    tensors = list(tensors_in(value))
    return bool(tensors) and all(tensor.dim() > 0 and len(tensor) == samples
                                 for tensor in tensors)
