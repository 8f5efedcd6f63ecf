"""What observes or perturbs the tasks of a trainer."""

from __future__ import annotations

from dataclasses import dataclass

from starpullm.binding import prototypes


@dataclass(frozen=True)
class Instruments:
    """What observes or perturbs the tasks of a trainer, for checks. Instruments cost time and never change a result.

    They are chosen when the trainer is created, because its buffers are allocated for them. ``Observer`` in
    ``starpullm.checks.observer`` returns what they found.
    """

    audit: bool = False
    """Memory is protected outside of tasks, and the first access to each page is compared with the task's declaration.
    Only on one rank with partition 1x1, not with the reduction ``redux``, and without ``save_state``."""
    poison: bool = False
    """Buffers that a task only writes are filled with a signalling NaN before the task, and so are, between two
    iterations, all buffers whose contents the next one doesn't need. Those can't be read back then. On one rank."""
    max_delay_us: int = 0
    """Every task waits for up to so many microseconds before its kernel starts; seed and number decide how long."""
    delay_seed: int = 0
    device_percent: int | None = None
    """So many in a hundred of the tasks that a device can run, run on a device, and the others on none; seed and number
    decide which. None: StarPU chooses. On a runtime with devices."""
    device_seed: int = 0

    def options(self) -> dict[str, int]:
        """Return them as a session's options; the flags are those of ``enum starpullm_instrument``."""
        flags = (self.audit, self.poison, self.max_delay_us != 0, self.device_percent is not None)
        return {
            "instruments": sum(bool(flag) << bit for bit, flag in enumerate(flags)),
            "max_delay_us": prototypes.integer("max_delay_us", self.max_delay_us, 32),
            "delay_seed": prototypes.integer("delay_seed", self.delay_seed, 64) % 2**64,
            "device_percent": prototypes.integer("device_percent", self.device_percent or 0, 32),
            "device_seed": prototypes.integer("device_seed", self.device_seed, 64) % 2**64,
        }
