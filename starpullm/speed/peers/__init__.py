"""The same training step by others, run by turns with the library's own: other matmuls, and PyTorch."""
