"""File formats, one file for each, read and written with NumPy: llm.c's four, and training states (docs/formats.md)."""
