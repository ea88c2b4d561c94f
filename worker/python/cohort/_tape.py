"""What a step has recorded for its backward passes, and the passes of autograd over
it."""

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from cohort import _core, _errors
from cohort._graphs import Saved, has_functions, leaves_of, nodes_before, nodes_of

if TYPE_CHECKING:
    from cohort._passes import Kept
    from cohort._totals import Call


class Tape:
    """The calls of batch norm, and of sums, that later passes meet in.

    Args:
        parameters: the model's.

    Attributes:
        token: the last call's, in a compiled graph; it keeps their order.
        kept: values for the backward pass of a call, by number; for compiled graphs.
        sums: the script's sums and gathers.
        rows: by the number of own rows: those of all ranks, in the last gather.
        saved: values that are kept by nodes of the losses so far.
        hooked: outputs that have got hooks in this step.
        in_backward: a pass of job.backward() is in progress.
        differentiated: derivatives by weights may be parts of the step's losses.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._shapes = {parameter.shape for parameter in parameters}
        self.in_backward = False
        # Passes in progress, and whether the outermost is the script's.
        self._depth = 0
        self._of_script = False
        self._warned_of_shares = False
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self.differentiated = False
        self._visits: dict[Any, int] = {}
        self.rows: dict[int, list[int]] = {}
        self.hooked: "list[weakref.ref[torch.Tensor]]" = []
        self.clear()

    def clear(self) -> None:
        """No backward pass follows for the calls so far."""
        self.kept: "list[Kept]" = []
        self.sums: "list[Call]" = []
        self.saved = Saved()
        self.token = torch.zeros((), requires_grad=True)
        # Nodes whose values a pass of the script has released.
        self._freed: set[Any] = set()
        self.drop_roots()

    def drop_roots(self) -> None:
        """No pass starts at the outputs so far but at losses that depend on them."""
        self._roots: list[torch.Tensor] = []

    def add_root(self, root: torch.Tensor) -> None:
        """An output that `run` visits even if no loss depends on it: other members'
        losses may."""
        self._roots.append(root)

    def recomputes(self) -> bool:
        """Whether a forward call now repeats an earlier one (activation
        checkpointing)."""
        return self._depth > 0

    def visit(self, kept: "Kept", path: tuple[int, ...]) -> tuple[int, ...]:
        """The path of the next visit of what has this path. Visits are numbered
        apart by whether the pass is the script's and whether autograd records
        it, so that passes of members which differ never meet."""
        kind = 2 * torch.is_grad_enabled() + self._of_script
        key = (kept.call.key, path, kind)
        number = self._visits.get(key, 0)
        self._visits[key] = number + 1
        visit = 4 * number + kind
        return () if not path and not visit else (*path, visit)

    @contextlib.contextmanager
    def pass_over(self, tensors: Any, inputs: Any, keeps: bool, records: bool
                  ) -> Iterator[None]:
        """Autograd visits the graph of `tensors`, and keeps it or not; `records`: its
        derivatives have a graph, too."""
        of_script = self._depth == 0 and not self.in_backward
        seen: set[Any] = set()
        if self._depth > 0 and self._roots:
            self._check_nested(tensors)
        if of_script:
            self._of_script = True
            self._note_shares(inputs)
            # By weights, or by what was made of them, as in MAML.
            self.differentiated = self.differentiated or records and not (
                inputs and all(tensor.shape not in self._shapes for tensor in inputs))
            if self._roots and not keeps:
                seen = nodes_of(tensors)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if of_script:
                self._of_script = False
                self._freed |= seen

    def _check_nested(self, tensors: Any) -> None:
        """A pass within a pass, such as that of a checkpoint with reentry, must
        visit other calls."""
        if not nodes_of(tensors) & {root.grad_fn for root in self._roots}:
            return
        raise _errors.UsageError(
            "torch.autograd in the backward pass of a custom autograd function: it "
            "would go through a batch norm that the function's forward pass has "
            "called, and job.backward() goes through it too; call the batch norm "
            "outside of the function, or again in its backward pass")

    def _note_shares(self, inputs: Any) -> None:
        if self._warned_of_shares or not inputs:
            return
        known = {id(parameter) for parameter in self._parameters}
        if any(id(tensor) in known for tensor in inputs):
            self._warned_of_shares = True
            _core.log("info", "gradients that the script computes with "
                      "torch.autograd are this worker's shares: their sum over the "
                      "workers is the gradient of one process with all batches")

    def run(self, losses: list[tuple[torch.Tensor, float]],
            inputs: list[torch.Tensor] | None = None, alone: bool = False) -> None:
        """The backward pass.

        Args:
            losses: each with the gradient at it.
            inputs: the only leaves that get gradients; None: all do.
            alone: no other member meets it.
        """
        further = [] if alone else self._further_roots()
        # Functions of the script, and checkpoints with reentry, may call layers
        # in their backward pass. Other derivatives of a mean over nothing are
        # infinite or no numbers, and 0 times them would be none. So there only
        # what others need is visited.
        roots: list[tuple[torch.Tensor, float]] = []
        left_out = []
        for loss, factor in losses:
            if factor > 0 or has_functions(loss):
                roots.append((loss, factor))
            else:
                left_out.append(loss)
        roots += [(root, 0.0) for root in further]
        if roots:
            torch.autograd.backward(
                [root for root, _ in roots],
                [torch.full_like(root, factor) for root, factor in roots],
                inputs=inputs)
        wanted = None if inputs is None else {id(leaf) for leaf in inputs}
        for leaf in (leaf for loss in left_out for leaf in leaves_of(loss)):
            if leaf.grad is None and (wanted is None or id(leaf) in wanted):
                leaf.grad = torch.zeros_like(leaf)

    def _further_roots(self) -> list[torch.Tensor]:
        """Outputs of calls that the loss may not depend on, but other members'
        losses do. One behind which a pass of the script has released values
        cannot be visited again."""
        roots = [root for root in (*self._roots, self.token)
                 if root.grad_fn is not None]
        if self._freed:
            roots = [root for root in roots
                     if not nodes_of([root]) & self._freed]
        return roots

    def drop_visited(self, inputs: list[torch.Tensor]) -> None:
        """Autograd has released the nodes of a pass to these leaves; others are kept
        for further passes."""
        visited = nodes_before(self._roots, inputs)
        self._roots = [root for root in self._roots if root.grad_fn not in visited]
