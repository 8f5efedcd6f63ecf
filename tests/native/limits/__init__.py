"""Each limit and each refusal of starpullm.h, in the library's own processes: see `tests.pytest_in_child`."""
