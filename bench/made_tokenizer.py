"""A tokenizer for shapes with random weights: bytes, and made-up words, so that every token has a text."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def write(folder: Path, vocab_size: int) -> None:
    """tokenizer.json and chat_template.jinja."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"Ġw{number}" for number in range(len(alphabet), vocab_size)]
    vocabulary = {text: number for number, text in enumerate((*alphabet, *words))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
