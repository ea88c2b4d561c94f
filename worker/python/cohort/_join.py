"""Joining a run: what is checked, and which server it is."""

import atexit
import contextlib
import functools
import os
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from cohort import (_batch_norm, _core, _errors, _kept, _local_steps,
                    _model_checks, _server, _torchrun)
from cohort._job import Job
from cohort._model import RegisteredModel
from cohort._optimizer import check_optimizers
from cohort._run import Run
from cohort._scaler import loss_scale_of
from cohort._schedulers import Schedulers

# Seconds to wait for an unreachable server, unless the script or the environment
# says how long.
_TIMEOUT = 300.0

# The operations port and the timeline of the job of this process, or of its last
# one. The port answers until the process ends: the script may score the model after
# the run.
_observation: "_core.Observation | None" = None

# The run that this process has joined last.
_newest: Callable[[], Run | None] = lambda: None


def _fingerprint(device: torch.device, threads: int) -> str:
    name = (torch.cuda.get_device_name(device) if device.type == "cuda"
            else f"{threads} threads")
    return f"torch {torch.__version__}, {name}"


def _given(name: str, argument: Any = None) -> Any:
    """An argument of `join`; if it is None, what COHORT_NAME says, with the type and
    the limits of that flag of cohort-worker, a duration in seconds. None: nothing.

    Raises:
        ConfigurationError: the variable cannot be used.
    """
    text = os.environ.get(f"COHORT_{name.upper()}")
    if argument is not None or not text:
        return argument
    try:
        return _core.parse_worker_flag(name, text)
    except _errors.StatusError as error:
        _errors.raise_from(error)


def _close_observation() -> None:
    global _observation
    _observation = None


atexit.register(_close_observation)


def _observe(trace: str, ops_listen: str, insecure: bool, tls: Mapping[str, str]) -> None:
    """Opens the operations port and the timeline; the arguments are `join`'s.

    Raises:
        ConfigurationError: they cannot be used as they are.
        TrainingError: the port is in use.
    """
    global _observation
    # The last job's may have the same port.
    _close_observation()
    try:
        _observation = _core.Observation(
            trace=trace, ops_listen=ops_listen, insecure=insecure, **tls)
    except _errors.StatusError as error:
        kind = (_errors.TrainingError if _errors.code_of(error) == "UNAVAILABLE"
                else _errors.ConfigurationError)
        raise kind(str(error.args[1])) from None


def _connect(rank: int | None, server_timeout: float, tls: Mapping[str, str],
             model: RegisteredModel, batch_size: int, batch_size_max: int,
             **options: str) -> "_core.Worker":
    """A worker that has not joined yet. `options` are those of _core.Worker; the
    other arguments are `join`'s.

    Raises:
        StatusError: the address cannot be used.
    """
    if rank is None and os.environ.get("COHORT_RANK"):
        rank = _torchrun.number("COHORT_RANK", os.environ["COHORT_RANK"])
    if rank is None and (gang := _torchrun.gang()) is not None:
        rank = gang.rank
    threads = torch.get_num_threads()
    assert _observation is not None
    return _core.Worker(
        rank=-1 if rank is None else int(rank), batch_size=batch_size,
        batch_size_max=batch_size_max, server_timeout_s=float(server_timeout),
        fingerprint=_fingerprint(model.device, threads),
        description=f"{socket.gethostname()}, process {os.getpid()}",
        threads=threads, observation=_observation, **tls, **options)


def _local_mode(given: str | None) -> str:
    """Raises ConfigurationError if there is no such way."""
    mode = given or os.environ.get("COHORT_LOCAL") or "auto"
    if mode not in ("auto", "shm", "tcp"):
        raise _errors.ConfigurationError(
            f"local: got '{mode}', want one of auto, shm, tcp")
    return mode


def _check_alone(model: nn.Module) -> None:
    """Raises UsageError if the model, or this process, has a job."""
    for _, layer in _batch_norm.layers_of(model):
        if _batch_norm.is_attached(layer):
            raise _errors.UsageError(
                "cohort.join(): this model belongs to a job; call leave() on "
                "that first")
    run = _newest()
    if run is not None and run.is_here():
        raise _errors.UsageError(
            "cohort.join(): this process has a job already; call leave() on it "
            "first, or start another process: one process is one worker")


# Wrappers that exchange gradients or parameters by themselves, by the names of
# their classes: torch.distributed may be missing, and Apex has one, too.
_WRAPPERS = frozenset({"DistributedDataParallel", "FullyShardedDataParallel",
                       "FSDPModule", "DeepSpeedEngine"})


