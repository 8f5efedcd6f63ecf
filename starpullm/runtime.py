"""The runtime: StarPU started with a partition and a scheduler, one at a time in a process."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from starpullm.binding import prototypes, structs
from starpullm.binding.library import find_blas
from starpullm.errors import InvalidArgumentError, OutOfMemoryError
from starpullm.memory import available_memory, bytes_of
from starpullm.options import ARITHMETICS, OFFLOAD_PLANS, index_of_choice
from starpullm.processes import Comm
from starpullm.processes.ranks import CommonBlocks, check_launcher, failing_together
from starpullm.resource import Resource

DEFAULT_SCHEDULER = "lws"
MATMULS = ("strict", "blas")
_ALL_DEVICES = -1


class Partition(NamedTuple):
    """``WxT``: W workers of T threads each."""

    workers: int
    threads: int

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Read ``WxT``, for example ``2x1``.

        Raises
        ------
        InvalidArgumentError
            If the text isn't two positive numbers with an x between them.
        """
        match = re.fullmatch(r"([1-9][0-9]{0,8})x([1-9][0-9]{0,8})", text)
        if not match:
            raise InvalidArgumentError(f'partition: found "{text}", expected WxT, for example 2x1')
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.workers}x{self.threads}"


def schedulers() -> list[str]:
    """Return the names of StarPU's schedulers."""
    return list(prototypes.names("scheduler_name"))


class Offloaded(NamedTuple):
    """Bytes that have moved to a disk and from it."""

    written: int
    read: int


class Moved(NamedTuple):
    """Bytes that have moved to the memory of devices and from it."""

    to_devices: int
    from_devices: int


