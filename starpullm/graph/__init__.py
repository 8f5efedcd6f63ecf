"""The task graph: the order that accesses require, all ranks' tasks as one trace, and the graph run on paper."""
