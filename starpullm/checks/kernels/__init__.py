"""The comparison of kernels: cases drawn from a seed, memory that guards them, and the check."""
