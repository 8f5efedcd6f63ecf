"""Makes the golden records with an unmodified llm.c, or tells how far the same llm.c with the platform's libm is away.

    python -m tests.records LLM.C [RECORD]...             # writes starpullm/golden/RECORD.json
    python -m tests.records --fused LLM.C [RECORD]...     # writes the digest of its results with fused sums of products
    python -m tests.records --distance LLM.C [RECORD]...  # writes nothing

LLM.C is a checkout of llm.c, whose ``train_gpt2.c`` is compiled here. From the records only models, tokens and settings
are taken. The longest takes minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starpullm.checks.llmc_reference import train_llmc
from starpullm.checks.training import make_inputs
from starpullm.data.generator import generate_tokens
from starpullm.files.atomic import atomic_write
from starpullm.golden.llmc import LlmcModel
from starpullm.golden.records import SHIPPED_RECORDS, TENSOR_GROUPS, GoldenRecord, digest_of_steps, shipped_record
from starpullm.options import ARITHMETICS

CHECKOUT = Path(__file__).parents[2]

FLAGS = ("-O2", "-ffp-contract=off", "-fopenmp", "-DOMP", "-DTESTING", "-fPIC", "-shared")
"""Of both files. The linker takes a function from the object itself first (-Bsymbolic-functions)."""

FUSED_FLAGS = ("-mfma", "-include", str(Path(__file__).with_name("fused.h")))
"""In addition, on x86-64 and by GCC: where products are added to sums, the compiler fuses them."""

DISTANCE_STEPS = 10


def build(checkout: Path, library: Path, *flags: str, own: bool) -> Path:
    """Compile llm.c into a shared object, with the library's functions or the platform's."""
    functions = [str(Path(__file__).with_name("functions.c")), "-I", str(CHECKOUT / "native/src")] if own else []
    command = ["cc", *FLAGS, *flags, str(checkout / "train_gpt2.c"), *functions, "-Wl,-Bsymbolic-functions"]
    subprocess.run([*command, "-o", str(library), "-lm"], check=True)
    return library


def make_record(library: Path, record: GoldenRecord, directory: Path) -> None:
    """Write what llm.c computes over a record's steps; of fused sums the digest."""
    content: dict[str, Any] = json.loads(record.path.read_text("utf-8"))
    steps = train_llmc(library, record, make_inputs(record, directory))
    if any(step.pop("platform_functions") for step in steps):
        raise SystemExit(f"{library}: calls the platform's libm, expected the library's functions")
    if record.arithmetic == ARITHMETICS[0]:
        content["steps"] = steps
    else:
        content["fused_sha256"] = digest_of_steps(steps)
    head = json.dumps({name: value for name, value in content.items() if name != "steps"})
    lines = ",\n".join(json.dumps(step) for step in content["steps"])
    with atomic_write(CHECKOUT / "starpullm/golden" / record.path.name) as file:
        file.write(f'{head.removesuffix("}")}, "steps": [\n{lines}\n]}}\n'.encode())
    print(f"{record.path.name}: {len(steps)} steps, {record.arithmetic}")


def distance(own: NDArray[np.float32], platform: NDArray[np.float32]) -> float:
    """Return the largest difference of two tensors' elements, in units of the last place of the first's largest one."""
    return float(np.abs(own.astype(np.float64) - platform).max() / np.spacing(np.abs(own).max()))


def show_distance(libraries: list[Path], record: GoldenRecord, directory: Path) -> None:
    """Train with both llm.c; print how many tensors differ after some steps, and how far at most."""
    checkpoint = make_inputs(record, directory)
    models = [LlmcModel(library, checkpoint) for library in libraries]
    for step in range(DISTANCE_STEPS):
        batch = generate_tokens(record.seed, step, record.batch_size, record.seq_len, record.model.vocab_size)
        losses = [model.forward_backward(*batch) for model in models]
        for model in models:
            model.update(record, step + 1)
        if step + 1 not in (1, DISTANCE_STEPS):
            continue
        distances: dict[tuple[str, str], float] = {}
        for group in TENSOR_GROUPS:
            own, platform = (dict(model.tensors(group)) for model in models)
            distances |= {(group, name): distance(values, platform[name]) for name, values in own.items()}
        different = [name for name, found in distances.items() if found]
        furthest = max(distance for (group, _), distance in distances.items() if group == "params")
        print(
            f"{record.name}, {step + 1} steps: {len(different)} of {len(distances)} tensors differ, parameters by "
            f"at most {furthest:.0f} ULPs of their largest element, loss {losses[0]:.9g} and {losses[1]:.9g}"
        )


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, metavar="LLM.C")
    parser.add_argument("records", nargs="*", metavar="RECORD", default=list(SHIPPED_RECORDS))
    parser.add_argument("--distance", action="store_true")
    parser.add_argument("--fused", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starpullm-records-") as name:
        directory = Path(name)
        flags = FUSED_FLAGS if arguments.fused else ()
        own = build(arguments.checkout, directory / "libown.so", *flags, own=True)
        if arguments.distance:
            libraries = [own, build(arguments.checkout, directory / "libplatform.so", own=False)]
        for record in map(shipped_record, arguments.records):
            if arguments.distance:
                show_distance(libraries, record, directory)
            else:
                arithmetic = ARITHMETICS[arguments.fused]
                make_record(own, replace(record, arithmetic=arithmetic), directory)


main()
