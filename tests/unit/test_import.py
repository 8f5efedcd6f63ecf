"""Tests of importing the package, and of the text that comes with it."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import starpullm

OPENS_NOTHING = """
import sys
opened = []
sys.addaudithook(lambda event, arguments: event == "ctypes.dlopen" and opened.append(str(arguments[0])))
import starpullm
import starpullm.data, starpullm.errors, starpullm.files.checkpoint, starpullm.golden.records
print([name for name in opened if "starpu" in name])
"""


def test_importing_opens_no_native_library() -> None:
    """Neither the package nor its pure Python modules open StarPU or the native library."""
    done = subprocess.run([sys.executable, "-c", OPENS_NOTHING], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_importing_loads_little() -> None:
    """Every run of pytest imports the package because of the plugin, so importing it has to be quick."""
    code = "import sys, starpullm.pytest_plugin\nprint('numpy' in sys.modules)\nstarpullm.Runtime, starpullm.Trainer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_command_line_loads_little() -> None:
    """Each command imports what it needs itself, so that --help and --version are quick."""
    code = "import sys, starpullm.commands.main\nprint('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_no_other_names() -> None:
    """A missing name is an AttributeError, as in any module."""
    assert not hasattr(starpullm, "runtimes")
    assert all(hasattr(starpullm, name) for name in starpullm.__all__)


def test_version() -> None:
    """There is a version, installed or not."""
    assert starpullm.__version__


def test_sonnets() -> None:
    """The shipped text is plain ASCII: sonnets of 14 lines with an empty line between them."""
    text = (resources.files("starpullm.training") / "sonnets.txt").read_text("ascii")
    assert len(text) >= 8192
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    sonnets = text.rstrip("\n").split("\n\n")
    assert {len(sonnet.splitlines()) for sonnet in sonnets} == {14}
    assert all(line == line.strip() for line in text.splitlines())
