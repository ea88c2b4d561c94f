"""Runs one function as every rank of a run: a server, and a process a rank."""

import atexit
import faulthandler
import multiprocessing
import os
import pathlib
import pickle
import signal
import traceback

from processes import BIN, Cohort, kill

# Seconds after which a process counts as stuck.
DEADLINE = 200


class Server(Cohort):
    """A cohort-server in a separate folder."""

    def __init__(self, workers, *flags, keeps=False):
        super().__init__(workers, ["--ops_listen=", *flags], keeps=keeps)

    def kill(self):
        kill(self.server)

    def ranks(self, function, *arguments):
        """A process for each rank, which calls function(rank, address, ...)."""
        return [Rank(function, rank, self.address, *arguments)
                for rank in range(self.size)]

    def call(self, function, *arguments):
        """What the function returns, by rank."""
        return [rank.result() for rank in self.ranks(function, *arguments)]

    def __enter__(self):
        self.start_server()
        return self

    def __exit__(self, *_):
        Rank.kill_all()
        super().__exit__()


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
    # Or "fork", where imports take long and this process starts no threads.
    method = "spawn"

    def __init__(self, function, rank, *arguments):
        self._arguments = function, rank, *arguments
        context = multiprocessing.get_context(Rank.method)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_call,
                                       args=(function, rank, arguments, theirs))
        self.process.start()
        theirs.close()
        Rank._all.append(self)

    def result(self):
        """What the function returned."""
        if not self.pipe.poll(DEADLINE):
            os.kill(self.process.pid, signal.SIGABRT)  # prints its stacks
            self.process.join()
            raise AssertionError("a rank did not end")
        done, value = pickle.loads(self.pipe.recv_bytes())
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

    def replaced(self):
        """Another process with the same call, once this one has been killed."""
        self.process.join()
        if self.process.exitcode != -signal.SIGKILL:
            raise AssertionError(f"was not killed: {self.result()}")
        return Rank(*self._arguments)

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
        try:
            return server.call(function, *arguments)
        except AssertionError as error:
            raise AssertionError(f"{error}\nserver: {server.log()}") from None


def die_once(rank, marker):
    """Kills the calling process if it is rank 1 and there is no file `marker` yet.
    Without a marker it does nothing."""
    if rank == 1 and marker is not None and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def is_alive(pid):
    try:
        return "\nState:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
