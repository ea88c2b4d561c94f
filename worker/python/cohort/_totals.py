"""Sums over the members of a step, in rank order, and tensors of all ranks one after
another, for the script. Both can be differentiated.

Such a call meets twice. In the first meeting members learn whether any of them
needs derivatives, and how many rows each one has; its key has the caller's line,
the type and the shape, so members that do not call alike wait for each other,
and the server ends the run by name. In the second one the numbers are added as
those of a backward pass are: without rounding, but for float64's."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from cohort import _core, _devices, _doors, _errors, _operator, _passes, _sums

if TYPE_CHECKING:
    from cohort._step import Step

# Bytes of a tensor that is summed, or of all that are gathered.
BYTES_MAX = 4 << 20
# Pairs of numbers in one message. It has to fit the memory through which workers
# on the server's host send theirs: 1 MiB or more.
_CHANNELS_MAX = 24 << 10
# Bytes of the text that names a caller; the whole key has 256.
_NAME_MAX = 120
# Up to here the sum over all ranks of a cohort is exact in float64.
SUMMED_MAX = 1 << 40
_GATHERED_MAX = 1 << 53
# Devices may compute a value again with other rounding.
_TOLERANCE = 1e-3


@dataclasses.dataclass
class Call:
    """One call.

    Attributes:
        site: the name in its key.
        local: this member's tensor, to recognise the call when it is computed
            again.
        kept: for its meetings.
        needed: some member needs derivatives.
        rows: of a gather: by member.
        total: what its second meeting gave.
        repetitions: how often it was computed again.
    """
    site: str
    local: torch.Tensor
    kept: _passes.Kept
    needed: bool
    rows: list[int]
    total: torch.Tensor | None = None
    repetitions: int = 0


@_operator.not_compiled
def sum_of(step: "Step", tensor: torch.Tensor, name: str | None) -> torch.Tensor:
    """See Job.sum."""
    _check("job.sum()", step, tensor)
    step.losses.check_sum("job.sum()", tensor)
    if not tensor.is_floating_point():
        if tensor.dtype is not torch.int64:
            raise _errors.UsageError(
                f"job.sum(): got {tensor.dtype}, want floating point numbers or "
                "torch.int64, which sums of other integers may not fit; call "
                ".long()")
        check_integers("job.sum()", tensor, SUMMED_MAX)
    _check_size("job.sum()", tensor, tensor.numel())
    call = _meet(step, "job.sum", _place("job.sum()", name), tensor,
                 list(tensor.shape), [])
    own: torch.Tensor = tensor.clone()
    return own if call is None else _total(step, call, tensor, 0, 0)


@_operator.not_compiled
def gather(step: "Step", tensor: torch.Tensor, name: str | None, rank: int
           ) -> torch.Tensor:
    """See Job.gather."""
    _check("job.gather()", step, tensor)
    if tensor.dim() == 0:
        raise _errors.UsageError(
            "job.gather(): got a tensor without dimensions, want at least one, "
            "along which the ranks' tensors are put together; call .reshape(1)")
    if not tensor.is_floating_point():
        check_integers("job.gather()", tensor, _GATHERED_MAX)
    _check_size("job.gather()", tensor, tensor.numel())
    own = step.members.ranks().index(rank)
    rows = [0] * len(step.members.ranks())
    rows[own] = len(tensor)
    call = _meet(step, "job.gather", _place("job.gather()", name), tensor,
                 ["*", *tensor.shape[1:]], rows)
    if call is not None:
        _check_size("job.gather()", tensor,
                    sum(call.rows) * tensor.shape[1:].numel())
        step.tape.rows[len(tensor)] = call.rows
        gathered = _total(step, call, tensor, sum(call.rows[:own]),
                          sum(call.rows[own + 1:]))
        if not step.members.are_void():
            return gathered
    return _repeated(tensor, step.tape.rows.get(len(tensor),
                                           [len(tensor)] * len(rows)))


# ---- checks

def _check(what: str, step: "Step", tensor: torch.Tensor) -> None:
    step.check_in_progress(what)
    step.calls.check_training_call(what)
    step.members.check_meet(what)
    if (_passes.is_stand_in(tensor) or _passes.are_transforms_active() or
            tensor.layout is not torch.strided):
        raise _errors.UsageError(
            f"{what}: got a {type(tensor).__name__}, within torch.func or "
            "sparse, want a plain tensor that has its numbers in memory")
    if tensor.is_complex():
        raise _errors.UsageError(
            f"{what}: got {tensor.dtype}, want real numbers; call "
            "torch.view_as_real()")
    _devices.check(tensor.device, what)


def check_integers(what: str, tensor: torch.Tensor, limit: int) -> None:
    """Raises UsageError for integers whose sum may not be exact."""
    if tensor.dtype is not torch.int64 or tensor.numel() == 0:
        return
    if -limit <= int(tensor.min()) and int(tensor.max()) <= limit:
        return
    raise _errors.UsageError(
        f"{what}: got integers from {int(tensor.min())} to {int(tensor.max())}, "
        f"want at most {limit} either way, which float64 adds exactly")


def _check_size(what: str, tensor: torch.Tensor, numbers: int) -> None:
    """`numbers`: of the result."""
    size = numbers * tensor.element_size()
    if size <= BYTES_MAX:
        return
    raise _errors.UsageError(
        f"{what}: got {size} bytes of {tensor.dtype}, want at most {BYTES_MAX}; "
        "reduce it first, to sums over the batch or to fewer channels")


def _place(what: str, name: str | None) -> str:
    """The caller's, or its name for it."""
    if name is None:
        return _doors.caller().encode()[-_NAME_MAX:].decode(errors="ignore")
    if not 0 < len(name.encode()) <= _NAME_MAX or not name.isprintable():
        raise _errors.UsageError(
            f"{what}: got the name {name!r}, want 1 to {_NAME_MAX} bytes of "
            "printable text")
    return name


