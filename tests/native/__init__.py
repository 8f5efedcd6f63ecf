"""Tests of the package with its native library and StarPU.

pytest runs them; they are a package so that they can share children.py.
"""
