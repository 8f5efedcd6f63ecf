"""What a user of the plugin reads: differing tensors, usage errors, the summary and the JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from starpullm.fuzz.interpreter import compile_c, starpu_flags
from starpullm.golden.records import shipped_record

from .conftest import Run

SUITE = ("--pyargs", "starpullm.suite")
PARITY = (*SUITE, "-k", "parity- and not fused")


@pytest.fixture
def tampered(tmp_path: Path) -> Path:
    """Tiny's record with another digest of two tensors of the second step."""
    content: dict[str, Any] = json.loads(shipped_record("tiny").path.read_text())
    step = content["steps"][1]
    for group, name in (("grads", "fcw[1]"), ("activations", "atty[0]")):
        step[group][name] = "0" * len(step[group][name])
    path = tmp_path / "tampered.json"
    path.write_text(json.dumps(content))
    return path


def test_differing_bits_name_the_first_tensor_in_execution_order(
    run: Run, tampered: Path, pytester: pytest.Pytester
) -> None:
    """On the terminal, and in the report's data."""
    options = ("--starpullm-sub-batches", "1", "--starpullm-records", f"tiny,{tampered}", "--starpullm-seed", "7")
    result = run(*PARITY, *options, "--starpullm-report", "report.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "parity *1x1 lws *1 passed, 1 failed*",
            "*FAILURES*",
            "parity of tampered-1-ordered on 1x1 lws: failed: tensors have other bits than llm.c's (2 in 570 tensors); "
            "3 steps against golden record",
            "  differs  step 1, activations/atty[[]0[]]  other bits",
            "    expected digest  00000000000000000000000000000000",
            "    expected values  the record has a digest only, and the plain model has another one",
            "    written last by  attention_forward (step 1, sub-batch 0, layer 0) on worker 0 of rank 0",
            "  differs  step 1, grads/fcw[[]1[]]  other bits",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    report = json.loads((pytester.path / "report.json").read_text())
    assert report["seed"] == 7
    assert report["environment"]["starpu_version"].startswith("1.4.")
    assert report["isolation"] == {"processes": 1, "served": 2}
    passed, failed = report["tests"]
    assert (passed["family"], passed["configuration"], passed["outcome"]) == ("parity", "1x1 lws", "passed")
    assert passed["results"][0]["compared"] == 570
    assert failed["outcome"] == "failed"
    tensors = [finding["where"] for finding in failed["results"][0]["findings"]]
    assert tensors == ["step 1, activations/atty[0]", "step 1, grads/fcw[1]"]
    assert failed["message"].splitlines() == failed["results"][0]["lines"]


_LEAVES_OUT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <starpu.h>
#include <string.h>

/* With several workers, no gelu_forward is run. */
int starpu_task_submit(struct starpu_task *task)
{
    if (starpu_worker_get_count() > 1 && strcmp(task->name, "gelu_forward") == 0)
        task->where = STARPU_NOWHERE;
    return ((int (*)(struct starpu_task *))dlsym(RTLD_NEXT, "starpu_task_submit"))(task);
}
"""


def test_a_failure_tells_the_runtime_from_a_kernel(
    run: Run, tampered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--starpullm-sub-batches", "1", "--starpullm-records")
    result = run(*PARITY, *options, str(tampered), partition="2x1")
    result.stdout.fnmatch_lines(["    again on 1x1, in one process  fails too: suspect a kernel"])
    library = tmp_path / "leaves_out.so"
    compile_c(_LEAVES_OUT, library, ["-shared", "-fPIC", *starpu_flags()])
    monkeypatch.setenv("LD_PRELOAD", str(library))
    result = run(*PARITY, *options, "tiny", partition="2x1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*step 0, activations/fch_gelu*", "    again on 1x1, in one process  passes: suspect the runtime"]
    )


LLMC = (*SUITE, "-k", "parity_with_llmc", "--starpullm-records", "tiny", "--starpullm-sub-batches", "2")


def test_llmc_is_a_reference_or_says_why_not(run: Run, llmc_stand_in: Callable[..., Path]) -> None:
    """tests/native/test_llmc.py has other kinds, and one whose bits differ."""
    for library in (llmc_stand_in(), llmc_stand_in("PLATFORM")):
        run(*LLMC, "--starpullm-llmc-library", str(library)).assert_outcomes(passed=2)
    result = run(*LLMC, "--starpullm-llmc-library", str(llmc_stand_in("CRASHES")))
    result.assert_outcomes(failed=2)
    sentence = "llm.c in *: the process was ended by SIGSEGV (*, phase llm.c's forward)"
    result.stdout.fnmatch_lines([f"parity with llmc of * on 1x1 lws: no result: RuntimeFailureError: {sentence}"])


@pytest.mark.parametrize("functions", [(), ("PLATFORM",)])
def test_a_runtime_has_the_functions_of_the_reference(
    run: Run, pytester: pytest.Pytester, llmc_stand_in: Callable[..., Path], functions: tuple[str, ...]
) -> None:
    """Whatever the order of the fixtures; later tests and checks have the library's own again."""
    pytester.makepyfile(
        """
        from starpullm.data.generator import generate_tokens

        def has_bits(trainer, golden, record):
            golden_batch = golden.seed, 0, golden.batch_size, golden.seq_len, golden.model.vocab_size
            loss = trainer.step(*generate_tokens(*golden_batch))
            assert loss.tobytes()[::-1].hex() == record.steps[0].mean_loss_bits
            digests = record.steps[0].digests["activations"]
            from starpullm.golden.records import tensor_digest
            assert tensor_digest(trainer.tensor("activations", "logits")) == digests["logits"]

        def test_reference(starpullm_trainer, starpullm_golden, starpullm_reference):
            has_bits(starpullm_trainer, starpullm_golden, starpullm_reference.record)

        def test_runtime(starpullm_runtime):
            assert not starpullm_runtime.platform_functions

        def test_record(starpullm_trainer, starpullm_golden):
            has_bits(starpullm_trainer, starpullm_golden, starpullm_golden)

        def test_reference_first(starpullm_reference, starpullm_golden, starpullm_trainer):
            has_bits(starpullm_trainer, starpullm_golden, starpullm_reference.record)
        """
    )
    library = str(llmc_stand_in(*functions))
    options = ("--starpullm-records=tiny", "--starpullm-partition=1x1", "--starpullm-llmc-library", library)
    run(*options).assert_outcomes(passed=4)
    suite = (*SUITE, "-k", "parity_with_llmc or gradient_bounds", "--starpullm-sub-batches=1", *options)
    result = run(*suite)
    result.assert_outcomes(passed=result.parseoutcomes()["passed"])


def test_llmc_that_is_not_asked_for_is_no_failure(run: Run) -> None:
    """A comparison with llm.c is selected if there is an llm.c; strict mode can be used without one."""
    for options in ((), ("--starpullm-strict",)):
        result = run(*LLMC, *options)
        assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
        result.stdout.fnmatch_lines(["* deselected*"])


def test_strict_leaves_other_tests_alone(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n\ndef test_skipped():\n    pytest.skip('not now')\n")
    run("--starpullm-strict").assert_outcomes(skipped=1)


PASSES = "def test_it(starpullm_validation):\n    pass\n"


def test_report_is_in_the_cache_unless_told_otherwise(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PASSES)
    result = run(f"--rootdir={pytester.path}", cache=True)
    [path] = pytester.path.glob(".pytest_cache/**/report.json")
    result.stdout.fnmatch_lines([f"report: {path}"])
    assert [test["outcome"] for test in json.loads(path.read_text())["tests"]] == ["passed"]
    result = run()
    result.stdout.fnmatch_lines(["report: not written: pytest's cache is switched off, *--starpullm-report"])


@pytest.mark.parametrize(("make", "reason"), [(os.mkfifo, "expected a regular file"), (os.mkdir, "Is a directory")])
def test_a_report_that_cannot_be_written(
    run: Run, pytester: pytest.Pytester, make: Callable[[Path], None], reason: str
) -> None:
    """The results are shown nevertheless, and a device isn't replaced."""
    pytester.makepyfile(PASSES)
    path = pytester.path / "report.json"
    make(path)
    result = run("--starpullm-report", "report.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["other *1 passed*", f"--starpullm-report: {path}: can't be written: {reason}"])
    assert not path.is_file()


def test_the_suite_without_its_plugin(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("-p", "no:starpullm", "--pyargs", "starpullm.suite", timeout=60)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: starpullm: the suite needs starpullm's plugin, *"])
    result.stdout.no_fnmatch_line("INTERNALERROR*")


def test_xdist(run_apart: Run, pytester: pytest.Pytester) -> None:
    """There is one report, one summary with the costs of all workers' processes, and one StarPU at a time."""
    pytester.makepyfile(TURNS)
    result = run_apart("-p", "xdist", "-n", "2", "--starpullm-report", "report.json", "--starpullm-time-limit", "20")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["StarPU 1.4.*", "other *1x1 lws *4 passed*", "isolation: 2 processes served 4 checks"])
    report = json.loads((pytester.path / "report.json").read_text())
    assert len(report["tests"]) == report["isolation"]["served"] == 4
    assert report["environment"]["starpu_version"].startswith("1.4.")


TURNS = """
import os
import time
from pathlib import Path

import pytest


def alone(place, directory):
    file = Path(directory, "here")
    assert not file.exists()
    os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    time.sleep(0.2)
    file.unlink()


@pytest.mark.parametrize("number", range(4))
def test_turns(starpullm_check, request, number):
    starpullm_check(alone, directory=str(request.config.rootpath))
"""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--starpullm-partition", "2by1"), 'partition: found "2by1", expected WxT, for example 2x1, or all'),
        (("--starpullm-partition", "3x1"), "found 3x1, which needs 3 cores, expected at most 2: *"),
        (("--starpullm-schedulers", "fast"), '--starpullm-schedulers: found "fast", expected one of *'),
        (
            ("--starpullm-records", "huge"),
            "--starpullm-records: *huge: no such file, expected one or the name of *: tiny, *",
        ),
        (("--starpullm-reductions", "ordered,magic"), '--starpullm-reductions: found "magic", expected one of *'),
        (("--starpullm-sub-batches", "two"), '--starpullm-sub-batches: found "two", expected positive numbers *'),
        (("--starpullm-sub-batches", "7"), "--starpullm-sub-batches: expected a number that divides the batch *"),
        (("--starpullm-time-limit", "0"), "--starpullm-time-limit: found 0, expected a positive number of seconds, *"),
        (("--starpullm-time-limit", "inf"), "--starpullm-time-limit: found inf, expected *, at most 604800"),
        (("--starpullm-time-limit", "nan"), "--starpullm-time-limit: found nan, expected *, at most 604800"),
        (("--starpullm-llmc-library", "nowhere.so"), "--starpullm-llmc-library: *nowhere.so: no such file"),
        (("--starpullm-library", "nowhere.so"), "--starpullm-library: *nowhere.so: no such file"),
        (("--starpullm-report", "no/where.json"), "--starpullm-report: *where.json: there is no directory *no"),
    ],
)
def test_usage_errors(run: Run, options: tuple[str, ...], sentence: str) -> None:
    result = run(*SUITE, *options, partition=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{sentence}"])


def test_a_library_that_is_none(run: Run, pytester: pytest.Pytester) -> None:
    library = pytester.path / "library.so"
    library.write_text("no library")
    result = run(*SUITE, "--starpullm-library", str(library), partition=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"ERROR: starpullm: this machine can't be inspected: {library}: doesn't state its StarPU's limits, *"]
    )


STRANGER = """
import pytest


@pytest.fixture
def golden():
    return "mine"


@pytest.fixture
def reference(golden):
    return golden


@pytest.fixture
def trainer():
    return "a coach"


@pytest.mark.throughput
@pytest.mark.parity
@pytest.mark.mutation
def test_own_names(golden, reference, trainer):
    assert (golden, reference, trainer) == ("mine", "mine", "a coach")
"""


def test_a_stranger_s_fixtures_and_markers_are_its_own(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(STRANGER)
    pytester.makeini("[pytest]\nmarkers =\n    throughput\n    parity\n    mutation\n")
    result = run("--strict-markers", partition=None)
    result.assert_outcomes(passed=1, deselected=0)
    assert "starpullm =" not in result.stdout.str()
    assert "report" not in result.stdout.str().replace("runreport", "")


def test_a_parameter_that_has_a_fixture_s_name(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n\n@pytest.mark.parametrize(('starpullm_golden', 'other'), [(1, 2)])\n"
        "def test_own(starpullm_golden, other):\n    assert starpullm_golden == 1\n"
    )
    run(partition=None).assert_outcomes(passed=1)


def test_header_and_summary(run: Run) -> None:
    """Four checks give the lines; tox runs all the suite."""
    cases = ("--starpullm-records", "tiny", "--starpullm-sub-batches", "2", "--starpullm-reductions", "ordered")
    checks = ("-k", "(parity- or observed_order or gradient_bounds or bit_stability) and not (tiles3 or fused)")
    result = run(*SUITE, *cases, *checks, "--starpullm-strict", partition="all")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "starpullm: *libstarpullm.so",
            "starpullm: StarPU 1.4.*, kernels *, 2 cores, *",
            "*= starpullm =*",
            "parity *1x1 lws *1 passed *s",
            "dependencies *2x1 lws *1 passed *s",
            "reduction *1x2 lws *1 passed *s",
            "reduction *all *1 passed *s",
            "isolation: 4 processes served * checks",
        ]
    )


def test_fresh_processes(run: Run) -> None:
    options = ("--starpullm-records", "tiny", "--starpullm-fresh", "--starpullm-sub-batches", "all")
    result = run(*PARITY, *options)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["isolation: 3 processes served 3 checks"])
