#!/usr/bin/env python3
"""deploy/quickstart, with a build and binaries that a test defines.

Nothing is installed, compiled or trained: cmake, the server and the workers
are small scripts, so the tests cover the starting, watching, stopping and
printing around them. cohortctl is the real one.
"""

import contextlib
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["COHORT_BIN_DIR"])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_S = 600

# Writes its arguments, one a line, and its address. PLAY follows.
SERVER = r"""#!/bin/bash
printf '%s\n' "$@" >"$PLAYS/server.args"
for flag in "$@"; do
  case "$flag" in
    --address_file=*) address_file=${flag#*=} ;;
    --results_dir=*) results=${flag#*=} ;;
  esac
done
echo $$ >"$PLAYS/server.pid"
listen() { echo 127.0.0.1:12345 >"$address_file.new"
           mv "$address_file.new" "$address_file"; }
await() { until [[ -e "$PLAYS/$1" ]]; do sleep 0.02; done; }
. "$PLAYS/server.play"
"""

WORKER = r"""#!/bin/bash
for flag in "$@"; do
  case "$flag" in --rank=*) rank=${flag#*=} ;; esac
done
await() { until [[ -e "$PLAYS/$1" ]]; do sleep 0.02; done; }
echo $$ >"$PLAYS/worker-$rank.pid"
printf '%s\n' "$@" >"$PLAYS/worker-$rank.args.new"
mv "$PLAYS/worker-$rank.args.new" "$PLAYS/worker-$rank.args"
. "$PLAYS/worker.play"
"""

GOOD_SERVER = """
listen
echo epoch 1 of 1
await worker-0.args
await worker-1.args
echo a,b >"$results/history.csv"
echo 'test accuracy 88.5 %'
"""


