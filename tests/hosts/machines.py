"""Two hosts on this machine, joined by a cable, and Open MPI's mpirun over them.

A host is a set of namespaces: of the network, the host's name, mounted file systems and processes. It has an sshd and a
folder of its own; everything else of the file system is shared. All of it ends with the process that made it, however
that ends: the kernel kills the first process of each host, and with it all others, its mounts and its end of the cable.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ..native.children import only_ranks_on_their_cores
from . import cases as cases_program

NAMES = ("north", "south")
PROGRAMS = ("ip", "mpirun", "nsenter", "setpriv", "ssh", "ssh-keygen", "sshd", "taskset", "timeout", "unshare")
_START_SECONDS = 20.0
_WAIT_SECONDS = 40.0
_EXPORTED = ("STARPU_HOME", "STARPULLM_LOCK", "OMP_WAIT_POLICY")
"""What ranks need of the environment; mpirun passes on its own variables only."""

# The sshd that this ends with is the first process of the host.
_HOST = """\
set -e
hostname "$1"
mount -t tmpfs own "$2/own"
mount -t tmpfs memory /dev/shm
mount -t tmpfs run /run
mkdir /run/sshd
mount --bind "$2/hosts" /etc/hosts
ip link set lo up
exec "$(command -v sshd)" -D -e -f "$2/sshd_config"
"""

_SSHD = """\
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
"""

_SSH = """\
IdentityFile {folder}/key
UserKnownHostsFile /dev/null
StrictHostKeyChecking no
LogLevel ERROR
"""


def _path() -> str:
    # Debian keeps daemons in folders that are not on every PATH.
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _on_own_core(host: str) -> list[str]:
    """Return the start of a command line: StarPU binds the first worker of each host to its first core."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "--cpu-list", str(cores[NAMES.index(host) % len(cores)])]


