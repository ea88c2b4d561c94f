"""A training script's side of a run."""

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from cohort import _errors, _evaluation, _loop, _totals
from cohort._run import Run
from cohort._step import StepResult


class Job:
    """One worker of a run; made by `cohort.join`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._data: _loop.Data | None = None

    # ---- what is known of the run

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return int(self._run.joined().rank)

    @property
    def workers(self) -> int:
        """The number of workers when this one joined."""
        return int(self._run.joined().workers)

    @property
    def run_name(self) -> str:
        """The run's name, as on the live page."""
        return str(self._run.joined().run_name)

    @property
    def version(self) -> int | None:
        """The version of the weights in the model; None before the first."""
        return self._run.version

    @property
    def epoch(self) -> int:
        """The epoch of the batch in progress, from 0; 0 with own data."""
        assignment = self._run.step.assignment
        if assignment is not None:
            return int(assignment.data_epoch)
        return self._run.epoch_limit or 0

    @property
    def step_number(self) -> int:
        """The number of the step in progress, from 0, which is `version` in it:
        what a learning rate, or another value that the script changes with the
        steps, should depend on. A repeated step has the same number, and a
        restarted process continues with the run's. (With
        --aggregation=async or bounded, workers may have one number at once.) With
        `local_steps` of `cohort.join` it counts these: batches, not versions.

        Raises:
            UsageError: the run is not joined yet.
        """
        run = self._run
        run.joined()
        if run.schedulers.local_steps is None:
            return self.version or 0
        local = run.step.local
        return run.schedulers.local_steps + (0 if local is None else local.index)

    @property
    def finished(self) -> bool:
        """The run is over, or needs nothing more of this worker."""
        return self._run.finished

    @property
    def left(self) -> bool:
        """The worker has left the run."""
        return self._run.left

    @property
    def score(self) -> _evaluation.Score | None:
        """The result of `evaluate_with` for the newest epoch; None: there is none yet.

        With --aggregation=sync it is there, the same on all workers, as soon as the loop
        over an epoch's batches has ended, so schedulers may depend on it, and with what
        is kept (`cohort.join(..., keep=...)`) the end of training.
        """
        return self._run.score

    # ---- data

    def evaluate_with(self, dataset: Any,
                      evaluate: Callable[..., Any], *,
                      batch_size: int = 64, ignore_index: int = -100,
                      collate_fn: Callable[[list[Any]], Any] | None = None
                      ) -> None:
        """Scores the test set when the server asks for it, after each epoch; the
        workers share it out. The result is `job.score`.

        Call it before `job.data` is iterated; all workers need the same test
        set.

        Args:
            dataset: test samples by number, with a length.
            evaluate: a loss such as nn.CrossEntropyLoss() or F.cross_entropy,
                whose batches are (inputs, labels); or a function of the model and
                a collated batch that returns a cohort.Evaluation.
            batch_size: samples a batch.
            ignore_index: labels that a loss ignores; by default the loss's own.
            collate_fn: as in torch.utils.data.DataLoader.
        """
        if self._run.worker is not None:
            raise _errors.UsageError(
                "job.evaluate_with(): the model is registered; call it before "
                "job.data() is iterated")
        # A criterion may have another number.
        if ignore_index == -100:
            ignore_index = getattr(evaluate, "keywords", {}).get(
                "ignore_index", getattr(evaluate, "ignore_index", ignore_index))
        of = evaluate.func if isinstance(evaluate, functools.partial) else evaluate
        is_loss = isinstance(of, nn.Module) or (
            getattr(of, "__module__", None) == "torch.nn.functional")
        score = (_evaluation.by_criterion(evaluate, ignore_index) if is_loss else
                 lambda model, batch, _: evaluate(model, batch))
        self._run.evaluator = _evaluation.Evaluator(
            dataset, score, collate_fn or torch.utils.data.default_collate,
            batch_size)

    def data(self, dataset: Any, batch_size: int | None = None, *,
             batch_size_max: int | None = None, num_workers: int = 0,
             accumulate: int = 1, loop: bool = False, name: str | None = None,
             sampler: Any = None,
             collate_fn: Callable[[list[Any]], Any] | None = None,
             **loader_options: Any) -> _loop.Data:
        """The batches of this worker, until the run is over.

        Args:
            dataset: samples by number, with a length: the server cuts one
                permutation an epoch, so shuffling and sharding are its work. Or
                any iterable of batches, such as a DataLoader: own data, which
                the server does not number (it needs --max_steps). A list counts as
                samples; for a list of batches pass iter(list).
            batch_size: samples of this worker in a step; with own data, about how
                many a batch has.
            batch_size_max: the most that one batch may have, where the server's
                --shares gives a fast worker more: as many as memory holds.
            num_workers: loader processes.
            accumulate: parts that a batch is cut into; each is a forward and
                backward pass, and job.step() acts after the last.
            loop: own data starts over when it ends.
            name: of the data set, on the live page.
            sampler: such as WeightedRandomSampler: each epoch has the samples
                that it yields, in its order, and the server shards them. All
                workers draw the same ones, from the run's seed and the epoch.
            collate_fn: as in torch.utils.data.DataLoader.
            loader_options: further options of DataLoader: pin_memory,
                worker_init_fn, prefetch_factor, timeout,
                multiprocessing_context. shuffle=False keeps the data set's order.

        Returns:
            An iterable of collated batches. Each must be followed by
            job.backward(loss) and job.step().
        """
        data = _loop.Data(
            self._run, dataset, batch_size, batch_size_max, accumulate, loop, name,
            sampler,
            dict(loader_options, num_workers=num_workers, collate_fn=collate_fn))
        if self._data is None or self._run.worker is None:
            self._data = data
        return data

    def epochs(self) -> Iterator[int]:
        """The run's epochs, for scripts that do something after each one.

        Call `job.data` before, and iterate its result in the body: it ends with
        the epoch, and the model has then the server's moving statistics. A
        worker that joins later begins at the epoch of the run. A loop over the data
        that is left early leaves its epoch unfinished: then the next one is a
        UsageError.
        """
        try:
            while not self._run.finished:
                if self._data is None:
                    raise _errors.UsageError(
                        "job.epochs(): the job has no data; call data = "
                        "job.data(...) before this loop, and iterate `data` in "
                        "its body")
                first = self._run.worker is None
                epoch = self._data.next_epoch()
                if epoch is None:
                    return
                if first:
                    # The body may look at the model before it trains.
                    self.load()
                self._run.epoch_limit = epoch
                yield epoch
                if self._run.left:
                    return
        finally:
            self._run.epoch_limit = None

    # ---- a step

    def backward(self, loss: torch.Tensor | list[tuple[torch.Tensor, float]],
                 weight: float | None = None, *, reduction: str = "mean",
                 optimizer: torch.optim.Optimizer | None = None,
                 correct: int = 0, labels: int = 0, retain_graph: None = None,
                 create_graph: None = None, inputs: None = None) -> None:
        """Computes the gradients and sends them while they are computed.

        The step's loss is the mean over all workers, weighted by `weight`, so
        batches may differ in size. That of a local step is the mean over this
        worker's batch, and its gradients stay here.

        Args:
            loss: a scalar: the mean over what `weight` counts, or its sum. Or
                losses that are means over different things, as pairs of each
                with its own weight, such as [(boxes, n_boxes), (masks,
                n_pixels)]: the step's loss is the sum of their means.
            weight: samples, labels or valid pixels behind the loss; by default
                the samples of the batch. In own data a batch of `batch_size`
                samples shows how they are counted; without it all tensors must
                have one length. 0: a mean over nothing, so there is nothing to
                learn from; a sum still counts.
            reduction: "mean" or "sum": what `loss` is over `weight`.
            optimizer: if the job has several: whose parameters get gradients. As
                in torch, calls before its job.step() add up.
            correct: labels that were predicted, for the live page.
            labels: of so many.
            retain_graph, create_graph, inputs: torch's, which are refused.
        """
        if any(value is not None for value in (retain_graph, create_graph, inputs)):
            raise _errors.UsageError(
                "job.backward(): retain_graph, create_graph and inputs are torch's. It "
                "computes all gradients of the step at once: add the losses and pass "
                "their sum, and compute other gradients before it, by "
                "torch.autograd.grad(..., retain_graph=True)")
        run, step = self._run, self._run.step
        step.check_in_progress("job.backward()")
        position = step.updates.position_of(optimizer, "job.backward()")
        numbers = run.numbers()
        pairs: list[tuple[torch.Tensor, float | None]]
        if isinstance(loss, list):
            _check_pairs(loss, weight)
            pairs = list(loss)
        else:
            step.batch.check("job.backward", weight)
            pairs = [(loss, weight)]
        step.losses.begin()
        for one, its_weight in pairs:
            step.losses.check(one, its_weight, reduction)
        run.model.check_weights(content=False)
        if step.updates.several:
            step.backward_update(position, pairs, reduction, numbers)
        elif isinstance(loss, list):
            step.backward_each(loss, reduction, numbers)
        else:
            step.backward(loss, weight, reduction, numbers)
        step.measures.correct += int(correct)
        step.measures.labels += int(labels)

    def step(self, optimizer: torch.optim.Optimizer | None = None, *,
             last: bool | None = None) -> StepResult:
        """Ends the step: the server combines it with those of the other workers
        and sends new weights, which are then in the model.

        With several optimizers it updates the parameters of one, and the step
        ends with the last of them, or with the request for the next batch if that
        was not stepped. All updates of a step are part of its version, or none:
        a step that is void is repeated from its beginning.

        With `local_steps` of `cohort.join` it makes a local step, by the script's
        optimizer in this process alone. The last one of a step sends what all of
        them have changed; then the model has the weights of all workers, and the
        verdict is for all batches of the step.

        Args:
            optimizer: if the job has several: the one to step. All workers step
                the same ones in the same order.
            last: whether the step ends with it; by default, if it is the last
                that was passed to `cohort.join`.

        Returns:
            What became of it; "part" for an update that others follow, "local"
            for a local step that others follow.
        """
        updates = self._run.step.updates
        self._run.step.check_in_progress("job.step()")
        position = updates.position_of(optimizer, "job.step()")
        if not updates.several:
            return self._run.end_step()
        return self._run.end_update(position, last)

    def after_step(self, function: Callable[[], Any]) -> None:
        """Calls `function` once for each version that this worker's steps
        become part of, with the new weights and moving statistics in the model:
        the place for an average of the weights. job.step() does it before it
        returns; a void step does not.

        State that the function keeps belongs to this process, and its
        replacement starts without it, unless `keep` of `cohort.join` names it.
        """
        self._run.after_step.add(function)

    def teacher(self, decay: float = 0.999) -> nn.Module:
        """A copy of the model, in evaluation mode and without gradients, that
        follows it: after each step its weights and moving statistics are
        `decay` times what they were and 1 - `decay` times the new ones. It is
        kept as `keep` of `cohort.join` keeps modules.

        Call it before job.data() is iterated.
        """
        copied = copy.deepcopy(self._run.model.module)
        for parameter in copied.parameters():
            parameter.requires_grad_(False)
        self._run.kept.teacher(decay, copied)
        return copied.eval()

    def share(self, loss: torch.Tensor, weight: float | None = None
              ) -> torch.Tensor:
        """A mean over this worker's samples as its share of the mean over all:
        loss x own weight / weight of all workers. For gradients that the script
        takes itself with torch.autograd.grad, which are those of the sum of what
        the workers pass; job.backward weights by itself.

        Args:
            loss: a mean over what `weight` counts.
            weight: by default the samples of the batch.
        """
        step = self._run.step
        step.check_in_progress("job.share()")
        step.batch.check("job.share", weight)
        return step.members.share(loss, weight, self.workers)

    def sum(self, tensor: torch.Tensor, *, name: str | None = None
            ) -> torch.Tensor:
        """The sum of a tensor over the workers whose batches make up the step,
        in rank order, in float64 and rounded to its type. It can be
        differentiated, any number of times.

        With it a loss over all samples is written as in one process: sums over
        own samples in it become `job.sum` of them. Each worker then has the same
        loss, of which job.backward makes a weighted mean; so pass it as it is.

        All workers must call it at the same places in the same order, those
        without samples with zeros. In a void step it returns the tensor itself.

        Args:
            tensor: of one shape and type on all workers, at most 4 MiB; floating
                point numbers or int64.
            name: of the call, in place of the caller's line, where the workers
                run different code.
        """
        return _totals.sum_of(self._run.step, tensor, name)

    def gather(self, tensor: torch.Tensor, *, name: str | None = None
               ) -> torch.Tensor:
        """The tensors of the workers whose batches make up the step, one after
        another along the first dimension, in rank order. It can be
        differentiated, any number of times.

        For losses over pairs of samples: gather the embeddings, and write the
        loss as in one process; as for `sum`, pass it as it is. In a void step it
        returns own rows in place of the others'.

        Args:
            tensor: all together at most 4 MiB; workers may have different
                numbers of rows, also none.
            name: as for `sum`.
        """
        return _totals.gather(self._run.step, tensor, name, self.rank)

    def report(self, weight: float = 1.0, **measures: float) -> None:
        """Adds measures of the step in progress to the live page, metrics and
        history: the mean over all workers, by `weight`.

        Call it between job.backward() and job.step().

        Args:
            weight: what each value is a mean over, such as samples.
            measures: values by name, at most 32 names a step. One that is not
                finite is left out of the mean, with a warning in the server's
                log.
        """
        step = self._run.step
        step.check_in_progress("job.report()")
        for name, value in measures.items():
            step.measures.add(name, float(value), float(weight))

    # ---- the model

    def load(self) -> int:
        """Loads the newest weights and moving statistics into the model, which
        has them already once the job has left its run.

        Returns:
            Their version.
        """
        return self._run.load()

    def state_dict(self, averaged: bool = False) -> dict[str, Any]:
        """The newest weights and moving statistics, with the names of
        `model.state_dict()`; copies, which later steps do not change.

        Args:
            averaged: their moving averages instead, which the server keeps with
                --ema_decay. After the run: those of its last version.
        """
        run = self._run
        if not run.left:
            run.load(averaged)
        if averaged and run.left:
            if run.last_averages is None:
                raise _errors.UsageError(
                    "job.state_dict(averaged=True): the run has no averages, or "
                    "was left before its end; start the server with "
                    "--ema_decay=0.999")
            return dict(run.last_averages)
        state = run.model.copy()
        if averaged:
            run.load()
        return state

    def leave(self, reason: str = "the script called leave()") -> None:
        """Leaves the run; the model keeps the weights that it has, and gets the
        moving statistics that belong to them. Called automatically when the
        script ends."""
        self._run.leave(reason)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, _: object, error: BaseException | None,
                 trace: object) -> None:
        if error is None:
            self.leave()
        else:
            self._run.end(error)


def _check_pairs(pairs: list[Any], weight: float | None) -> None:
    """Raises UsageError unless these are losses with a weight each."""
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise _errors.UsageError(
                f"job.backward(): got a {type(pair).__name__} in a list, want "
                "pairs of a loss and its weight, such as [(boxes, n_boxes), "
                "(masks, n_pixels)]")
    if not pairs or weight is not None:
        raise _errors.UsageError(
            f"job.backward(): got {len(pairs)} losses and weight={weight}, want at "
            "least one loss, each with its own weight, and no weight=")
