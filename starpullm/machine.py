"""What this machine and this build have, what will not work here and why, and the processor's limit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starpullm.binding import prototypes, structs
from starpullm.binding.library import find_blas, find_library
from starpullm.errors import FileError, MissingDependencyError
from starpullm.files.header import sha256_of

if TYPE_CHECKING:
    from starpullm.processes.children import Reply

_LARGE_HANDLE = 8 << 10
"""Bytes; a StarPU that is built for 16 memory nodes takes less."""

_DEFECTIVE, _UNRELEASED = ("1.4.10", "1.4.11", "1.4.12", "1.4.99"), "1.4.99"
"""Versions of StarPU that have `_DEFECTS`; the last is what its branch starpu-1.4 and its master call themselves."""

_DEFECTS = {
    "3e50feece and d8af13220 of 2026-02-27": "workers of several threads can wait for ever: set a time limit",
    "f2d115112 of 2026-05-06": "with offload, a thread that reads a tensor waits until a worker serves the disk",
    "a13135e1e of 2026-08-06": "a handle that a task names twice may be prefetched wrongly; no task here does that",
}
"""The commits of the branch that mend something, and what is wrong without them."""


def machine_info() -> Any:
    """Return what the library says of the machine and of StarPU, as its struct."""
    machine = structs.new("machine_info")
    prototypes.call("machine_info", machine)
    return machine


def loaded_libraries() -> dict[str, str]:
    """Return the name and SHA-256 of the libraries that results come from, as far as /proc says which they are."""
    hashes = {}
    for path in _mapped("starpullm|starpu|starpumpi|mpi|m"):
        with suppress(FileError):  # it has been replaced since it was loaded
            hashes[Path(path).name] = sha256_of(path)
    return hashes


def _mapped(names: str) -> list[str]:
    """Return the paths of libraries that are loaded, by a regular expression of their names; none without /proc."""
    machine_info()  # loads them
    with suppress(OSError):
        return sorted(set(re.findall(rf"/.*/lib(?:{names})[-.].*", Path("/proc/self/maps").read_text("utf-8"))))
    return []


def processor() -> str:
    """Return the processor's name and the number of cores, in words."""
    machine = machine_info()
    cores = f"{machine.cores} cores" + (" (HWLOC_SYNTHETIC)" if machine.synthetic else "")
    return f"{prototypes.text(machine.processor) or 'unknown processor'}, {cores}"


def simd_level() -> str:
    """Return the SIMD level of the kernels in use."""
    return prototypes.text(machine_info().simd_level)


def peak_gflops(threads: int, *, fused: bool, seconds: float) -> float:
    """Return the limit: the most multiplications and additions per second of all threads together, in 10^9.

    They are done in registers, with the vectors of the SIMD level in use. With ``fused``, an instruction does both; the
    result is 0 if the level has none. Kernels never use it, because it rounds once instead of twice.
    """
    with ThreadPoolExecutor(threads) as pool:
        peaks = [pool.submit(prototypes.peak_gflops, fused=fused, seconds=seconds) for _ in range(threads)]
        return sum(peak.result() for peak in peaks)


