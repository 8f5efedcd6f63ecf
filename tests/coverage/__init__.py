"""Which lines and branches of the native library the validation suite runs: see `__main__.py`."""
