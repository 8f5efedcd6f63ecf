"""File formats, one file each, read and written with NumPy: llm.c's four and our own training states.

docs/formats.md describes them; nothing here needs the native library.
"""
