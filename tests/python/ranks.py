"""Runs one function as every rank of a run: a server, and a process a rank."""

import atexit
import faulthandler
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import tempfile
import time
import traceback

BIN = pathlib.Path(os.environ["COHORT_BIN_DIR"])

# Seconds after which a process counts as stuck.
DEADLINE = 200


class Server:
    """A cohort-server in a folder of its own."""

    def __init__(self, workers, *flags):
        self._folder = tempfile.TemporaryDirectory(prefix="cohort-python-")
        self.dir = pathlib.Path(self._folder.name)
        self._flags = [f"--workers={workers}", "--ops_listen=", *flags]
        self._process = None
        self.address = "127.0.0.1:0"

    def start(self, *flags):
        """Starts it, on its previous address if it had one."""
        file = self.dir / "address"
        file.unlink(missing_ok=True)
        with (self.dir / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [BIN / "cohort-server", f"--listen={self.address}",
                 f"--address_file={file}", *self._flags, *flags],
                stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError("no server: " + self.log())
            time.sleep(0.01)
        self.address = file.read_text().strip()
        return self

    def log(self):
        return (self.dir / "log").read_text(errors="replace")

    def kill(self):
        self._process.kill()
        self._process.wait()

    def wait(self):
        """Until the run is over and written."""
        if self._process.wait(timeout=60) != 0:
            raise AssertionError(self.log())

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        Rank.kill_all()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def _call(function, rank, arguments, pipe):
    faulthandler.enable()
    os.environ["COHORT_RANK"] = str(rank)
    import torch
    torch.set_num_threads(1)
    from networks import DEVICE
    if DEVICE != "cpu":
        # As precise as the CPU, and the same bits each time.
        torch.backends.cudnn.allow_tf32 = False
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        answer = (True, function(rank, *arguments))
    except BaseException:  # reported by the test
        answer = (False, traceback.format_exc())
    # Plain bytes: a pipe's own pickling would share tensors with a process that
    # ends.
    pipe.send_bytes(pickle.dumps(answer))


class Rank:
    """One process."""

    _all = []

    def __init__(self, function, rank, *arguments):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_call,
                                       args=(function, rank, arguments, theirs))
        self.process.start()
        theirs.close()
        Rank._all.append(self)

    def result(self):
        """What the function returned."""
        if not self._pipe.poll(DEADLINE):
            os.kill(self.process.pid, signal.SIGABRT)  # prints its stacks
            self.process.join()
            raise AssertionError("a rank did not end")
        done, value = pickle.loads(self._pipe.recv_bytes())
        self.process.join(DEADLINE)
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGABRT)
            self.process.join()
            raise AssertionError("a rank returned and did not end")
        if not done:
            raise AssertionError("a rank failed:\n" + value)
        return value

    def kill(self):
        self.process.kill()
        self.process.join()

    @classmethod
    def kill_all(cls):
        """Ends those that a failed test left running."""
        while cls._all:
            cls._all.pop().kill()


# An exiting process waits for its children.
atexit.register(Rank.kill_all)


def run(function, workers, *arguments, flags=()):
    """The results of function(rank, address, *arguments) by rank."""
    with Server(workers, *flags) as server:
        ranks = [Rank(function, rank, server.address, *arguments)
                 for rank in range(workers)]
        try:
            return [rank.result() for rank in ranks]
        except AssertionError as error:
            raise AssertionError(f"{error}\nserver: {server.log()}") from None