def rows_of(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of what `inspect_machine` returns, in words; the findings are sentences already."""
    synthetic = " (HWLOC_SYNTHETIC)" if machine["synthetic_topology"] else ""
    return [
        ("starpullm", "{version}, {library}".format(**machine)),
        ("compiler", "{compiler}, {build_type}, {compiler_flags}".format(**machine)),
        ("StarPU", "{starpu_version}, {starpu_library}".format(**machine)),
        (
            "StarPU's features",
            f"at most {machine['starpu_max_workers']} workers, "
            f"{machine['starpu_max_contexts'] or 'no'} scheduling contexts for workers of several threads, "
            f"{machine['starpu_max_nodes']} memory nodes: "
            f"{machine['starpu_handle_bytes'] / 1024:.1f} KiB a data handle",
        ),
        ("schedulers", ", ".join(machine["schedulers"])),
        ("processor", machine["processor"] or "unknown"),
        (
            "topology",
            f"{machine['cores']} cores, {machine['processing_units']} processing units, {machine['numa_nodes']} NUMA "
            f"nodes{synthetic}",
        ),
        ("cache", f"L2 {machine['l2_cache'] >> 10} KiB a hardware thread"),
        ("partitions", ", ".join(machine["partitions"])),
        ("kernels", machine["simd_level"]),
        ("devices", "; ".join(map(_words_of_device, machine["devices"])) or "none found"),
        ("BLAS", f"{machine['blas'] or 'none found'}; used only with --matmul blas, which isn't strict"),
        ("MPI", machine["mpirun"] or "none found"),
        ("float environment", machine["float_environment"] or "as required"),
    ]


def inspect_machine() -> dict[str, Any]:
    """Return everything ``starpullm doctor`` shows, as JSON values: of library, StarPU, topology and caches.

    Nothing is started. ``starpu_handle_bytes`` is that of `handle_bytes`, and ``l2_cache`` a hardware thread's share.
    """
    build, machine = structs.new("build_info"), machine_info()
    prototypes.call("build_info", build)
    environment = prototypes.text(prototypes.call("float_environment"))
    partitions = full_partitions(machine.cores, machine.starpu_max_workers, machine.starpu_max_contexts)
    findings = [(True, problem) for problem in _problems(build, machine)]
    findings += [(False, note) for note in _notes(machine, environment)]
    found_devices, failure = _devices_in_child()
    findings += [(False, failure)] * bool(failure)
    return {
        **_copied(build, "version", "compiler", "compiler_flags", "build_type", "starpu_prefix"),
        **_copied(machine, "starpu_version", "starpu_max_workers", "starpu_max_contexts", "starpu_max_nodes"),
        **_copied(machine, "processor", "cores", "processing_units", "numa_nodes", "simd_level", "l2_cache"),
        "library": str(find_library()),
        "starpu_library": next(iter(_mapped("starpu")), prototypes.text(build.starpu_prefix)),
        "starpu_built_against": prototypes.text(build.starpu_version),
        "starpu_handle_bytes": handle_bytes(machine.starpu_max_nodes),
        "schedulers": list(prototypes.names("scheduler_name")),
        "synthetic_topology": bool(machine.synthetic),
        "partitions": list(partitions),
        "devices": found_devices,
        "mpirun": _mpirun_version(),
        "blas": _blas(),
        "float_environment": environment,
        "findings": [{"is_problem": is_problem, "sentence": sentence} for is_problem, sentence in findings],
    }


def machine_in_child() -> dict[str, Any]:
    """Return what `inspect_machine` finds in a child, so that this process needn't open the native library."""
    report: dict[str, Any] = _ask_child("machine", inspect_machine).result()
    return report


def _ask_child(name: str, function: Callable[[], object]) -> Reply:
    """Return what a function of this module returns in a child."""
    from starpullm.processes.children import Child

    with Child(name, _serve_value, {"function": function}) as child:
        return child.start()


@contextmanager
def _serve_value(comm: None, function: Callable[[], object]) -> Iterator[tuple[object, Callable[[object], None]]]:
    yield function(), lambda request: None


def _copied(struct: Any, *names: str) -> dict[str, Any]:
    """Return fields of a struct by name: numbers, and texts as such."""
    values = {name: getattr(struct, name) for name in names}
    return {name: value if isinstance(value, int) else prototypes.text(value) for name, value in values.items()}


def _devices_in_child() -> tuple[list[dict[str, Any]], str]:
    """Return what `devices` finds, or a sentence on what went wrong; OpenCL's platforms may end a process."""
    from starpullm.processes.service import Answered

    if not _mapped("OpenCL"):
        return [], ""
    reply = _ask_child("devices", devices)
    if isinstance(reply, Answered):
        return reply.value, ""
    return [], f"OpenCL's devices can't be listed: {reply.text.splitlines()[0]}"


_ABILITIES = ("double_precision", "denormals", "correctly_rounded")
"""Of a device, without which its bits are others."""


def devices() -> list[dict[str, Any]]:
    """Return what the library says of each OpenCL device that StarPU can use."""
    found: list[dict[str, Any]] = []
    while True:
        device = structs.new("device_info")
        prototypes.call("device_info", len(found), device)
        if not device.name:
            return found
        abilities = {name: bool(getattr(device, name)) for name in _ABILITIES}
        found.append({"name": prototypes.text(device.name), "memory": device.memory, **abilities})


def _words_of_device(device: Mapping[str, Any]) -> str:
    lacks = [name.replace("_", " ") for name in _ABILITIES if not device[name]]
    verdict = f"not usable: without {', '.join(lacks)}" if lacks else "usable"
    return f"{device['name']}, {device['memory'] / 2**30:.1f} GiB, {verdict}"


def handle_bytes(max_nodes: int) -> int:
    """Return the memory that StarPU takes for a data handle, without the data, if it is built for so many memory nodes.

    Each node has a replica of the handle, with two pointers to requests for each other node. The rest is measured, with
    StarPU 1.4.10.
    """
    return 664 + 136 * max_nodes + 16 * max_nodes**2


def available_cores() -> set[tuple[str, ...]]:
    """Return the cores of which this process may use a unit, as Linux has them; a unit of which it says none is one."""
    cores = set()
    for unit in os.sched_getaffinity(0):
        folder = Path(f"/sys/devices/system/cpu/cpu{unit}/topology")
        names = ("physical_package_id", "die_id", "core_id")
        core = tuple((folder / name).read_text() if (folder / name).exists() else "" for name in names)
        cores.add(core if core[-1] else (str(unit),))
    return cores


def count_cores() -> int:
    """Return how many cores this process may use, without asking hwloc: Linux's, or those of hwloc's two variables."""
    synthetic, xml = os.environ.get("HWLOC_SYNTHETIC", ""), Path(os.environ.get("HWLOC_XMLFILE", ""))
    if not synthetic and xml.is_file():
        objects = xml.read_text("utf-8", "replace")
        return objects.count('type="Core"') or objects.count('type="PU"')
    levels = re.sub(r"\(.*?\)", "", synthetic).lower().split()
    cores = 1
    for kind, _, number in (level.partition(":") for level in levels):
        if not number.isdigit():
            break
        cores *= int(number)
        if kind in ("core", "pu"):
            return cores
    return len(available_cores())


def full_partitions(cores: int, max_workers: int, max_contexts: int) -> tuple[str, ...]:
    """Return the partitions that use all cores, or as many of them as this StarPU was built for.

    Each worker of several threads needs one of StarPU's contexts; two others are always there.
    """
    cores = min(cores, max_workers)
    return tuple(
        f"{workers}x{cores // workers}"
        for workers in range(1, cores + 1)
        if cores % workers == 0 and (workers == cores or workers <= max_contexts - 2)
    )


def crowded_partitions(cores: int, max_workers: int, max_contexts: int) -> list[str]:
    """Return partitions with more workers or threads than there are cores, as far as this StarPU can have them."""
    workers = [f"{number}x1" for number in (cores + 1, 2 * cores + 1) if number <= max_workers]
    return workers + [f"{cores}x2"] * (2 * cores <= max_workers and cores <= max_contexts - 2)


def with_cores_for(partition: str) -> dict[str, str]:
    """Return the environment in which hwloc finds enough cores for a partition, if this machine has fewer."""
    needed = prod(map(int, partition.split("x")))
    return {"HWLOC_SYNTHETIC": f"numa:1 core:{needed} pu:1"} if needed > count_cores() else {}


def _blas() -> str:
    """Return the BLAS that is used if the user names none; empty if none is found."""
    try:
        return find_blas()
    except MissingDependencyError:
        return ""


def _mpirun_version() -> str:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        return ""
    try:
        run = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "doesn't answer"
    return run.stdout.partition("\n")[0].strip() or "doesn't say its version"


def _problems(build: Any, machine: Any) -> Iterator[str]:
    """Yield a sentence for each thing that will not work here."""
    loaded, built = prototypes.text(machine.starpu_version), prototypes.text(build.starpu_version)
    if loaded != built:
        yield f"StarPU {loaded} is loaded, expected {built}, which the library was built against"
    if refusal := prototypes.text(prototypes.call("kernels_refusal")):
        yield f"no training starts: {refusal}"


def _notes(machine: Any, environment: str) -> Iterator[str]:
    """Yield a sentence for each thing that works differently here."""
    if handle_bytes(machine.starpu_max_nodes) > _LARGE_HANDLE:
        yield (
            f"each data handle takes {handle_bytes(machine.starpu_max_nodes) / 1024:.0f} KiB, because this StarPU was "
            f"built for {machine.starpu_max_nodes} memory nodes, expected at most {_LARGE_HANDLE >> 10} KiB: configure "
            "it with --enable-maxnodes=8 --enable-maxcpus=256"
        )
    if environment:
        yield f"floating-point environment of this thread: {environment}; kernels set their own"
    if machine.synthetic:
        yield "the topology is synthetic: threads aren't bound, and measured times mean nothing"
    if not machine.starpu_max_contexts:
        yield (
            "this StarPU was built without parallel workers, so workers have one thread each; --enable-parallel-worker "
            "configures it with them"
        )
    version = prototypes.text(machine.starpu_version)
    unless = ", unless its sources contain them, which its version doesn't say" if version == _UNRELEASED else ""
    for commits, defect in _DEFECTS.items() if version in _DEFECTIVE else ():
        yield f"StarPU {version}: {defect}; mended by {commits} on its branch starpu-1.4{unless}"
