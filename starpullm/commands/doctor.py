"""``starpullm doctor``: shows this machine and this build, and proves the vector versions of libm's functions."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import click

from starpullm.checks.kernels.libm import NUM_INPUTS, check_libm, vector_levels
from starpullm.checks.result import Outcome, Result
from starpullm.commands import options
from starpullm.commands.main import EXIT_DIFFERENT
from starpullm.commands.render import OUT, print_json, progress_bar
from starpullm.machine import Machine, inspect_machine, vector_libm


@click.command("doctor", epilog=options.example("starpullm doctor", "starpullm doctor --prove-libm --every 1000"))
@click.option("--prove-libm", is_flag=True, help="Compare the vector versions of libm's functions with libm.")
@click.option(
    "--every",
    type=click.IntRange(min=1, max=NUM_INPUTS),
    default=1,
    metavar="N",
    help="With --prove-libm: compare one block of inputs in N. Faster, but proves nothing.",
)
@options.as_json
def command(prove_libm: bool, every: int, as_json: bool) -> None:
    """Show what works on this machine, and what does not and why.

    With --prove-libm, compare instead all 2^32 inputs of each function at each SIMD level, which takes minutes. The
    exit status is then 1 if some results differ.
    """
    if prove_libm:
        _prove_libm(every, as_json)
        return
    machine = inspect_machine()
    if as_json:
        print_json(machine.as_json())
        return
    for name, text in _rows(machine):
        OUT.print(f"{name:<19}{text}")
    for finding in machine.findings:
        OUT.print(f"{'problem' if finding.is_problem else 'note'}: {finding.sentence}")


def _rows(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield names and values as the command shows them."""
    synthetic = " (HWLOC_SYNTHETIC)" if machine.synthetic_topology else ""
    vector_functions = [name for name, vector in machine.vector_libm.items() if vector.used]
    yield "starpullm", f"{machine.version}, {machine.library}"
    yield "compiler", f"{machine.compiler}, {machine.build_type}, {machine.compiler_flags}"
    yield "StarPU", f"{machine.starpu_version} in {machine.starpu_prefix}"
    yield (
        "StarPU's features",
        f"parallel workers {'yes' if machine.starpu_parallel_workers else 'no'}, at most "
        f"{machine.starpu_max_workers} workers, {machine.starpu_max_contexts} scheduling contexts, "
        f"{machine.starpu_max_nodes} memory nodes: {machine.starpu_handle_bytes / 1024:.1f} KiB a data handle",
    )
    yield "schedulers", ", ".join(machine.schedulers)
    yield "processor", machine.processor or "unknown"
    yield (
        "topology",
        f"{machine.cores} cores, {machine.processing_units} processing units, {machine.numa_nodes} NUMA nodes"
        f"{synthetic}",
    )
    yield "caches", f"L1 {machine.l1_cache >> 10} KiB, L2 {machine.l2_cache >> 10} KiB a hardware thread"
    yield "partitions", ", ".join(machine.partitions)
    yield "kernels", machine.simd_level
    yield "vector functions", ", ".join(vector_functions) or "none"
    yield "BLAS", f"{machine.blas or 'none found'}; used only with --matmul blas"
    yield "MPI", f"{machine.mpirun or 'none found'}; this build runs {'on ranks' if machine.mpi else 'without ranks'}"
    yield "libm", f"{'known: ' if machine.libm_known else 'unknown: not '}comparable with golden records"
    yield "float environment", machine.float_environment or "as required"


def _prove_libm(every: int, as_json: bool) -> None:
    results: list[Result] = []
    known = vector_libm()
    levels = vector_levels()
    with progress_bar(hidden=as_json) as progress:
        total = NUM_INPUTS / every / 2**20 * len(known) * len(levels)
        bar = progress.add_task("libm, 2^20 inputs", total=math.ceil(total))
        for function in known:
            for level in levels:
                result = check_libm(
                    function, level, every=every, progress=lambda inputs: progress.advance(bar, inputs / 2**20)
                )
                results.append(result)
                if not as_json:
                    OUT.print(f"{result.lines()[0]}, {result.facts['seconds']:.1f} s")
    if as_json:
        print_json([result.as_json() for result in results])
    else:
        for function, vector in known.items():
            used = "known, its vector versions are used" if vector.used else "unknown, kernels call libm"
            OUT.print(f"this libm's {function}: fingerprint {vector.fingerprint}, {used}")
    if any(result.outcome is Outcome.FAILED for result in results):
        sys.exit(EXIT_DIFFERENT)
