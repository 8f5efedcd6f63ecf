"""The C ABI in Python: the only room that imports ctypes, beside the live llm.c."""
