"""Tests of jobs of several ranks under a real mpirun; a package so that test files can share programs.py."""
