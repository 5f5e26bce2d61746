"""Text to tokens and back, for the frontend: the tokenizer of a model and its incremental detokenizer."""

from penstock.tokenize.tokenizer import Tokenizer

__all__ = ["Tokenizer"]
