"""File formats, one file for each, read and written with NumPy (docs/formats.md).

Readers raise `FormatError` for what isn't of the format, and `FileError` for what can't be read.
"""
