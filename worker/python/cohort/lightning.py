"""Lightning's Trainer as a worker of a run.

    trainer = Trainer(strategy=cohort.lightning.CohortStrategy(), devices=1)
    trainer.fit(module, loader)

Lightning keeps its loop; the batches, the backward pass, the step, and the
schedulers are the job's. A step that became void is repeated within the
strategy, so Lightning does not see it. TRAINERS.md has what is refused.
"""

import functools
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from cohort import _errors, _join, _torchrun
from cohort._job import Job
from cohort._loop import Data

try:
    _pl: Any = importlib.import_module("lightning.pytorch")
except ImportError:
    # The same under its older name.
    _pl = importlib.import_module("pytorch_lightning")
_call: Any = importlib.import_module(f"{_pl.__name__}.trainer.call")
_rank_zero: Any = importlib.import_module(f"{_pl.__name__}.utilities.rank_zero")
_strategies: Any = importlib.import_module(f"{_pl.__name__}.strategies")

# Callbacks that end the loop of one worker, or act on its optimizer.
_CALLBACKS = {
    "EarlyStopping": "end the run with `cohortctl run drain`",
    "StochasticWeightAveraging": "use the server's --ema_decay",
    "Timer": "end the run with `cohortctl run drain`",
}
# Methods of a module that replace what the strategy does.
_METHODS = {
    "backward": "compute the loss in training_step()",
    "configure_gradient_clipping": "use the server's --clip_norm",
    "lr_scheduler_step": "use a scheduler of torch, or write the rates in "
                         "on_train_batch_start() as a function of global_step",
}


def _refuse(what: str, instead: str) -> None:
    raise _errors.ConfigurationError(f"CohortStrategy: {what}; {instead}")


