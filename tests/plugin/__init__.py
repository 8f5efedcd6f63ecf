"""Tests of the pytest plugin, by running pytest on small test files and reading what it says."""
