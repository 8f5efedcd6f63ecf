"""Traces of whole runs: recorded over all ranks, stored in files, and written in the formats of other tools."""
