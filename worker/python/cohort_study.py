"""Tables, plots and a recommendation from the numbers of `cohortctl study`.

    cohort-study FOLDER [--target=PERCENT]

Reads FOLDER/study.csv and, where they are there, the runs in FOLDER/runs. Writes
FOLDER/study.md and plots as SVG and PNG, and prints the recommendation.
"""

import argparse
import collections
import csv
import dataclasses
import functools
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy
from matplotlib import rcParams
from matplotlib.figure import Figure
from scipy import stats  # type: ignore[import-untyped]

# Evaluation with each batch's own statistics; no candidate, as a single image has
# none.
OWN = "batch"
KINDS = ("sync", "async", "chief", "after", OWN)
# Among kinds of statistics of one run, those that need no pass of their own come
# first, and that of one worker's images last.
PREFERENCE = ("sync", "async", "after", "chief")
# Percentage points by which a candidate that is as good may be behind the best.
TOLERANCE = 1.0
# The target is this share of the best mean.
TARGET_SHARE = 0.9
# More stale pushes are counted here.
STALENESS_MAX = 12

RULE = """\
- Each condition is an order of data, a number of workers and a number of images per \
worker. Its candidates are all policies with all kinds of moving statistics.
- The best is the candidate with the highest mean over the seeds.
- A candidate ties with the best if the 95 % confidence interval (Student's t) of the \
difference contains 0. The interval is of the differences seed by seed if both have \
two seeds or more in common, and Welch's otherwise. With one seed there is no \
interval, and all candidates tie. Intervals are not widened for the number of \
comparisons.
- A candidate is as good as the best if it ties and its mean is at most 1 percentage \
point lower.
- Among candidates as good as the best, the one whose runs took the least time is \
recommended. Among kinds of statistics of the same run it is the first of sync, async, \
after, chief, because after needs a pass of its own, and chief sees only one worker's \
images.
- Over all conditions, the candidate that is as good as the best under most of them is \
recommended; among equals the one that is recommended under most, then the one with \
the smallest mean difference from the best."""

# Values by seed.
Seeds = dict[int, float]


class StudyError(Exception):
    """What is wrong with the folder, and what to do."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean and half the width of its 95 % confidence interval, which one value
    does not have."""
    mean: float
    half: float | None

    def text(self, decimals: int = 1) -> str:
        text = f"{self.mean:.{decimals}f}"
        return text if self.half is None else f"{text} ± {self.half:.{decimals}f}"

    def within_noise(self) -> bool:
        """Whether no difference from 0 was shown."""
        return self.half is None or abs(self.mean) <= self.half


def _interval(mean: float, error: float, df: float) -> Estimate:
    return Estimate(mean, float(stats.t.ppf(0.975, df)) * error)


def estimate(values: Iterable[float]) -> Estimate:
    """By Student's t."""
    numbers = numpy.array(list(values))
    if len(numbers) < 2:
        return Estimate(float(numbers.mean()), None)
    return _interval(float(numbers.mean()), float(stats.sem(numbers)),
                     len(numbers) - 1)


def compare(one: Seeds, other: Seeds) -> Estimate:
    """The difference of two means: of pairs where two seeds or more are shared, so
    that what a seed does to both cancels; else with Welch's interval."""
    shared = one.keys() & other.keys()
    if len(shared) >= 2:
        return estimate(one[seed] - other[seed] for seed in shared)
    a, b = (numpy.array(list(values.values())) for values in (one, other))
    mean = float(a.mean() - b.mean())
    if min(len(a), len(b)) < 2:
        return Estimate(mean, None)
    ea, eb = stats.sem(a) ** 2, stats.sem(b) ** 2
    if ea + eb == 0:
        return Estimate(mean, 0.0)
    # Welch 1947, Satterthwaite 1946.
    df = (ea + eb) ** 2 / (ea ** 2 / (len(a) - 1) + eb ** 2 / (len(b) - 1))
    return _interval(mean, math.sqrt(ea + eb), df)


def _count(number: int, name: str) -> str:
    return f"{number} {name}" + ("" if number == 1 else "s")


