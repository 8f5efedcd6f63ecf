"""Which StarPUs are taken: ci/starpu.sh and native/cmake/FindStarPU.cmake say the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def install(prefix: Path, version: str, folder: str) -> None:
    """Make the files of a StarPU with MPI, and without parallel workers, that are looked at."""
    include, libraries = prefix / "include" / "starpu" / folder, prefix / "lib"
    include.mkdir(parents=True)
    libraries.mkdir()
    numbers = zip(("MAJOR", "MINOR", "RELEASE"), version.split("."), strict=True)
    config = "".join(f"#define STARPU_{name}_VERSION {number}\n" for name, number in numbers)
    for name, content in {"starpu_config.h": config, "starpu.h": "", "starpu_mpi.h": ""}.items():
        (include / name).write_text(content)
    for name in ("starpu", "starpumpi"):
        (libraries / f"lib{name}-{folder}.so").touch()


def answer(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("version", "folder", "reason"),
    [
        ("1.4.9", "1.4", "1.4 is of version 1.4.9"),
        ("1.4.10", "1.4", ""),
        ("1.4.99", "1.4", ""),
        ("1.5.0", "1.5", ""),
        ("1.6.0", "1.5", "1.5 is of version 1.6.0"),
    ],
)
def test_versions(tmp_path: Path, version: str, folder: str, reason: str) -> None:
    prefix = tmp_path / "prefix"
    install(prefix, version, folder)
    shell = f"CACHE={tmp_path} STARPU_PREFIX={prefix}; fail() {{ echo $1; exit 1; }}; . {ROOT}/ci/starpu.sh"
    by_shell = answer("bash", "-c", f"{shell}; starpu_find; echo $STARPU_FOUND_VERSION")
    (tmp_path / "CMakeLists.txt").write_text(
        f'cmake_minimum_required(VERSION 3.25)\nproject(search NONE)\nset(CMAKE_MODULE_PATH "{ROOT}/native/cmake")\n'
        'find_package(StarPU MODULE REQUIRED)\nmessage("${StarPU_VERSION} ${StarPU_LIBRARY}")\n'
    )
    by_cmake = answer("cmake", f"-DSTARPU_PREFIX={prefix}", "-B", "build", cwd=tmp_path)
    if reason:
        assert reason in by_shell
        assert reason in by_cmake
    else:
        assert by_shell == f"{version}\n"
        assert f"{version} {prefix}/lib/libstarpu-{folder}.so\n" in by_cmake
