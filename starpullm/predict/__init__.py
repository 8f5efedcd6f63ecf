"""A model of a training step in time: the library's own task graph, run on workers and a network that need not exist."""
