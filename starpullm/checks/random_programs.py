"""Random programs for StarPU itself, without training: some like those of `starpullm fuzz`, always the same."""

from __future__ import annotations

from collections.abc import Iterator

from starpullm.checks.cases import Case, SuiteOptions
from starpullm.checks.check import Needs, StandaloneCheck, check
from starpullm.checks.result import Finding, Result
from starpullm.fuzz.configuration import Configuration
from starpullm.fuzz.draw import random_program
from starpullm.fuzz.interpreter import Interpreter, built_interpreter, can_compile

_PLACES = "eager-1 prio-1 dmda-2 ws-2 lws-2 dmdar-2 lws-3 dmdas-3 eager-3 prio-3".split()
"""Schedulers and numbers of workers; each has other programs."""
_PROGRAMS, _OPERATIONS = 20, 96
_TIME_LIMIT = 40.0  # seconds of a program, which takes milliseconds; the suite's limit of a case is 60


@check
class RandomPrograms(StandaloneCheck):
    """Run random programs with StarPU, whose tasks compare what they see with a serial oracle.

    The programs are the same in every run, and have no operation that StarPU 1.4.10 fails with. ``starpullm fuzz``
    draws others, and writes one that fails in C.
    """

    family, unit = "fuzz", "programs"
    claim = "in random programs for StarPU, each task sees what a serial interpreter says"
    fault = "StarPU does otherwise than a serial interpreter"
    cannot_see = "programs over ranks, and others that weren't drawn; what docs/fuzz.md leaves out"
    needs = Needs(ranks=(1, 1))

    def cases(self, options: SuiteOptions, ranks: int) -> Iterator[Case]:
        """Yield a case for each scheduler and number of workers."""
        yield from (Case(what=place) for place in _PLACES)

    def run(self, context: object, case: Case) -> Result:
        """Run the programs of a case until one fails, if they can be compiled."""
        if not can_compile():
            return self.result(compared=0, undecided="there is no C compiler, or it finds no headers of StarPU")
        scheduler, workers = case.what.split("-")
        configuration = Configuration(scheduler, int(workers))
        with built_interpreter() as directory, Interpreter(directory, configuration) as interpreter:
            first = _PLACES.index(case.what) * _PROGRAMS
            for number in range(first, first + _PROGRAMS):
                if failure := interpreter.run(random_program(number, _OPERATIONS).text, _TIME_LIMIT):
                    sentence = f"program {number} in {configuration}: {failure.sentence}"
                    finding = Finding(sentence, {"details": failure.details.replace("\n", "; ")})
                    return self.result(compared=number - first + 1, findings=[finding])
        return self.result(compared=_PROGRAMS)
