"""Mistakes of users, and the messages they get."""

import gzip
import pathlib
import socket
import struct
import tempfile
import unittest

from processes import Cohort, run


class ServerFlags(unittest.TestCase):
    def refused(self, code, *flags):
        result = run("cohort-server", "--listen=127.0.0.1:0",
                     "--ops_listen=127.0.0.1:0", *flags)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stderr

    def test_an_unknown_value_lists_the_known_ones(self):
        text = self.refused(3, "--aggregation=sometimes")
        for word in ("--aggregation", "sometimes", "sync", "async"):
            self.assertIn(word, text)

    def test_an_unknown_flag_gets_a_suggestion(self):
        text = self.refused(2, "--agregation=sync")
        self.assertIn("did you mean --aggregation", text)

    def test_a_rendezvous_needs_sync(self):
        text = self.refused(3, "--aggregation=async", "--normalization=global")
        self.assertIn("--normalization", text)
        self.assertIn("--aggregation=sync", text)

    def test_an_open_address_needs_consent(self):
        result = run("cohort-server", "--listen=0.0.0.0:0")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("--insecure", result.stderr)

    def test_a_port_in_use_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            result = run("cohort-server", f"--listen={address}")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(address, result.stderr)

    def test_an_operations_port_in_use_is_named_with_a_way_out(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            result = run("cohort-server", "--listen=127.0.0.1:0",
                         f"--ops_listen={address}")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn(f"--ops_listen: cannot listen on {address}",
                      result.stderr)
        self.assertIn("--ops_listen=127.0.0.1:0", result.stderr)

    def test_an_open_operations_port_needs_consent(self):
        result = run("cohort-server", "--listen=127.0.0.1:0",
                     "--ops_listen=0.0.0.0:0")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("--ops_listen: got 0.0.0.0:0", result.stderr)
        self.assertIn("--insecure", result.stderr)

    def test_a_damaged_checkpoint_is_named(self):
        with Cohort(workers=1, server_flags=["--epochs=1"]) as cohort:
            flag = f"--checkpoint_dir={cohort.checkpoints}"
            cohort.server_flags.append(flag)
            cohort.start()
            self.assertEqual(cohort.finish(), 0, cohort.log())
            held = list(cohort.checkpoints.glob("checkpoint-*/*"))
            self.assertTrue(held)
            for path in held:
                path.write_bytes(path.read_bytes()[:-1])
            text = self.refused(7, flag, "--resume")
        self.assertIn(held[0].parent.name, text)


def write_idx(path, magic, extents, content):
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(f">{1 + len(extents)}I", magic, *extents))
        file.write(content)


