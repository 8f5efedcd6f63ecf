"""Matmuls by a BLAS: within the bound that any order of a sum has, never called strict, and clear when there is none.

The BLAS is the OpenBLAS of the test requirements.
"""

from __future__ import annotations

import ctypes.util
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from starpullm import Runtime, Trainer
from starpullm.binding.library import find_blas
from starpullm.checks.result import json_value
from starpullm.data.generator import generate_tokens
from starpullm.errors import InvalidArgumentError
from starpullm.golden.records import shipped_record
from starpullm.resume import training_state

from .children import TWO_CORES, Reply, attempt, run_cli, run_function
from .products import product_errors

OPENBLAS = "scipy-openblas32"
BLAS = ("--matmul", "blas", "--blas-library", OPENBLAS)
C_COMPILER = shutil.which("cc") or ""


def products(checkpoint: str, name: str, partition: str, sub_batches: int, blas: str | None) -> Any:
    record = shipped_record(name)
    batch = generate_tokens(record.seed, 0, record.batch_size, record.seq_len, record.model.vocab_size)
    with (
        Runtime(partition, matmul="blas" if blas else "strict", blas_library=blas) as runtime,
        Trainer(
            runtime,
            checkpoint,
            batch_size=record.batch_size,
            seq_len=record.seq_len,
            sub_batches=sub_batches,
            keep_activations=True,
        ) as trainer,
    ):
        errors = product_errors(trainer, *batch)
        fch = trainer.tensor("activations", "fch").tobytes().hex()
        return {"errors": json_value(errors), "matmul": runtime.matmul, "fch": fch}


@pytest.mark.parametrize(
    ("name", "partition", "sub_batches"),
    [("odd", "1x2", 1), ("odd", "2x1", 3)],
)
def test_products_are_within_their_bounds(
    record_checkpoint: Callable[[str], Path], name: str, partition: str, sub_batches: int
) -> None:
    """And so are the strict ones, whose bits are others: it was the BLAS that computed."""
    checkpoint = record_checkpoint(name)
    by_blas = run_function(products, checkpoint, name, partition, sub_batches, OPENBLAS, environment=TWO_CORES)
    strict = run_function(products, checkpoint, name, partition, sub_batches, None, environment=TWO_CORES)
    layers = shipped_record(name).model.num_layers
    for result in (by_blas, strict):
        assert not [error for error in result["errors"] if error["num_beyond"]]
        assert 0 < max(error["ratio"] for error in result["errors"]) <= 1
        assert len(result["errors"]) == 2 * (4 * layers + 1) + 4 + 12 * layers
    assert strict["matmul"] == "strict"
    assert by_blas["matmul"].startswith("blas (libscipy_openblas.so, OpenBLAS 0.")
    assert by_blas["matmul"].endswith("integers of 32 bits)")
    assert by_blas["fch"] != strict["fch"]


def wrong_product(checkpoint: str) -> Any:
    """A product of which one element is wrong by far less than the tensor's largest."""
    record = shipped_record("tiny")
    batch = generate_tokens(record.seed, 0, record.batch_size, record.seq_len, record.model.vocab_size)
    with (
        Runtime() as runtime,
        Trainer(
            runtime, checkpoint, batch_size=record.batch_size, seq_len=record.seq_len, keep_activations=True
        ) as trainer,
    ):
        read = trainer.tensor

        def disturbed(group: str, name: str, layer: int | None = None, **options: Any) -> Any:
            values = read(group, name, layer, **options)
            if (group, name, layer) == ("activations", "fch", 1):
                values[1, 3, 5] += 1e-5 * abs(values).max()
            return values

        trainer.tensor = disturbed  # type: ignore[method-assign]
        return json_value(product_errors(trainer, *batch))


