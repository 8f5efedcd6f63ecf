"""A model of a step in time: the library's own task graph, run on paper by workers that need not exist."""
