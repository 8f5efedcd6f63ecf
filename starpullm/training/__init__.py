"""Loops that use a trainer: training, text generation, the demo."""
