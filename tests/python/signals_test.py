"""Signals, as terminals and batch systems send them: a worker leaves in order,
and its loader processes end when it does."""

import functools
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import torch

from cohort import _signals
from networks import Shapes, digest, joined, step, three_batch_norms
from processes import until
from ranks import DEADLINE, Rank, Server, is_alive


def train(rank, address, log):
    """Writes each version to `log`."""
    model, job = joined(address, three_batch_norms(dropout=0.2), momentum=0.9,
                        rank=rank)
    for batch in job.data(Shapes(512, noise=0.3), batch_size=4, num_workers=2):
        result = step(model, job, batch)
        with open(log, "a", encoding="utf-8") as out:
            print(result.version, file=out)
        time.sleep(0.02)
    return digest(model.state_dict())


def train_in_a_rendezvous(address, log):
    """Writes a line to `log` when its step begins; its patience has no end."""
    _signals._PATIENCE = 1e6
    model, job = joined(address, rank=1, log_level="info")
    for batch in job.data(Shapes(64), batch_size=4):
        with open(log, "a", encoding="utf-8") as out:
            print("step", file=out)
        step(model, job, batch)


def train_with_a_server(log):
    """Alone; writes the server's process to `log`, and then a line a step."""
    model, job = joined(None, serve={"epochs": 10000})
    with open(log, "w", encoding="utf-8") as out:
        for batch in job.data(Shapes(64), batch_size=4):
            result = step(model, job, batch)
            print(job._run._reached.own._process.pid, result.verdict, file=out,
                  flush=True)


def wait_before_the_loop(log):
    """Has joined nothing yet."""
    _, job = joined(None)
    pathlib.Path(log).write_text(f"{job._run._reached.own._process.pid}\n")
    while True:
        signal.pause()


def sleep_in_loader(folder, _):
    (pathlib.Path(folder) / str(os.getpid())).touch()
    time.sleep(1)


def train_with_slow_loaders(_, address, folder, method):
    model, job = joined(address)
    for _ in job.data(Shapes(64), batch_size=4, num_workers=2,
                      multiprocessing_context=method,
                      worker_init_fn=functools.partial(sleep_in_loader, folder)):
        pass


class Script:
    """Rank 1 as a separate script, in a separate process group."""

    def __init__(self, address, folder, what="worker"):
        self._log = pathlib.Path(folder) / "versions"
        self._log.write_text("")
        self.process = subprocess.Popen(
            [sys.executable, "-B", __file__, what, address, self._log],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def after_steps(self, steps):
        until(lambda: len(self._log.read_text().split()) >= steps or
              self.process.poll() is not None, f"{steps} steps")
        return self

    def end(self):
        out, error = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out.strip(), error


def open_files():
    return sorted(os.listdir("/proc/self/fd"))


class Watcher(unittest.TestCase):
    """StopWatcher alone, in this process."""

    def setUp(self):
        self.calls = queue.Queue()
        # A test that was started in the background ignores interrupts.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

    def stop(self, enough):
        def on_stop(number, patience):
            self.calls.put((number, patience))
            return enough
        return _signals.StopWatcher(on_stop)

    def next_call(self):
        return self.calls.get(timeout=DEADLINE)

    def test_closing_leaves_nothing_behind(self):
        before = (open_files(), threading.active_count(),
                  signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1))
        for _ in range(3):
            self.stop(True).close()
        self.assertEqual(
            (open_files(), threading.active_count(),
             signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)), before)
        self.assertIs(signal.getsignal(signal.SIGINT),
                      signal.default_int_handler)

    def test_the_second_interrupt_has_no_patience(self):
        watcher = self.stop(False)
        signal.raise_signal(signal.SIGINT)
        self.assertEqual(self.next_call(), (signal.SIGINT, True))
        self.assertEqual(watcher.signal, signal.SIGINT)
        with self.assertRaises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        self.assertEqual(self.next_call(), (signal.SIGINT, False))
        watcher.close()

    def test_patience_ends(self):
        with mock.patch.object(_signals, "_PATIENCE", 0.01):
            watcher = self.stop(False)
            signal.raise_signal(signal.SIGTERM)
            self.assertEqual(self.next_call(), (signal.SIGTERM, True))
            self.assertEqual(self.next_call(), (signal.SIGTERM, False))
            watcher.close()
        self.assertTrue(self.calls.empty())

    def test_closing_ends_the_patience(self):
        watcher = self.stop(False)
        signal.raise_signal(signal.SIGTERM)
        self.next_call()
        watcher.close()
        self.assertTrue(self.calls.empty())

    def test_a_handler_of_the_scripts_own_stays(self):
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            watcher = self.stop(True)
            self.assertIs(signal.getsignal(signal.SIGTERM), signal.SIG_IGN)
            watcher.close()
            self.assertIs(signal.getsignal(signal.SIGTERM), signal.SIG_IGN)
        finally:
            signal.signal(signal.SIGTERM, before)

    def test_closed_by_another_thread_the_next_signal_acts_as_before(self):
        watcher = self.stop(True)
        other = threading.Thread(target=watcher.close)
        other.start()
        other.join()
        with self.assertRaises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        self.assertIs(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)
        self.assertEqual(signal.set_wakeup_fd(-1), -1)