def setUpModule():
    # A test that was started in the background ignores interrupts, and so
    # would the processes that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class QuickstartTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        top = pathlib.Path(folder.name)
        self.root, self.plays = top / "tree", top / "plays"
        binaries = self.root / "build/release/bin"
        for path in (self.root / "deploy", self.plays, binaries,
                     top / "tools"):
            path.mkdir(parents=True)
        for script in ("quickstart", "build-programs", "packages"):
            shutil.copy(SOURCE / "deploy" / script, self.root / "deploy")
        shutil.copytree(SOURCE / "common/flags", self.root / "common/flags")
        self.script(self.root / "deploy/install-deps", "#!/bin/sh\n")
        self.script(top / "tools/cmake",
                    '#!/bin/sh\necho "$@" >>"$PLAYS/cmake.args"\n')
        self.script(binaries / "cohort-server", SERVER)
        self.script(binaries / "cohort-worker", WORKER)
        # A copy and not a link: it looks for the other programs beside itself.
        shutil.copy(BIN / "cohortctl", binaries)
        self.play("server", GOOD_SERVER)
        self.play("worker", "")
        self.environment = {
            **os.environ, "PLAYS": str(self.plays),
            "PATH": f"{top / 'tools'}:{os.environ['PATH']}"}

    def script(self, path: pathlib.Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def play(self, who: str, text: str) -> None:
        (self.plays / f"{who}.play").write_text(text)

    def start(self, *flags: str, stdout=subprocess.PIPE) -> subprocess.Popen:
        # The server of this start must not find the workers of the last one.
        for left in self.plays.glob("worker-*.args"):
            left.unlink()
        return subprocess.Popen(
            [self.root / "deploy/quickstart", *flags], cwd="/",
            env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=stdout, stderr=subprocess.PIPE)

    def quickstart(self, *flags: str) -> tuple[int, str, str]:
        """Returns exit code, stdout and stderr."""
        process = self.start(*flags)
        out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, err

    def lines(self, name: str) -> list[str]:
        return (self.plays / name).read_text().splitlines()

    def assert_ended(self, who: str) -> None:
        pid = int((self.plays / f"{who}.pid").read_text())
        with self.assertRaises(ProcessLookupError):
            os.kill(pid, 0)

    def test_installed_programs_are_used_and_nothing_is_compiled(self):
        installed = self.root.parent / "installed"
        shutil.move(self.root / "build/release/bin", installed)
        path = self.environment["PATH"]
        self.environment["PATH"] = f"{installed}:{path}"
        code, out, err = self.quickstart("--installed")
        self.assertEqual((code, out.splitlines()[-1]),
                         (0, "test accuracy 88.5 %"), err)
        self.assertFalse((self.plays / "cmake.args").exists())

    def test_installed_programs_that_are_missing_are_named(self):
        self.environment["PATH"] = "/usr/bin:/bin"
        code, _, err = self.quickstart("--installed")
        self.assertEqual(code, 2)
        self.assertIn("no cohort-server in PATH", err)
        self.assertIn("deploy/packages", err)

    def test_packages_are_made_after_a_build_and_old_ones_go(self):
        folder = self.root / "build/release/packages"
        folder.mkdir()
        (folder / "cohort-server_0.0.1_amd64.deb").touch()
        (self.root / "CMakeLists.txt").write_text(
            "project(cohort VERSION 0.1.0 LANGUAGES CXX)\n")
        self.script(self.root / "deploy/sbom", '#!/bin/sh\necho "$1 $2"\n')
        self.script(self.root.parent / "tools/cpack",
                    '#!/bin/sh\nmkdir packages && '
                    'touch packages/cohort-server_0.1.0_amd64.deb\n')
        made = subprocess.run(
            [self.root / "deploy/packages"], env=self.environment, text=True,
            capture_output=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertTrue((self.plays / "cmake.args").exists())
        self.assertIn("cohort-server_0.1.0_amd64.deb", made.stdout)
        self.assertNotIn("0.0.1", made.stdout)
        self.assertEqual((folder / "cohort-worker.spdx").read_text(),
                         "cohort-worker 0.1.0\n")
        self.assertEqual(made.stdout.splitlines()[-1],
                         "  apt install --no-install-recommends "
                         f"{folder}/*.deb")

    def test_last_line_is_the_accuracy_and_results_stand_before_it(self):
        code, out, err = self.quickstart()
        lines = out.splitlines()
        self.assertEqual((code, lines[-1]), (0, "test accuracy 88.5 %"), err)
        self.assertEqual(lines.count("test accuracy 88.5 %"), 1)
        self.assertIn("epoch 1 of 1", lines)
        run_dir, = (self.root / "results").glob("quickstart-*")
        self.assertIn(f"Results are in {run_dir}:", lines)
        self.assertIn("  history.csv", lines)
        self.assertNotIn("  model.safetensors", lines)
        ctl = f"{self.root}/build/release/bin/cohortctl"
        self.assertIn(f"run: to look at it: {ctl} watch "
                      "--server=127.0.0.1:12345", err.splitlines())
        self.assertLess(lines.index("What to try next:"), lines.index(
            f"  {ctl} watch --server=127.0.0.1:7070"))
        self.assertLess(lines.index("epoch 1 of 1"),
                        lines.index("What to try next:"))
        self.assertEqual((run_dir / "server.log").read_text(),
                         "epoch 1 of 1\ntest accuracy 88.5 %\n")

    def test_log_is_kept_whole_and_shown_as_its_messages(self):
        logged = r'{"time":"now","level":"info","message":"a \"b\" c","run":"d"}'
        self.play("server", f"echo '{logged}' >&2\n{GOOD_SERVER}")
        _, out, _ = self.quickstart()
        self.assertIn('a "b" c', out.splitlines())
        log, = self.root.glob("results/*/server.log")
        self.assertIn(logged, log.read_text().splitlines())

    def test_a_terminal_has_one_progress_line(self):
        self.play("server", GOOD_SERVER.replace(
            "echo epoch 1 of 1", "echo step 1; echo step 2; echo epoch 1 of 1"))
        primary, secondary = pty.openpty()
        process = self.start(stdout=secondary)
        os.close(secondary)
        out = b""
        # EIO: the last process at the terminal has ended.
        with contextlib.suppress(OSError):
            while part := os.read(primary, 4096):
                out += part
        os.close(primary)
        process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 0)
        lines = out.decode().replace("\r\n", "\n").splitlines(keepends=True)
        self.assertIn("step 1\r", lines)
        self.assertIn("\x1b[Kstep 2\r", lines)
        self.assertIn("\x1b[Kepoch 1 of 1\n", lines)
        self.assertEqual(lines[-1], "test accuracy 88.5 %\n")

    def test_new_tree_is_configured_without_tests(self):
        self.quickstart()
        self.assertEqual(self.lines("cmake.args")[0],
                         "--preset release -DCOHORT_BUILD_TESTS=OFF")

    def test_configured_tree_is_left_as_it_is(self):
        (self.root / "build/release/build.ninja").touch()
        self.quickstart()
        self.assertEqual(
            self.lines("cmake.args"),
            ["--build --preset release --target cohort-server cohort-worker "
             "cohortctl"])

    def test_flags_reach_those_they_are_for(self):
        code, _, err = self.quickstart(
            "--workers=3", "--aggregation=async", "--batch_size=8",
            "--data_dir=some/where", "--init=first.safetensors",
            "--model=unet", "--width=8", "--image_size=90x120",
            "--classes=11", "--ignore_index=0", "--augment=flip",
            "--bad_samples=skip", "--loader_threads=2", "--accumulate=2",
            "--order=sorted", "--limit=64", "--test_limit=8", "--channels_last",
            "--resume")
        self.assertEqual(code, 0, err)
        server = self.lines("server.args")
        self.assertEqual(server[0], "--workers=3")
        self.assertEqual(server[-4:], [
            "--aggregation=async", "--resume", "--listen=127.0.0.1:0",
            "--ops_listen=127.0.0.1:0"])
        self.assertEqual(
            self.lines("worker-2.args"),
            ["--server=127.0.0.1:12345", "--rank=2", "--model=unet",
             "--dataset=fashion-mnist", "--batch_size=8", "--threads=1",
             "--data_dir=some/where", "--init=first.safetensors",
             "--width=8", "--image_size=90x120", "--classes=11",
             "--ignore_index=0", "--augment=flip", "--bad_samples=skip",
             "--loader_threads=2", "--accumulate=2", "--order=sorted",
             "--limit=64", "--test_limit=8", "--channels_last"])

    def test_with_tls_every_process_and_the_reader_get_certificates(self):
        for flags, folder in ((["--tls"], self.root / "results/certs"),
                              ([f"--tls={self.plays}/pki"], self.plays / "pki")):
            with self.subTest(flags=flags):
                code, out, err = self.quickstart(*flags)
                self.assertEqual(code, 0, err)
                self.assertIn(f"--tls_key={folder}/server-0/tls.key",
                              self.lines("server.args"))
                self.assertIn(f"--viewer_tokens={folder}/viewer_tokens",
                              self.lines("server.args"))
                self.assertIn(f"--tls_key={folder}/worker-1/tls.key",
                              self.lines("worker-1.args"))
                exports = re.findall("^  export COHORT_TLS_[A-Z]+=(.*)$", out,
                                     re.M)
                self.assertEqual(len(exports), 3)
                for file in exports:
                    self.assertTrue(pathlib.Path(file).is_file())
                token = folder / "viewer_token"
                self.assertIn(f"the password in {token};", out)
                self.assertEqual(token.stat().st_mode & 0o777, 0o600)
        before = token.read_text()
        self.assertEqual(self.quickstart(*flags)[0], 0)
        self.assertEqual(token.read_text(), before)
        # One that was deleted is replaced, and so is its hash.
        token.unlink()
        self.assertEqual(self.quickstart(*flags)[0], 0)
        self.assertNotEqual(token.read_text(), "")
        hashes = (self.plays / "pki" / "viewer_tokens").read_text()
        self.assertEqual(hashes.count("browser "), 1)

    def test_gpu_needs_a_tree_that_was_configured_for_one(self):
        (self.root / "build/release").mkdir(parents=True, exist_ok=True)
        (self.root / "build/release/CMakeCache.txt").write_text(
            "COHORT_TORCH_DIR:PATH=/some/torch\n", encoding="utf-8")
        code, _, err = self.quickstart("--device=cuda:0")
        self.assertEqual(code, 0, err)
        self.assertIn("--device=cuda:0", self.lines("worker-1.args"))

    def test_wrong_use_is_exit_code_2_before_anything_is_built(self):
        for flag in ("--workers=0", "--workers=x", "train", "--address_file=x",
                     "--device=cuda:0", "--agregation=async", "--rank=1"):
            with self.subTest(flag=flag):
                code, _, err = self.quickstart(flag)
                self.assertEqual(code, 2)
                self.assertIn(flag.split("=")[0], err)
        self.assertFalse((self.plays / "cmake.args").exists())

    def test_help_explains_and_starts_nothing(self):
        code, out, _ = self.quickstart("--help")
        self.assertEqual(code, 0)
        self.assertIn("--workers=N", out)
        self.assertFalse((self.plays / "cmake.args").exists())

    def test_exit_code_is_the_servers(self):
        self.play("server", "listen; await worker-1.args; exit 8")
        code, out, err = self.quickstart()
        self.assertEqual(code, 8)
        self.assertIn("exit code 8", err)
        self.assertNotIn("What to try next", out)

    def test_server_that_never_listens_is_reported_with_its_exit_code(self):
        self.play("server", "echo '--epochs=x: want a number'; exit 2")
        code, out, _ = self.quickstart("--epochs=x")
        self.assertEqual(code, 2)
        self.assertIn("--epochs=x: want a number", out)

    def test_run_that_did_not_begin_leaves_no_results(self):
        self.play("server", "echo 'want a number'; exit 3")
        code, out, _ = self.quickstart()
        self.assertEqual(code, 3)
        self.assertIn("want a number", out)
        self.assertEqual(list((self.root / "results").iterdir()), [])

    def test_worker_that_fails_is_reported_and_ends_the_run(self):
        self.play("server", "listen; await never")
        self.play("worker", """
            [[ $rank == 0 ]] && await never
            echo no such data set; exit 3""")
        code, _, err = self.quickstart()
        self.assertEqual(code, 3)
        self.assertIn("worker 1 ended with exit code 3", err)
        self.assertIn("    no such data set", err)
        self.assertIn("quickstart: logs are in", err)
        for who in ("server", "worker-0", "worker-1"):
            self.assert_ended(who)

    def test_interrupt_stops_everything_it_started(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(signal=number):
                self.play("server",
                          "listen; await worker-0.args; await worker-1.args\n"
                          "echo running; await never")
                self.play("worker", "await never")
                process = self.start()
                while "running" not in process.stdout.readline():
                    self.assertIsNone(process.poll())
                process.send_signal(number)
                process.communicate(timeout=DEADLINE_S)
                self.assertEqual(process.returncode, code)
                for who in ("server", "worker-0", "worker-1"):
                    self.assert_ended(who)

    def test_run_without_an_accuracy_is_no_success(self):
        self.play("server", "listen; await worker-1.args")
        code, _, err = self.quickstart()
        self.assertEqual(code, 1)
        self.assertIn("no test accuracy", err)

    def test_a_run_that_is_drained_before_it_was_scored_ended_well(self):
        self.play("server", """
            listen; await worker-0.args; await worker-1.args
            echo 'info: the run is over: drained by an operator'""")
        code, out, err = self.quickstart()
        self.assertEqual(code, 0, err)
        self.assertIn("drained before", out.splitlines()[-1])

    def test_last_line_of_a_segmentation_run_is_its_miou(self):
        self.play("server", GOOD_SERVER.replace(
            "echo 'test accuracy 88.5 %'",
            "echo 'test IoU of class 0 91.2 %'\n"
            "echo 'test IoU of class 1 none'\n"
            "echo 'test pixel accuracy 88.5 %'\n"
            "touch \"$results/class_iou.csv\"\n"
            "echo 'test mIoU 41.2 %'"))
        code, out, err = self.quickstart("--class_weights=1,2",
                                         "--label_smoothing=0.1")
        lines = out.splitlines()
        self.assertEqual((code, lines[-1]), (0, "test mIoU 41.2 %"), err)
        self.assertLess(lines.index("test IoU of class 1 none"),
                        lines.index("  class_iou.csv"))
        self.assertIn("test pixel accuracy 88.5 %", lines)
        self.assertEqual(self.lines("worker-1.args")[-2:],
                         ["--class_weights=1,2", "--label_smoothing=0.1"])


if __name__ == "__main__":
    unittest.main()
