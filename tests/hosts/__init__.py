"""Tests of ranks on two hosts of this machine's own."""
