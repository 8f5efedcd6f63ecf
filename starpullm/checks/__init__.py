"""The checks: one file or folder for each claim, with functions that return a result object."""