class WorkerInput(unittest.TestCase):
    def refused(self, *flags):
        result = run("cohort-worker", *flags)
        self.assertEqual(result.returncode, 3, result.stderr)
        return result.stderr

    def test_a_device_that_is_not_there_is_refused_before_the_server(self):
        flags = ("--dataset=synthetic", "--server=127.0.0.1:1")
        self.assertIn("--device: got gpu, want cpu or cuda:N",
                      self.refused("--device=gpu", *flags))
        text = self.refused("--device=cuda:99", *flags)
        self.assertIn("--device: got cuda:99: ", text)
        # This program has no CUDA, or there is no driver, or there are fewer
        # GPUs.
        self.assertRegex(text, "use --device=cpu, or build it with|"
                               "install the NVIDIA driver|want cuda:0")
        self.assertIn("--precision: got 'half', want one of float32, bfloat16",
                      self.refused("--precision=half", *flags))

    def test_a_missing_folder_is_named(self):
        text = self.refused("--data_dir=/no/such/folder")
        self.assertIn("/no/such/folder: no such folder", text)

    def test_unknown_names_list_the_known_ones(self):
        self.assertIn("cnn", self.refused("--model=transformer",
                                          "--dataset=synthetic"))
        self.assertIn("fashion-mnist", self.refused("--dataset=imagenet"))

    def test_a_truncated_file_says_how_much_is_there(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for stem in ("train", "t10k"):
                write_idx(folder / f"{stem}-images-idx3-ubyte.gz", 0x803,
                          (10, 28, 28), bytes(10 * 28 * 28))
                write_idx(folder / f"{stem}-labels-idx1-ubyte.gz", 0x801,
                          (10,), bytes(10))
            write_idx(folder / "train-images-idx3-ubyte.gz", 0x803,
                      (10, 28, 28), bytes(1000))
            text = self.refused("--dataset=mnist", f"--data_dir={folder}")
        self.assertIn("train-images-idx3-ubyte.gz", text)
        self.assertIn("got 1000 bytes, want 7840", text)

    def test_options_of_data_sets_say_what_they_want(self):
        for flag, wanted in (
                ("--image_size=big", "--image_size: got big, want HEIGHTx"),
                ("--augment=turn", "--augment: got 'turn'"),
                ("--bad_samples=keep", "want one of stop, skip"),
                ("--loader_threads=-1", "--loader_threads: got -1"),
                ("--classes=3", "--classes: got 3"),
                ("--share=0", "--share: got 0")):
            self.assertIn(wanted, self.refused(flag, "--dataset=synthetic"))

    def test_damaged_images_and_empty_lists_are_named(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            lists = folder / "ImageSets/Segmentation"
            for path in (lists, folder / "JPEGImages",
                         folder / "SegmentationClass"):
                path.mkdir(parents=True)
            (folder / "JPEGImages/street.jpg").write_bytes(b"\xff\xd8\xff\xe0")
            (folder / "SegmentationClass/street.png").write_bytes(b"")
            (lists / "train.txt").write_text("street\n")
            (lists / "val.txt").write_text("")
            flags = ("--dataset=voc", f"--data_dir={folder}")
            self.assertIn("val.txt: got an empty file", self.refused(*flags))
            (lists / "val.txt").write_text("street\n")
            self.assertIn("street.jpg: damaged JPEG image",
                          self.refused(*flags))
            self.assertIn("none of 1 samples could be decoded",
                          self.refused(*flags, "--bad_samples=skip"))

    def test_an_unreachable_server_is_named(self):
        result = run("cohort-worker", "--server=127.0.0.1:1",
                     "--dataset=synthetic", "--server_timeout=1s")
        self.assertEqual(result.returncode, 5, result.stderr)
        self.assertIn("127.0.0.1:1", result.stderr)


class RunningCohort(unittest.TestCase):
    """The run continues, whatever else connects."""

    def test_a_second_model_and_a_taken_rank_do_not_harm(self):
        with Cohort(workers=2, server_flags=["--epochs=2"]) as cohort:
            cohort.start_server()
            cohort.start_worker(0)
            cohort.wait_until(lambda: "rank 0 joined" in cohort.log(),
                              "the first worker")
            other = run("cohort-worker", f"--server={cohort.address}",
                        "--rank=1", "--model=cnn", "--dataset=synthetic")
            self.assertEqual(other.returncode, 3, other.stderr)
            self.assertIn("conv1.weight: got shape [32,1,3,3], "
                          "want [8,1,3,3]", other.stderr)
            taken = run("cohort-worker", f"--server={cohort.address}",
                        "--rank=0", "--server_timeout=5s",
                        *cohort.worker_flags)
            self.assertNotEqual(taken.returncode, 0)
            self.assertIn("rank 0 is live", taken.stderr)
            cohort.start_worker(1)
            self.assertEqual(cohort.finish(), 0, cohort.log())

    def test_gradients_that_are_not_finite_are_named_and_skipped(self):
        # A decay that makes the weights overflow within a few steps.
        with Cohort(workers=2,
                    server_flags=["--weight_decay=1e6",
                                  "--learning_rate=1000"]) as cohort:
            cohort.start()
            self.assertEqual(cohort.finish(), 8, cohort.log())
            self.assertRegex(cohort.log(),
                             r"not finite: rank [01]: (gradient|moments) of \w+")
            self.assertIn("steps in a row were not finite", cohort.log())
            for rank, worker in cohort.workers.items():
                self.assertEqual(worker.wait(60), 1)
                self.assertIn("the run failed: ", cohort.log(f"worker{rank}"))
            self.assertTrue((cohort.results / "model.safetensors").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
