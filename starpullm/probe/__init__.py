"""The schedule and data questions asked of a StarPU program, through a scheduling policy that it loads unchanged."""

from starpullm.probe.judge import probe_program
from starpullm.probe.probe_result import ProbeResult

__all__ = ["ProbeResult", "probe_program"]
