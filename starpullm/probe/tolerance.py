"""Whether what differs because of a free order is within a tolerance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from starpullm.probe.compare import RunComparison
from starpullm.probe.elements import ElementDifference, Tolerance, beyond
from starpullm.probe.findings import Fault, ProgramFinding, finding_of
from starpullm.probe.program_tasks import TaskFlow


def beyond_tolerance(
    tolerance: Tolerance, reference: TaskFlow, other: TaskFlow, comparison: RunComparison, schedule: str
) -> Iterator[ProgramFinding]:
    """Yield the tolerated differences of a comparison that are further off, or of which that can't be told."""
    cause = "a free order" + " or a device" * bool(other.ran_on_device.any())
    seen: dict[tuple[int, int], ElementDifference | str | None] = {}
    accesses = [(access, False) for access in comparison.allowed_before]
    accesses += [(access, True) for access in comparison.allowed_after]
    for access, is_after in sorted(accesses):
        contents = tuple(int((flow.after if is_after else flow.before)[0][access]) for flow in (reference, other))
        key = contents[0], contents[1]
        if key not in seen:
            seen[key] = _judged(tolerance, reference, other, access, key)
        result = seen[key]
        does = "leaves" if is_after else "finds"
        if isinstance(result, str):
            sentence = f"{does} other contents because of {cause}"
            yield finding_of(Fault.NOT_BOUNDED, schedule, other, access, sentence, evidence=result)
        elif result is not None:
            sentence = f"{does} numbers that differ by more than {tolerance} because of {cause}"
            suspects = other.contributors(int(other.handle[access]), int(other.task[access]))
            finding = finding_of(Fault.BEYOND_TOLERANCE, schedule, other, access, sentence, suspects)
            yield finding.with_element(reference.element_name(finding.handle, result.element), result)


def _judged(
    tolerance: Tolerance, reference: TaskFlow, other: TaskFlow, access: int, contents: tuple[int, int]
) -> ElementDifference | str | None:
    """Return the first number beyond the tolerance, or why that can't be told; None if all are within it."""
    expected_bytes, found_bytes = reference.log.bytes_of(contents[0]), other.log.bytes_of(contents[1])
    if expected_bytes is None or found_bytes is None:
        return "they weren't recorded: the handle isn't dense, or a process has filled its share of the disk"
    element_bytes = int(reference.log.handles[reference.handle_of_log[reference.handle[access]]]["element_bytes"])
    numbers = [tolerance.numbers(content, element_bytes) for content in (expected_bytes, found_bytes)]
    if numbers[0] is None or numbers[1] is None:
        return f"elements of {element_bytes} bytes aren't numbers of the type “{tolerance.element_type}”"
    if len(numbers[0]) != len(numbers[1]):
        return f"there are {len(numbers[1])} numbers, expected {len(numbers[0])} as in the reference schedule"
    difference = beyond(tolerance, numbers[0], numbers[1])
    if difference is None:
        return None
    return replace(difference, element=difference.element * numbers[0].itemsize // element_bytes)
