"""Scores of the test samples that the server asks for."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from cohort import _attributes, _core, _devices, _errors
from cohort._data import MapDataset


@dataclasses.dataclass
class Evaluation:
    """The score of one batch of test samples.

    Attributes:
        loss_sum: sum of the loss over the batch.
        loss_weight: its divisor: samples, labels or valid pixels.
        correct: labels that were predicted, of `labels` many.
        labels: valid labels.
        classes: for segmentation, (intersection, predicted, actual) pixels of
            each class; they add up to `correct` and `labels`.
    """
    loss_sum: float
    loss_weight: float
    correct: int = 0
    labels: int = 0
    classes: Sequence[tuple[int, int, int]] = ()


@dataclasses.dataclass(frozen=True)
class Score:
    """The result of the evaluation at the end of an epoch.

    Attributes:
        epochs: that were completed.
        step: of the weights that were scored.
        loss: the mean over the test set.
        accuracy: share of the labels that were predicted, in [0, 1]; None: there were
            none.
        mean_iou: intersection over union, the mean over classes; None: there is no
            label a pixel.
    """
    epochs: int
    step: int
    loss: float
    accuracy: float | None = None
    mean_iou: float | None = None

    @staticmethod
    def of(score: "_core.Score | None") -> "Score | None":
        """As the server has sent it."""
        return None if score is None else Score(
            score.epochs, score.step, score.loss, score.accuracy, score.mean_iou)


# Of float16 losses; float32 is far below it, and what mixes samples above.
_ROUNDING_MAX = 2e-3
# Batches whose first samples are also scored in parts, and how many samples: in
# fewer of them what mixes samples shows more.
_CHECKS = 8
_CHECKED_SAMPLES = 8

# From the model, in eval mode, one collated batch and its number of samples to its
# score.
CriterionFunction = Callable[[nn.Module, Any, int], Evaluation]


def _class_sums(predicted: torch.Tensor, actual: torch.Tensor,
                classes: int) -> list[tuple[int, int, int]]:
    hits = torch.bincount(actual[predicted == actual], minlength=classes)
    found = torch.bincount(predicted, minlength=classes)
    wanted = torch.bincount(actual, minlength=classes)
    return list(zip(hits.tolist(), found.tolist(), wanted.tolist()))


def _difference(whole: Evaluation, parts: Sequence[Evaluation]) -> str:
    """The sum that does not add up; empty: all do."""
    for name in ("loss_sum", "loss_weight", "labels"):
        wanted = float(getattr(whole, name))
        found = [float(getattr(part, name)) for part in parts]
        if abs(sum(found) - wanted) > _ROUNDING_MAX * max(
                abs(wanted), *map(abs, found)):
            return (f"{name}={wanted:g} for {{}} samples, and "
                    f"{' + '.join(f'{one:g}' for one in found)} for parts of them")
    return ""


def by_criterion(criterion: Any,
                 ignore_index: int) -> CriterionFunction:
    """Scores batches (inputs, labels) by a criterion that returns the mean over
    the labels, and by the highest of the logits [n, classes] or [n, classes, h,
    w]. Labels equal to `ignore_index` do not count.

    Raises:
        ConfigurationError: the criterion returns no mean.
    """
    reduction = getattr(criterion, "reduction", "mean")
    if reduction != "mean":
        raise _errors.ConfigurationError(
            f"job.evaluate_with(): got a loss with reduction='{reduction}', want "
            "the mean, or a function that returns a cohort.Evaluation")
    weighted = isinstance(criterion, (nn.CrossEntropyLoss, nn.NLLLoss))

    def score(output: Any, labels: Any, samples: int) -> Evaluation:
        loss = float(criterion(output, labels))
        logits = output["out"] if isinstance(output, dict) else output
        if not (isinstance(logits, torch.Tensor) and
                isinstance(labels, torch.Tensor) and logits.dim() >= 2 and
                not labels.is_floating_point() and
                labels.shape == logits.shape[:1] + logits.shape[2:]):
            return Evaluation(loss_sum=loss * samples, loss_weight=samples)
        valid: torch.Tensor = labels.ne(ignore_index)
        predicted, actual = logits.argmax(1)[valid], labels[valid]
        if actual.numel() and not 0 <= int(actual.min()) <= int(
                actual.max()) < logits.shape[1]:
            raise _errors.UsageError(
                f"job.evaluate_with(): got labels of {int(actual.min())} to "
                f"{int(actual.max())}, want below {logits.shape[1]}, the number of "
                "logits; pass ignore_index=, the label that does not count")
        count = int(valid.sum())
        divisor = float(count)
        if weighted and criterion.weight is not None:
            divisor = float(criterion.weight[actual].sum())
        return Evaluation(
            loss_sum=loss * divisor if count else 0.0, loss_weight=divisor,
            correct=int(predicted.eq(actual).sum()), labels=count,
            classes=(_class_sums(predicted, actual, logits.shape[1])
                     if logits.dim() > 2 else ()))

    def evaluate(model: nn.Module, batch: Any, samples: int) -> Evaluation:
        inputs, labels = _devices.move(batch, next(model.parameters()).device)
        return score(model(inputs), labels, samples)

    return evaluate


@dataclasses.dataclass
class Evaluator:
    """Scores test samples by number.

    Attributes:
        dataset: the test samples.
        evaluate: scores one collated batch, given its number of samples.
        collate: makes a batch of samples.
        batch_size: samples a batch.
    """

    dataset: MapDataset
    evaluate: CriterionFunction
    collate: Callable[[list[Any]], Any]
    batch_size: int

    def __post_init__(self) -> None:
        self._checks = _CHECKS

    def check(self, model: nn.Module) -> None:
        """Scores some samples, as a function that cannot be used would otherwise be
        known after an epoch. Raises what `evaluate` raises, and UsageError."""
        samples = range(min(_CHECKED_SAMPLES, self.batch_size, len(self.dataset)))
        with _attributes.unchanged(model), torch.no_grad():
            model.eval()
            try:
                self.score(model, samples)
            except Exception as error:
                error.add_note(
                    "job.evaluate_with(): tried with some samples before the run. A "
                    "module, a function of torch.nn.functional or a functools.partial "
                    "of one is called with outputs and labels; any other function with "
                    "the model and a batch, and returns a cohort.Evaluation")
                raise
            # One that only depends on the samples is the same again.
            before = _attributes.numbers_in(model)
            self.score(model, samples)
            for name, number in _attributes.numbers_in(model).items():
                if repr(number) != repr(before.get(name, number)):
                    raise _errors.UsageError(
                        "job.evaluate_with(): the model's passes in evaluation mode "
                        f"change {name}, from {before[name]:g} to {number:g}, and each "
                        "worker makes those of its part of the test set; change it only "
                        "`if self.training`, or score the model in a loop of the script "
                        "behind each epoch, on all workers")

    def score(self, model: nn.Module, indices: Sequence[int],
              batch_size: int | None = None) -> "_core.EvaluationSums":
        """The sums over `indices`, in batches."""
        size = batch_size or self.batch_size
        sums = _core.EvaluationSums()
        sums.samples = len(indices)
        classes: list["_core.ClassSums"] = []
        for at in range(0, len(indices), size):
            items = [self.dataset[index] for index in indices[at:at + size]]
            # In batches by whose statistics the model normalises, samples mix.
            if batch_size is None and self._checks > 0:
                self._check_sums(model, items)
            result = self._evaluated(model, items)
            sums.loss_sum += float(result.loss_sum)
            sums.loss_weight += float(result.loss_weight)
            sums.correct += int(result.correct)
            sums.labels += int(result.labels)
            for number, (intersection, predicted, actual) in enumerate(result.classes):
                if number == len(classes):
                    classes.append(_core.ClassSums())
                classes[number].intersection += int(intersection)
                classes[number].predicted += int(predicted)
                classes[number].actual += int(actual)
        sums.classes = classes
        return sums

    def _evaluated(self, model: nn.Module, items: list[Any]) -> Evaluation:
        result = self.evaluate(model, self.collate(items), len(items))
        if not isinstance(result, Evaluation):
            raise _errors.UsageError(
                f"the evaluation function: got {type(result).__name__}, want "
                "a cohort.Evaluation")
        return result

    def _check_sums(self, model: nn.Module, items: list[Any]) -> None:
        """Raises UsageError if the score of a batch is not that of its parts: then that
        of the test set would depend on how workers share it."""
        # Functions of larger batches may not work with one sample.
        size = 1 if self.batch_size < 4 else 2
        items = items[:min(len(items), _CHECKED_SAMPLES) // size * size]
        if len(items) <= size:
            return
        self._checks -= 1
        whole = self._evaluated(model, items)
        difference = _difference(whole, [self._evaluated(model, items[at:at + size])
                                         for at in range(0, len(items), size)])
        # Random numbers of the function make each score another one.
        if difference and not _difference(whole, [self._evaluated(model, items)]):
            raise _errors.UsageError(
                f"job.evaluate_with(): got {difference.format(len(items))}, want sums "
                "over samples or labels, as the workers share the test set: a loss that "
                "is a mean over them, or a function that returns a cohort.Evaluation of "
                "sums (loss.item() * len(x), len(x); classes= has what IoU and Dice are "
                "made of), or score the model on rank 0 between epochs")