def why_not() -> str | None:
    """Return why this machine can't have such hosts; None: it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"{', '.join(missing)} not found; apt-get install openssh-server openssh-client iproute2"
    command = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/run"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return f"no right to make namespaces: {tried.stderr.strip()}" if tried.returncode else None


@dataclass(frozen=True)
class Case:
    """A command of starpullm, and variables; in both, ``{host}`` is the name of a rank's host."""

    arguments: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The exit status of each rank, and what all ranks have written, in the order of ranks."""

    statuses: tuple[int, ...]
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Hosts:
    """The hosts, and what their commands have in common."""

    folder: Path
    """Shared. Its folder ``own`` is each host's own."""
    pids: Mapping[str, int]
    """The first process of each."""
    namespaces: Container[Path]
    """Of the numbers of their processes."""
    environment: Mapping[str, str]

    @property
    def own(self) -> Path:
        """The folder whose content is each host's own."""
        return self.folder / "own"

    def command(self, host: str, *command: str | Path) -> list[str]:
        """Return a command line that runs a command on a host."""
        enter = [*_on_own_core(host), "nsenter", "--target", str(self.pids[host]), "--mount", "--net", "--uts", "--pid"]
        return [*enter, "--", *map(str, command)]

    def run(self, host: str, *command: str | Path, limit: float = 10) -> str:
        """Run a command on a host and return what it prints; fail if it fails."""
        done = self.finished(host, command, limit)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def finished(
        self, host: str, command: Sequence[str | Path], limit: float, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end, at most this many seconds."""
        return subprocess.run(
            self.command(host, "timeout", "--kill-after=2", f"{limit:g}", *command),
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit + 10,
            check=False,
        )

    def mpirun(self, *command: str | Path) -> list[str | Path]:
        """Return the command line, on the first host, that runs a command as one rank on each host."""
        exported = [argument for name in _EXPORTED for argument in ("-x", name)]
        return ["mpirun", "-n", str(len(NAMES)), "--map-by", "node", *exported, *command]

    @contextmanager
    def started(self, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
        """Start a command of starpullm as one rank on each host; at the end of the context it is killed."""
        command = self.mpirun(sys.executable, "-P", "-m", "starpullm.commands", *arguments)
        with subprocess.Popen(
            self.command(NAMES[0], *command),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def outcomes(self, cases: Sequence[Case], limit: float = 100) -> list[Outcome]:
        """Run commands of starpullm one after the other, each as one rank on each host."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            folder = Path(name)
            contents = [{"arguments": [*map(str, case.arguments)], "environment": case.environment} for case in cases]
            (folder / "cases.json").write_text(json.dumps(contents), "utf-8")
            with only_ranks_on_their_cores():
                done = self.finished(NAMES[0], self.mpirun(sys.executable, "-P", cases_program.__file__, folder), limit)
            assert done.returncode == 0, f"{done.stdout}{done.stderr}"
            return [
                Outcome(
                    tuple(json.loads((folder / f"{number}-{rank}.status").read_text()) for rank in range(len(NAMES))),
                    *(
                        "".join((folder / f"{number}-{rank}.{stream}").read_text() for rank in range(len(NAMES)))
                        for stream in ("stdout", "stderr")
                    ),
                )
                for number in range(len(cases))
            ]

    def processes(self) -> list[int]:
        """Return the processes of the hosts."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                if (process / "ns" / "pid").readlink() in self.namespaces:
                    found.append(int(process.name))
        return found

    def commands(self) -> list[str]:
        """Return what runs on the hosts beside sshd."""
        names = []
        for pid in self.processes():
            with suppress(psutil.Error):
                names.append(psutil.Process(pid).name())
        return [name for name in names if name != "sshd"]

    def wait_for(self, condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
        """Wait until a condition holds; fail if it takes long, or if a process ends before."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not within {_WAIT_SECONDS:g} s; {self.commands()} run"
            assert process is None or process.poll() is None, process.communicate()
            time.sleep(0.05)

    def cut(self) -> None:
        """Cut the cable, without a word to whoever waits for a message."""
        for host in NAMES:
            self.run(host, "ip", "link", "set", "cable", "down")


@contextmanager
def running_hosts(folder: Path) -> Iterator[Hosts]:
    """Provide the hosts; nothing of them is left."""
    (folder / "own").mkdir()
    addresses = {name: f"10.77.0.{number}" for number, name in enumerate(NAMES, 1)}
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    (folder / "hosts").write_text("\n".join(lines) + "\n", "ascii")
    (folder / "hostfile").write_text("".join(f"{name} slots=2\n" for name in NAMES), "ascii")
    (folder / "sshd_config").write_text(_SSHD.format(folder=folder), "ascii")
    (folder / "ssh_config").write_text(_SSH.format(folder=folder), "ascii")
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")]
    subprocess.run(keygen, check=True, timeout=20)
    environment = {
        **os.environ,
        "PATH": _path(),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_orte_default_hostfile": str(folder / "hostfile"),
        "OMPI_MCA_plm_rsh_args": f"-F {folder}/ssh_config",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_orte_tmpdir_base": str(folder),
        "OMPI_MCA_hwloc_base_binding_policy": "none",
    }
    environment.setdefault("STARPULLM_LOCK", str(folder / "own" / "lock"))
    environment.setdefault("OMP_WAIT_POLICY", "passive")
    with ExitStack() as stack:
        processes = {}
        for name in NAMES:
            unshare = ["unshare", "--kill-child", "--fork", "--pid", "--mount-proc", "--mount", "--net", "--uts"]
            command = [
                *_on_own_core(name),
                "setpriv",
                "--pdeathsig",
                "KILL",
                *unshare,
                "bash",
                "-c",
                _HOST,
                "host",
                name,
                str(folder),
            ]
            output = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            stack.callback(_end, process)
            processes[name] = process
        pids = {name: _first_process(folder, name, process) for name, process in processes.items()}
        namespaces = [Path(f"/proc/{pid}/ns/pid").readlink() for pid in pids.values()]
        hosts = Hosts(folder, pids, namespaces, environment)
        first, second = pids.values()
        # Without the first host's numbers of processes, among which the second isn't.
        connect = f"nsenter --target {first} --net ip link add cable type veth peer name cable netns {second}"
        subprocess.run(connect.split(), env=environment, check=True, timeout=20)
        for name, address in addresses.items():
            hosts.run(name, *f"ip address add {address}/24 dev cable".split())
            hosts.run(name, *"ip link set cable up".split())
        yield hosts


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a host's first process, and with it all others; the one that started it has waited for it then."""
    for child in psutil.Process(process.pid).children():
        child.kill()
    process.wait(_START_SECONDS)


def _first_process(folder: Path, name: str, process: subprocess.Popen[bytes]) -> int:
    """Wait until a host's sshd runs, and return its number."""
    deadline = time.monotonic() + _START_SECONDS
    log = folder / f"{name}.log"
    while "Server listening" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, f"{name}: sshd hasn't started: {log.read_text()}"
        time.sleep(0.02)
    (child,) = psutil.Process(process.pid).children()
    pid: int = child.pid
    return pid
