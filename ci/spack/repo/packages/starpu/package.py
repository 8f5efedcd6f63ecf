"""StarPU with parallel workers: Spack's own package has no variant for them. Not tried."""

from spack.package import variant
from spack_repo.builtin.packages.starpu.package import Starpu as BuiltinStarpu


class Starpu(BuiltinStarpu):
    """StarPU as Spack builds it, and the options that starpullm needs."""

    variant("parallel_worker", default=True, description="Enable parallel workers, up to 256 cores and 8 memory nodes")

    def configure_args(self):
        """Return the options of configure."""
        arguments = super().configure_args()
        if self.spec.satisfies("+parallel_worker"):
            arguments += [
                "--enable-parallel-worker",
                "--enable-max-sched-ctxs=64",
                "--enable-maxcpus=256",
                "--enable-maxnodes=8",
            ]
        return arguments