def _check_wrappers(model: nn.Module) -> None:
    """Raises ConfigurationError if the model, or a part of it, is a wrapper for
    several processes or devices."""
    for name, module in model.named_modules():
        where = name or "model"
        kinds = _WRAPPERS.intersection(kind.__name__
                                       for kind in type(module).__mro__)
        if kinds:
            kind = min(kinds)
            raise _errors.ConfigurationError(
                f"{where}: got a {kind}, which exchanges gradients between "
                "processes, as this package does; " + (
                    "do not call fully_shard() on it" if kind == "FSDPModule" else
                    f"pass the module in it, {where}.module, here and to the "
                    "optimizer, and do not wrap it"))
        if (isinstance(module, nn.DataParallel) and
                len(module.device_ids) > 1):
            raise _errors.ConfigurationError(
                f"{where}: got a DataParallel over {len(module.device_ids)} "
                f"devices, want one device a worker; pass {where}.module, and "
                "start a worker for each device")


def leave_newest(reason: str) -> None:
    """Ends the job of this process, if it has one."""
    run = _newest()
    if run is not None:
        run.leave(reason)


def call(name: str) -> contextlib.AbstractContextManager[None]:
    """Names the batch-norm calls made in here, so that workers meet by name where
    some of them skip calls of a layer that is called several times in a step.

    Raises:
        UsageError: this process has no job.
    """
    run = _newest()
    if run is None or run.left:
        raise _errors.UsageError("cohort.call(): this process has no job")
    return run.step.calls.name(name)