# ---- meetings

def _meet(step: "Step", what: str, place: str, tensor: torch.Tensor,
          shape: Sequence[int | str], rows: list[int]) -> Call | None:
    """The first meeting of a call; None if the step is void."""
    extents = ", ".join(map(str, shape))
    kind = str(tensor.dtype).removeprefix("torch.")
    site = f"{what} at {place} of {kind} [{extents}]"
    if step.tape.recomputes():
        return _recall(step, site, tensor)
    own = [float(torch.is_grad_enabled() and tensor.requires_grad), *map(
        float, rows)]
    moments = torch.zeros(2, len(own), dtype=torch.float64)
    moments[0] = torch.tensor(own, dtype=torch.float64)
    met = step.worker.meet(-1, site, 1.0, 1, len(own), [], moments.data_ptr(),
                           _core.BufferUpdate(0, 0, 0, 0.0, False))
    if step.members.are_void():
        return None
    step.members.check_met(f"{what}()", met.count)
    met.write_to(moments.data_ptr())
    # Means, of which the sums are whole numbers.
    needed, *all_rows = moments[0].mul(met.count).round().long().tolist()
    call = Call(site, tensor.detach().clone(), _passes.Kept(met, 0.0),
                needed > 0, all_rows)
    step.tape.sums.append(call)
    return call


def _recall(step: "Step", site: str, tensor: torch.Tensor) -> Call | None:
    """The call that this one computes again."""
    # The backward pass visits calls in reverse.
    found = min((call for call in reversed(step.tape.sums) if call.site == site),
                key=lambda call: (_distance(call.local, tensor),
                                  call.repetitions), default=None)
    if found is not None and _distance(found.local, tensor) <= _TOLERANCE:
        found.repetitions += 1
        return found
    if step.members.are_void():
        return None
    raise _errors.UsageError(
        f"{site}: was called during a backward pass with a tensor that it did "
        "not get in the forward pass; activation checkpointing must compute the "
        "same values again (preserve_rng_state=True), and a function of the "
        "script may call it in its forward pass only")


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The greatest difference, relative to the greatest number."""
    if a.shape != b.shape:
        return float("inf")
    if torch.equal(a, b.detach()):
        return 0.0
    a, b = a.double(), b.detach().double()
    distance = float((a - b).abs().max() / a.abs().max().clamp(min=1e-300))
    return 0.0 if distance != distance else distance


def _total(step: "Step", call: Call, tensor: torch.Tensor, before: int,
           after: int) -> torch.Tensor:
    """The second meeting: the sum over the members, with so many rows of zeros
    before and after this one's."""
    recorded = torch.is_grad_enabled()
    own = recorded and tensor.requires_grad
    needed = call.needed or own
    if needed and not own:
        # Others need its derivative, so this member meets them there.
        tensor = tensor.detach().requires_grad_()
    with torch.set_grad_enabled(needed):
        if before or after:
            tensor = torch.cat((tensor.new_zeros(before, *tensor.shape[1:]), tensor,
                                tensor.new_zeros(after, *tensor.shape[1:])))
        flat = tensor.reshape(-1)
        # Two rows, as of any meeting.
        local = torch.cat((flat, flat.new_zeros(len(flat) % 2))).view(2, -1)
        known = call.total
        pieces = []
        for number, at in enumerate(range(0, local.shape[1], _CHANNELS_MAX)):
            piece = slice(at, at + _CHANNELS_MAX)
            pieces.append(_sums.of_piece(
                step, call.kept, number, local[:, piece],
                None if known is None else known[:, piece]))
        total = torch.cat(pieces, 1) if pieces else local
        call.total = total.detach()
        result: torch.Tensor = total.view(-1)[:len(flat)].view(tensor.shape)
    if not recorded:
        result = result.detach()
    return result


def _repeated(tensor: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Own rows in place of those of all ranks."""
    result: torch.Tensor = tensor.new_zeros(sum(rows), *tensor.shape[1:])
    if len(tensor):
        own = torch.cat([torch.arange(count) for count in rows])
        result = tensor[own.remainder(len(tensor)).to(tensor.device)]
    return result
