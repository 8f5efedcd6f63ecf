"""A Slurm cluster of this machine's own: munged, slurmctld and a slurmd for each virtual node, all in one folder.

The nodes share this machine's cores, and they share its file system as a cluster shares one.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "squeue")
NODES = ("n1", "n2")
SHORT_MINUTES = 5
"""The most that the partition ``short`` gives a job."""
_START_SECONDS = 20.0
_END_SECONDS = 10.0
_MARK = "STARPULLM_TEST_CLUSTER"

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={control_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=2,bf_interval=2
ReturnToService=2
KillWait=2
SlurmdTimeout=4
SlurmctldTimeout=10
"""


def missing_programs() -> list[str]:
    """Return which of Slurm's programs this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]


def _path() -> str:
    # Debian keeps daemons in folders that are not on every PATH.
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until a condition holds; fail after this many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.1)


@dataclass
class Cluster:
    """A running cluster; its environment is that of whoever uses it."""

    folder: Path
    environment: Mapping[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *command: str, timeout: float = 30) -> str:
        """Run a command on the cluster and return what it prints; fail if it fails."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def start(self, name: str, *command: str) -> None:
        """Start a daemon in the foreground."""
        with (self.folder / f"{name}.output").open("wb") as output:
            self.daemons[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        self.start(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """Let a node crash: its daemon and everything that it runs are gone at once.

        A monitoring tool then tells the controller, which by itself would notice only within half a minute.
        """
        of_jobs = [process for process in self.processes() if f"SLURMD_NODENAME={name}" in _environment(process)]
        # The daemon of a job, whose environment is empty, must not live to report the job's end.
        parents = [psutil.Process(parent) for parent in {process.ppid() for process in of_jobs}]
        daemons = [process for process in parents if "slurmstepd" in _title(process)]
        self.daemons[name].kill()
        for process in (*daemons, *of_jobs):
            with suppress(psutil.Error):
                process.kill()
        self.daemons.pop(name).wait()
        self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=crashed")

    def nodes_are(self, *states: str) -> bool:
        """Whether each node is in one of these states."""
        found = self.run("sinfo", "-h", "-N", "-p", "all", "-o", "%t").split()
        return len(found) == len(NODES) and all(state in states for state in found)

    def processes(self) -> list[psutil.Process]:
        """Return the processes of daemons and jobs: by the mark in their environment.

        The daemon of a job's step has no environment, but the log of its node is open there.
        """
        return [
            process
            for process in psutil.process_iter()
            if f"{_MARK}={self.folder}" in _environment(process)
            or ("slurmstepd" in _title(process) and self._has_open(process))
        ]

    def _has_open(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            return any(Path(file.path).is_relative_to(self.folder) for file in process.open_files())
        return False


def _environment(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error, OSError):
        return [f"{name}={value}" for name, value in process.environ().items()]
    return []


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Provide a cluster of two nodes with four cores each; nothing of it is left running."""
    environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf"), _MARK: str(folder)}
    (folder / "state").mkdir()
    text = _CONFIGURATION.format(
        host=socket.gethostname(), user=getpass.getuser(), folder=folder, control_port=_free_port()
    )
    for name in NODES:
        text += (
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={_free_port()} "
            "CPUs=4 RealMemory=4000\n"
        )
    text += f"PartitionName=all Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP\n"
    text += f"PartitionName=short Nodes={','.join(NODES)} MaxTime={SHORT_MINUTES} State=UP\n"
    (folder / "slurm.conf").write_text(text, "ascii")
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    cluster = Cluster(folder, environment)
    try:
        cluster.start(
            "munged",
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"),
            *(f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munged.seed"),
        )
        wait_for((folder / "munge.socket").exists, _START_SECONDS, "munged")
        cluster.start("slurmctld", "slurmctld", "-D")
        for name in NODES:
            cluster.start_node(name)
        wait_for(lambda: cluster.nodes_are("idle"), _START_SECONDS, "nodes")
        yield cluster
    finally:
        _end(cluster)


def _end(cluster: Cluster) -> None:
    """End all jobs and daemons."""
    if "slurmctld" in cluster.daemons:
        with suppress(Exception):
            cluster.run("scancel", "--user", getpass.getuser(), timeout=5)
            wait_for(lambda: not cluster.run("squeue", "--noheader", timeout=5), _END_SECONDS, "the end of all jobs")
    for daemon in reversed(cluster.daemons.values()):
        daemon.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + _END_SECONDS
    while cluster.processes() and time.monotonic() < deadline:
        for daemon in cluster.daemons.values():
            daemon.poll()
        time.sleep(0.1)
    for process in cluster.processes():
        with suppress(psutil.Error):
            process.kill()
    for daemon in cluster.daemons.values():
        daemon.wait()