def join(model: nn.Module,
         optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer], *,
         schedulers: Sequence[Any] = (), epoch_schedulers: Sequence[Any] = (),
         keep: _kept.Keep = (),
         buffers: Mapping[str, str] | None = None,
         scaler: Any = None,
         local_steps: int = 0, outer: _local_steps.Outer | None = None,
         keep_inner: bool = False,
         server: str | None = None, rank: int | None = None,
         serve: Mapping[str, Any] | str | None = None,
         server_flags: Mapping[str, Any] | None = None,
         server_timeout: float | None = None, trace: str | None = None,
         ops_listen: str | None = None, insecure: bool | None = None,
         tls_cert: str | None = None, tls_key: str | None = None,
         tls_ca: str | None = None, local: str | None = None,
         log_level: str = "info") -> Job:
    """Makes this process a worker of a run.

    The model's batch norm becomes the cohort's, in place. The run is joined,
    and the model registered, when `job.data` is first iterated. After that the
    weights, the optimizer's state and the moving statistics are the server's.
    COHORT_THREADS is the number of torch's threads, and
    COHORT_STOPPED_EXIT_CODE, in place of 75, the exit code of a script that was
    stopped or drained.

    Args:
        model: float32 parameters on the CPU or on one GPU. Its present values
            are the run's initial ones if this is the lowest rank of a new run.
        optimizer: of a class that the server has a rule for, such as
            torch.optim.SGD or cohort.LARS (see OPTIMIZERS.md). The server (with
            --optimizer=auto, its default) takes class, rates, decay and groups.
            Or several of one class, such as those of a GAN, in the order in which
            the loop's body steps them: job.backward(loss, optimizer=opt_d), then
            job.step(opt_d). `model` then has the parameters of all of them, such
            as nn.ModuleList([discriminator, generator]).
        schedulers: schedulers of the optimizer, each advanced with every step of
            its own optimizer. A single one that the script steps itself is not
            passed.
        epoch_schedulers: the same, advanced at the end of each epoch.
        keep: what the script changes with the steps beside the model, equal on
            all workers and at most 256 MiB: modules such as a teacher, or modules
            and tensors by name ({"centre": centre}), changed in place in the
            loop's body. A version has it as it has weights: it goes back with a
            void step, and replacements and checkpoints have it. Buffers of the
            model that a step's passes write are kept by themselves.
        buffers: rules for buffers of the model, or kept tensors, that each worker
            changes by its own samples, by name: {"centre": "mean", "seen": "sum"}.
            job.step() makes one change of all workers' changes since the step
            began: their mean, weighted by samples, or their sum. Until then a
            worker sees its own change only.
        scaler: a torch.amp.GradScaler, for float16. job.backward() scales the
            loss and unscales the gradients, and job.step() moves the scale. One
            that is not enabled does nothing.
        local_steps: batches after each of which `optimizer`, of any class, updates
            this worker's weights by their gradients, as in one process. Then the
            server applies `outer` to the mean of what the workers have changed,
            weighted by samples: DiLoCo, for slow links. Schedulers, len(data) and
            cohort.steps() count batches, --max_steps counts steps of the run. Batch
            norm is that of each batch. A flag of the server takes precedence.
        outer: functools.partial(torch.optim.SGD, lr=0.7, momentum=0.9,
            nesterov=True), which is the default, or an optimizer of the same
            parameters, of a class that the server has a rule for.
        keep_inner: `optimizer` keeps its state, such as moments, from one step of
            the run to the next; otherwise it starts without. The state is lost
            with the process, so a run with a killed worker has other bits.
        server: HOST:PORT, or unix:/path on the server's host; by default
            COHORT_SERVER, or a server that this process starts, if it is alone.
        rank: this worker's number; by default COHORT_RANK, torchrun's RANK, or
            the lowest vacant one.
        serve: flags of the server that this process starts, such as {"epochs": 3}. "rank0":
            rank 0 of a job of torchrun starts a server for all its processes,
            on the machine MASTER_ADDR and port MASTER_PORT + 1; it ends with
            the run, or with the process. Ignored if COHORT_SERVER names
            another server.
        server_flags: flags of the server, with serve="rank0". {"listen":
            "0.0.0.0:7070"}, or COHORT_LISTEN on all machines, is another port.
            With "checkpoint_dir" a restarted job continues.
        server_timeout: seconds to wait for an unreachable server; by default
            COHORT_SERVER_TIMEOUT ("5m"), or 300, or 15 where this process has
            finished a run already.
        trace: file for the timeline of this worker; by default COHORT_TRACE,
            unless this process starts a server, which reads that itself.
        ops_listen: HOST:PORT for /metrics, /livez and /readyz of this worker,
            from now until the process ends; by default COHORT_OPS_LISTEN.
        insecure: allow plaintext on an address that others can reach: there,
            and of a server that rank 0 starts for several machines; by default
            COHORT_INSECURE.
        tls_cert: file of this worker's certificate, PEM; by default
            COHORT_TLS_CERT. A server with certificates needs it.
        tls_key: file of its private key; by default COHORT_TLS_KEY.
        tls_ca: file of the authorities whose certificates are accepted from the
            server; by default COHORT_TLS_CA.
        local: "shm": exchange through shared memory, "tcp": as between hosts,
            "auto": the first of them that works; by default COHORT_LOCAL or
            "auto".
        log_level: "debug", "info", "warning" or "error".

    Raises:
        ConfigurationError: the model or optimizer cannot be used, or there is
            no server; the text says what to do.
        UsageError: the model has joined a run, or this process has another
            job that has not left. Also raised by `job.data`, if this process has
            finished the run of that server.
    """
    global _newest
    _errors.install_exit_codes()
    _check_wrappers(model)
    _check_alone(model)
    _model_checks.check_model(model)
    optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    check_optimizers(optimizers, model)
    scale = loss_scale_of(scaler)
    if scale is not None and len(optimizers) > 1:
        raise _errors.ConfigurationError(
            "cohort.join(scaler=...): got several optimizers, want one; bfloat16 "
            "autocast needs no scaler")
    inner = _local_steps.Options(local_steps, outer, keep_inner)
    _local_steps.check_options(inner, optimizers, scale is not None)
    _core.start_log(log_level)
    _core.keep_freed_memory()
    planned = Schedulers(optimizers, schedulers, epoch_schedulers, scale,
                         inner.steps > 0)
    insecure = bool(_given("insecure", insecure))
    stopped_exit_code = _given("stopped_exit_code")
    threads = _given("threads")
    if threads is not None:
        torch.set_num_threads(threads)
    server_timeout = _given("server_timeout", server_timeout)
    reached = _server.reach(server, serve, server_flags, insecure)
    # A server of this process alone listens on loopback, in plaintext.
    tls = {name: "" if reached.alone else _given(name, file) or ""
           for name, file in (("tls_cert", tls_cert), ("tls_key", tls_key),
                              ("tls_ca", tls_ca))}
    # Such a server may be gone for good.
    if server_timeout is None:
        server_timeout = (
            _server.AGAIN_TIMEOUT if serve is None and
            reached.address in _server.finished_runs else _TIMEOUT)
    try:
        # A server of this process writes its own to the file of that variable.
        if reached.own is None:
            trace = _given("trace", trace)
        connect = functools.partial(
            _connect, rank, server_timeout, tls, server=reached.address,
            local=_local_mode(local))
        _observe(trace or "", _given("ops_listen", ops_listen) or "", insecure, tls)
        run = Run(model, optimizers, planned, reached, connect,
                  stopped_exit_code, keep, buffers, inner)
    except BaseException:
        if reached.own is not None:
            reached.own.close()
        raise
    _newest = weakref.ref(run)
    return Job(run)
