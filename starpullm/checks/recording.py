"""New golden records: a live llm.c makes them, after it has shown on shipped records that it has their bits."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from starpullm.checks.llmc import run_llmc, train_llmc
from starpullm.checks.training import make_inputs
from starpullm.data.generator import generate_checkpoint, generated_tokens_sha256
from starpullm.errors import InvalidArgumentError
from starpullm.files.atomic import atomic_write
from starpullm.files.model import ModelConfig
from starpullm.golden.records import GoldenRecord, shipped_record
from starpullm.machine import libm_fingerprint

KNOWN_RECORDS: Final = ("tiny", "odd")
"""The second has sizes that are no multiple of a vector, and weight decay."""


def make_record(
    library: Path,
    out: Path,
    *,
    model: ModelConfig,
    seed: int,
    batch_size: int,
    seq_len: int,
    num_steps: int,
    settings: Mapping[str, float],
) -> GoldenRecord:
    """Train a generated model with llm.c and write its record, atomically, to the file ``out``.

    ``library`` is llm.c as a shared object; ``settings`` are those of AdamW. `InvalidArgumentError` is raised if its
    bits aren't those of the known records, or if they can't be compared on this machine's libm.
    """
    with tempfile.TemporaryDirectory(prefix="starpullm-record-") as name:
        directory = Path(name)
        for known in KNOWN_RECORDS:
            _check_bits(library, shipped_record(known), directory)
        checkpoint = directory / "model.bin"
        sizes = {"batch_size": batch_size, "seq_len": seq_len}
        content: dict[str, Any] = {
            "config": {"name": out.stem, "seed": seed, **asdict(model), **sizes, "steps": num_steps, **settings},
            "checkpoint_sha256": generate_checkpoint(checkpoint, model, seed),
            "tokens_sha256": generated_tokens_sha256(seed, num_steps, **sizes, vocab_size=model.vocab_size),
            "libm_fingerprint": libm_fingerprint(),
        }
        path = directory / "record.json"
        path.write_text(json.dumps(content))
        content["steps"] = train_llmc(library, GoldenRecord.load(path, with_results=False), checkpoint)
        path.write_text(_text(content), "utf-8")
        GoldenRecord.load(path)
        with atomic_write(out) as file:
            file.write(path.read_bytes())
    return GoldenRecord.load(out)


def _text(content: Mapping[str, Any]) -> str:
    """Return a record as JSON with a line for each step."""
    head = json.dumps({name: value for name, value in content.items() if name != "steps"})
    steps = ",\n".join(json.dumps(step) for step in content["steps"])
    return f'{head.removesuffix("}")}, "steps": [\n{steps}\n]}}\n'


def _check_bits(library: Path, record: GoldenRecord, directory: Path) -> None:
    """Raise an error unless llm.c has the bits of a record."""
    functions = record.different_functions(libm_fingerprint())
    if functions:
        raise InvalidArgumentError(
            f"{library}: its bits can't be compared with the golden record {record.name}: this libm's "
            f"{', '.join(functions)} differ from those of the record's"
        )
    different, compared = run_llmc(library, record, make_inputs(record, directory), directory).differences()
    if different:
        raise InvalidArgumentError(
            f"{library}: {different} of {compared} tensors differ from the golden record {record.name}, expected none: "
            "was it built as docs/numerics.md says?"
        )
