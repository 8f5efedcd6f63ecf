"""What a run starts from: the newest complete training state in a folder; and what all its ranks must start with."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from starpullm.binding import prototypes
from starpullm.errors import InvalidArgumentError
from starpullm.files.checkpoint import checkpoint_config
from starpullm.files.header import StrPath, file_errors, sha256_of
from starpullm.files.kinds import STATES, expecting
from starpullm.files.model import ModelConfig
from starpullm.processes import Comm
from starpullm.processes.mpirun import host_name
from starpullm.processes.progress import report_phase
from starpullm.processes.ranks import failing_together
from starpullm.schedules import described

_END_BYTES = 4096  # docs/formats.md


@dataclass(frozen=True)
class TrainingState:
    """The description of a saved training state, without its tensors.

    ``step`` is the number of updates. ``batches`` is the number of batches read, each of ``batch_size`` sequences (all
    ranks together) of ``seq_len`` tokens. ``ranks`` is the number of ranks that saved it. ``seed`` and ``data_id`` are
    those of ``Trainer.save_state``. ``passed_over`` says why the newest incomplete state after this one can't be used;
    it is empty if there is none. ``arithmetic`` is ``"strict"``, ``"fused"``, or ``"none"`` if a BLAS or the
    platform's libm computed any step.
    """

    path: Path
    config: ModelConfig
    step: int
    batches: int
    batch_size: int
    seq_len: int
    seed: int
    data_id: int
    ranks: int
    passed_over: str
    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    arithmetic: str


def training_state(path: str | os.PathLike[str]) -> TrainingState:
    """Return the newest complete training state in a folder, or the state whose own folder this is.

    Without a complete state, the message of the `FormatError` says what is wrong with the newest.
    """
    with expecting(STATES, Path(path)):
        (info,) = prototypes.results("training_state_info", prototypes.c_string("path", path))
    same = ("step", "batches", "batch_size", "seq_len", "seed", "data_id", "ranks")
    return TrainingState(
        path=Path(os.fsdecode(info.path)),
        config=model_config(info.config),
        passed_over=prototypes.text(info.passed_over),
        learning_rate=info.learning_rate,
        betas=(info.beta1, info.beta2),
        eps=info.eps,
        weight_decay=info.weight_decay,
        arithmetic=("strict", "none", "fused")[info.arithmetic],
        **{name: getattr(info, name) for name in same},
    )


def model_config(struct: Any) -> ModelConfig:
    """Return the sizes that a struct of the native library holds."""
    return ModelConfig(**{field.name: getattr(struct, field.name) for field in fields(ModelConfig)})


def options_of_all_ranks(options: Any, checkpoint: StrPath | None, resume: StrPath | None) -> dict[str, object]:
    """Return what must be equal on all ranks: options, and the contents of files, as each machine may have a copy."""
    report_phase("comparing what the ranks read")
    own = ("checkpoint", "resume", "memory_limit", "pipeline")
    same = {name: getattr(options, name) for name, *_ in options._fields_ if name not in own}
    same["stages, their blocks, schedule"] = described(options.pipeline.contents)
    if checkpoint is not None:
        same["checkpoint's model"] = checkpoint_config(checkpoint)
        same["checkpoint's SHA-256"] = sha256_of(checkpoint)
    if resume is not None:
        state = training_state(resume)
        same["training state"] = (state.step, state.batches, state.data_id)
        # The end of a file follows from all its values, whose checksums are compared when they are read.
        same["training state's SHA-256"] = sha256_of(*sorted(state.path.glob("rank-*.state")), last=_END_BYTES)
    return same


def check_shared(comm: Comm, directory: StrPath) -> None:
    """Raise on every rank unless all of them see a file that rank 0 makes in a directory."""
    is_first = comm.Get_rank() == 0
    with (
        file_errors(directory, "written"),
        NamedTemporaryFile(prefix=".shared-", dir=directory) if is_first else nullcontext() as file,
    ):
        # The name is new on each machine, so no cache of a file system says that it is missing.
        name, host = comm.bcast((file and Path(file.name).name, host_name()))
        with failing_together(comm):
            if not Path(directory, name).exists():
                raise InvalidArgumentError(
                    f"{directory}: found no file that rank 0 on {host} has made there, expected a folder that all "
                    "ranks share"
                )
