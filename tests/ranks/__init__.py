"""Tests of jobs of several ranks under a real mpirun.

pytest runs them; they are a package so that they can share programs.py.
"""
