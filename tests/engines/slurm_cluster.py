"""A Slurm cluster of one node on this machine: a controller and a node's daemon,
without munge and without systemd."""

import os
import pathlib
import shutil
import socket
import subprocess
import time

from ports import named_ports

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
# For a loaded machine, on which Slurm may hold a requeued task for two
# minutes.
DEADLINE_S = 400


def why_not():
    """The reason why there can be none here; empty if there can."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    return f"no {', '.join(missing)} (deploy/install-deps engines)" if missing else ""


def await_condition(what, condition, deadline_s=DEADLINE_S):
    """Waits until `condition` returns something, and returns that."""
    deadline = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.1)
    return value


class Cluster:
    """Has eight CPUs by its own account, so that tasks of a run need not wait
    for each other."""

    def __init__(self, folder):
        self.dir = pathlib.Path(folder)
        self._daemons = []
        host = socket.gethostname().split(".")[0]
        for name in ("state", "spool"):
            (self.dir / name).mkdir()
        controller_port, node_port = named_ports(2)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True,
                              check=True).stdout.strip()
        self.conf = self.dir / "slurm.conf"
        self.conf.write_text(f"""\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation={self.dir}/state
SlurmdSpoolDir={self.dir}/spool
SlurmctldPidFile={self.dir}/slurmctld.pid
SlurmdPidFile={self.dir}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=64000 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
""", encoding="utf-8")
        self.environment = {
            **os.environ, "SLURM_CONF": str(self.conf),
            "PATH": f"{os.environ['COHORT_BIN_DIR']}:{os.environ['PATH']}:/usr/sbin"}
        self.node = host

    def __enter__(self):
        for name, command in (("slurmctld", ["slurmctld", "-D"]),
                              ("slurmd", ["slurmd", "-D", "-N", self.node])):
            with (self.dir / f"{name}.log").open("wb") as log:
                self._daemons.append(subprocess.Popen(
                    command, env=self.environment, stdout=log, stderr=log))
        try:
            await_condition("the node", lambda: "idle" in self.output(
                "sinfo", "-h", "-o", "%T"))
        except AssertionError as error:
            self.__exit__()
            raise AssertionError(f"{error}\n{self.log()}") from None
        return self

    def __exit__(self, *_):
        self.output("scancel", f"--user={os.getuid()}")
        try:
            await_condition("jobs to end",
                            lambda: not self.output("squeue", "-h"))
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
                daemon.wait(timeout=DEADLINE_S)

    def output(self, *command):
        """What a program prints; empty if it fails."""
        return subprocess.run(command, env=self.environment,
                              capture_output=True, text=True,
                              check=False).stdout.strip()

    def run(self, command, **options):
        """Runs a shell's commands; they must succeed."""
        done = subprocess.run(["bash", "-ec", command], env=self.environment,
                              capture_output=True, text=True, check=False,
                              **options)
        if done.returncode != 0:
            raise AssertionError(f"{command}\n{done.stdout}{done.stderr}")
        return done.stdout

    def log(self):
        return "".join((self.dir / f"{name}.log").read_text(errors="replace")
                       for name in ("slurmctld", "slurmd"))

    def start_at_once(self, job):
        """A task that was put back into the queue: Slurm would hold it for two
        minutes.

        Not within the same second: slurmd then takes the task's permission for
        the one that it has just revoked, and the task fails for good."""
        await_condition(f"{job} to be in the queue", lambda: "PENDING" in
                        self.output("squeue", "-h", "-j", job, "-o", "%T"))
        self.run(f"scontrol update JobId={job} StartTime=now+10")
