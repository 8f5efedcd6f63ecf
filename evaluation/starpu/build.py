"""A StarPU that is built once, and of which each bug is compiled into the few files that it concerns."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from pathlib import Path

from .bugs import VERSION, Bug, git

RECIPE = Path(__file__).parents[2] / "ci" / "starpu.sh"
FOLDERS = ("src", "mpi/src")
_SECONDS = 3600.0


class StarpuBuild:
    """A clone of StarPU's repository with its build, below a directory; both are kept for the next call."""

    def __init__(self, directory: Path, repository: str, *options: str) -> None:
        self.source, self._build = directory / "source", directory / "build"
        if not self.source.is_dir():
            subprocess.run(["git", "clone", "--shared", repository, str(self.source)], check=True)
            git(self.source, "checkout", VERSION)
        self.restore()
        if not (self._build / "Makefile").is_file():
            self._build.mkdir(parents=True, exist_ok=True)
            recipe = re.search(r"^STARPU_OPTIONS=\(\n(.*?)^\)", RECIPE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
            assert recipe
            chosen = [option for option in recipe[1].split() if option != "--disable-dependency-tracking"]
            # StarPU looks there when it starts, and says so if there is nothing.
            (directory / "share/starpu/perfmodels/sampling").mkdir(parents=True, exist_ok=True)
            subprocess.run(["./autogen.sh"], cwd=self.source, check=True, stdout=subprocess.DEVNULL)
            configure = [str(self.source / "configure"), *chosen, "--enable-openmp", f"--prefix={directory}", *options]
            subprocess.run(configure, cwd=self._build, check=True, stdout=subprocess.DEVNULL)
        self.unchanged = self.make()
        if not self.unchanged:
            raise RuntimeError(f"{self._build}: StarPU can't be compiled, expected `make` there to end well")

    @property
    def libraries(self) -> str:
        """The folders of the built libraries, as LD_LIBRARY_PATH has them."""
        return ":".join(str(self._build / folder / ".libs") for folder in FOLDERS)

    def compile(self, bug: Bug) -> bool:
        """Compile a bug; False if it can't be put in or compiled, or changes no code. Undo it by `restore`."""
        return bug.put_into(self.source) and self.make() not in ("", self.unchanged)

    def run_lines(self) -> list[tuple[str, int, bool]]:
        """Return files, lines and whether they have been run, of a build with --enable-coverage."""
        counts: dict[tuple[str, int], int] = {}
        command = ["gcov", "--json-format", "--stdout", *map(str, self._build.rglob("*.gcda"))]
        run = subprocess.run(command, cwd=self._build / "src", capture_output=True, text=True, check=True)
        for found in map(json.loads, run.stdout.splitlines()):
            for file in found["files"]:
                path = Path(found["current_working_directory"], file["file"]).resolve()
                if path.is_relative_to(self.source):
                    for line in file["lines"]:
                        place = str(path.relative_to(self.source)), line["line_number"]
                        counts[place] = counts.get(place, 0) + line["count"]
        return sorted((file, line, count > 0) for (file, line), count in counts.items())

    def restore(self) -> None:
        """Take back all changes of the source."""
        git(self.source, "reset", "--quiet", "--hard", VERSION)

    def make(self) -> str:
        """Compile what has changed; return a hash of the code, which is empty if it can't be compiled."""
        for folder in FOLDERS:
            make = ["nice", "make", "-C", str(self._build / folder)]
            if subprocess.run(make, capture_output=True, timeout=_SECONDS, check=False).returncode != 0:
                return ""
        found = hashlib.sha256()
        for library in sorted(path for folder in FOLDERS for path in (self._build / folder / ".libs").glob("*.so")):
            with tempfile.NamedTemporaryFile() as stripped:
                strip = ["strip", "-R", ".note.gnu.build-id", str(library), "-o", stripped.name]
                subprocess.run(strip, check=True)
                found.update(Path(stripped.name).read_bytes())
        return found.hexdigest()
