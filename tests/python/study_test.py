"""cohort-study: its numbers against printed tables and sums by hand, its rule on
examples, and a real study."""

import contextlib
import io
import json
import math
import os
import pathlib
import tempfile
import unittest
import xml.etree.ElementTree

import cohort_study
from processes import BIN, run

COLUMNS = ("aggregation,staleness,normalization,bn_statistics,order,workers,"
           "batch_size,seed,measure,percent,gap_points,seconds,wire,run")


def example(seed=1, normalization="global", batch_size=1, seconds=10, wire="float32",
            **percent):
    """The lines of a run of two workers with shuffled data."""
    return [f"sync,,{normalization},{kind},shuffled,2,{batch_size},{seed},accuracy,"
            f"{value},{95 - value},{seconds},{wire},{normalization}-{batch_size}-{seed}"
            for kind, value in {**percent, "batch": 95}.items()]


class Examples(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cohort-study-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def study(self, *runs, target=None):
        lines = [COLUMNS, *(line for lines in runs for line in lines)]
        (self.folder / "study.csv").write_text("\n".join(lines) + "\n")
        return cohort_study.read(self.folder, target)

    def write_run(self, name, *rows, staleness=None):
        folder = self.folder / "runs" / name
        folder.mkdir(parents=True)
        (folder / "history.csv").write_text("\n".join(
            ["seconds,test_accuracy,test_miou,bn_statistics",
             "0.5,,,", *(f"{seconds},{share},,{kind}"
                         for seconds, kind, share in rows)]) + "\n")
        if staleness is not None:
            (folder / "staleness.csv").write_text("\n".join(
                ["staleness_versions,pushes", *(f"{versions},{pushes}" for
                                               versions, pushes in staleness.items())]))


class Estimates(unittest.TestCase):
    def half(self, values):
        return cohort_study.estimate(values).half

    def test_the_interval_is_that_of_printed_tables(self):
        # Deviation 1, so that the error of the mean is 1/sqrt(n).
        self.assertAlmostEqual(self.half([90, 91, 92]), 4.3026527297 / math.sqrt(3), 9)
        self.assertAlmostEqual(self.half([0, math.sqrt(2)]),
                               12.7062047362 / math.sqrt(2), 8)
        self.assertEqual(cohort_study.estimate([90, 91, 92]).text(), "91.0 ± 2.5")
        self.assertEqual(cohort_study.estimate([90.25]).text(2), "90.25")

    def test_shared_seeds_are_paired(self):
        # Seeds differ by ten points, the two policies by 1.0, 1.1 and 0.9.
        found = cohort_study.compare({1: 71.0, 2: 81.1, 3: 90.9, 9: 7.0},
                                     {1: 70.0, 2: 80.0, 3: 90.0, 8: 9.0})
        self.assertAlmostEqual(found.mean, 1, 9)
        self.assertAlmostEqual(found.half, 4.3026527297 * 0.1 / math.sqrt(3), 9)
        self.assertFalse(found.within_noise())

    def test_other_seeds_get_welchs_interval(self):
        # Equal deviations: four degrees of freedom, error sqrt(1/3 + 1/3).
        found = cohort_study.compare({1: 1, 2: 2, 3: 3}, {4: 4, 5: 5, 6: 6})
        self.assertAlmostEqual(found.mean, -3, 9)
        self.assertAlmostEqual(found.half, 2.7764451052 * math.sqrt(2 / 3), 8)

    def test_one_seed_shows_nothing_and_equal_runs_do_not_differ(self):
        one = cohort_study.compare({1: 90}, {1: 10})
        self.assertEqual((one.mean, one.half, one.within_noise()), (80, None, True))
        values = {1: 50.0, 2: 60.0}
        self.assertTrue(cohort_study.compare(values, values).within_noise())
        self.assertFalse(cohort_study.compare({1: 51.0, 2: 61.0}, values)
                         .within_noise())


class Rule(Examples):
    def advised(self, *runs):
        study = self.study(*runs)
        advices = cohort_study.advise(study)
        return advices[0], cohort_study.overall(advices), "\n".join(
            cohort_study.sentences(study, advices))

    def test_the_best_is_taken_if_others_are_worse(self):
        advice, _, words = self.advised(
            *(example(seed, sync=79 + seed, after=after)
              for seed, after in ((1, 90), (2, 91.5), (3, 92))))
        self.assertEqual(advice.chosen.kind, "after")
        self.assertIn("sync, global, sync statistics (10.2 ± 0.7 points)", words)

    def test_equal_kinds_of_one_run_are_chosen_by_their_needs(self):
        # Chief is best by a small difference that the seeds do not agree on.
        advice, overall, _ = self.advised(
            example(1, chief=90.3, after=90.2, sync=90.0),
            example(2, chief=90.0, after=90.1, sync=90.1))
        self.assertEqual(advice.standings[0].cell.kind, "chief")
        self.assertEqual(advice.chosen.kind, "sync")
        self.assertEqual(overall[0].name, "sync, global, sync statistics")

    def test_among_equal_policies_the_faster_is_taken(self):
        advice, overall, _ = self.advised(
            example(1, seconds=20, sync=90.0), example(2, seconds=20, sync=90.4),
            example(1, "local", seconds=8, sync=90.2),
            example(2, "local", seconds=8, sync=89.9))
        self.assertEqual(advice.standings[0].cell.policy.normalization, "global")
        self.assertEqual(advice.chosen.policy.normalization, "local")
        self.assertEqual(overall[0].as_good, 1)

    def test_noise_is_no_excuse_for_more_than_a_point(self):
        advice, _, _ = self.advised(
            example(1, seconds=20, sync=90), example(2, seconds=20, sync=90),
            example(1, "local", seconds=8, sync=89),
            example(2, "local", seconds=8, sync=80))
        self.assertEqual(advice.chosen.policy.normalization, "global")
        self.assertEqual([(one.ties, one.as_good) for one in advice.standings],
                         [(True, True), (True, False)])

    def test_the_overall_choice_is_good_under_most_conditions(self):
        _, overall, _ = self.advised(
            example(batch_size=1, sync=90, after=80),
            example(batch_size=4, sync=90, after=80),
            example(batch_size=16, sync=80, after=90),
            # Under one condition only, so it is no candidate over all.
            example(1, "local", batch_size=1, sync=99))
        self.assertEqual([one.name for one in overall],
                         ["sync, global, sync statistics",
                          "sync, global, after statistics"])
        self.assertEqual((overall[0].conditions, overall[0].as_good), (3, 1))
        self.assertAlmostEqual(overall[0].deficit, (9 + 0 + 10) / 3, 9)

    def test_the_encoding_is_named(self):
        _, _, words = self.advised(example(wire="bf16", sync=90))
        self.assertIn("sync, global, bf16, sync statistics", words)


class Files(Examples):
    def test_the_target_is_nine_tenths_of_the_best_mean(self):
        # The batch's own statistics, at 95, are no candidate.
        runs = example(1, sync=90, chief=80), example(2, sync=92, chief=70)
        self.assertEqual(self.study(*runs).target, {"shuffled": 0.9 * 91})
        self.assertEqual(self.study(*runs, target=50).target, {"shuffled": 50})

    def test_time_to_the_target_needs_all_seeds(self):
        for seed, last in ((1, 0.8), (2, 0.7)):
            self.write_run(f"global-1-{seed}", (5, "sync", 0.5), (5, "chief", 0.4),
                           (9, "sync", 0.76), (9, "chief", last), (9, "after", 0.9))
        sync, chief, after, _ = self.study(
            example(1, sync=90, chief=80, after=90),
            example(2, sync=92, chief=70, after=90), target=75).cells
        self.assertEqual(sync.to_target, {1: 9, 2: 9})
        self.assertEqual(chief.to_target, {})
        # It is known only at the end.
        self.assertEqual(after.to_target, {})

    def test_staleness_of_seeds_adds_up(self):
        self.write_run("global-1-1", staleness={0: 1, 3: 5})
        self.write_run("global-1-2", staleness={3: 2})
        study = self.study(example(1, sync=90), example(2, sync=91))
        self.assertEqual(list(study.staleness.values()), [{0: 1, 3: 7}])

    def test_what_is_missing_is_named(self):
        no_number = "\n".join([COLUMNS, *example(batch_size="x", sync=1)])
        for content, named in (
                (None, "study.csv"), ("aggregation\nsync\n", "staleness"),
                (f"{COLUMNS}\n", "aggregation"), (no_number, "'x'")):
            with self.subTest(named):
                if content is not None:
                    (self.folder / "study.csv").write_text(content)
                error = io.StringIO()
                with contextlib.redirect_stderr(error):
                    self.assertEqual(cohort_study.main([str(self.folder)]), 3)
                self.assertIn(named, error.getvalue())


@unittest.skipUnless((BIN / "cohort-worker").exists(),
                     f"{BIN} has no cohort-worker, as the wheel has none")
class Real(unittest.TestCase):
    def test_a_study_gets_a_report_and_plots(self):
        with tempfile.TemporaryDirectory(prefix="cohort-study-") as folder:
            out = pathlib.Path(folder) / "study"
            study = run(
                "cohortctl", "study", f"--out={out}", "--aggregation=sync,async",
                "--normalization=local", "--bn_statistics=async,after",
                "--batch_size=8", "--workers=2", "--seed=1", "--epochs=2", "--json",
                "--precise_batches=4", "--", "--model=smooth", "--dataset=synthetic",
                "--limit=160", "--test_limit=64")
            self.assertEqual(study.returncode, 0, study.stderr)
            self.assertEqual(json.loads(study.stdout)["done"], 2)
            told = io.StringIO()
            with contextlib.redirect_stdout(told):
                self.assertEqual(cohort_study.main([str(out), "--target=1"]), 0)
            report = (out / "study.md").read_text(encoding="utf-8")
            for sentence in told.getvalue().splitlines():
                self.assertIn(sentence, report)
            names = ["gap", "measure", "staleness", "time"]
            self.assertEqual(sorted(path.stem for path in out.glob("*.svg")), names)
            for name in names:
                self.assertIn(f"({name}.svg)", report)
                root = xml.etree.ElementTree.parse(out / f"{name}.svg").getroot()
                self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
                self.assertGreater(os.path.getsize(out / f"{name}.png"), 1000)


if __name__ == "__main__":
    unittest.main()
