"""Loops over batches that a Trainer runs: training, generation, the demo."""
