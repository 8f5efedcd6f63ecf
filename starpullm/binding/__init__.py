"""The C ABI in Python. Nothing else imports ctypes, except ``golden/llmc.py`` for llm.c."""