@dataclasses.dataclass(frozen=True)
class Policy:
    """How a run combines its workers' results, in the words of the server's flags."""
    aggregation: str
    staleness: str
    normalization: str
    wire: str

    def __str__(self) -> str:
        rule = "" if self.staleness in ("", "keep") else f" ({self.staleness})"
        wire = "" if self.wire == "float32" else f", {self.wire}"
        return f"{self.aggregation}{rule}, {self.normalization}{wire}"


@dataclasses.dataclass(frozen=True)
class Condition:
    """Where policies are compared with each other."""
    order: str
    workers: int
    batch_size: int

    def row(self) -> str:
        return f"{self.order}, {_count(self.workers, 'worker')}"

    def __str__(self) -> str:
        return f"{self.row()} x {_count(self.batch_size, 'image')}"


@dataclasses.dataclass
class Cell:
    """A policy with one kind of statistics under one condition."""
    condition: Condition
    policy: Policy
    kind: str
    # Percent at the end of the run.
    percent: Seeds = dataclasses.field(default_factory=dict)
    # Points by which the batch's own statistics are better.
    gap: Seeds = dataclasses.field(default_factory=dict)
    # The whole run; empty: not measured.
    seconds: Seeds = dataclasses.field(default_factory=dict)
    # Until the target; empty unless every seed reached it.
    to_target: Seeds = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def mean(self) -> Estimate:
        return estimate(self.percent.values())

    def cost(self) -> float:
        return estimate(self.seconds.values()).mean if self.seconds else 0

    def __str__(self) -> str:
        return f"{self.policy}, {self.kind} statistics"


@dataclasses.dataclass
class Study:
    """The numbers of a study."""
    measure: str
    # The cells of a policy and condition together, as KINDS.
    cells: list[Cell]
    # Percent, by order of data: what is hard in one may be easy in another.
    target: dict[str, float]
    # Pushes by staleness, of the runs that are there.
    staleness: dict[tuple[Policy, Condition], dict[int, int]]


def _table(path: pathlib.Path, columns: Sequence[str]) -> list[dict[str, str]]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise StudyError(f"{path}: {error.strerror}; want the folder of a "
                         "`cohortctl study` (its --out)") from error
    for column in columns:
        if not rows or rows[0].get(column) is None:
            raise StudyError(f"{path}: has no column {column}, or no row; run "
                             "`cohortctl study` with the same --out again")
    return rows


def read(folder: pathlib.Path, target: float | None = None) -> Study:
    """Reads a study.

    Args:
        folder: has study.csv, and perhaps runs/.
        target: percent for the time to accuracy; by default 90 % of the best mean
            under the same order of data.

    Raises:
        StudyError: files are missing or damaged.
    """
    rows = _table(folder / "study.csv", (
        "aggregation", "staleness", "normalization", "bn_statistics", "order",
        "workers", "batch_size", "seed", "measure", "percent", "gap_points"))
    cells: dict[tuple[Policy, Condition, str], Cell] = {}
    runs: dict[tuple[Policy, Condition, int], pathlib.Path] = {}
    try:
        for row in sorted(rows, key=lambda row: KINDS.index(row["bn_statistics"])):
            policy = Policy(row["aggregation"], row["staleness"], row["normalization"],
                            row.get("wire") or "float32")
            condition = Condition(row["order"], int(row["workers"]),
                                  int(row["batch_size"]))
            seed, kind = int(row["seed"]), row["bn_statistics"]
            cell = cells.setdefault((policy, condition, kind),
                                    Cell(condition, policy, kind))
            cell.percent[seed] = float(row["percent"])
            cell.gap[seed] = float(row["gap_points"])
            if row.get("seconds"):
                cell.seconds[seed] = float(row["seconds"])
            runs[policy, condition, seed] = folder / "runs" / (row.get("run") or "-")
    except ValueError as error:
        raise StudyError(f"{folder / 'study.csv'}: {error}") from error
    best: dict[str, float] = {}
    for cell in cells.values():
        if cell.kind != OWN:
            order = cell.condition.order
            best[order] = max(best.get(order, 0), cell.mean.mean)
    study = Study(rows[0]["measure"], list(cells.values()), {
        order: TARGET_SHARE * mean if target is None else target
        for order, mean in best.items()}, {})
    for (policy, condition, seed), run in runs.items():
        if run.is_dir():
            for kind, seconds in _times(run, study.target[condition.order]).items():
                if (policy, condition, kind) in cells:
                    cells[policy, condition, kind].to_target[seed] = seconds
            if (run / "staleness.csv").exists():
                counts = study.staleness.setdefault((policy, condition),
                                                    collections.Counter())
                for row in _table(run / "staleness.csv", ()):
                    versions, pushes = map(int, row.values())
                    counts[versions] += pushes
    for cell in study.cells:
        # Without the seeds that never reached it, the mean would look faster.
        if len(cell.to_target) < len(cell.percent):
            cell.to_target.clear()
    return study


