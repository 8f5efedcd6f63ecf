"""The sizes of models that have a name."""

from __future__ import annotations

from typing import Final

from starpullm.files.model import ModelConfig

_GPT2: Final = {"max_seq_len": 1024, "vocab_size": 50257, "padded_vocab_size": 50304}

MODELS: Final = {
    "tiny": ModelConfig(max_seq_len=16, vocab_size=61, num_layers=2, num_heads=2, channels=16, padded_vocab_size=64),
    "demo": ModelConfig(max_seq_len=64, vocab_size=257, num_layers=4, num_heads=4, channels=64, padded_vocab_size=320),
    "gpt2": ModelConfig(num_layers=12, num_heads=12, channels=768, **_GPT2),
    "gpt2-medium": ModelConfig(num_layers=24, num_heads=16, channels=1024, **_GPT2),
    "gpt2-large": ModelConfig(num_layers=36, num_heads=20, channels=1280, **_GPT2),
    "gpt2-xl": ModelConfig(num_layers=48, num_heads=25, channels=1600, **_GPT2),
}
"""`tiny` is that of the golden record, `demo` has bytes as tokens. The others are GPT-2's, which llm.c calls d12, d24,
d36 and d48."""