class _Batches:
    """What Lightning takes for its loader. Lightning reads a loader without a
    length ahead, and the next batch is known only after the step; so this one is
    empty until `begin`."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self._iterator: Iterator[Any] = iter(())

    def begin(self, batches: Iterator[Any]) -> None:
        """From here on it has these batches."""
        self._iterator = batches

    def __iter__(self) -> Iterator[Any]:
        return self._iterator


def _options_of(loader: torch.utils.data.DataLoader[Any]) -> dict[str, Any]:
    """The arguments of Job.data for what a DataLoader does."""
    if loader.batch_size is None:
        _refuse("got a DataLoader without a batch_size",
                "the server decides which samples make a batch; give it one")
    options: dict[str, Any] = {
        name: getattr(loader, name) for name in (
            "num_workers", "collate_fn", "pin_memory", "worker_init_fn", "timeout",
            "prefetch_factor", "multiprocessing_context", "drop_last")}
    sampler = loader.sampler
    if isinstance(sampler, torch.utils.data.SequentialSampler):
        options["shuffle"] = False
    elif not (type(sampler) is torch.utils.data.RandomSampler and
              not sampler.replacement and
              len(sampler) == len(loader.dataset)):  # type: ignore[arg-type]
        options["sampler"] = sampler
    return options


class CohortStrategy(_strategies.SingleDeviceStrategy):  # type: ignore[misc]
    """One worker of a cohort, on one device.

    Args:
        weight_key: of a number in the mapping that training_step() returns: what
            its loss is a mean over, such as valid pixels. By default samples.
        join_options: those of cohort.join. `serve` has the Trainer's max_epochs
            and max_steps if it is not given.

    Raises:
        ConfigurationError: by `fit`, if the Trainer, its module or its loader
            would train wrongly.
    """

    lr_scheduler_configs: list[Any]

    def __init__(self, weight_key: str | None = None, **join_options: Any) -> None:
        super().__init__()
        # Lightning sets it.
        self.parallel_devices: list[torch.device] = []
        self.job: Job | None = None
        self._weight_key = weight_key
        self._join_options = join_options
        self._weight: float | None = None
        self._batches: _Batches | None = None
        # Of the repetition of a step, in place of Lightning's.
        self._again: Any = None
        self._epoch = 0
        # The rates may be written now.
        self._begins_epoch = True

    # ---- the process

    def set_world_ranks(self) -> None:
        """Loggers and checkpoints are written by rank 0."""
        gang = _torchrun.gang()
        self.global_rank = int(os.environ.get("COHORT_RANK") or
                               (gang.rank if gang else 0))
        _rank_zero.rank_zero_only.rank = self.global_rank

    @property
    def is_global_zero(self) -> bool:
        return bool(self.global_rank == 0)

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[0]

    @property
    def _trainer(self) -> Any:
        return self.lightning_module.trainer

    # ---- joining and leaving

    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        if trainer.state.fn == "fit":
            self._check(trainer)
            self._join(trainer)

    def _check(self, trainer: Any) -> None:
        module = self.lightning_module
        for name, instead in _METHODS.items():
            if getattr(type(module), name) is not getattr(_pl.LightningModule, name):
                _refuse(f"{type(module).__name__} overrides {name}()", instead)
        for callback in trainer.callbacks:
            for kind in type(callback).__mro__:
                if kind.__name__ in _CALLBACKS:
                    _refuse(f"got the callback {kind.__name__}",
                            _CALLBACKS[kind.__name__])
        if not module.automatic_optimization or len(self.optimizers) != 1:
            _refuse(f"got {len(self.optimizers)} optimizers, automatic_optimization "
                    f"{module.automatic_optimization}",
                    "want one optimizer, with groups, and automatic optimization")
        if len(self.parallel_devices) != 1:
            _refuse(f"got {len(self.parallel_devices)} devices",
                    "one process is one worker, so pass Trainer(devices=1) and start "
                    "a process for each device")
        if trainer.gradient_clip_val:
            value = trainer.gradient_clip_val
            _refuse(f"got Trainer(gradient_clip_val={value})",
                    f"use the server's --clip_norm={value}")
        # The number 1 is one batch, and 1.0 is all of them.
        limit = trainer.limit_train_batches
        if limit != 1.0 or isinstance(limit, int) or trainer.overfit_batches:
            _refuse("got limit_train_batches, overfit_batches or fast_dev_run",
                    "use the server's --max_steps, or a smaller data set")
        for config in self.lr_scheduler_configs:
            if config.frequency != 1:
                _refuse(f"got a scheduler with frequency {config.frequency}",
                        "want 1, with interval 'step' or 'epoch'")

    def _join(self, trainer: Any) -> None:
        options = dict(self._join_options)
        if options.get("local_steps"):
            _refuse("got local_steps, whose steps have several batches",
                    "use cohort.join() in a loop of the script's own")
        if not options.get("server"):
            limits = {"epochs": trainer.max_epochs, "max_steps": trainer.max_steps}
            options.setdefault("serve", {name: value for name, value in
                                         limits.items() if value and value > 0})
        # Lightning has the measure of those that need one.
        configs = [config for config in self.lr_scheduler_configs
                   if not config.reduce_on_plateau]
        self.job = _join.join(
            self.lightning_module, self.optimizers[0],
            schedulers=[config.scheduler for config in configs
                        if config.interval == "step"],
            epoch_schedulers=[config.scheduler for config in configs
                              if config.interval == "epoch"], **options)
        # The job advances the others.
        self.lr_scheduler_configs = [config for config in self.lr_scheduler_configs
                                     if config.reduce_on_plateau]
        module = self.lightning_module
        module.log = functools.partial(self._log, module.log)

    def _log(self, log: Any, name: str, value: Any, *args: Any,
             sync_dist: bool = False, **kwargs: Any) -> None:
        """Lightning would ignore sync_dist, because it knows of one process. In
        validation all workers have the same samples, and so the same mean."""
        if sync_dist and self._trainer.training:
            _refuse("self.log(sync_dist=True) in training",
                    "use self.trainer.strategy.job.report(name=value)")
        log(name, value, *args, **kwargs)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        _refuse("got Trainer.fit(ckpt_path=...)",
                "the server has the run's state: start it with --resume, or load "
                "weights into the module before")

    def on_exception(self, exception: BaseException) -> None:
        if self.job is not None:
            self.job.__exit__(type(exception), exception, None)

    def teardown(self) -> None:
        if self.job is not None:
            self.job.leave()
            self.lightning_module.__dict__.pop("log", None)
        self._batches = self._again = None
        super().teardown()

    # ---- the loop

    def process_dataloader(self, dataloader: Any) -> Any:
        trainer = self._trainer
        if not trainer.training or self.job is None:
            return dataloader
        if self._batches is not None or not isinstance(
                dataloader, torch.utils.data.DataLoader):
            _refuse(f"got several training loaders, or a {type(dataloader).__name__}",
                    "want one DataLoader, for the whole run")
        parts = trainer.accumulate_grad_batches
        # The job cuts a batch into parts.
        trainer.accumulate_grad_batches = 1
        if isinstance(dataloader.dataset, torch.utils.data.IterableDataset):
            if parts > 1:
                _refuse("got accumulate_grad_batches and an IterableDataset",
                        "use larger batches")
            data = self.job.data(dataloader, dataloader.batch_size)
        else:
            options = _options_of(dataloader)
            data = self.job.data(dataloader.dataset, dataloader.batch_size * parts,
                                 accumulate=parts, **options)
        self._batches = _Batches(data)
        return self._batches

    def on_train_start(self) -> None:
        assert self.job is not None
        if self._batches is None:
            return
        loop = self._trainer.fit_loop
        fetcher = loop._data_fetcher
        if not hasattr(fetcher, "prefetch_batches"):
            _refuse("got training_step(dataloader_iter)", "want training_step(batch)")
        # The run decides how long it is.
        loop.max_epochs = loop.epoch_loop.max_steps = -1
        loop.min_epochs = loop.epoch_loop.min_steps = None
        epoch = self._batches.data.coming_epoch()
        if epoch is None:
            self._trainer.should_stop = True
            return
        # A replacement of a process continues in the middle.
        self.job.load()
        self._epoch = epoch
        progress = loop.epoch_progress.current
        progress.ready = progress.started = progress.processed = epoch
        progress.completed = epoch
        self._steps().completed = self.job.version or 0
        self._batches.begin(self._in_order(self._batches.data))
        fetcher.prefetch_batches = 0
        iter(fetcher)

    def _in_order(self, data: Data) -> Iterator[Any]:
        batches = iter(data)
        assert self.job is not None
        while True:
            # This batch was known before the script's last hooks were called.
            if not self._begins_epoch:
                data.check_rates_kept()
            self._begins_epoch = False
            try:
                batch = next(batches)
            except StopIteration:
                return
            # Steps without a batch for this worker count, too.
            self._steps().completed = self.job.step_number
            yield batch

    def _steps(self) -> Any:
        """Lightning's number of steps."""
        loop = self._trainer.fit_loop.epoch_loop.automatic_optimization
        return loop.optim_progress.optimizer.step.total

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self._again is not None:
            args = (self._again, *args[1:])
        output = super().training_step(*args, **kwargs)
        if self._weight_key is not None:
            self._weight = float(output[self._weight_key])
        return output

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any,
                 **kwargs: Any) -> torch.Tensor:
        assert self.job is not None
        if self._trainer.accumulate_grad_batches != 1:
            _refuse("accumulate_grad_batches was changed in the run",
                    "want one number, in the Trainer")
        plugin, module = self.precision_plugin, self.lightning_module
        closure_loss = plugin.pre_backward(closure_loss, module)
        self.job.backward(closure_loss, self._weight)
        loss: torch.Tensor = plugin.post_backward(closure_loss, module)
        return loss

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None,
                       **kwargs: Any) -> Any:
        assert self.job is not None and self._batches is not None
        trainer, data = self._trainer, self._batches.data
        # A repeated step begins with those before the script wrote them.
        rates = [group["lr"] for group in optimizer.param_groups]
        while True:
            result = closure()
            for call in (_call._call_callback_hooks,
                         _call._call_lightning_module_hook):
                call(trainer, "on_before_optimizer_step", optimizer)
            step = self.job.step()
            epoch = self._epoch
            if step.verdict != "part":
                coming = data.coming_epoch()
                epoch = -1 if coming is None else coming
            if step.verdict != "void" or epoch != self._epoch:
                break
            self._again = self._moved(next(iter(self._batches)))
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate
        self._again = None
        # Lightning adds one.
        self._steps().completed = (self.job.version or 0) - 1
        if epoch != self._epoch:
            trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True
            self._epoch, self._begins_epoch = epoch, True
            if epoch < 0:
                trainer.should_stop = True
            else:
                self.job.load()
        return result

    def _moved(self, batch: Any) -> Any:
        """A batch as Lightning prepares it."""
        batch = self.precision_plugin.convert_input(batch)
        batch = self.lightning_module._on_before_batch_transfer(
            batch, dataloader_idx=0)
        return self.batch_to_device(batch)

    def on_train_end(self) -> None:
        assert self.job is not None
        if not self.job.finished and self.job.workers > 1:
            _refuse("Trainer.should_stop was set", "the other workers would wait for "
                    "this one; end the run with `cohortctl run drain`")

    # ---- between workers

    def all_gather(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse("self.all_gather()", "use self.trainer.strategy.job.gather(tensor)")
