"""Training data: batches of token files, text and token ids, generated models and tokens, sampling."""

from starpullm.data.generator import generate_checkpoint, generate_tokens
from starpullm.data.loader import TokenLoader

__all__ = ["TokenLoader", "generate_checkpoint", "generate_tokens"]
