"""The runs that are recorded for the pictures of a report, after the tests."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starpullm.errors import RuntimeFailureError

if TYPE_CHECKING:
    from starpullm.pytest_plugin.options import Options
    from starpullm.pytest_plugin.run import Validation


def recordings(validation: Validation) -> Iterator[dict[str, Any]]:
    """Yield a recording for each of the first configurations."""
    from starpullm.checks.recorded_run import MAX_RECORDED, write_recording

    case = _case(validation)
    if case is None:
        raise RuntimeFailureError("all chosen records are large")
    case |= {"reduction": "ordered", "seed": validation.seed}
    with tempfile.TemporaryDirectory(prefix="starpullm-recording-") as directory:
        path = Path(directory, "recording.json")
        for configuration in validation.configurations(validation.ranks)[:MAX_RECORDED]:
            limit = validation.time_limit
            validation.pool.call(configuration, write_recording, time_limit=limit, **case, path=str(path)).result()
            yield json.loads(path.read_text())


def _case(options: Options) -> dict[str, Any] | None:
    """Return the record with the most layers that is quick, and two sub-batches for each rank or the fewest there are.

    With more sub-batches pictures become crowded, not clearer.
    """
    from starpullm.checks.cases import find_record
    from starpullm.checks.recorded_run import MAX_RECORDED_PARAMETERS
    from starpullm.data.sizes import divisors
    from starpullm.files.model import num_parameters

    sizes = {record: num_parameters(find_record(record).model) for record in options.records}
    light = [
        record
        for record, size in sizes.items()
        if size <= MAX_RECORDED_PARAMETERS and options.sub_batches(record, options.ranks)
    ]
    if not light:
        return None
    record = max(light, key=lambda record: find_record(record).model.num_layers)
    counts = divisors(find_record(record).batch_size // options.ranks)
    return {"record": record, "sub_batches": counts[min(1, len(counts) - 1)]}
