"""The command line ``starpullm``, one file for each command.

Commands read options, call the package and print results. They compute nothing themselves.
"""

from starpullm.commands.main import main

__all__ = ["main"]
