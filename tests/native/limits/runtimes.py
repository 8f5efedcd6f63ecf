"""Runtimes that are refused: partitions, schedulers, environments, a second one, one that is closed too early."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path

from starpullm.binding import prototypes, structs
from starpullm.binding.kernels import present_cache
from starpullm.binding.library import find_library
from starpullm.checks.place import Workplace, environment
from starpullm.checks.result import Result
from starpullm.checks.training import checkpoint_in
from starpullm.data.generator import generate_tokens
from starpullm.errors import InvalidArgumentError, RuntimeFailureError, StateError
from starpullm.instruments import Instruments
from starpullm.machine import machine_info
from starpullm.runtime import Partition, Runtime, schedulers
from starpullm.trainer import Trainer

from .mpi import check_levels
from .options import TINY, B, T
from .processes import in_fork, loaded_library
from .simultaneous import check_simultaneous_calls
from .starts import as_it_is, start_as_is
from .statements import ACCEPTED, Statements, ending_of, text_of

_TWO_CORES = "numa:1 core:2 pu:1"


def starts_of_runtimes(workplace: Workplace) -> Result:
    """Start runtimes with the last allowed and the first refused value of each limit, in a process without one."""
    statements = Statements("limits of a runtime")
    checkpoint = checkpoint_in(workplace.directory, TINY)
    _check_environments(statements, checkpoint)
    check_levels(statements)
    with environment(HWLOC_SYNTHETIC=_TWO_CORES, OMP_PROC_BIND=None):
        _check_partitions(statements)
        _check_schedulers(statements)
        _check_communicators(statements)
        _check_blas(statements)
        _check_order(statements, checkpoint)
        _check_audit(statements, checkpoint)
        check_simultaneous_calls(statements)
    _check_limits_of_starpu(statements)
    return statements.result()


def _start(partition: str | Partition = "1x1", scheduler: str = "lws") -> None:
    Runtime(partition, scheduler).close()


def _check_environments(statements: Statements, checkpoint: Path) -> None:
    """Each environment in a process of its own; the library must not have been opened before."""
    levels = in_fork(_levels)
    cases: list[tuple[dict[str, str], str]] = [
        (
            {"STARPULLM_SIMD": "none"},
            f'STARPULLM_SIMD: found "none", expected one of {", ".join(levels)} on this machine',
        )
    ]
    for cache in ("0", "M", "1M,", "32K,1M", "1M 8M", "1 M", "-1K", "2199023255552"):
        sentence = "expected the size of the second-level cache, such as 1M"
        cases.append(({"STARPULLM_L2_CACHE": cache}, f'STARPULLM_L2_CACHE: found "{cache}", {sentence}'))
    for variables, sentence in cases:
        expected = text_of(InvalidArgumentError, sentence)
        statements.equal(f"a runtime with {variables}", expected, in_fork(partial(_ending, "1x1"), **variables))
    statements.equal(
        "a runtime with the plain kernels", "accepted", in_fork(partial(_ending, "1x1"), STARPULLM_SIMD="ref")
    )
    for name in ("STARPULLM_SIMD", "STARPULLM_L2_CACHE"):
        statements.equal(f"a runtime with an empty {name}", ACCEPTED, in_fork(partial(_ending, "1x1"), **{name: ""}))
    for cache in ("2M", "2048K", "2097152"):
        statements.equal(f"size of cache {cache}", 2 << 20, in_fork(present_cache, STARPULLM_L2_CACHE=cache))
    running = "StarPU is running in this process but wasn't started by starpullm, expected it not to be running"
    found = in_fork(_beside_starpu, STARPU_SILENT="1", STARPU_NCPU="1", HWLOC_SYNTHETIC=_TWO_CORES)
    statements.equal("a runtime beside another StarPU", text_of(StateError, running), found)
    truncated = checkpoint.with_name("topology.xml")
    truncated.write_text('<?xml version="1.0"?>\n<topology version="2.0">\n<object type="Machine" os_index="0"')
    expected = text_of(RuntimeFailureError, "hwloc could not read this machine's topology")
    found = in_fork(partial(_ending, "1x1"), HWLOC_XMLFILE=str(truncated))
    statements.equal("a runtime with a truncated file of the topology", expected, found)
    binds = 'OMP_PROC_BIND: OpenMP binds threads itself, expected "false" or unset for partition 1x2: StarPU binds the '
    expected = text_of(InvalidArgumentError, f"{binds}threads of its workers")
    for partition, sentence in (("1x2", expected), ("2x1", ACCEPTED)):
        found = in_fork(partial(_ending, partition), OMP_PROC_BIND="true", HWLOC_SYNTHETIC=_TWO_CORES)
        statements.equal(f"{partition} with OMP_PROC_BIND", sentence, found)
    failing = partial(_step_of_too_few_threads, str(checkpoint))
    found = in_fork(failing, OMP_THREAD_LIMIT="1", HWLOC_SYNTHETIC=_TWO_CORES, OMP_WAIT_POLICY="passive")
    given = "*: OpenMP gave 1 threads, expected the partition's 2 (is OMP_THREAD_LIMIT or OMP_DYNAMIC set?)"
    expected = text_of(RuntimeFailureError, given)
    for what, ending in zip(("the loss", "the wait", "the next step"), found, strict=True):
        # The first task that fails is named, whichever that is; all sentences are the same one.
        operation = ending.partition(": ")[2].partition(":")[0]
        statements.equal(f"{what} after a task without threads", expected.replace("*", operation), ending)
    statements.equal("sentences after one failure", 1, len(set(found)))


def _ending(partition: str) -> str:
    return ending_of(partial(_start, partition))


def _levels() -> list[str]:
    return list(prototypes.names("simd_level_name"))


def loaded_starpu() -> ctypes.CDLL:
    """Return the StarPU that the library under test has loaded."""
    machine_info()
    return loaded_library("libstarpu-")


def _beside_starpu() -> str:
    starpu = loaded_starpu()
    if starpu.starpu_init(None):
        return "StarPU didn't start"
    ending = ending_of(_start)
    starpu.starpu_shutdown()
    return ending


def _step_of_too_few_threads(checkpoint: str) -> list[str]:
    inputs, targets = generate_tokens(1, 0, B, T, TINY.model.vocab_size)
    with Runtime("1x2") as runtime, Trainer(runtime, checkpoint, batch_size=B, seq_len=T) as trainer:
        loss = trainer.submit(inputs, targets)
        calls: list[Callable[[], object]] = [loss.result, trainer.wait, lambda: trainer.submit(inputs, targets)]
        return [ending_of(call) for call in calls]


def _check_partitions(statements: Statements) -> None:
    for workers, threads in ((0, 1), (1, 0), (-1, 1), (1, -1)):
        statements.refused(
            f"{workers} workers of {threads}",
            InvalidArgumentError,
            f"partition {workers}x{threads}: expected at least one worker of one thread",
            partial(_start, Partition(workers, threads)),
        )
    for partition, cores in (("3x1", 3), ("1x3", 3), ("2x2", 4), ("100x2", 200)):
        statements.refused(
            partition,
            InvalidArgumentError,
            f"partition {partition}: needs {cores} cores, found 2 (HWLOC_SYNTHETIC) that this process may use",
            partial(_start, partition),
        )
    for partition in ("1x1", "2x1", "1x2"):
        statements.allowed(partition, partial(_start, partition))


def _check_limits_of_starpu(statements: Statements) -> None:
    """Compare what the library reports of StarPU with what it refuses by.

    So many workers aren't started: a BLAS that is not there is refused after the partition, and so tells that the
    partition was not.
    """
    info = machine_info()
    most, contexts = info.starpu_max_workers, info.starpu_max_contexts
    built = f"this StarPU was built for {contexts} scheduling contexts, expected at most {contexts - 2} workers of "
    configured = f"several threads, or a StarPU configured with --enable-max-sched-ctxs={contexts + 1} or more"
    too_large = [(1, most + 1), (most + 1, 1), (1 << 16, 1 << 16)]
    limits = [(partition, f"StarPU was built for at most {most} cores") for partition in too_large]
    limits += [((contexts - 1, 2), built + configured)] if 2 * (contexts - 1) <= most else []
    large = [(most, 1), (1, most), (min(contexts - 2, most // 2), 2)]
    with environment(HWLOC_SYNTHETIC=f"core:{most + 1} pu:1", OMP_PROC_BIND=None):
        for (workers, threads), sentence in limits:
            expected = text_of(InvalidArgumentError, f"partition {workers}x{threads}: {sentence}")
            statements.equal(f"{workers}x{threads}", expected, _ending_without_blas(workers, threads))
        for workers, threads in large:
            found = _ending_without_blas(workers, threads)
            expected = text_of(InvalidArgumentError, f"blas_library: {_NO_BLAS}: can't be opened: ")
            statements.equal(f"{workers}x{threads} without its BLAS", expected, found[: len(expected)])


_NO_BLAS = "/nowhere/libblas.so"


def _ending_without_blas(workers: int, threads: int) -> str:
    library = prototypes.c_string("blas_library", _NO_BLAS)
    return ending_of(partial(start_as_is, workers=workers, threads_per_worker=threads, blas_library=library))


def _check_schedulers(statements: Statements) -> None:
    numbers = [ctypes.c_int() for _ in range(3)]
    loaded_starpu().starpu_get_version(*map(ctypes.byref, numbers))
    version = ".".join(str(number.value) for number in numbers)
    statements.equal("version of StarPU", version, prototypes.text(machine_info().starpu_version))
    names = schedulers()
    statements.equal(
        "schedulers that are used here", set(), {"eager", "random", "lws", "prio", "dmda", "ws"} - set(names)
    )
    statements.equal("graph_test among the schedulers", False, "graph_test" in names)
    for name in ("none", "LWS", "", "graph_test"):
        statements.refused(
            f"scheduler {name!r}",
            InvalidArgumentError,
            f'scheduler: found "{name}", expected one that StarPU {version} has and that runs tasks without '
            f"starpu_do_schedule(): {', '.join(names)}",
            partial(_start, "1x1", name),
        )
    sentence = "scheduler: none was given, expected one of StarPU's names"
    statements.refused("no scheduler", InvalidArgumentError, sentence, partial(start_as_is, scheduler=None))
    for name, partition in (("eager", "1x1"), ("lws", "1x1"), ("random", "2x1"), ("prio", "1x2"), ("dmda", "2x1")):
        with environment(STARPU_SCHED="ws", STARPU_NCPU="1"):  # what the options say comes first
            found = _scheduler_in_use(partition, name)
        statements.equal(f"StarPU's scheduler on {partition}", [name], found)


def _scheduler_in_use(partition: str, scheduler: str) -> list[str]:
    """Return the names of StarPU's schedulers that consist of the same functions as the one that a runtime uses."""
    functions = ctypes.POINTER(ctypes.c_void_p * _SCHEDULER_FUNCTIONS)
    starpu = loaded_starpu()
    starpu.starpu_sched_get_sched_policy.restype = functions
    starpu.starpu_sched_get_predefined_policies.restype = ctypes.POINTER(functions)
    with Runtime(partition, scheduler):
        used = list(starpu.starpu_sched_get_sched_policy().contents)
        known = starpu.starpu_sched_get_predefined_policies()
        return [name for number, name in enumerate(schedulers()) if list(known[number].contents) == used]


