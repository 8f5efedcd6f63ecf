"""The checks as plain functions that return result objects; they know nothing of pytest.

The command line calls them, and so can any program.
"""
