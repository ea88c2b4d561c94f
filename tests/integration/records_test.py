"""history.csv and TensorBoard's event files over a run and its continuation."""

import importlib.util
import time
import unittest

import event_files
from processes import Cohort, kill


class Records(unittest.TestCase):
    def test_event_files_say_what_the_history_says(self):
        with Cohort(workers=2, server_flags=["--epochs=2"]) as cohort:
            folder = cohort.dir / "events"
            begin = time.time()
            cohort.start(f"--tensorboard={folder}")
            cohort.complete()
            (path,) = folder.iterdir()
            first, *rest = event_files.events(path)
            self.assertEqual(first["file_version"], "brain.Event:2")
            for event in rest:
                self.assertLessEqual(begin, event["wall_time"])
                self.assertLessEqual(event["wall_time"], time.time())
            found = event_files.series(folder)
            history = cohort.rows()
            for column, tag in (("test_loss", "loss/test"),
                                ("test_accuracy", "accuracy/test")):
                told = {int(row["version"]): float(row[column])
                        for row in history if row[column]}
                self.assertEqual(len(told), 2)
                self.assertEqual(told.keys(), found[tag].keys())
                for version, value in told.items():
                    self.assertAlmostEqual(found[tag][version], value, places=5)
            for row in history:
                if row["test_loss"] or not row["samples_per_second"]:
                    continue
                version = int(row["version"])
                for column, tag in (("train_loss", "loss/train"),
                                    ("train_accuracy", "accuracy/train"),
                                    ("learning_rate", "learning_rate"),
                                    ("samples_per_second",
                                     "images_per_second")):
                    self.assertAlmostEqual(
                        found[tag][version] / float(row[column]), 1, places=3)
                self.assertAlmostEqual(
                    found["images_per_second"][version] *
                    found["step_seconds"][version], 64, delta=2)
            self.read_with_tensorboard(folder, found)

    def read_with_tensorboard(self, folder, found):
        if importlib.util.find_spec("tensorboard") is None:
            print("TensorBoard is not installed: not read with its own reader")
            return
        from tensorboard.backend.event_processing import event_accumulator
        reader = event_accumulator.EventAccumulator(str(folder))
        reader.Reload()
        self.assertEqual(set(reader.Tags()["scalars"]), set(found))
        for tag, values in found.items():
            told = {e.step: e.value for e in reader.Scalars(tag)}
            self.assertEqual(told, values)

    def test_a_killed_and_resumed_server_repeats_nothing(self):
        flags = ["--epochs=3", "--checkpoint_every=20"]
        with Cohort(workers=1, server_flags=flags, keeps=True) as cohort:
            folder = cohort.dir / "events"
            cohort.server_flags.append(f"--tensorboard={folder}")
            cohort.start()
            cohort.wait_until(
                lambda: cohort.newest_checkpoint() >= 60 and
                any(row["test_loss"] for row in cohort.rows_so_far()),
                "the first evaluation")
            kill(cohort.server)
            before = cohort.rows()
            cohort.start_server("--resume")
            cohort.complete()
            history = cohort.rows()
            evaluated = [row["version"] for row in history if row["test_loss"]]
            self.assertEqual(len(evaluated), 3, history)
            self.assertEqual(len(set(evaluated)), 3)
            versions = [int(row["version"]) for row in history]
            self.assertEqual(versions, sorted(versions))
            seconds = [float(row["seconds"]) for row in history]
            self.assertEqual(seconds, sorted(seconds))
            self.assertEqual(history[0], before[0])
            found = event_files.series(folder)
            self.assertEqual(len(list(folder.iterdir())), 2)
            self.assertEqual(sorted(found["loss/test"]),
                             sorted(int(v) for v in evaluated))
            self.read_with_tensorboard(folder, found)


if __name__ == "__main__":
    unittest.main(verbosity=2)
