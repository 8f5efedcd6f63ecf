"""Tests of ci/slurm on a real Slurm of two nodes, which run on this machine."""
