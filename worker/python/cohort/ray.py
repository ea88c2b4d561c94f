"""A run as actors of Ray: a server, and workers that are started again.

    import cohort.ray

    def train(config):
        ...
        job = cohort.join(model, optimizer)

    result = cohort.ray.run(train, workers=4, config={"lr": 0.1})

Needs `pip install cohort[ray]`; ray is imported by `run`.
"""

import contextlib
import dataclasses
import importlib
import inspect
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from cohort import _core, _errors, _join, _ray_servers

# Seconds after which a run says what it waits for.
_FIRST_S = 5.0
# Seconds that a finished run has to be written.
_END_S = 120.0
# Seconds that a worker has for what it does after the end of the run, if it may
# have been started too late for it.
_LATE_S = 10.0


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a run.

    Attributes:
        metrics: the last line of history.csv, and what train_fn of rank 0
            returned if that is a mapping.
        path: the run's folder, on the node of the server.
        checkpoint: the trained model there, model.safetensors; None without one.
        returned: what train_fn returned, by rank.
        restarts: how often each worker was restarted, by rank.
        error: why the run failed; None if it did not.
    """
    metrics: dict[str, Any]
    path: str
    checkpoint: str | None
    returned: list[Any]
    restarts: list[int]
    error: Exception | None


class RunFailedError(_errors.TrainingError):
    """The run failed; its cause is `__cause__`. `result` has what there is."""

    def __init__(self, text: str, result: Result) -> None:
        super().__init__(text)
        self.result = result


class CohortWorker:
    """One rank."""

    def train(self, train_fn: Callable[..., Any], config: Any, address: str,
              rank: int) -> tuple[str, Any]:
        """("done", what train_fn returned); or ("again", why) if the rank's work
        is not done."""
        os.environ.update(COHORT_SERVER=address, COHORT_RANK=str(rank))
        try:
            takes_config = bool(inspect.signature(train_fn).parameters)
            returned = train_fn(config) if takes_config else train_fn()
        except _errors.Stopped:
            return "again", "it was stopped"
        except _errors.ServerUnreachableError as error:
            return "again", str(error)
        finally:
            _join.leave_newest("train_fn has returned")
        return "done", returned


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise _errors.ConfigurationError(
            "cohort.ray: the package ray is not installed; "
            "pip install 'cohort[ray]'") from None


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The arguments of `run`."""
    train_fn: Callable[..., Any]
    config: Any
    workers: int
    flags: dict[str, Any]
    # The resources of the server, and of each worker.
    bundles: list[dict[str, float]]
    max_restarts: int
    strategy: str
    resources_timeout: float
    # The cluster is of one machine, and does not grow.
    fixed: bool
    path: pathlib.Path
    insecure: bool


def run(train_fn: Callable[..., Any], *, workers: int, config: Any = None,
        server_flags: Mapping[str, Any] | None = None,
        cpus_per_worker: float = 1, gpus_per_worker: float = 0,
        server_cpus: float = 1, max_restarts: int = 3,
        strategy: str = "PACK", resources_timeout: float = 600.0,
        name: str | None = None,
        storage_path: str = "~/ray_results", insecure: bool = False) -> Result:
    """Trains on a Ray cluster, and returns once the run is over.

    Connects to the cluster of RAY_ADDRESS, or starts one on this machine, if
    ray.init was not called. A worker whose process or node is lost is restarted
    while the others wait; the result is bitwise identical.

    Args:
        train_fn: a function of `config`, or of nothing, that calls cohort.join
            without an address and iterates job.data to its end.
        workers: how many.
        config: for train_fn.
        server_flags: flags of the server, such as {"epochs": 3}. With
            {"workers": "MIN:MAX"}, where MAX is `workers`, the cohort is elastic:
            the others continue while a lost worker is restarted, and without
            one that was lost too often, while MIN are left.
        cpus_per_worker: CPUs, and threads of torch, of each worker.
        gpus_per_worker: GPUs of each worker.
        server_cpus: CPUs of the server.
        max_restarts: how often a worker, or the server, is restarted.
        strategy: of the placement group: PACK, SPREAD, STRICT_PACK or
            STRICT_SPREAD.
        resources_timeout: seconds to wait for the cluster's resources.
        name: of the run's folder; a run with the name of an earlier one
            continues it. By default the time.
        storage_path: the folder of runs, on the server's node; a shared one if
            the server may move.
        insecure: allow plaintext between nodes. Otherwise several nodes need
            certificates: server_flags={"tls_cert": ...}, and
            cohort.join(tls_cert=...) in train_fn.

    Raises:
        ConfigurationError: no ray, no such resources, or arguments that cannot
            be used.
        RunFailedError: train_fn raised an exception, a worker was lost too
            often, or the server failed.
    """
    if not callable(train_fn):
        raise _errors.ConfigurationError(
            f"train_fn: got {type(train_fn).__name__}, want a function")
    for what, value, least in (("workers", workers, 1),
                               ("max_restarts", max_restarts, 0)):
        if value < least:
            raise _errors.ConfigurationError(
                f"{what}: got {value}, want at least {least}")
    given = server_flags or {}
    size = _size_of(workers, given.get("workers", workers))
    path = (pathlib.Path(storage_path).expanduser() /
            (name or time.strftime("cohort_%Y-%m-%d_%H-%M-%S"))).absolute()
    flags = {"results_dir": str(path / "results"),
             "checkpoint_dir": str(path / "checkpoints"), "checkpoint_every": 100,
             "resume": True, **given, "workers": size}
    if insecure:
        flags.setdefault("insecure", True)
    each = {"CPU": cpus_per_worker}
    if gpus_per_worker:
        each["GPU"] = gpus_per_worker
    ray = _import_ray()
    started = not ray.is_initialized()
    if started:
        ray.init()
    fixed = started and not os.environ.get("RAY_ADDRESS") and len(
        ray.nodes()) == 1
    return _Run(ray, _Plan(
        train_fn, config, workers, flags, [{"CPU": server_cpus}] + [each] * workers,
        max_restarts, strategy, resources_timeout, fixed, path,
        insecure)).result()