def _times(run: pathlib.Path, target: float) -> dict[str, float]:
    """Seconds until the target, by the kinds of statistics that reached it. Those
    that are collected after training have no such time."""
    curves: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
    for row in _table(run / "history.csv", ("seconds", "bn_statistics")):
        share = row["test_miou"] or row["test_accuracy"]
        if row["bn_statistics"] and share:
            curves[row["bn_statistics"]].append((float(row["seconds"]),
                                                 100 * float(share)))
    reached = {kind: [seconds for seconds, percent in curve if percent >= target]
               for kind, curve in curves.items() if len(curve) > 1}
    return {kind: times[0] for kind, times in reached.items() if times}


# ---- the recommendation

@dataclasses.dataclass
class Standing:
    """A candidate beside the best of its condition."""
    cell: Cell
    # The best minus this one.
    deficit: Estimate
    ties: bool

    @property
    def as_good(self) -> bool:
        return self.ties and self.deficit.mean <= TOLERANCE


@dataclasses.dataclass
class Advice:
    """For one condition."""
    # The best first.
    standings: list[Standing]
    chosen: Cell


def advise(study: Study) -> list[Advice]:
    """By condition, as RULE says."""
    advices = []
    for condition in dict.fromkeys(cell.condition for cell in study.cells):
        candidates = sorted((cell for cell in study.cells if cell.kind != OWN and
                             cell.condition == condition),
                            key=lambda cell: -cell.mean.mean)
        standings = [Standing(candidates[0], Estimate(0.0, None), True)]
        for cell in candidates[1:]:
            deficit = compare(candidates[0].percent, cell.percent)
            standings.append(Standing(cell, deficit, deficit.within_noise()))
        good = [standing.cell for standing in standings if standing.as_good]
        cheapest = min(good, key=Cell.cost).policy
        chosen = min((cell for cell in good if cell.policy == cheapest),
                     key=lambda cell: PREFERENCE.index(cell.kind))
        advices.append(Advice(standings, chosen))
    return advices


@dataclasses.dataclass
class Overall:
    """A policy with one kind of statistics, over all conditions."""
    name: str
    conditions: int = 0
    as_good: int = 0
    chosen: int = 0
    deficit: float = 0


def overall(advices: list[Advice]) -> list[Overall]:
    """The recommended one first. Only those that were run under all conditions."""
    found: dict[str, Overall] = {}
    for advice in advices:
        for standing in advice.standings:
            name = str(standing.cell)
            one = found.setdefault(name, Overall(name))
            one.conditions += 1
            one.as_good += standing.as_good
            one.chosen += standing.cell is advice.chosen
            one.deficit += standing.deficit.mean / len(advices)
    return sorted((one for one in found.values() if one.conditions == len(advices)),
                  key=lambda one: (-one.as_good, -one.chosen, one.deficit))


def sentences(study: Study, advices: list[Advice]) -> list[str]:
    """Over all, then by condition, with the numbers behind them."""
    ranked = [f"{one.name}, as good as the best under {one.as_good} of "
              f"{one.conditions} conditions and {one.deficit:.1f} points behind it on "
              "average" for one in overall(advices)[:2]]
    lines = [f"Over all: {'. Next: '.join(ranked)}."] if ranked else []
    return lines + [_sentence(study, advice) for advice in advices]


def _sentence(study: Study, advice: Advice) -> str:
    chosen, best = advice.chosen, advice.standings[0].cell
    time = f", {chosen.cost():.0f} s a run" if chosen.seconds else ""
    text = (f"{chosen.condition}: {chosen} ({study.measure} {chosen.mean.text()} %"
            f"{time})")
    if chosen is not best:
        text += f", as good as the best mean, {best} ({best.mean.text()} %)"
    others = [standing for standing in advice.standings
              if standing.cell not in (best, chosen)]
    for what, group in (
            ("Tied with the best", [one for one in others if one.as_good]),
            ("More than a point below the best, but tied (more seeds would decide)",
             [one for one in others if one.ties and not one.as_good]),
            ("Worse than the best", [one for one in others if not one.ties])):
        if group:
            text += f". {what}: " + "; ".join(
                f"{one.cell} ({one.deficit.text()} points"
                f"{'' if one.deficit.half is not None else ', one seed'})"
                for one in group)
    return text + "."


