#!/usr/bin/env python3
"""cohortctl run, with a server and workers that a test defines."""

import fcntl
import json
import os
import pathlib
import pty
import signal
import subprocess
import tempfile
import termios
import unittest

BIN = pathlib.Path(os.environ["COHORT_BIN_DIR"])
DEADLINE_S = 600

HEAD = r"""#!/bin/bash
cd "$(dirname "$0")"
for flag in "$@"; do
  case "$flag" in
    --address_file=*) file=${flag#*=} ;;
    --rank=*) rank=${flag#*=} ;;
  esac
done
listen() { echo 127.0.0.1:9 >"$file.new"; mv "$file.new" "$file"; }
await() { until [[ -e "$1" ]]; do sleep 0.02; done; }
"""


def setUpModule():
    # A test that was started in the background ignores interrupts, and so
    # would the processes that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class RunTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def play(self, server: str, worker: str) -> None:
        for name, text in (("server", server), ("worker", worker)):
            path = self.dir / f"cohort-{name}"
            path.write_text(f"{HEAD}echo $$ >{name}$rank.pid\n{text}\n")
            path.chmod(0o755)

    def start(self, *arguments: str, before: tuple[str, ...] = ()
              ) -> subprocess.Popen:
        return subprocess.Popen(
            [*before, BIN / "cohortctl", "run", f"--programs={self.dir}",
             *arguments], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)

    def cohort(self, *arguments: str) -> tuple[int, list[str], list[str]]:
        """Returns exit code and the lines of stdout and stderr."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out.splitlines(), err.splitlines()

    def await_line(self, process: subprocess.Popen, word: str,
                   stream: str = "stdout") -> None:
        while word not in getattr(process, stream).readline():
            self.assertIsNone(process.poll())

    def assert_ended(self, *names: str) -> None:
        for name in names:
            pid = int((self.dir / f"{name}.pid").read_text())
            with self.assertRaises(ProcessLookupError):
                os.kill(pid, 0)

    def test_shows_each_line_behind_its_process_and_ends_as_the_server(self):
        self.play('echo "$@"; listen; await over1; await over0; exit 8',
                  'echo "$@"; touch over$rank')
        code, out, err = self.cohort("--aggregation=async", "--batch_size",
                                     "8", "--seed", "3", "--", "--threads=2",
                                     "--trace=w")
        self.assertEqual(code, 8, err)
        server, = (line for line in out if line.startswith("[server]"))
        self.assertIn(" --aggregation=async --seed 3 ", server)
        self.assertIn("[worker 1] --server=127.0.0.1:9 --rank=1 --batch_size "
                      "8 --threads=2 --trace=w.1", out)
        self.assertIn("run: server ended with exit code 8", err)

    def test_log_lines_are_shown_as_their_messages(self):
        line = {"time": "t", "level": "warning", "process": "server",
                "message": "a\x1b[2J \"b\"", "run": "r"}
        self.play(f"echo '{json.dumps(line)}'; listen; echo '{{}}'", "")
        code, out, err = self.cohort("--workers=1")
        self.assertEqual(code, 0, err)
        self.assertEqual(out, ['[server]   warning: a\\x1b[2J "b"',
                               "[server]   {}"])

    def test_dead_worker_is_started_again_but_not_for_ever(self):
        self.play("listen; await never", "[[ $rank == 0 ]] && await never\n"
                  "echo x >>lives; kill -9 $$")
        code, _, err = self.cohort("--max_restarts=2",
                                   f"--log_dir={self.dir}/logs")
        self.assertEqual(code, 137)
        self.assertEqual((self.dir / "lives").read_text(), "x\n" * 3)
        ends = [line for line in err if "ended by signal 9 (Killed)" in line]
        for line, what in zip(ends, ("1 of 2", "2 of 2", "--max_restarts=2"),
                              strict=True):
            self.assertTrue(line.startswith("run: worker 1 was"), line)
            self.assertIn(what, line)
        self.assertIn("run: worker 1 wrote nothing", err)
        self.assertIn("--checkpoint_dir=DIR", err[-1])
        self.assert_ended("server", "worker0", "worker1")

    def test_dead_data_shard_is_started_again_but_not_for_ever(self):
        # The worker is there once cohortctl knows that the server listens.
        self.play('listen; [[ "$*" != *--data_shard* ]] && await never\n'
                  "await worker0.pid; echo x >>lives; kill -9 $$",
                  "await never")
        code, _, err = self.cohort("--shards=2", "--workers=1",
                                   "--checkpoint_dir=a", "--max_restarts=1")
        self.assertEqual(code, 137)
        self.assertEqual((self.dir / "lives").read_text(), "x\n" * 2)
        first, last = (line for line in err if "run: shard 1 was ended" in line)
        self.assertIn("1 of 1 times", first)
        self.assertIn("--max_restarts=1", last)
        self.assertTrue(err[-1].startswith("run: to continue: "), err)
        self.assertTrue(err[-1].endswith(" --max_restarts=1 --resume"), err)

    def test_worker_with_wrong_flags_is_not_started_again(self):
        self.play("listen; await never", "echo x >>lives; exit 2")
        code, _, err = self.cohort("--workers=1")
        self.assertEqual(code, 2)
        self.assertEqual((self.dir / "lives").read_text(), "x\n")
        self.assertIn("worker 0 ended with exit code 2", err[-1])

    def test_worker_that_leaves_with_zero_is_not_started_again(self):
        self.play("listen; await worker0.pid; sleep 0.5", "echo x >>lives")
        code, _, err = self.cohort("--workers=1")
        self.assertEqual(code, 0, err)
        self.assertEqual((self.dir / "lives").read_text(), "x\n")

    def test_run_that_goes_on_without_lost_workers_does_so(self):
        self.play("listen; await worker1.pid; await gone; sleep 0.2; exit 0",
                  "[[ $rank == 1 ]] && touch gone && exit 7; sleep 0.3")
        code, _, err = self.cohort("--on_worker_loss=continue")
        self.assertIn("worker 1 ended with exit code 7", "".join(err))
        # The server's is 0, and not everything ended well.
        self.assertEqual(code, 7, err)
        self.assertTrue(err[-1].endswith("the exit code is 7"), err)

    def test_a_worker_that_fails_after_the_run_is_no_success(self):
        self.play("listen; await worker0.pid; await worker1.pid; touch over",
                  "await over; sleep 0.3; [[ $rank == 0 ]] || exit 3")
        code, _, err = self.cohort()
        self.assertEqual(code, 3, err)
        self.assertIn("run: worker 1 ended with exit code 3", err)

    def test_a_worker_that_was_started_again_and_ends_well_is_a_success(self):
        self.play("listen; await twice; sleep 0.3",
                  "echo x >>lives; [[ $(wc -l <lives) == 1 ]] && exit 1\n"
                  "touch twice; exit 0")
        code, _, err = self.cohort("--workers=1")
        self.assertEqual(code, 0, err)

    def test_an_elastic_run_brings_its_workers_back_while_it_may(self):
        self.play("listen; await done; sleep 0.5",
                  "[[ $rank == 0 ]] && await done && sleep 0.6\n"
                  "echo x >>lives; [[ $rank == 1 && $(wc -l <lives) == 2 ]] && "
                  "touch done; exit 1")
        code, _, err = self.cohort("--workers=1:2", "--max_restarts=1")
        self.assertEqual(code, 1, err)
        first, last = (line for line in err if "worker 1 ended" in line)
        self.assertIn("exit code 1: it is started again, 1 of 1 times", first)
        self.assertIn("continues without it", last)

    def test_an_elastic_run_with_too_few_workers_is_stopped(self):
        self.play("listen; await never",
                  "[[ $rank == 0 ]] && await never; exit 3")
        code, _, err = self.cohort("--workers=2:2")
        self.assertEqual(code, 3)
        self.assertIn("1 worker is fewer than 2", "".join(err))

    def test_interrupt_stops_the_server_first_and_tells_how_to_go_on(self):
        self.play("trap 'echo saved; touch saved; exit 0' TERM; listen\n"
                  "await worker0.pid; echo ready; await never",
                  "trap '[[ -e saved ]] && echo after; exit 0' TERM\n"
                  "await never")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.start("--workers=1", "--checkpoint_dir=a b",
                                 "--", "--threads=1")
            self.await_line(process, "ready")
            process.send_signal(number)
            out, err = process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 128 + number, err)
            # The shell's own message about its sleep, which the signal ended.
            lines = [line for line in out.splitlines()
                     if not line.endswith("Terminated")]
            self.assertEqual(lines, ["[server]   saved", "[worker 0] after"])
            self.assertIn(f"to continue: {BIN}/cohortctl run "
                          f"--programs={self.dir} --workers=1 "
                          "'--checkpoint_dir=a b' --resume -- --threads=1\n",
                          err)
            self.assert_ended("server", "worker0")
            for name in ("saved", "worker0.pid"):
                (self.dir / name).unlink()

    def test_killed_server_tells_how_to_go_on(self):
        self.play("listen; await worker0.pid; kill -9 $$", "")
        code, _, err = self.cohort("--workers=1", "--checkpoint_dir=a b")
        self.assertEqual(code, 137)
        self.assertIn("run: server was ended by signal 9 (Killed)", err)
        self.assertEqual(err[-1], f"run: to continue: {BIN}/cohortctl run "
                         f"--programs={self.dir} --workers=1 "
                         "'--checkpoint_dir=a b' --resume")

    def test_second_interrupt_kills_what_does_not_stop(self):
        self.play("trap '' TERM; listen; await worker0.pid; echo ready\n"
                  "await never", "await never")
        process = self.start("--workers=1")
        self.await_line(process, "ready")
        process.send_signal(signal.SIGINT)
        self.await_line(process, "stopping", "stderr")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 130)

    def test_closed_terminal_stops_the_server_first(self):
        self.play("trap 'touch saved; exit 0' TERM; listen\n"
                  "await worker0.pid; echo ready; await never",
                  "trap 'exit 0' TERM; await never")
        ours, its = pty.openpty()
        process = subprocess.Popen(
            [BIN / "cohortctl", "run", f"--programs={self.dir}",
             "--workers=1"],
            stdin=its, stdout=its, stderr=its, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(its)
        shown = b""
        while b"ready" not in shown:
            shown += os.read(ours, 4096)
        # As when a terminal window is closed.
        os.close(ours)
        self.assertEqual(process.wait(DEADLINE_S), 128 + signal.SIGHUP)
        self.assertTrue((self.dir / "saved").exists())
        self.assert_ended("server", "worker0")

    # A shell forwards it, and the system sends it again when the shell ends.
    def test_second_hangup_does_not_kill(self):
        self.play("trap 'echo asked; await more; touch saved; exit 0' TERM\n"
                  "listen; await worker0.pid; echo ready; await never",
                  "trap 'exit 0' TERM; await never")
        process = self.start("--workers=1")
        for word in ("ready", "asked"):
            self.await_line(process, word)
            process.send_signal(signal.SIGHUP)
        (self.dir / "more").touch()
        process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 128 + signal.SIGHUP)
        self.assertTrue((self.dir / "saved").exists())

    def test_nohup_keeps_it_running(self):
        self.play("trap 'exit 0' TERM; listen; await worker0.pid; echo ready\n"
                  "await never", "trap 'exit 0' TERM; await never")
        process = self.start("--workers=1", before=("nohup",))
        self.await_line(process, "ready")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
        # It saw only the second of the two signals.
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)

    def test_kill_of_cohortctl_leaves_nothing_behind(self):
        self.play("listen; await worker0.pid; echo ready; exec sleep 600",
                  "exec sleep 600")
        process = self.start("--workers=1")
        self.await_line(process, "ready")
        process.kill()
        # The output ends when all processes that could write it have ended.
        process.communicate(timeout=DEADLINE_S)

    def test_json_is_an_object_a_line(self):
        self.play("listen; await worker0.pid; echo hello; exit 0", "exit 0")
        code, out, err = self.cohort("--workers=1", "--json")
        self.assertEqual((code, err), (0, []))
        lines = [json.loads(line) for line in out]
        self.assertEqual([(l["event"], l["process"]) for l in lines
                          if l.get("event") == "started"],
                         [("started", "server"), ("started", "worker 0")])
        self.assertIn({"process": "server", "line": "hello"}, lines)
        self.assertIn({"event": "ended", "process": "server", "exit_code": 0,
                       "signal": None}, lines)

    def test_log_dir_has_everything_and_the_screen_the_server(self):
        self.play("listen; await worker0.pid; echo hello; exit 0",
                  "echo quiet")
        logs = self.dir / "logs"
        code, out, err = self.cohort("--workers=1", f"--log_dir={logs}")
        self.assertEqual((code, out), (0, ["hello"]), err)
        self.assertEqual((logs / "server.log").read_text(), "hello\n")
        self.assertEqual((logs / "worker-0.log").read_text(), "quiet\n")

    def test_mistakes_are_one_clear_error(self):
        self.play("echo 'port 7 is in use' >&2; exit 3", "")
        for arguments, code, words in (
                (("--log_dir=/proc/x",), 3, "cannot be written"),
                (("--address_file=x",), 3, "set by the cluster itself"),
                (("--", "--rank=3"), 3, "set by the cluster itself"),
                ((), 3, "did not come to listen")):
            with self.subTest(arguments=arguments):
                got, _, err = self.cohort(*arguments)
                self.assertEqual(got, code, err)
                self.assertIn(words, "\n".join(err))


if __name__ == "__main__":
    unittest.main()
