"""Bugs in StarPU itself: mends of its own that are taken back, and generated mutants. What catches them?"""