def test_a_wrong_product_is_found(tiny_checkpoint: Path) -> None:
    (beyond,) = (error for error in run_function(wrong_product, tiny_checkpoint) if error["num_beyond"])
    assert beyond["tensor"] == "fch[1]"
    assert beyond["num_beyond"] == 1
    assert beyond["index"] == [11, 5]  # B 2, T 8: row 1·8 + 3


def strict_again(checkpoint: str) -> list[Any]:
    """Strict, by BLAS, and strict, one after the other in one process."""
    batch = generate_tokens(1, 0, 8, 64, 1000)
    losses = []
    for matmul, library in (("strict", None), ("blas", OPENBLAS), ("strict", None)):
        with (
            Runtime("1x2", matmul=matmul, blas_library=library) as runtime,
            Trainer(runtime, checkpoint, batch_size=8, seq_len=64) as trainer,
        ):
            for _ in range(3):
                loss = trainer.step(*batch)
            losses.append((runtime.matmul, trainer.tensor("params", "qkvw").tobytes().hex(), float(loss)))
    return losses


def test_a_runtime_after_it_is_strict(small_checkpoint: Path) -> None:
    (first, bits, loss), (blas, blas_bits, blas_loss), (last, bits_again, _) = run_function(
        strict_again, small_checkpoint, environment=TWO_CORES
    )
    assert (first, last) == ("strict", "strict")
    assert bits == bits_again
    assert blas.startswith("blas (")
    assert blas_bits != bits
    assert blas_loss == pytest.approx(loss, rel=1e-4)


def test_parity_says_not_comparable() -> None:
    run = run_cli("parity", *BLAS, environment=TWO_CORES).check(3)
    lines = run.stdout.splitlines()
    assert lines[-1] == "parity: not comparable"
    for line in lines[:-1]:
        assert "not comparable: matmuls by blas (libscipy_openblas.so, OpenBLAS" in line
        assert "expected strict ones" in line
    results = json.loads(run_cli("parity", *BLAS, "--json", environment=TWO_CORES).check(3).stdout)
    assert {result["outcome"] for result in results} == {"not comparable"}
    assert all(result["facts"]["matmul"].startswith("blas (") and not result["compared"] for result in results)


def test_training_and_its_states_say_it(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path) -> None:
    sizes = ("--tokens", tiny_tokens, "--batch-size", 2, "--seq-len", 8, "--state-dir", tmp_path / "states")
    train = ("train", "--checkpoint", tiny_checkpoint, *sizes, "--steps", 2, "--save-every", 1)
    run = run_cli(*train, *BLAS).check()
    assert run.stdout.splitlines()[0].startswith("matmuls: blas (libscipy_openblas.so")
    assert run.stdout.splitlines()[0].endswith(", not strict")
    # What was once not strict stays so, whoever goes on with it.
    resume = ("train", "--resume", tmp_path / "states", *sizes, "--steps", 3, "--save-every", 1, "--json")
    run = run_cli(*resume).check()
    assert json.loads(run.stdout)["matmul"] == "strict"
    assert "step-000000000002: a BLAS or the platform's libm computed its steps: not strict" in run.stderr
    assert [run_function(is_strict, tmp_path / "states")] == [[3, False]]


def is_strict(states: str) -> list[Any]:
    state = training_state(states)
    return [state.step, state.arithmetic == "strict"]


# ---- What can't serve ----


def refused(libraries: list[str]) -> list[Reply]:
    return [attempt(lambda name: Runtime(matmul="blas", blas_library=name).close(), library) for library in libraries]


