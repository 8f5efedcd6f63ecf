"""Readers of the project's own formats that share no code with the library's: they find what it writes wrongly."""
