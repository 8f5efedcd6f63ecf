"""The model that a record's run starts from."""

from __future__ import annotations

from pathlib import Path

from starpullm.data.generator import generate_checkpoint, generated_tokens_sha256
from starpullm.errors import FormatError
from starpullm.golden.records import GoldenRecord


def make_inputs(record: GoldenRecord, directory: Path) -> Path:
    """Generate the record's checkpoint in a directory, verify the hashes of checkpoint and tokens, and return its path.

    Raises
    ------
    FormatError
        If the hash of the generated checkpoint or tokens isn't the record's, so that nothing can be compared.
    FileError
        If the checkpoint can't be written.
    """
    tokens = generated_tokens_sha256(
        record.seed, record.num_steps, record.batch_size, record.seq_len, record.model.vocab_size
    )
    if tokens != record.tokens_sha256:
        raise FormatError(f"{record.path}, key tokens_sha256: expected {tokens}, found {record.tokens_sha256}")
    path = directory / f"{record.name}.bin"
    checkpoint = generate_checkpoint(path, record.model, record.seed)
    if checkpoint != record.checkpoint_sha256:
        path.unlink()
        raise FormatError(
            f"{record.path}, key checkpoint_sha256: expected {checkpoint}, found {record.checkpoint_sha256}"
        )
    return path
