"""Runs the command line as ``python -m starpullm.commands``."""

from starpullm.commands import main

main()
