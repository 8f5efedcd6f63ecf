"""Processes that are started, watched and ended: jobs, ranks, locks, progress."""
