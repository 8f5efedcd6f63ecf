"""What the runs of a program have shown so far: findings, how much was compared, and what couldn't be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from starpullm.files import probe_log
from starpullm.probe.compare import RunComparison, Unsteady
from starpullm.probe.findings import Fault, ProgramFinding
from starpullm.probe.program import ProgramEnding
from starpullm.probe.program_tasks import TaskFlow, counted, listed
from starpullm.probe.recorded import RecordedRun, ending_finding, last_moments
from starpullm.probe.single_run_checks import changed_between, never_ran, written_though_read
from starpullm.probe.undeclared import Watched, undeclared_accesses

BY_ITSELF = "it changes from run to run by itself"


@dataclass
class Observations:
    """What the runs have shown.

    ``flows`` are those of the runs that were compared, by schedule and rank. ``unsteady`` is what changes from run to
    run by itself. Runs should end with one of the ``statuses``. ``moments`` are lines about others. ``unsteady_output``
    says why output isn't compared, by whether a run is on several workers.
    """

    findings: list[ProgramFinding] = field(default_factory=list)
    moments: list[str] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    flows: dict[tuple[str, int], TaskFlow] = field(default_factory=dict)
    unsteady: dict[int, Unsteady] = field(default_factory=dict)
    watched: Watched = field(default_factory=Watched)
    tolerated_handles: set[str] = field(default_factory=set)
    statuses: frozenset[int] = frozenset({0})
    unsteady_output: dict[bool, str] = field(default_factory=dict)

    def add_reference(self, run: RecordedRun) -> None:
        """Take account of the reference schedule by itself."""
        for rank, flow in run.flows.items():
            self.flows[run.schedule.name, rank] = flow
            self.findings += written_though_read(run.schedule.name, flow)
            self.findings += changed_between(run.schedule.name, flow)
            seen = flow.before[1] | flow.after[1] | ~flow.has_function[flow.task]
            own = (flow.mode & (probe_log.MODE_SCRATCH | probe_log.MODE_REDUX)) != 0
            leaves = flow.writes & (flow.log.handles["bytes"][flow.handle_of_log[flow.handle]] > 0)
            self.totals["contents"] += int((leaves & flow.has_function[flow.task]).sum())
            self.totals["unseen tasks"] += max(0, int(flow.log.header["unseen_tasks"]))
            self.totals["unseen"] += int((~seen & ~own & (flow.start_ns[flow.task] >= 0)).sum())
        if self.totals["unseen tasks"] and run.ending.words:
            self.leave_out_output("tasks that weren't seen may have a part in it")

    def add_watched(self, run: RecordedRun, reference: RecordedRun) -> bool:
        """Take account of the watched run: what it finds has a line, so that others of the same are dropped.

        Return whether it ended as the reference schedule. That isn't judged: a system call on protected memory fails,
        also where the application has acquired that meanwhile.
        """
        name = run.schedule.name
        if run.ending.words != reference.ending.words:
            self.leave_out_output(BY_ITSELF)
        self.watched = Watched.of(list(run.flows.values()))
        for rank, flow in run.flows.items():
            found = list(undeclared_accesses(name, flow))
            known = {(rank, one.kind, one.task, one.handle) for one in found}
            self.findings = [one for one in self.findings if (one.rank, one.kind, one.task, one.handle) not in known]
            self.findings += found
        if run.ending.status in self.statuses:
            return True
        text = f"undeclared accesses: the program {run.ending}, perhaps by a system call on data protected against them"
        self.findings.append(ProgramFinding(text, kind=Fault.NOT_CHECKED, schedule=name))
        return False

    def add_ending(
        self, run: RecordedRun, reference: RecordedRun, run_bare: Callable[[], ProgramEnding] | None = None
    ) -> bool:
        """Take account of how a run ended; return whether it can be compared."""
        finding = ending_finding(run, reference, self.statuses)
        if finding is None:
            return True
        if run_bare is not None:
            bare = run_bare()
            is_of_probe = run.is_complete and bare.status in self.statuses
            finding = finding.with_evidence(**{"without the probe": f"the program {bare}, on all its workers"})
            finding = replace(finding, kind=Fault.NOT_CHECKED if is_of_probe else finding.kind)
            self.statuses = frozenset({run.ending.status or 0}) | (self.statuses if is_of_probe else frozenset())
        self.findings.append(finding)
        if run is reference and run.is_complete:
            return True  # its own idea of failure, but it ran to its end
        self.moments += last_moments(run)
        return False

    def other_output(self, run: RecordedRun, reference: RecordedRun) -> list[ProgramFinding]:
        """Return a finding if the program has printed something else, where that doesn't change by itself."""
        here, there = run.ending.words, reference.ending.words
        if here == there or {run.ending.status, reference.ending.status} - self.statuses:
            return []
        if (run.schedule.max_workers > 1) in self.unsteady_output:
            return []
        evidence = {"here": listed([*(here - there)]), "reference schedule": listed([*(there - here)])}
        sentence = "the program prints other words, whatever their order"
        return [ProgramFinding(sentence, evidence, kind=Fault.OTHER_OUTPUT, schedule=run.schedule.name)]

    def leave_out_output(self, why: str, *, on_one: bool = True) -> None:
        """Compare no output of runs on several workers, nor of those on one."""
        self.unsteady_output = {True: why} | ({False: why} if on_one else {}) | self.unsteady_output

    def output_left_out(self) -> str:
        """Return a sentence about output that isn't compared; an empty text if all is."""
        for on_several, what in ((False, "isn't compared"), (True, "is compared on one worker only")):
            if on_several in self.unsteady_output:
                return f"standard output {what}: {self.unsteady_output[on_several]}"
        return ""

    def add_comparison(self, rank: int, comparison: RunComparison) -> None:
        """Count what was compared."""
        its_rank = f" of rank {rank}" if rank >= 0 else ""
        self.tolerated_handles |= {f"handle {handle}{its_rank}" for handle in comparison.tolerated_handles}
        for name in ("outputs", "different", "tolerated", "left_out"):
            self.totals[name] += getattr(comparison, name)
        self.totals["handles"] = max(self.totals["handles"], comparison.handles)

    def tolerated_contents(self) -> str:
        """Return what is said of contents that differ because of a free order."""
        contents = f"{counted(self.totals['tolerated'], 'content')} of {listed(sorted(self.tolerated_handles))}"
        by_device = " or that a device computed" * any(flow.ran_on_device.any() for flow in self.flows.values())
        return f"{contents}, whose order is free (REDUX, COMMUTE, or no sequential consistency){by_device},"

    def unseen(self, *, is_bounded: bool = False) -> Iterator[str]:
        """Yield what wasn't seen of the program, about which nothing is said therefore; bounded differences are."""
        if self.totals["tolerated"] and not is_bounded:
            yield f"by how much {self.tolerated_contents()} differ: --tolerance bounds it"
        if self.totals["unseen tasks"]:
            tasks = counted(self.totals["unseen tasks"], "task")
            yield f"{tasks} in scheduling contexts with another policy, or none, as parallel workers"
        if not self.totals["contents"]:
            yield "any contents, as no task leaves any: only how the program ends and what it prints were compared"
        if accesses := self.totals["unseen"]:
            yield f"the contents of {counted(accesses, 'access')} can't be read"
        if contents := self.totals["left_out"]:
            yield f"{counted(contents, 'content')} of tasks that use what changes from run to run by itself"
        if never := never_ran(list(self.flows.values())):
            yield f"{counted(sum(never.values()), 'implementation')} never ran, of {', '.join(never)}"
