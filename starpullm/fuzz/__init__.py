"""Random programs for StarPU, whose tasks check what they see against a serial oracle."""
