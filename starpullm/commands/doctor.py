"""``starpullm doctor``: what this machine and this build have, and the proof of the vector versions of libm."""

from __future__ import annotations

import math
import sys

import click

from starpullm.checks.libm import NUM_INPUTS, LibmResult, check_libm, vector_levels
from starpullm.checks.result import Outcome
from starpullm.commands.main import EXIT_DIFFERENT
from starpullm.commands.options import json_option
from starpullm.commands.render import OUT, print_json, progress_bar
from starpullm.machine import inspect_machine, vector_libm

__all__ = ["doctor"]


@click.command()
@click.option("--prove-libm", is_flag=True, help="Compare the vector versions of libm's functions with libm's own.")
@click.option(
    "--every",
    type=click.IntRange(min=1, max=NUM_INPUTS),
    default=1,
    show_default=True,
    metavar="N",
    help="With --prove-libm: only each N-th part of all inputs; quicker, but no proof.",
)
@json_option
def doctor(prove_libm: bool, every: int, as_json: bool) -> None:
    """Show what this machine and this build have, and what will not work and why.

    --prove-libm instead compares, at each SIMD level, all 2^32 inputs of each function, which takes minutes; exit
    status 1: some have other bits.
    """
    if prove_libm:
        _prove_libm(every, as_json)
        return
    machine = inspect_machine()
    if as_json:
        print_json(machine.as_json())
        return
    rows = [
        ("starpullm", f"{machine.version}, {machine.library}"),
        ("compiler", f"{machine.compiler}, {machine.build_type}, {machine.compiler_flags}"),
        ("StarPU", f"{machine.starpu_version} in {machine.starpu_prefix}"),
        (
            "StarPU's features",
            f"parallel workers {'yes' if machine.starpu_parallel_workers else 'no'}, at most "
            f"{machine.starpu_max_workers} workers, {machine.starpu_max_contexts} scheduling contexts",
        ),
        ("schedulers", ", ".join(machine.schedulers)),
        ("processor", machine.processor or "unknown"),
        (
            "topology",
            f"{machine.cores} cores, {machine.processing_units} processing units, {machine.numa_nodes} NUMA nodes"
            + (" (HWLOC_SYNTHETIC)" if machine.synthetic_topology else ""),
        ),
        ("partitions", ", ".join(machine.partitions)),
        ("kernels", f"{machine.simd_level}"),
        (
            "vector functions",
            ", ".join(name for name, vector in machine.vector_libm.items() if vector.used) or "none",
        ),
        ("BLAS", f"{machine.blas or 'none found'}; used only with --matmul blas"),
        ("MPI", f"{machine.mpirun or 'none found'}; this build has {'ranks' if machine.mpi else 'no ranks'}"),
        ("libm", "known: golden records are comparable" if machine.libm_known else "unknown"),
        ("float environment", machine.float_environment or "as the contract wants it"),
    ]
    for name, text in rows:
        OUT.print(f"{name:<19}{text}", markup=False)
    for finding in machine.findings:
        OUT.print(f"{'problem' if finding.is_problem else 'note'}: {finding.sentence}", markup=False)


def _prove_libm(every: int, as_json: bool) -> None:
    results: list[LibmResult] = []
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
                    OUT.print(f"{result.describe()[0]}, {result.seconds:.1f} s", markup=False)
    if as_json:
        print_json([result.as_json() for result in results])
    else:
        for function, vector in known.items():
            used = "known, its vector versions are used" if vector.used else "unknown, kernels call it"
            OUT.print(f"this libm's {function}: fingerprint {vector.fingerprint}, {used}", markup=False)
    if any(result.outcome is Outcome.FAILED for result in results):
        sys.exit(EXIT_DIFFERENT)
