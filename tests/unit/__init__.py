"""Tests of what needs no native library.

pytest runs them; they are a package so that they can share modules.
"""
