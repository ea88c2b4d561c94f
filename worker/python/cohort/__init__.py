"""Cohort: a PyTorch script as a worker of a parameter server.

    job = cohort.join(model, optimizer)
    for x, y in job.data(dataset, batch_size=4):      # was: DataLoader
        job.backward(criterion(model(x), y))          # was: loss.backward()
        job.step()                                    # was: optimizer.step()

The server holds weights, optimizer state and batch-norm statistics. Batch norm
is computed over the batches of all workers.
"""

import os

# Loader processes are forked while the network library's threads run; they
# never use it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from cohort import _core
from cohort._batch_norm import (BatchNorm, BatchNorm1d, BatchNorm2d,
                                BatchNorm3d, batch_norm_together,
                                convert_batch_norm)
from cohort._doors import local
from cohort._errors import (AccessDeniedError, CohortError,
                            ConfigurationError, RunMismatchError,
                            ServerUnreachableError, Stopped, TrainingError,
                            UsageError)
from cohort._evaluation import Evaluation, Score
from cohort._job import Job
from cohort._join import call, join
from cohort._loop import Data
from cohort._normalizer import RunningNormalizer
from cohort._optimizer import LAMB, LARS, Lion
from cohort._step import StepResult
from cohort._steps import steps

# "0.1.0 (commit 0f79f3a0b1c2)".
__version__ = _core.build_text()

__all__ = [
    "AccessDeniedError",
    "BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "CohortError",
    "ConfigurationError", "Data", "Evaluation", "Job", "LAMB", "LARS", "Lion",
    "RunMismatchError", "RunningNormalizer", "Score", "ServerUnreachableError",
    "StepResult", "Stopped", "TrainingError", "UsageError", "batch_norm_together", "call",
    "convert_batch_norm", "join", "local", "steps",
]
