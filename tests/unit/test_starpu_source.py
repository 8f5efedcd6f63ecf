"""Where ci/starpu.sh gets StarPU's source: real downloads from a server on loopback that has one fault or none.

apt is the machine's, with a configuration that names this server as Debian.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

CI = Path(__file__).parents[2] / "ci"
TIME_LIMIT = 4


class Server(ThreadingHTTPServer):
    """Serves ``folder``; whatever has ``faulty`` in its path with ``fault``."""

    daemon_threads, block_on_close = True, False
    fault, faulty = "", "?"

    def __init__(self, folder: Path) -> None:
        self.folder, self.ended = folder, threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(SimpleHTTPRequestHandler):
    """Answers as the server's fault says."""

    server: Server

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=str(arguments[2].folder))

    def do_GET(self) -> None:
        fault = self.server.fault if self.server.faulty in self.path else ""
        file = Path(self.translate_path(self.path))
        if fault == "down":
            self.connection.close()
        elif fault == "stalled":
            self.server.ended.wait(60)
        elif fault and file.is_file():
            content = file.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if fault == "truncated" else content[::-1])
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "served"
    folder.mkdir()
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.ended.set()
        server.shutdown()
        thread.join()


def source(path: Path, version: str) -> str:
    """Write a source archive of StarPU, as far as Debian's tools and these tests look at it; return its SHA-256."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"configure": os.urandom(20000), "debian/source/format": b"3.0 (native)\n"}.items():
            entry = tarfile.TarInfo(f"starpu-{version}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def listed(path: Path, name: str, method: str = "sha256") -> str:
    content = path.read_bytes()
    return f" {hashlib.new(method, content).hexdigest()} {len(content)} {name}\n"


def suite(folder: Path, name: str, version: str) -> None:
    """Write a suite of Debian with one source package, starpu, and a binary one, without which apt reads no index."""
    dists, archive, description = (
        folder / "dists" / name,
        folder / f"starpu_{version}.tar.gz",
        folder / f"starpu_{version}.dsc",
    )
    source(archive, version)
    fields = (
        f"Binary: starpu\nArchitecture: any\nFormat: 3.0 (native)\nVersion: {version}\nMaintainer: A <a@example.org>\n"
    )
    files = f"Checksums-Sha256:\n{listed(archive, archive.name)}"
    description.write_text(f"Source: starpu\n{fields}{files}Files:\n{listed(archive, archive.name, 'md5')}")
    indices = {
        "main/source/Sources": f"Package: starpu\nDirectory: .\n{fields}{files}{listed(description, description.name)}",
        "main/binary-amd64/Packages": "Package: a\nVersion: 1\nArchitecture: amd64\nFilename: a.deb\n",
    }
    release = f"Label: Debian\nCodename: {name}\nSuite: {name}\nComponents: main\nArchitectures: amd64\n"
    release += "Date: Sat, 01 Jan 2022 00:00:00 UTC\nSHA256:\n"
    for index, content in indices.items():
        path = dists / index
        path.parent.mkdir(parents=True)
        path.write_text(content)
        release += listed(path, index)
    (dists / "Release").write_text(release)


@pytest.fixture
def fetch(tmp_path: Path, server: Server) -> Callable[..., list[str]]:
    """Return a function that fetches, and returns what was said of each source; the last line is that of the result."""
    sources, settings, cache = (tmp_path / name for name in ("sources.list", "apt.conf", "cache"))
    state = tmp_path / "state"
    (state / "lists" / "partial").mkdir(parents=True)

    def call(sha256: str, *, debian: bool) -> list[str]:
        sources.write_text(f"deb {server.address} stable main\n" if debian else "")
        settings.write_text(
            f'Dir::Etc::SourceList "{sources}"; Dir::Etc::SourceParts "/dev/null"; Dir::State "{state}";\n'
            f'APT::Architecture "amd64"; APT::Architectures "amd64"; Acquire::Retries "0";\n'
            'Acquire::AllowInsecureRepositories "true"; APT::Get::AllowUnauthenticated "true"; APT::Sandbox::User "";\n'
            'Acquire::Languages "none"; Acquire::http::Proxy "DIRECT";\n'
        )
        script = (
            f"set -euo pipefail; CACHE={cache}; source steps.sh; source starpu.sh; STARPU_TIME_LIMIT={TIME_LIMIT}\n"
            f"STARPU_ARCHIVE_SHA256={sha256}; mkdir -p $STARPU_WORK; starpu_fetch_source"
        )
        environment = {"APT_CONFIG": str(settings), "STARPU_ARCHIVE": f"{server.address}/release.tar.gz"}
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=CI,
            env=os.environ | environment | {"no_proxy": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        work = cache / "starpu-build"
        assert (done.returncode == 0) == (work / "source" / "configure").is_file(), done.stdout
        return (work / "attempts").read_text().splitlines()

    return call


REASONS = {
    "": "taken",
    "down": "Remote end closed connection without response",
    "stalled": f"not finished after {TIME_LIMIT} s",
    "truncated": "its SHA-256 is ",
    "other bytes": "its SHA-256 is ",
}


@pytest.mark.parametrize(("fault", "reason"), REASONS.items())
def test_release(fault: str, reason: str, server: Server, fetch: Callable[..., list[str]]) -> None:
    sha256 = source(server.folder / "release.tar.gz", "1.4.10")
    server.fault, server.faulty = fault, "release"
    archives, release = fetch(sha256, debian=False)
    assert archives == "the distribution's archives: apt is configured with no archive of Debian or Ubuntu"
    assert release.startswith(f"{server.address}/release.tar.gz: ")
    assert reason in release


@pytest.mark.skipif(shutil.which("dpkg-source") is None, reason="dpkg-source isn't installed")
@pytest.mark.parametrize("faulty", ["dists/testing", "1.4.11"])
@pytest.mark.parametrize("fault", list(REASONS)[1:])
def test_next_suite(fault: str, faulty: str, server: Server, fetch: Callable[..., list[str]]) -> None:
    for name, version in {"stable": "1.3.9", "testing": "1.4.11", "unstable": "1.4.10"}.items():
        suite(server.folder, name, version)
    server.fault, server.faulty = fault, faulty
    first, second = fetch("", debian=True)
    assert first.startswith("testing's source package: ")
    assert first.endswith(REASONS["stalled"] if fault == "stalled" else "")
    assert second == "unstable's source package: taken"


@pytest.mark.skipif(shutil.which("dpkg-source") is None, reason="dpkg-source isn't installed")
def test_release_after_all_suites(server: Server, fetch: Callable[..., list[str]]) -> None:
    for name, version in {"stable": "1.3.9", "testing": "1.6.0"}.items():
        suite(server.folder, name, version)
    *suites, release = fetch(source(server.folder / "release.tar.gz", "1.4.10"), debian=True)
    assert [line.partition("'")[0] for line in suites] == ["testing", "unstable", "stable"]
    assert suites[0].endswith("offered: 1.6.0")
    assert release == f"{server.address}/release.tar.gz: taken"
