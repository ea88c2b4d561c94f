# Read by server.sbatch and worker.sbatch, in the folder of the run.
# shellcheck shell=bash

# Starts of one task that were not asked for by its user.
restarts_max=50

set -a
# shellcheck source-path=SCRIPTDIR source=run.env
. ./run.env
set +a
# Slurm takes 0 for done; a task that was stopped is not done.
export COHORT_STOPPED_EXIT_CODE=143

# Uses the certificates of `cohortctl certs init`, or none. Argument: the role's
# folder in certs/.
use_certificates() {
  if [[ -d certs/$1 ]]; then
    export COHORT_TLS_CERT=certs/$1/tls.crt COHORT_TLS_KEY=certs/$1/tls.key \
      COHORT_TLS_CA=certs/$1/ca.crt
  else
    export COHORT_INSECURE=true
  fi
}

# Whether another start would end in the same way. Argument: the exit code of
# the program.
is_mistake() {
  case $1 in
    2 | 3 | 4 | 7 | 8 | 126 | 127) return 0 ;;
  esac
  return 1
}

# Ends the task: puts it back into the queue if another start may help.
# Argument: the exit code of the program.
finish() {
  if (($1 == 0)); then exit 0; fi
  if is_mistake "$1"; then
    echo "exit code $1: it would end so again; read the lines above" >&2
    exit "$1"
  fi
  # A task that is cancelled, preempted or requeued is not running any more.
  if [[ $(squeue -h -j "$SLURM_JOB_ID" -o %T) == RUNNING ]]; then
    if ((${SLURM_RESTART_COUNT:-0} < restarts_max)); then
      echo "exit code $1: back into the queue" >&2
      scontrol requeue "$SLURM_JOB_ID"
    else
      echo "exit code $1 after $restarts_max restarts" >&2
    fi
  fi
  exit "$1"
}

# The step gets the signals of Slurm; this script waits for its end.
trap : TERM