_SCHEDULER_FUNCTIONS = 12
"""Pointers at the beginning of ``struct starpu_sched_policy``."""


def _check_communicators(statements: Statements) -> None:
    statements.refused(
        "a communicator without MPI",
        StateError,
        "MPI is not initialized, expected to be running",
        partial(start_as_is, communicator=prototypes.communicator(0)),
    )


def _check_blas(statements: Statements) -> None:
    library = str(find_library())
    for path, sentence in (
        (
            "/nowhere/libblas.so",
            "can't be opened: /nowhere/libblas.so: cannot open shared object file: No such file or directory",
        ),
        (
            library,
            "has no function cblas_sgemm, expected a BLAS with its C interface (tried scipy_ before the name and 64_ "
            "and _64 after it, too)",
        ),
    ):
        statements.refused(
            f"{path} as BLAS",
            InvalidArgumentError,
            f"blas_library: {path}: {sentence}",
            partial(start_as_is, blas_library=path.encode()),
        )
        statements.equal(f"the BLAS after {path}", "", prototypes.text(prototypes.call("blas")))


def _check_order(statements: Statements, checkpoint: Path) -> None:
    opening = partial(Trainer, checkpoint=checkpoint, batch_size=B, seq_len=T)
    runtime = Runtime("1x1")
    as_it_was = as_it_is(runtime)
    running = "a runtime is running already in this process, expected none: close it"
    statements.refused("a second runtime", StateError, running, _start)
    first, second = (opening(runtime) for _ in range(2))
    for number, trainer in ((2, first), (1, second)):
        sentence = f"sessions are open on the runtime: {number}, expected none: close them first"
        statements.refused(f"closing a runtime with {number} trainers", StateError, sentence, runtime.close)
        trainer.close()
    statements.allowed("closing it then", runtime.close)
    closed = "the runtime is closed, expected one that is running"
    session = structs.Handle("session")
    for call, name, *arguments in (
        (prototypes.call, "runtime_destroy", as_it_was.address),
        (prototypes.call, "session_create", as_it_was, structs.new("session_options"), session.address),
        (prototypes.results, "runtime_offloaded", as_it_was),
    ):
        calling = partial(call, name, *arguments)
        statements.refused(f"{name} of a closed runtime", StateError, closed, calling)
    with Runtime("2x1") as another:
        opened = opening(another)
        sentence = "sessions are open on the runtime: 1, expected none: close them first"
        statements.refused("closing the next runtime too early", StateError, sentence, another.close)
        other = partial(another.restart, platform_functions=True)
        statements.refused("other functions while a trainer is open", StateError, sentence, other)
        statements.allowed("the same functions then", partial(another.restart, platform_functions=False))
        opened.close()
        statements.equal("its functions before", False, another.platform_functions)
        statements.allowed("other functions", other)
        statements.equal("its functions then", True, another.platform_functions)
    back = partial(another.restart, platform_functions=False)
    statements.refused("other functions of a closed runtime", StateError, closed, back)
    statements.allowed("a runtime after these", partial(_start, "2x1", "eager"))


def _check_audit(statements: Statements, checkpoint: Path) -> None:
    for partition in ("2x1", "1x2"):
        sentence = f"instruments: found the audit on partition {partition}, expected 1x1: pages are open to all threads"
        with Runtime(partition) as runtime:
            audited = partial(Trainer, runtime, checkpoint, batch_size=B, seq_len=T, trace=True)
            call = partial(audited, instruments=Instruments(audit=True))
            statements.refused(f"the audit on {partition}", InvalidArgumentError, sentence, call)
