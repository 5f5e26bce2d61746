"""ModelFiles: what `resolve` gives. The one thing the frontend and the engine need to know of where a model lies."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from penstock.store.spec import ModelSpec


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A model on this machine. The weights have been found, not opened."""

    name: str  # what people call it: a catalogue name, a hub id, a file's stem
    format: Literal["safetensors", "gguf"]
    weights: tuple[Path, ...]  # empty only if the caller of `resolve` could do without
    spec: ModelSpec
    tokenizer: Path | None = None  # a Hugging Face tokenizer.json; None: the model takes token ids only
    chat_template: str | None = None  # Jinja
    special_tokens: dict[str, str] = {}  # "bos_token" -> "<s>": what chat templates may name
    sampling: dict[str, float | int] = {}  # the maker's recommendation, keyed as in SamplingParams
    max_tokens: int | None = None  # for chats whose user names none; never applied to requests of the API
    license: str | None = None
