"""Comparisons of the strict training step with the same step by other programs: another matmul, or PyTorch."""
