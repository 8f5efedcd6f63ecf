"""Golden records of llm.c's bits, the JSON files that hold them, and a live llm.c."""
