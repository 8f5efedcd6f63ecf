"""The checks: a class for each claim, registered in the order of these modules, in which the suite runs them."""

MODULES = (
    "parity",
    "accesses",
    "dependencies.runtime_graph",
    "dependencies.observed_order",
    "dependencies.reuse",
    "dependencies.priorities",
    "reduction",
    "learning",
    "same_bits",
    "dependencies.perturbation",
    "transfers",
    "growth",
    "offload",
    "devices",
    "kernels.kernel_bits",
    "threads",
    "scenario.scenarios",
    "random_programs",
)
