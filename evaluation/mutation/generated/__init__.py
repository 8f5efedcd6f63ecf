"""Mutants that a tool generates from the C sources: which of them the suite catches."""
