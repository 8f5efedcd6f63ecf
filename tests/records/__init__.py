"""The golden records' maker: unmodified llm.c with the library's elementary functions."""
