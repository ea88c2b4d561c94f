"""Tensors that change with the steps and are no parameters of the model: buffers
that its modules write, and what the script names with `keep=`. Each version has
a state of them: what stands when the next step begins.

The copy of it that each worker keeps during the step serves a body that is
repeated. The server gets it from one worker where a checkpoint or a replacement
needs it. Members compare digests in each step."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from cohort import _core, _devices, _errors
from cohort._plateau import Plateau

# Bytes of one state.
BYTES_MAX = 256 << 20
# Of the length of a state's header.
_LENGTH = 8

# The buffers of a batch norm that the server keeps.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Keep = Sequence[nn.Module] | Mapping[str, nn.Module | torch.Tensor]


class Kept:
    """The state beside a model's weights and moving statistics.

    Args:
        model: its buffers are kept from the step on that first writes them.
        layers: its batch norms.
        keep: see `cohort.join`.

    Raises:
        ConfigurationError: something that cannot be kept.
    """

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module],
                 keep: Keep) -> None:
        self._model = model
        self._layers = {id(layer) for layer in layers}
        self._named: dict[str, nn.Module | torch.Tensor] = {}
        self._plateau: Plateau | None = None
        # Buffers of the model among them.
        self._declared: set[str] = set()
        self._ruled: set[str] = set()
        # Averages of the model, with their decay.
        self._teachers: list[tuple[nn.Module, float]] = []
        for name, thing in (keep.items() if isinstance(keep, Mapping) else
                            ((f"keep[{n}]", one) for n, one in enumerate(keep))):
            self.add(name, thing)
        # Of the first step: values and digests by name. Buffers that appear
        # later are in no state.
        self._initial: dict[str, torch.Tensor] = {}
        self._digests: dict[str, int] = {}
        self._begun = False
        # Buffers that have not changed: shape and fingerprint.
        self._constant: dict[str, tuple[torch.Size, Any]] = {}
        # Those that are not persistent and are made of a batch's shape.
        self._made: set[str] = set()
        # Names of what changes, and since which version it is another state.
        self._moving: set[str] = set()
        self._moves_from: int | None = None
        # The version whose state the tensors have, if it is known; and the one
        # whose state is copied here.
        self._at: int | None = None
        self._copy: dict[str, torch.Tensor] = {}
        self._copied_at: int | None = None
        self._warned_at: int | None = None
        # Of all of it, in the step in progress.
        self.digest = 0.0

    # ---- what is kept

    def add(self, name: str, thing: nn.Module | torch.Tensor) -> None:
        """One of `keep`. Raises ConfigurationError."""
        if not isinstance(thing, (nn.Module, torch.Tensor)):
            raise _errors.ConfigurationError(
                f"keep: {name}: got a {type(thing).__name__}, want modules, or "
                'modules and tensors by name: keep={"centre": centre}')
        own = {id(one) for one in self._model.parameters()}
        tensors = ([thing] if isinstance(thing, torch.Tensor) else
                   list(thing.parameters()))
        if any(id(one) in own for one in tensors):
            raise _errors.ConfigurationError(
                f"keep: {name}: got parameters of the model, which the server "
                "holds; keep a copy of them, such as copy.deepcopy(model). Where one "
                "module has both what is trained and what follows it, pass the "
                "trained part alone to the optimizer and to cohort.join(), such as "
                "cohort.join(model.encoder, optimizer, keep=[model.target])")
        for one in tensors:
            if (one.layout is not torch.strided or one.is_quantized or
                    one.is_inference()):
                raise _errors.ConfigurationError(
                    f"keep: {name}: got a tensor of layout {one.layout}, "
                    "quantised, or of inference mode; want plain ones")
        for known, buffer in self._model.named_buffers():
            if buffer is thing:
                self._declared.add(known)
                return
        self._named[name] = thing

    def teacher(self, decay: float, copied: nn.Module) -> None:
        """See Job.teacher."""
        if self._begun:
            raise _errors.UsageError(
                "job.teacher(): the first batch has begun; create the teacher "
                "before job.data() is iterated")
        if not 0 <= decay < 1:
            raise _errors.UsageError(
                f"job.teacher(): got decay {decay}, want at least 0 and below 1")
        self.add(f"teacher{len(self._teachers) or ''}", copied)
        self._teachers.append((copied, decay))

    def follow_plateau(self, plateau: Plateau) -> None:
        """Keeps a scheduler that acts on a measure, and the rates."""
        self._plateau = plateau

    def refuse_some(self, met: int, members: int) -> None:
        """Raises UsageError if fewer than all members meet in a step, and there
        is a state."""
        if self._moving and met != members:
            raise _errors.UsageError(self._not_all())

    def _not_all(self) -> str:
        return (f"keep: {min(self._moving)}: under this policy the workers do not "
                "synchronise in every step, so their states would differ; want "
                "--aggregation=sync and --normalization=global, without groups, "
                "--min_pushes or local steps")

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Those of the model, and those that the script has named."""
        yield from self._model.named_modules()
        yield from self.named_modules()

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Those that the script has named."""
        for name, thing in self._named.items():
            if isinstance(thing, nn.Module):
                yield from thing.named_modules(prefix=name)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The model's buffers, but for statistics, and what the script has
        named."""
        return {name: tensor for name, tensor, _ in self._each()}

    def declare(self, name: str) -> None:
        """One of `tensors` changes with the steps, by a rule."""
        self._ruled.add(name)
        if name in dict(self._model.named_buffers()):
            self._declared.add(name)

    def ids(self) -> set[int]:
        """Those of the modules and tensors that the script has named."""
        found = set()
        for thing in self._named.values():
            found.add(id(thing))
            if isinstance(thing, nn.Module):
                found.update(map(id, thing.modules()))
                found.update(map(id, thing.parameters()))
                found.update(map(id, thing.buffers()))
        return found

    def _each(self) -> Iterator[tuple[str, torch.Tensor, bool | None]]:
        """Names, tensors, and of the model's buffers whether they are in the
        state dict; None: named by the script."""
        for prefix, module in self._model.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is None or buffer.layout is not torch.strided or (
                        id(module) in self._layers and name in STATISTICS):
                    continue
                whole = f"{prefix}.{name}" if prefix else name
                yield whole, buffer, (
                    None if whole in self._declared else
                    name not in module._non_persistent_buffers_set)
        for prefix, thing in self._named.items():
            if isinstance(thing, torch.Tensor):
                yield prefix, thing, None
                continue
            for part in (thing.named_parameters(), thing.named_buffers()):
                for name, tensor in part:
                    yield f"{prefix}.{name}", tensor, None
        if self._plateau is not None:
            yield self._plateau.name, self._plateau.tensor(), None

    def _live(self) -> dict[str, torch.Tensor]:
        """What changes."""
        return {name: tensor for name, tensor, _ in self._each()
                if name in self._moving}

    # ---- a step

    def begin(self, worker: "_core.Worker", assignment: "_core.Assignment",
              rank: int) -> None:
        """Before a step's body: the tensors get the state of its version.

        Args:
            worker: it has the assignment.
            assignment: the step.
            rank: this worker's.

        Raises:
            StatusError: the step is void, or the run cannot continue.
            UsageError: the state cannot be kept.
        """
        version, first = int(assignment.version), not self._begun
        if first:
            self._note_initial(version)
        if not self._digests:
            return
        meets = bool(assignment.global_normalization)
        if self._moving and not meets:
            raise _errors.UsageError(self._not_all())
        if meets:
            self._return_to(worker, version, first)
        self._check_constant()
        if not meets:
            return
        self._copy = {name: tensor.detach().clone()
                      for name, tensor in self._live().items()}
        self._copied_at = version
        self._check_size()
        self._note_digest()
        # The lowest serves checkpoints; a repeated step may need any of them.
        if first or assignment.attempt > 0 or rank == assignment.ranks[0]:
            self._offer(worker, version)
        # The body may change them.
        self._at = None

    def _note_initial(self, version: int) -> None:
        self._begun = True
        if version == 0:
            for copied, _ in self._teachers:
                self._follow(copied, 0.0)
        room = BYTES_MAX
        each = list(self._each())
        self._digests = dict(zip((name for name, _, _ in each), _devices.digests(
            [tensor for _, tensor, _ in each])))
        for name, tensor, persistent in each:
            if persistent is None:
                self._moving.add(name)
                self._moves_from = 1
            else:
                self._constant[name] = (tensor.shape,
                                        _devices.fingerprint(tensor))
            room -= tensor.numel() * tensor.element_size()
            # Beyond that they cannot be kept.
            if room >= 0:
                self._initial[name] = tensor.detach().to("cpu", copy=True)
        if version == 0:
            self._at = 0

    def _return_to(self, worker: "_core.Worker", version: int, first: bool
                   ) -> None:
        """The state of `version`, wherever it is."""
        if self._at == version:
            return
        if self._copied_at == version:
            self._put(self._copy)
            self._at = version
            return
        initial, moves_from, state = worker.take_state()
        if initial:
            self._put_first(first)
        else:
            values = _unpack(state)
            self._moves_from = int(moves_from)
            self._moving |= set(values)
            for name in values:
                self._constant.pop(name, None)
            self._put(values)
        self._at = version

    def _put_first(self, fresh: bool) -> None:
        """The initial state, which a fresh process has."""
        if not fresh:
            self._put({})
        for name, tensor, persistent in self._each():
            if persistent is not None and name in self._moving:
                self._moving.remove(name)
                self._constant[name] = (tensor.shape,
                                        _devices.fingerprint(tensor))
        if not self._moving:
            self._moves_from = None

    def _put(self, values: Mapping[str, torch.Tensor]) -> None:
        """Writes a state; what is not in it is as it was at first."""
        live = self._live()
        if not set(values) <= set(live):
            raise _errors.ConfigurationError(
                f"keep: {min(set(values) - set(live))}: is in the run's state, but "
                "not in this worker; give all workers the same keep=, and a model "
                "with the same buffers")
        with torch.no_grad():
            for name, tensor in live.items():
                value = values.get(name, self._initial.get(name))
                if value is None:
                    raise _errors.UsageError(_too_large(name))
                if tensor.shape != value.shape:
                    tensor.resize_(value.shape)
                tensor.copy_(value)
        if self._plateau is not None:
            self._plateau.take()

    def _check_size(self) -> None:
        sizes = {name: tensor.numel() * tensor.element_size()
                 for name, tensor in self._copy.items()}
        total = sum(sizes.values())
        if total > BYTES_MAX:
            raise _errors.UsageError(_too_large(
                max(sizes, key=lambda name: sizes[name])))

    def _note_digest(self) -> None:
        self._digests.update(zip(self._copy, _devices.digests(
            list(self._copy.values()))))
        self.digest = _number_of(self._digests)

    def _offer(self, worker: "_core.Worker", version: int) -> None:
        """The server has it sent if it needs it."""
        if self._moves_from is not None and worker.hold_state(
                version, self._moves_from, False):
            worker.give_state(version, _pack(self._copy))

    def counted(self, version: int) -> None:
        """The step has become part of this version."""
        self._at = version
        for copied, decay in self._teachers:
            self._follow(copied, decay)

    def _follow(self, copied: nn.Module, decay: float) -> None:
        with torch.no_grad():
            ours, theirs = copied.state_dict(), self._model.state_dict()
            for name, tensor in ours.items():
                if tensor.is_floating_point():
                    tensor.lerp_(theirs[name].to(tensor), 1 - decay)
                else:
                    tensor.copy_(theirs[name])

    def warn_if_behind(self, version: int) -> None:
        """Between steps the model got the weights of this version."""
        if not self._moving or version in (self._at, self._copied_at,
                                           self._warned_at):
            return
        self._warned_at = version
        names = sorted(self._moving)
        _core.log("warning", f"{', '.join(names[:3])}"
                  f"{', ...' if len(names) > 3 else ''}: older than the weights of "
                  f"version {version}, as this worker had no batch in the last "
                  "step. Use and save this state on rank 0, which always has one; "
                  "here it is brought up to date when the next batch comes")

    def give_last(self, worker: "_core.Worker") -> None:
        """This worker begins no further step."""
        if self._at is None and self._copied_at is not None:
            # Its last body was void.
            self._put(self._copy)
            self._at = self._copied_at
        if self._at is None or self._moves_from is None:
            return
        if worker.hold_state(self._at, self._moves_from, True):
            worker.give_state(self._at, _pack(self._live()))

    def copied(self) -> dict[str, torch.Tensor]:
        """What stands now, for `put_back`."""
        return {name: tensor.detach().clone()
                for name, tensor in self._live().items()}

    def put_back(self, values: dict[str, torch.Tensor]) -> None:
        """After passes that are no part of a step."""
        if values:
            self._put(values)

    # ---- buffers that have not changed

    def check(self, worker: "_core.Worker", assignment: "_core.Assignment",
              scored: bool) -> None:
        """Before a step is sent: buffers that it has written are kept from now
        on.

        Args:
            scored: all workers score the model.

        Raises:
            UsageError: they cannot be kept.
            StatusError: as `begin`.
        """
        changed = list(self._changed())
        if scored and (changed or self._declared):
            names = sorted({*changed, *self._declared})
            raise _errors.UsageError(
                f"job.evaluate_with(): the model has buffers that change with the "
                f"steps ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}), "
                "and a worker without a batch in the last step, or a replacement, "
                "would score with those of another step. Remove this call, and "
                "score the model in the script, on rank 0 in the body of `for epoch "
                "in job.epochs()`, behind the loop over the data")
        if changed and not assignment.global_normalization:
            raise _errors.UsageError(
                f"{changed[0]}: the script or the module writes this buffer, but "
                "under this policy its values would differ between workers; use "
                "--aggregation=sync and --normalization=global, or a module "
                "without such state (spectral_norm, queues and observers of "
                "quantisation have it)")
        for name in changed:
            self._moving.add(name)
            del self._constant[name]
        if self._moving and self._moves_from is None:
            # Before there is a version that a checkpoint could have without it.
            version = int(assignment.version)
            worker.hold_state(version, version + 1, False)
            self._moves_from = version + 1

    def _check_constant(self) -> None:
        """Raises UsageError if one was written outside of a step."""
        for name in self._changed():
            raise _errors.UsageError(
                f"{name}: this buffer was written outside of a step, or after "
                "job.step(), for the first time; if it belongs to the run, name "
                'it: cohort.join(..., keep={"' + name + '": buffer})')

    def _changed(self) -> Iterator[str]:
        for name, tensor, persistent in self._each():
            if name in self._moving or name in self._made or (
                    persistent is None):
                continue
            shape, printed = self._constant.get(name, (None, None))
            if shape is None and persistent:
                raise _errors.UsageError(
                    f"{name}: this buffer was created during the run, so workers "
                    "and their replacements may lack it; create it before "
                    "cohort.join(), or with persistent=False")
            if shape != tensor.shape and not persistent:
                # Such as a grid of positions.
                self._made.add(name)
            elif shape != tensor.shape or not _devices.same(
                    printed, _devices.fingerprint(tensor)):
                yield name

    # ---- members that differ

    def refuse_difference(self, worker: "_core.Worker") -> NoReturn:
        """All members meet here if their digests differ. Raises
        ConfigurationError."""
        names = sorted(self._digests)
        _, (spread,), _ = worker.meet("kept names", [
            _number_of(dict.fromkeys(names, 0))])
        if spread > 0:
            raise _errors.ConfigurationError(
                f"keep: this worker has {', '.join(names[:5]) or 'nothing'}"
                f"{', ...' if len(names) > 5 else ''}, and other workers have "
                "other tensors; give all workers the same keep=, and models with "
                "the same buffers")
        _, spreads, _ = worker.meet("kept", [float(self._digests[name])
                                             for name in names])
        different = [name for name, one in zip(names, spreads) if one > 0]
        if different[0] in self._ruled:
            raise _errors.ConfigurationError(
                f"{different[0]}: differs between workers. Its rule in buffers= has "
                "made one change of what the workers changed up to job.step(); "
                "change it before that, or later by what all workers have")
        raise _errors.ConfigurationError(
            f"{', '.join(different[:3])}{', ...' if len(different) > 3 else ''}: "
            "differs between workers. Compute it from what all workers have: "
            "gather rows with job.gather, add up sums and counts with job.sum; or "
            'combine what each worker changes up to job.step(): cohort.join(..., '
            'buffers={"' + different[0] + '": "mean"}). Call torch.manual_seed() '
            "before the model is made")