def hold_a_step(rank, address, folder):
    """Takes part in no rendezvous of its step."""
    del rank
    model, job = joined(address)
    for _ in job.data(Shapes(64), batch_size=4):
        (pathlib.Path(folder) / "held").touch()
        signal.pause()


class Signals(unittest.TestCase):
    def test_the_second_ctrl_c_ends_a_rendezvous(self):
        with Server(2) as server, tempfile.TemporaryDirectory() as folder:
            other = Rank(hold_a_step, 0, server.address, folder)
            script = Script(server.address, folder, "impatient")
            until((pathlib.Path(folder) / "held").exists, "a step of rank 0")
            script.after_steps(1)
            script.process.send_signal(signal.SIGINT)
            for line in script.process.stderr:
                if "leaving after" in line:
                    break
            script.process.send_signal(signal.SIGINT)
            code, _, error = script.end()
            other.kill()
        self.assertEqual(code, -signal.SIGINT, error)

    def test_a_worker_leaves_in_order_and_comes_again(self):
        with tempfile.TemporaryDirectory() as folder, \
                Server(2, "--epochs=3") as server:
            first = Rank(train, 0, server.address, f"{folder}/rank0")
            for number, send, code in (
                    (signal.SIGTERM, os.kill, 75),
                    (signal.SIGINT, os.kill, -signal.SIGINT),
                    (signal.SIGTERM, os.killpg, 75),
                    (signal.SIGINT, os.killpg, -signal.SIGINT)):
                script = Script(server.address, folder).after_steps(8)
                self.assertIsNone(script.process.poll(), script)
                send(script.process.pid, number)
                ended, _, error = script.end()
                self.assertEqual(ended, code, error)
                self.assertNotIn("DataLoader worker", error)
            code, last, error = Script(server.address, folder).end()
            self.assertEqual(code, 0, error)
            self.assertEqual(first.result(), last)
            log = server.log()
        self.assertEqual(log.count("stopped by a signal"), 4, log)
        self.assertNotIn("lost", log)
        with tempfile.TemporaryDirectory() as folder, \
                Server(2, "--epochs=3") as server:
            undisturbed = Rank(train, 0, server.address, f"{folder}/rank0")
            Rank(train, 1, server.address, f"{folder}/rank1").result()
            self.assertEqual(undisturbed.result(), last)

    def test_a_signal_before_the_loop_acts_as_in_any_script(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number), tempfile.TemporaryDirectory() as folder:
                log = pathlib.Path(folder) / "log"
                script = subprocess.Popen(
                    [sys.executable, "-B", __file__, "before", log],
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                until(lambda log=log: log.exists() and
                      log.read_text().endswith("\n"), "the job")
                script.send_signal(number)
                error = script.communicate(timeout=DEADLINE)[1]
                self.assertEqual(script.returncode, -number, error)
                server = int(log.read_text())
                until(lambda server=server: not is_alive(server),
                      "the end of the server")

    def test_ctrl_c_in_a_terminal_ends_a_script_and_its_server(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "log"
            script = subprocess.Popen(
                [sys.executable, "-B", __file__, "alone", log],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                start_new_session=True)
            self.addCleanup(script.kill)
            until(lambda: log.exists() and len(log.read_text().split("\n")) > 9,
                  "some steps")
            # A terminal signals all processes of its foreground group. The
            # server is in another one: the script leaves it in order.
            server = int(log.read_text().split()[0])
            self.assertNotEqual(os.getpgid(server), script.pid)
            os.killpg(script.pid, signal.SIGINT)
            error = script.communicate(timeout=DEADLINE)[1]
            lines = [line.split() for line in log.read_text().splitlines()]
        self.assertEqual(script.returncode, -signal.SIGINT, error)
        self.assertEqual({verdict for _, verdict in lines}, {"applied"})
        until(lambda: not is_alive(server), "the end of the server")

    def test_loaders_of_a_killed_worker_end(self):
        for method in ("fork", "spawn"):
            with self.subTest(method), Server(1) as server, \
                    tempfile.TemporaryDirectory() as folder:
                rank = Rank(train_with_slow_loaders, 0, server.address, folder,
                            method)
                until(lambda folder=folder: len(os.listdir(folder)) == 2,
                      "two loaders")
                rank.kill()
                for pid in os.listdir(folder):
                    until(lambda pid=pid: not is_alive(pid), f"the end of {pid}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        torch.set_num_threads(1)
        print(train(1, *sys.argv[2:]))
    elif sys.argv[1:2] == ["impatient"]:
        train_in_a_rendezvous(*sys.argv[2:])
    elif sys.argv[1:2] == ["before"]:
        wait_before_the_loop(*sys.argv[2:])
    elif sys.argv[1:2] == ["alone"]:
        train_with_a_server(*sys.argv[2:])
    else:
        unittest.main()
