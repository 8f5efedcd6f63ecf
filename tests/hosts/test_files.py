"""Ranks on several hosts, each with files of its own: what they read has to be equal, and what one lacks is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from starpullm.binding.library import find_library
from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.files.tokens import write_tokens
from starpullm.golden.records import shipped_record

from .machines import NAMES, Case, Hosts

pytestmark = pytest.mark.timeout(120)

RECORD = shipped_record("tiny")
NORTH, SOUTH = NAMES
NOTE = f"note: rank 0 on {NORTH}, rank 1 on {SOUTH}\n"


def checkpoint(path: Path, seed: int = 1) -> Path:
    generate_checkpoint(path, RECORD.model, seed)
    return path


def tokens(path: Path, seed: int = 1) -> Path:
    write_tokens(path, generate_tokens(seed, 0, 1, 400, RECORD.model.vocab_size)[0].reshape(-1))
    return path


def train(model: Path | None, text: Path, *options: str | Path, **environment: str) -> Case:
    arguments = ["train", "--tokens", text, "--steps", "2", "--batch-size", "1", "--seq-len", "8", *options]
    return Case([*arguments, "--checkpoint", model] if model else arguments, environment)


def test_contents_are_compared(hosts: Hosts, tmp_path: Path) -> None:
    """Files of equal size: neither a mixture of two models is trained nor one on tokens of two texts.

    Paths may differ, and so may tokens that the run doesn't read.
    """
    model, text = tmp_path / "{host}.bin", tmp_path / "{host}.tokens"
    for seed, host in enumerate(NAMES, 1):
        checkpoint(tmp_path / f"{host}.bin", seed)
        tokens(tmp_path / f"{host}.tokens", seed)
        checkpoint(tmp_path / f"same {host}.bin")
        tokens(tmp_path / f"same {host}.tokens")
        record = RECORD.path.read_text("utf-8").replace(RECORD.steps[0].digests["params"]["wte"], f"{seed:032x}")
        (tmp_path / f"{host}.json").write_text(record, "utf-8")
    end = tmp_path / f"same {SOUTH}.tokens"
    end.write_bytes(end.read_bytes()[:-2] + b"\0\0")
    same_model, same_text = tmp_path / "same {host}.bin", tmp_path / "same {host}.tokens"
    refused = [
        (train(model, same_text), "checkpoint's SHA-256"),
        (train(same_model, text), "SHA-256 of the tokens to train on"),
        (train(same_model, same_text, "--val-tokens", text), "SHA-256 of the tokens to validate on"),
        (Case(("parity", tmp_path / "{host}.json")), "SHA-256 of record tiny"),
    ]
    *outcomes, trained = hosts.outcomes([*(case for case, _ in refused), train(same_model, same_text)])
    for outcome, (case, what) in zip(outcomes, refused, strict=True):
        assert outcome.statuses == (2, 2), (case, outcome)
        assert outcome.stderr.startswith(f"{NOTE}ranks 0-1: different options on ranks: {what} is "), outcome
        assert (outcome.stdout, outcome.stderr.count("\n")) == ("", 2)
    assert trained.statuses == (0, 0), trained
    assert "step 2/2: loss " in trained.stdout


def test_what_one_host_lacks(hosts: Hosts, tmp_path: Path) -> None:
    """Every file and folder: one sentence, which names the host, and status 2."""
    model, text = checkpoint(tmp_path / "model.bin"), tokens(tmp_path / "text.tokens")
    hosts.run(NORTH, "cp", model, text, RECORD.path, hosts.own)
    hosts.run(NORTH, "mkdir", hosts.own / "folder")
    hosts.run(SOUTH, "touch", hosts.own / "folder")
    own_model, own_text, record_of_sizes = (hosts.own / path.name for path in (model, text, RECORD.path))
    folder = hosts.own / "folder"
    lacking = {
        own_model: train(own_model, text),
        own_text: train(model, own_text),
        Path(f"{own_text}*"): train(model, text, "--val-tokens", f"{own_text}*"),
        folder / "new": train(model, text, "--save-every", "1", "--state-dir", folder / "new"),
        record_of_sizes: Case(("parity", record_of_sizes)),
        folder / ".starpu/sampling": train(model, text, STARPU_HOME=str(folder)),
    }
    outcomes = hosts.outcomes(list(lacking.values()))
    for path, outcome in zip(lacking, outcomes, strict=True):
        assert outcome.statuses == (2, 2), (path, outcome)
        assert re.fullmatch(rf"{NOTE}ranks 0-1: rank 1 on {SOUTH}: .*{re.escape(str(path))}.*\n", outcome.stderr), (
            outcome
        )
        assert outcome.stdout == ""


def test_states_that_differ(hosts: Hosts, tmp_path: Path) -> None:
    """A folder that the hosts don't share is refused before the first step; so are states of two runs."""
    model, text = checkpoint(tmp_path / "model.bin"), tokens(tmp_path / "text.tokens")
    for host, run in zip(NAMES, ("first", "second"), strict=True):
        (tmp_path / host).symlink_to(tmp_path / run)
    saving = ("--save-every", "2", "--state-dir")
    hosts.run(NORTH, "ln", "-s", tmp_path / "first", hosts.own / "copy")
    first, second, apart, mixed, lacking, same = hosts.outcomes(
        [
            train(model, text, *saving, tmp_path / "first"),
            train(model, text, *saving, tmp_path / "second", "--weight-decay", "0.1"),
            train(model, text, *saving, hosts.own / "states"),
            train(None, text, "--resume", tmp_path / "{host}"),
            train(None, text, "--resume", hosts.own / "copy"),
            train(None, text, "--resume", tmp_path / "{host}" / ".." / "first"),
        ]
    )
    assert (first.statuses, second.statuses, same.statuses) == ((0, 0), (0, 0), (0, 0))
    assert apart.statuses == mixed.statuses == lacking.statuses == (2, 2)
    assert apart.stderr.startswith(
        f"{NOTE}ranks 0-1: rank 1 on {SOUTH}: {hosts.own}/states: found no file that rank 0 on {NORTH} has made there, "
        "expected a folder that all ranks share ("
    )
    assert mixed.stderr.startswith(f"{NOTE}ranks 0-1: different options on ranks: training state's SHA-256 is ")
    assert lacking.stderr.startswith(
        f"{NOTE}ranks 0-1: rank 1 on {SOUTH}: {hosts.own}/copy: open the folder: No such file"
    )
    assert (apart.stdout, mixed.stdout, lacking.stdout) == ("", "", "")
    assert hosts.run(NORTH, "ls", hosts.own / "states") == hosts.run(SOUTH, "ls", hosts.own / "states") == ""


def test_other_libraries(hosts: Hosts) -> None:
    """They are named, and so are the hosts that ranks are on; `mpirun -x PATH` finds the command on all of them."""
    library = find_library()
    for host in NAMES:
        hosts.run(host, "cp", library, hosts.own / "libstarpullm-own.so")
    hosts.run(SOUTH, "truncate", "--size=+1", hosts.own / "libstarpullm-own.so")
    command = hosts.mpirun("-x", "PATH", "starpullm", "--library", hosts.own / "libstarpullm-own.so", "parity", "tiny")
    done = hosts.finished(NORTH, command, 60, SLURM_JOB_NUM_NODES="3")
    assert done.returncode == 0, done
    assert done.stdout.endswith("parity: 570 tensors over 3 steps, 0 differ\n"), done
    where, libraries, *others = (line for line in done.stderr.splitlines() if line.startswith("note: "))
    assert others == [], done
    assert where == f"note: rank 0 on {NORTH}, rank 1 on {SOUTH}, none on 1 more of the allocation"
    assert re.fullmatch(
        r"note: other libraries on some ranks: libstarpullm-own.so is \w{16} on rank 0 and \w{16} on rank 1",
        libraries,
    )