def _too_large(name: str) -> str:
    """The text of an error."""
    return (f"keep: {name}: brings the total above {BYTES_MAX} bytes, the limit; "
            "keep fewer or smaller tensors, or use the server's --ema_decay for an "
            "average of the weights")


def _number_of(digests: Mapping[str, int]) -> float:
    """A digest of all, with their names, as a number that float64 holds
    exactly."""
    return _devices.number_of(repr(sorted(digests.items())).encode())


def _pack(values: Mapping[str, torch.Tensor]) -> bytes:
    """Names, types, shapes and bytes."""
    rows = []
    parts = []
    for name, tensor in values.items():
        host = _devices.to_host(tensor.detach()).contiguous()
        rows.append([name, str(host.dtype).removeprefix("torch."),
                     list(host.shape)])
        parts.append(host.reshape(-1).view(torch.uint8).numpy().tobytes())
    header = json.dumps(rows).encode()
    return b"".join((len(header).to_bytes(_LENGTH, "little"), header, *parts))


def _unpack(state: bytes) -> dict[str, torch.Tensor]:
    begin = _LENGTH + int.from_bytes(state[:_LENGTH], "little")
    values = {}
    for name, kind, shape in json.loads(state[_LENGTH:begin]):
        dtype = getattr(torch, kind)
        size = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
        whole = torch.frombuffer(bytearray(state[begin:begin + size]),
                                 dtype=torch.uint8) if size else (
            torch.empty(0, dtype=torch.uint8))
        values[name] = whole.view(dtype).reshape(shape)
        begin += size
    return values
