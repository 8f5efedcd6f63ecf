"""What a look by hand has shown of what the probe says of StarPU's own examples: of its alarms, and of its refusals."""

from __future__ import annotations

from collections.abc import Mapping

# By name of the program.
SEEN: Mapping[str, str] = {
    "filters/fmatrix_pick_variable": "A mistake of the example: the codelet `cl_r` declares `STARPU_R`, and its "
    "function, which it shares with `cl_rw`, multiplies the value. With one memory node nothing is lost by that.",
    "heat/heat": "What the probe can't do: tasks are submitted from callbacks, in an order that depends on the "
    "schedule, so they have other numbers in each run. `heat -cg` submits all tasks from one thread.",
    "mpi/cache/cache": "A mistake of the example: its codelets declare `STARPU_W`, and their function is empty. It "
    "tests which transfers StarPU's MPI cache saves, not what is transferred.",
    "stencil/stencil": "A mistake of the example: its first tasks, called `start`, declare to write the boundaries so "
    "that others wait for them, and their function is empty. After `STARPU_W`, the boundaries may contain anything.",
}

_NO_START = "Yes: it never starts StarPU."
_NO_DATA = "Yes: its tasks have no data."
_ONLY_READ = "Yes: its tasks only read data; there is no result that a schedule could change."
_NO_TASK = "Yes: it submits no task."
_OTHER_DEVICE = "Yes: it has codelets for GPUs only, and ends with status 77, “skipped”."
_OWN_POLICY = "A gap: its tasks run in scheduling contexts with a policy of their own, which the probe doesn't see."
_REDUCTION = (
    "A gap: its only results are of reductions, and the application reads them, no task does. The probe looks at "
    "data when tasks run."
)

# By a pattern of names; the first that fits counts.
REFUSALS: Mapping[str, str] = {
    r"^api/": _NO_START,
    r"^basic_examples/(hooks|topology)|^perf_\w+/perf_(counters_01|knobs_0[12])|^worker_collections/": _NO_TASK,
    r"^mpi/comm/group|^sched_ctx/(parallel_code|prio|sched_ctx_delete)|parallel_workers_oldapi": _NO_TASK,
    r"^basic_examples/multiformat|^binary/|^matvecmult/": _OTHER_DEVICE,
    r"^basic_examples/hello_world|^profiling/|^tag_example/|parallel_workers_func": _NO_DATA,
    r"^sched_ctx/(dummy_sched_with_ctx|nested_sched_ctxs)": f"Yes: its tasks have no data. {_OWN_POLICY}",
    r"^sched_ctx/parallel_tasks_reuse_handle": _OWN_POLICY,
    r"^sched_ctx/": _NO_DATA,
    r"^filters/custom_mf/": "A gap: its interface has no pack method, so the probe can't read the contents.",
    r"^mlr/|^mult/\w+_layout|^mpi/complex/|^mpi/user_datatype/user_datatype2|^mpi/cache/cache_disable": _ONLY_READ,
    r"^mpi/user_datatype/": "A gap: the pack method of its interface aborts, to show that MPI sends a datatype "
    "instead, so the probe can't read the contents.",
    r"^mpi/mpi_redux/|^pi/pi_redux|^reductions/": _REDUCTION,
    r"^perf_steering/perf_knobs_03|^scheduler/": "Yes: it ends with status 77 where STARPU_SCHED names another policy "
    "than its own.",
    r"^ppm_downscaler/": "Yes: it needs a picture, which the source package doesn't have.",
}

# By a pattern of lies that the probe doesn't find, or finds in another task.
LIES: Mapping[str, str] = {
    r"dynamic_handles .* RW R$|^mpi/comm/.* RW R$": "The task only reads its data: with `R` it tells the truth.",
    r"^filters/shadownd ": "A gap: arrays of more than four dimensions aren't poisoned.",
    r"^interface/": "A gap: what an interface of the program's own holds isn't poisoned.",
}
