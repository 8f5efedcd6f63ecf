"""Containers: commands work where optional system calls are refused, and where files of /proc and /sys are hidden."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from . import denied
from .children import TWO_CORES, run_cli, run_command


def without_calls(error: int, *calls: str) -> tuple[str, ...]:
    """Return the command before a command in which these system calls are refused; skips where nobody may do that."""
    prefix = (sys.executable, "-I", "-S", denied.__file__, str(error), ",".join(calls or denied.NUMBERS))
    done = run_command([*prefix, "true"], timeout=20)
    if done.returncode:
        pytest.skip(f"can't refuse system calls here: {done.stderr.strip()}")
    return prefix


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS], ids=["EPERM", "ENOSYS"])
@pytest.mark.usefixtures("own_lock")
def test_system_calls_that_are_refused(tiny_checkpoint: Path, tiny_tokens: Path, tmp_path: Path, error: int) -> None:
    prefix, disk, trained = without_calls(error), tmp_path / "disk", tmp_path / "trained.bin"
    disk.mkdir()
    sizes = ("--checkpoint", tiny_checkpoint, "--tokens", tiny_tokens, "--batch-size", 2, "--seq-len", 8)
    states = ("--steps", 4, "--state-dir", tmp_path / "states", "--save-every", 2)
    run_cli("train", *sizes, *states, "--partition", "1x2", prefix=prefix, environment=TWO_CORES).check()
    for _ in range(2):  # the second time the file is there
        offloaded = ("--steps", 2, "--offload", disk, "--memory-limit", "1M", "--save", trained)
        run_cli("train", *sizes, *offloaded, prefix=prefix, environment=TWO_CORES).check()
    bench = ("bench", "--model", "tiny", "--partition", "1x1", "--iterations", 1, "--warm-up", 0)
    prefix = without_calls(
        error, *denied.NUMBERS.keys() - {"faccessat2"}
    )  # hwloc needs it to know this machine's cores
    assert "noise: " in run_cli(*bench, prefix=prefix).check().stdout


_HIDE = """for path in /proc/stat /proc/meminfo /proc/cpuinfo /proc/loadavg /proc/vmstat /proc/self/cgroup
do mount --bind /dev/null $path || exit; done
mount -t tmpfs none /sys/devices && mount -t tmpfs none /sys/fs/cgroup && exec "$@"
"""


@pytest.mark.usefixtures("own_lock")
def test_files_that_are_hidden() -> None:
    """What isn't known is left out."""
    prefix = ("unshare", "-m", "sh", "-c", _HIDE, "sh")
    done = run_command([*prefix, "true"], timeout=20)
    if done.returncode:
        pytest.skip(f"can't mount over /proc and /sys here: {done.stderr.strip()}")
    assert "\ntopology " in run_cli("doctor", prefix=prefix).check().stdout
    bench = ("bench", "--model", "tiny", "--partition", "1x1", "--iterations", 1, "--warm-up", 0)
    noise = run_cli(*bench, prefix=prefix).check().stdout.splitlines()[-1]
    assert noise.startswith("noise: ")
    assert "stolen" not in noise
    predicted = run_cli("predict", "--model", "tiny", "--partition", "1x1", prefix=prefix, timeout=120).check()
    assert predicted.stdout.startswith("tiny, B = ")