@pytest.fixture
def shared_library(tmp_path: Path) -> Callable[[str, str], Path]:
    """Return a function that compiles C source to a shared library of a name."""

    def compiled(name: str, source: str) -> Path:
        path = tmp_path / name
        subprocess.run(
            [C_COMPILER, "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=source.encode(), check=True, timeout=60
        )
        return path

    return compiled


def test_what_cannot_serve(tmp_path: Path, shared_library: Callable[[str, str], Path]) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library")
    empty = shared_library("libempty.so", "int nothing;")
    openmp = shared_library(
        "libopenmp.so",
        'char *openblas_get_config(void) { return "OpenBLAS 0.3.99 USE_OPENMP"; }'
        "int openblas_get_parallel(void) { return 2; } void cblas_sgemm(void) {}",
    )
    expected = [
        (tmp_path / "none.so", f"{tmp_path / 'none.so'}: no such file, expected a BLAS's shared library"),
        (text, f"blas_library: {text}: can't be opened: "),
        (empty, f"blas_library: {empty}: has no function cblas_sgemm, expected a BLAS with its C interface"),
        (openmp, f"blas_library: {openmp}: is built with OpenMP, whose threads can't be limited per worker"),
        ("no-such-blas", 'blas_library: found "no-such-blas", which the dynamic linker doesn\'t know'),
    ]
    replies = run_function(refused, [str(library) for library, _ in expected])
    for (_, sentence), reply in zip(expected, replies, strict=True):
        assert reply["raised"] == "InvalidArgumentError"
        assert reply["text"].startswith(sentence), reply


def integers_of_64_bits(checkpoint: str, library: str) -> str:
    with (
        Runtime(matmul="blas", blas_library=library) as runtime,
        Trainer(runtime, checkpoint, batch_size=2, seq_len=8) as trainer,
    ):
        trainer.step(*generate_tokens(1, 0, 2, 8, 61))
        return runtime.matmul


@pytest.mark.parametrize(
    ("names", "config"),
    [("cblas_sgemm64_ openblas_get_config64_", ""), ("cblas_sgemm openblas_get_config", "USE64BITINT")],
)
def test_integers_of_64_bits(
    tiny_checkpoint: Path, shared_library: Callable[[str, str], Path], names: str, config: str
) -> None:
    """A product whose sizes are read as integers of 64 bits, of which the upper halves would be anything."""
    sgemm, get_config = names.split()
    source = f"""
        #include <stdint.h>
        #include <stdlib.h>
        char *{get_config}(void) {{ return "OpenBLAS 0.3.99 {config}"; }}
        void {sgemm}(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
        {{
            if (order != 101 || m > 512 || n > 512 || k > 512 || lda > 512 || ldb > 512 || ldc > 512)
                abort();
            for (int64_t i = 0; i < m; i++)
                for (int64_t j = 0; j < n; j++) {{
                    float sum = 0;
                    for (int64_t l = 0; l < k; l++)
                        sum += (ta == 112 ? a[l * lda + i] : a[i * lda + l]) *
                               (tb == 112 ? b[j * ldb + l] : b[l * ldb + j]);
                    c[i * ldc + j] = alpha * sum + (beta ? beta * c[i * ldc + j] : 0);
                }}
        }}"""
    library = shared_library("libblas64.so", source)
    found = run_function(integers_of_64_bits, tiny_checkpoint, library)
    assert found == "blas (libblas64.so, OpenBLAS 0.3.99, kernels for unknown, integers of 64 bits)"


def refused_options() -> list[Reply]:
    return [
        attempt(lambda: Runtime(matmul="fast").close()),
        attempt(lambda: Runtime(blas_library="openblas").close()),
    ]


def test_options_that_do_not_fit() -> None:
    unknown, unused = run_function(refused_options)
    assert unknown["text"] == 'matmul: found "fast", expected one of strict, blas'
    assert unused["text"] == 'blas_library: found "openblas" with matmul "strict", expected "blas"'


def test_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A name is the dynamic linker's; a path becomes absolute."""
    library = tmp_path / "libsome.so"
    library.touch()
    monkeypatch.chdir(tmp_path)
    assert find_blas("libsome.so") == str(library)
    assert find_blas("m") == ctypes.util.find_library("m")
    assert find_blas(OPENBLAS).endswith("libscipy_openblas.so")
    with pytest.raises(InvalidArgumentError, match=r"gone\.so: no such file"):
        find_blas(tmp_path / "gone.so")