def _size_of(workers: int, given: Any) -> str:
    """The server's --workers, which the actors must be able to fill."""
    least, colon, most = str(given).rpartition(":")
    if most == str(workers) and (
            not colon or (least.isdigit() and 1 <= int(least) <= workers)):
        return str(given)
    raise _errors.ConfigurationError(
        f"server_flags: got workers={given!r}, want {workers}, the number of "
        f"workers of cohort.ray.run, or 'MIN:{workers}' for an elastic cohort")


class _Run:
    """The driver's side of one run."""

    def __init__(self, ray: Any, plan: _Plan) -> None:
        self._ray = ray
        self._plan = plan
        self._group: Any = None
        self._server: Any = None
        self._workers: list[Any] = []
        self._address = ""
        self._loopback = False
        self._server_restarts = 0
        # When an elastic run was seen to be over.
        self._over_at: float | None = None
        self._restarts = [0] * plan.workers
        self._returned: list[Any] = [None] * plan.workers
        # Read from the files of a server that ended well.
        self._written: tuple[dict[str, Any], str | None] = ({}, None)

    def result(self) -> Result:
        error: Exception | None = None
        try:
            self._place()
            self._start_server()
            self._train()
            self._await_end()
        except _errors.ConfigurationError:
            raise
        except (_errors.CohortError, self._ray.exceptions.RayError) as raised:
            error = raised
        finally:
            self._release()
        metrics, checkpoint = self._written
        if isinstance(self._returned[0], Mapping):
            metrics = {**metrics, **self._returned[0]}
        result = Result(metrics, str(self._plan.path), checkpoint,
                        self._returned, self._restarts, error)
        if error is None:
            return result
        cause = (error.as_instanceof_cause() if isinstance(
            error, self._ray.exceptions.RayTaskError) else error)
        raise RunFailedError(str(error), result) from cause

    # ---- the cluster

    def _place(self) -> None:
        """Reserves the resources of all actors."""
        ray, plan = self._ray, self._plan
        wanted = f"{plan.workers} workers and a server"
        self._group = ray.util.placement_group(plan.bundles, strategy=plan.strategy)
        ready = self._group.ready()
        if not ray.wait([ready], timeout=min(_FIRST_S, plan.resources_timeout))[0]:
            lacking = self._lacking()
            if plan.fixed and lacking:
                raise _errors.ConfigurationError(
                    f"no place for {wanted}: {lacking}; "
                    "if there are more, call ray.init(num_cpus=N) first")
            print(f"cohort.ray: waiting for resources, {plan.resources_timeout:g} s "
                  f"at most: {lacking or 'other jobs use them'}", flush=True)
            if not ray.wait([ready], timeout=plan.resources_timeout)[0]:
                raise _errors.ConfigurationError(
                    f"no place for {wanted} within "
                    f"{plan.resources_timeout:g} s (resources_timeout): "
                    f"{self._lacking() or 'others use the resources'}; use "
                    "fewer workers, cpus_per_worker or server_cpus")
        nodes = ray.util.placement_group_table(
            self._group)["bundles_to_node_id"].values()
        self._loopback = len(set(nodes)) == 1
        encrypted = "tls_cert" in plan.flags
        if not (self._loopback or encrypted or plan.insecure):
            raise _errors.ConfigurationError(
                "the run is on several nodes, without encryption: pass "
                "server_flags={'tls_cert': ..., 'tls_key': ..., 'tls_ca': ...} "
                "(cohortctl certs init makes them), or insecure=True")

    def _lacking(self) -> str:
        """What the whole cluster has too little of; empty if nothing."""
        wanted: dict[str, float] = {}
        for bundle in self._plan.bundles:
            for kind, count in bundle.items():
                wanted[kind] = wanted.get(kind, 0) + count
        total = self._ray.cluster_resources()
        has = {kind: total.get(kind, 0.0) for kind in wanted}
        if all(has[kind] >= count for kind, count in wanted.items()):
            return ""
        return f"they need {wanted}, the cluster has {has} in all"

    def _actor(self, kind: type, bundle: int) -> Any:
        resources = self._plan.bundles[bundle]
        strategy = importlib.import_module(
            "ray.util.scheduling_strategies").PlacementGroupSchedulingStrategy
        return self._ray.remote(kind).options(
            num_cpus=resources["CPU"], num_gpus=resources.get("GPU", 0),
            scheduling_strategy=strategy(
                placement_group=self._group,
                placement_group_bundle_index=bundle))

    def _start_server(self) -> None:
        self._server = self._actor(_ray_servers.CohortServer, 0).remote(
            self._plan.flags, self._loopback, self._address or None)
        try:
            self._address = str(self._ray.get(self._server.address.remote()))
        except self._ray.exceptions.RayError as error:
            # An actor whose constructor raised: its text has the reason.
            raise _errors.TrainingError(_ray_servers.reason_of(error)) from None

    # ---- the run

    def _train(self) -> None:
        """Until train_fn of all workers has returned."""
        plan, ray = self._plan, self._ray
        self._workers = [None] * plan.workers
        pending = {self._begin(rank): rank for rank in range(plan.workers)}
        while pending:
            for call in ray.wait(list(pending), timeout=1.0)[0]:
                rank = pending.pop(call)
                why = self._lost_because(call, rank)
                if why is not None and self._may_begin(rank, why, len(pending)):
                    pending[self._begin(rank)] = rank
            self._check_server()
            for call in self._late(pending):
                del pending[call]

    def _late(self, pending: Mapping[Any, int]) -> list[Any]:
        """The calls of workers that were started again too late: an elastic run
        may end without them, and then they find no server."""
        if ":" not in str(self._plan.flags["workers"]) or self._exit_code() != 0:
            return []
        now = time.monotonic()
        self._over_at = self._over_at or now
        return [call for call, rank in pending.items() if
                self._restarts[rank] > 0 and now - self._over_at > _LATE_S]

    def _begin(self, rank: int) -> Any:
        # A new actor in place of Ray's restart of the old one: calls to an actor
        # that Ray is restarting fail, and would look like another loss.
        if self._workers[rank] is not None:
            self._ray.kill(self._workers[rank])
        self._workers[rank] = self._actor(CohortWorker, 1 + rank).remote()
        return self._workers[rank].train.remote(
            self._plan.train_fn, self._plan.config, self._address, rank)

    def _lost_because(self, call: Any, rank: int) -> str | None:
        """Why the worker's work is not done; None if it is."""
        try:
            outcome, value = self._ray.get(call)
        except self._ray.exceptions.RayActorError as error:
            return _ray_servers.reason_of(error)
        if outcome == "done":
            self._returned[rank] = value
            return None
        return str(value)

    def _may_begin(self, rank: int, why: str, others: int) -> bool:
        """False if the run continues without the worker."""
        self._restarts[rank] += 1
        least, elastic, _ = str(self._plan.flags["workers"]).rpartition(":")
        decision = _core.after_loss(
            self._restarts[rank] <= self._plan.max_restarts,
            waits=not elastic, workers_min=int(least or 0), others=others)
        if decision == _core.AfterLoss.START_AGAIN:
            return True
        text = (f"worker {rank} was lost {self._restarts[rank]} times "
                f"(max_restarts={self._plan.max_restarts}), at last: {why}")
        if decision == _core.AfterLoss.CONTINUE_WITHOUT:
            print(f"cohort.ray: {text}; the others continue", flush=True)
            return False
        raise _errors.TrainingError(text)

    def _exit_code(self) -> int | None:
        """None if the server runs; -1 if its actor is lost."""
        try:
            code = self._ray.get(self._server.exit_code.remote())
        except self._ray.exceptions.RayActorError:
            return -1
        return None if code is None else int(code)

    def _check_server(self) -> None:
        """Starts lost servers again; workers reconnect by themselves."""
        code = self._exit_code()
        if code is None or code == 0:
            return
        text = ("its actor was lost" if code == -1 else
                self._ray.get(self._server.log.remote()))
        why_not = _core.why_not_again(code, self._server_restarts,
                                      self._plan.max_restarts, "max_restarts")
        if why_not:
            raise _errors.TrainingError(
                f"cohort-server ended with exit code {code} ({why_not}): {text}")
        self._server_restarts += 1
        self._ray.kill(self._server)
        self._start_server()

    def _await_end(self) -> None:
        """Until the server has written the results."""
        deadline = time.monotonic() + _END_S
        while (code := self._exit_code()) != 0:
            self._check_server()
            if code is None and time.monotonic() > deadline:
                raise _errors.TrainingError(
                    "train_fn of all workers has returned, but the run is not "
                    "over; iterate job.data() to its end")
            time.sleep(0.2)
        self._written = self._ray.get(self._server.results.remote())

    def _release(self) -> None:
        ray = self._ray
        for actor in self._workers:
            if actor is not None:
                ray.kill(actor)
        if self._server is not None:
            # It writes a checkpoint.
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(self._server.close.remote(), timeout=_END_S)
            ray.kill(self._server)
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