class Runtime(Resource):
    """StarPU, running; a context manager. After it was closed, its methods raise `StateError`.

    With a communicator, its ranks run one task graph together: all of them create the runtime, and make the same calls
    on it and on its trainers, in the same order and with the same options (the partition may differ). An exception that
    leaves the ``with`` block of the runtime or of a trainer on one rank is written to standard error and ends all ranks
    by ``MPI_Abort``, unless within a second all ranks have left the block after the same calls: then each rank closes
    what it has open, and the exception goes on.

    Parameters
    ----------
    partition
        ``WxT``: W workers of T threads; W times T is at most the number of cores.
    scheduler
        One of ``schedulers()``.
    comm
        An mpi4py communicator; None, or one of a single rank: this process alone.
    matmul
        ``"strict"``: the library's own matrix products. ``"blas"``: those of a BLAS, with one
        sequential call for each thread's part of the outputs. Then no result is strict: errors have their usual bounds,
        and bits depend on the BLAS, the processor and the partition.
    blas_library
        With ``"blas"``: a CBLAS (OpenBLAS, MKL, BLIS, ...), by its path or its name for the dynamic linker, such
        as ``openblas``; None: the first that is found (``starpullm doctor`` shows it).
    platform_functions
        Whether expf, tanhf, coshf, logf and powf are the platform's libm's, in plain loops, and not the library's own,
        which are correctly rounded. Then no result is strict: it is for comparison with an llm.c that calls libm.
    arithmetic
        ``"strict"``: llm.c's bits. ``"fused"``: sums of products are fused, with bits of their own, which are the same
        on every machine too (docs/numerics.md); it is faster where multiplication and addition are one instruction, and
        slow where there is none. Not with a BLAS or the platform's functions.
    offload, memory_limit
        A folder on a disk, and the most bytes of trainers' data in memory, as a number or a text such as ``12G``: data
        that aren't used move to a file without a name in the folder. The bits are the same. On one rank, and not with
        the reduction ``redux``. A request to the disk that fails is a failure of the tasks of all trainers.
    devices
        How many OpenCL devices run tasks beside the workers, or ``"all"``; ``starpullm doctor`` lists them. The bits
        are the same. With workers of one thread, strict results and without ``offload``.
    offload_plan
        ``"ahead"``: data that won't be used for long are written early, and those that nobody needs any more are
        dropped, by the order of a step; such gradients and activations can't be read then without ``keep_activations``.
        ``"lru"``: what was used longest ago is written when memory is needed.

    Raises
    ------
    InvalidArgumentError
        If this machine has too few cores for the partition, StarPU has no such scheduler, the BLAS can't be used, or
        StarPU's folder (``STARPU_HOME``) can't be written.
    FileError
        If no file can be made in the folder.
    MissingDependencyError
        If no BLAS is found.
    OutOfMemoryError
        If the machine has less memory than the limit.
    StateError
        If a runtime is running in this process already.
    RuntimeFailureError
        If StarPU doesn't start. Where it finds no memory, StarPU aborts the process (SIGABRT).
    """

    def __init__(
        self,
        partition: str | Partition = "1x1",
        scheduler: str = DEFAULT_SCHEDULER,
        comm: Comm | None = None,
        *,
        matmul: str = MATMULS[0],
        blas_library: str | os.PathLike[str] | None = None,
        platform_functions: bool = False,
        arithmetic: str = ARITHMETICS[0],
        offload: str | os.PathLike[str] | None = None,
        memory_limit: int | str | None = None,
        offload_plan: str = OFFLOAD_PLANS[0],
        devices: int | str = 0,
    ) -> None:
        self.comm = comm if comm is not None and comm.Get_size() > 1 else None
        self.rank = self.comm.Get_rank() if self.comm else 0
        self.ranks = self.comm.Get_size() if self.comm else 1
        self.scheduler, self.platform_functions, self.arithmetic = scheduler, platform_functions, arithmetic
        self._blocks: CommonBlocks | None = None
        self._handle = structs.Handle("runtime")
        check_launcher()
        with failing_together(self.comm):
            _check_home()
            library = _blas_to_open(matmul, blas_library)
            self.partition = Partition.parse(partition) if isinstance(partition, str) else partition
            self._options = structs.new(
                "runtime_options",
                workers=prototypes.integer("partition, workers", self.partition.workers, 32),
                threads_per_worker=prototypes.integer("partition, threads per worker", self.partition.threads, 32),
                scheduler=prototypes.c_string("scheduler", scheduler),
                communicator=prototypes.communicator(self.comm.py2f() if self.comm else None),
                blas_library=None if library is None else prototypes.c_string("blas_library", library),
                platform_functions=platform_functions,
                fused=index_of_choice("arithmetic", arithmetic, ARITHMETICS),
                offload=None if offload is None else prototypes.c_string("offload", offload),
                memory_limit=0 if memory_limit is None else _limit(memory_limit),
                offload_plan=index_of_choice("offload_plan", offload_plan, OFFLOAD_PLANS),
                devices=_ALL_DEVICES if devices == "all" else _number_of_devices(devices),
            )
        self.drops = offload is not None and offload_plan == OFFLOAD_PLANS[0]
        """Whether gradients and activations are invalidated after their last use, without ``keep_activations``."""
        with self._creating():
            prototypes.call("runtime_create", self._options, self._handle.address)
            if self.comm:
                self._blocks = CommonBlocks(self.comm)
            workers = self.partition.workers
            self.most_workers = max(self.comm.allgather(workers)) if self.comm else workers
            """Of the ranks, whose partitions may differ."""
            self._blas = prototypes.text(prototypes.call("blas"))

    def offloaded(self) -> Offloaded:
        """Return how many bytes have moved to the disk and from it so far; 0 without ``offload``.

        Raises
        ------
        StateError
            If the runtime is closed.
        """
        return Offloaded(*prototypes.results("runtime_offloaded", self._handle))

    def moved(self) -> Moved:
        """Return how many bytes have moved to the memory of devices and from it so far; 0 without ``devices``.

        Raises
        ------
        StateError
            If the runtime is closed.
        """
        return Moved(*prototypes.results("runtime_moved", self._handle))

    @property
    def matmul(self) -> str:
        """What computes the matrix products: the arithmetic, or ``"blas (...)"`` with the BLAS's own description."""
        return f"blas ({self._blas})" if self._blas else self.arithmetic

    def restart(self, *, platform_functions: bool = False, arithmetic: str = ARITHMETICS[0]) -> None:
        """Start again with these, unless it has them; `StateError` is raised if trainers are open."""
        if (platform_functions, arithmetic) != (self.platform_functions, self.arithmetic):
            prototypes.call("runtime_destroy", self._handle.address)
            self._options.platform_functions = self.platform_functions = platform_functions
            self._options.fused, self.arithmetic = ARITHMETICS.index(arithmetic), arithmetic
            prototypes.call("runtime_create", self._options, self._handle.address)

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """End meanwhile, so that another one can run in this process; `StateError` is raised if trainers are open."""
        prototypes.call("runtime_destroy", self._handle.address)
        yield
        prototypes.call("runtime_create", self._options, self._handle.address)

    def _destroy(self) -> None:
        prototypes.call("runtime_destroy", self._handle.address)
        if self._blocks is not None:
            self._blocks.free()

    @property
    def _own_runtime(self) -> Runtime:
        return self

    def __repr__(self) -> str:
        state = "closed" if self.closed else "running"
        rank = f", rank {self.rank} of {self.ranks}" if self.comm else ""
        matmul = "" if self.matmul == "strict" else f", matmuls: {self.matmul}"
        matmul += ", functions of the platform" if self.platform_functions else ""
        return f"<Runtime {self.partition} {self.scheduler}{rank}{matmul}, {state}>"


