"""What a look by hand has shown of what the probe says of StarPU's own examples: of its alarms, and of its refusals."""

from __future__ import annotations

from collections.abc import Mapping

# By name of the program.
SEEN: Mapping[str, str] = {
    "filters/fmatrix_pick_variable": "A mistake of the example: the codelet `cl_r` declares `STARPU_R`, and its "
    "function, which it shares with `cl_rw`, multiplies the value. With one memory node nothing is lost by that.",
}

# By a pattern of names; the first that fits counts.
REFUSALS: Mapping[str, str] = {
    r"^api/": "Yes: it shows an interface's functions and never starts StarPU.",
    r"^basic_examples/hello_world": "Yes: its tasks have no data.",
}

# By a pattern of lies that the probe doesn't find, or finds in another task.
LIES: Mapping[str, str] = {}