# ---- the report

def table(study: Study, text_of: Callable[[Cell], str]) -> str:
    """Markdown: a row a policy and kind, a column a condition. Cells without a text
    are left out."""
    conditions = list(dict.fromkeys(cell.condition for cell in study.cells))
    policies = list(dict.fromkeys(cell.policy for cell in study.cells))
    rows: dict[tuple[str, str], dict[Condition, str]] = collections.defaultdict(dict)
    for cell in sorted(study.cells, key=lambda cell: policies.index(cell.policy)):
        if text := text_of(cell):
            rows[str(cell.policy), cell.kind][cell.condition] = text
    lines = [["policy", "statistics", *map(str, conditions)],
             ["---", "---", *("---:" for _ in conditions)],
             *([*key, *(row.get(condition, "-") for condition in conditions)]
               for key, row in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report(study: Study, advices: list[Advice], plots: dict[str, str]) -> str:
    """Markdown. `plots`: captions by name."""
    marks = {id(standing.cell): " (=)" for advice in advices
             for standing in advice.standings if standing.ties}
    marks |= {id(advice.standings[0].cell): " (best)" for advice in advices}
    parts = [
        "# Which policy to use: a study", "## Recommendation",
        "\n".join(f"- {line}" for line in sentences(study, advices)),
        "## How the recommendation follows", RULE, f"## Test {study.measure} (%)",
        "Mean ± half the width of the 95 % confidence interval, over the seeds. "
        "(best): the highest mean of its column; (=): ties with it. Batch, evaluation "
        "with each batch's own statistics, is no candidate.",
        table(study, lambda cell: cell.mean.text() + marks.get(id(cell), "")),
        "## Gap between the batch's own and moving statistics (points)",
        table(study, lambda cell: "" if cell.kind == OWN else
              estimate(cell.gap.values()).text())]
    if any(cell.seconds for cell in study.cells):
        parts += ["## Time of a run (s)", "As measured, while other runs of the study "
                  "may have been running.",
                  table(study, lambda cell: "" if not cell.seconds else
                        estimate(cell.seconds.values()).text(0))]
    parts += ["## Plots", *(f"![{caption}]({name}.svg)\n\n{caption}"
                            for name, caption in plots.items())]
    return "\n\n".join(parts) + "\n"


def _panels(keys: Iterable[tuple[Policy, Condition]], title: str, x: str, y: str
            ) -> tuple[Figure, dict[tuple[Policy, str], Any]]:
    """A panel for each policy and row of conditions."""
    held = list(keys)
    policies = list(dict.fromkeys(policy for policy, _ in held))
    rows = list(dict.fromkeys(condition.row() for _, condition in held))
    figure = Figure(figsize=(max(4.2 * len(policies), 6), 3.2 * len(rows) + 1),
                    layout="constrained")
    figure.suptitle(title)
    figure.supxlabel(x, fontsize="medium")
    figure.supylabel(y, fontsize="medium")
    axes = figure.subplots(len(rows), len(policies), squeeze=False, sharey=True)
    panels = {(policy, row): axes[i][j] for i, row in enumerate(rows)
              for j, policy in enumerate(policies)}
    for (policy, row), panel in panels.items():
        panel.set_title(f"{policy} | {row}", fontsize="medium")
        panel.grid(axis="y", alpha=0.4)
    return figure, panels


def _by_images(study: Study, title: str, y: str, values_of: Callable[[Cell], Seeds]
               ) -> Figure:
    """Means with intervals against images per worker."""
    figure, panels = _panels(((cell.policy, cell.condition) for cell in study.cells),
                             title, "images per worker in a step", y)
    images = sorted({cell.condition.batch_size for cell in study.cells})
    shown = {}
    for (policy, row), panel in panels.items():
        panel.set_xticks(range(len(images)), images)
        panel.set_xlim(-0.3, len(images) - 0.7)
        for number, kind in enumerate(KINDS):
            points = [(images.index(cell.condition.batch_size) + 0.05 * (number - 2),
                       estimate(values_of(cell).values())) for cell in study.cells
                      if (cell.policy, cell.condition.row(), cell.kind) ==
                      (policy, row, kind) and values_of(cell)]
            if points:
                shown[kind] = panel.errorbar(
                    [at for at, _ in points], [one.mean for _, one in points],
                    [one.half or 0 for _, one in points], color=f"C{number}",
                    marker="os^vD"[number], capsize=3,
                    label="batch's own" if kind == OWN else f"{kind} statistics")
    figure.legend(handles=[shown[kind] for kind in KINDS if kind in shown],
                  loc="outside right upper",
                  title="Bars: 95 % intervals\nover the seeds")
    return figure


def _staleness(study: Study) -> Figure:
    figure, panels = _panels(
        study.staleness, "How stale pushes were",
        f"versions between reading weights and applying the push ({STALENESS_MAX}: or "
        "more)", "share of pushes (%)")
    images = sorted({condition.batch_size for _, condition in study.staleness})
    for (policy, condition), counts in study.staleness.items():
        shares = [0.0] * (STALENESS_MAX + 1)
        for versions, pushes in counts.items():
            shares[min(versions, STALENESS_MAX)] += 100 * pushes / sum(counts.values())
        width = 0.8 / len(images)
        left = (images.index(condition.batch_size) + 0.5) * width - 0.4
        panel = panels[policy, condition.row()]
        panel.bar(numpy.arange(len(shares)) + left, shares, width,
                  label=_count(condition.batch_size, "image"))
        panel.legend()
    return figure


def draw(study: Study, folder: pathlib.Path) -> dict[str, str]:
    """Writes the plots, and returns their captions by name."""
    measure = study.measure
    goal = " and ".join(f"{percent:.1f} % ({order})"
                        for order, percent in study.target.items())
    plots = {
        "measure": (
            _by_images(study, f"Test {measure} by images per worker",
                       f"test {measure} (%)", lambda cell: cell.percent),
            f"Test {measure} at the end of the run, by what evaluation normalises "
            "with."),
        "gap": (
            _by_images(study, "Loss by moving statistics", f"gap in {measure} (points)",
                       lambda cell: {} if cell.kind == OWN else cell.gap),
            f"Test {measure} with each batch's own statistics, as in training, minus "
            "that with moving statistics. Above 0: the moving statistics are worse "
            "than those the weights were trained with.")}
    if any(cell.to_target for cell in study.cells):
        plots["time"] = (
            _by_images(study, f"Time to {measure} {goal}", "time to target (s)",
                       lambda cell: cell.to_target),
            "Seconds from the start of the run until an evaluation first reached "
            f"{goal}, where all seeds did.")
    if study.staleness:
        plots["staleness"] = (_staleness(study), "Staleness of pushes when they were "
                              "applied, over all seeds, by images per worker.")
    # Equal files for equal numbers, and text as text.
    rcParams.update({"svg.hashsalt": "cohort", "svg.fonttype": "none"})
    for name, (figure, _) in plots.items():
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        figure.savefig(folder / f"{name}.png", dpi=150)
    return {name: caption for name, (_, caption) in plots.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="cohort-study", description=(
        "Tables, plots and a recommendation from the numbers of `cohortctl study`."))
    parser.add_argument("folder", type=pathlib.Path, help="the study's --out")
    parser.add_argument("--target", type=float, metavar="PERCENT",
                        help="for the time to accuracy (default: 90 %% of the best "
                        "mean, by order of data)")
    options = parser.parse_args(arguments)
    if options.target is not None and not 0 < options.target <= 100:
        parser.error(f"--target: got {options.target}, want percent above 0 and up to "
                     "100")
    try:
        study = read(options.folder, options.target)
        advices = advise(study)
        text = report(study, advices, draw(study, options.folder))
        (options.folder / "study.md").write_text(text, encoding="utf-8")
    except (StudyError, OSError) as error:
        print(f"cohort-study: {error}", file=sys.stderr)
        return 3
    print("\n".join(sentences(study, advices)))
    print(f"{options.folder / 'study.md'} has tables, plots and the rule",
          file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