def runtime_options(run: object) -> dict[str, Any]:
    """Return what a `Runtime` is created with after its communicator, from attributes of the same names."""
    names = ("matmul", "blas_library", "arithmetic", "offload", "memory_limit", "offload_plan", "devices")
    return {name: getattr(run, name) for name in names}


def _check_home() -> None:
    """Refuse a home of StarPU's files in which it can't make their folder: it would abort the process.

    Which one it takes if it has two depends on its version.
    """
    names = [name for name in ("STARPU_HOME", "XDG_CACHE_HOME") if name in os.environ] or ["HOME"]
    folders = {name: Path(os.environ.get(name, "/tmp"), ".starpu", "sampling") for name in names}
    if "STARPU_PERF_MODEL_DIR" in os.environ:
        folders = {"STARPU_PERF_MODEL_DIR": Path(os.environ["STARPU_PERF_MODEL_DIR"])}
    for name, folder in folders.items():
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        try:
            TemporaryDirectory(dir=nearest).cleanup()
        except OSError as error:
            raise InvalidArgumentError(
                f"{name}: {folder}: can't be made or written: {error.strerror}, expected a folder for StarPU's files"
            ) from error


def _number_of_devices(devices: int | str) -> int:
    try:
        number = int(devices)
    except ValueError:
        number = -1
    if number < 0:
        raise InvalidArgumentError(f'devices: found "{devices}", expected a number or "all"')
    return prototypes.integer("devices", number, 32)


def _limit(memory_limit: int | str) -> int:
    limit, available = bytes_of("memory_limit", memory_limit), available_memory()
    if 0 < available < limit:
        raise OutOfMemoryError(f"memory_limit: found {limit} bytes, expected at most {available}, which are available")
    return limit


def _blas_to_open(matmul: str, blas_library: str | os.PathLike[str] | None) -> str | None:
    """Return the path or name of the BLAS's library; None: no BLAS is asked for."""
    index_of_choice("matmul", matmul, MATMULS)
    if matmul == "blas":
        return find_blas(blas_library)
    if blas_library is None:
        return None
    raise InvalidArgumentError(
        f'blas_library: found "{os.fspath(blas_library)}" with matmul "{matmul}", expected "blas"'
    )
