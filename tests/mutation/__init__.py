"""The checks are tried on a library with defects: see docs/mutations.md."""
