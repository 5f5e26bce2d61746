"""Architectures by name, imported when they are first used."""

from __future__ import annotations

from importlib import import_module

from penstock.errors import ArchitectureUnsupported
from penstock.model.layers.decoder import Decoder

# ModelSpec.architecture -> module under architectures/, class
ARCHITECTURES = {
    "llama": ("llama", "Llama"),
    "mistral": ("mistral", "Mistral"),
    "qwen2": ("qwen2", "Qwen2"),
    "qwen3": ("qwen3", "Qwen3"),
    "gemma3": ("gemma3", "Gemma3"),
    "phi3": ("phi3", "Phi3"),
}


def architecture(name: str) -> type[Decoder]:
    if name not in ARCHITECTURES:
        raise ArchitectureUnsupported(
            f"architecture {name!r} is not supported; supported are {', '.join(ARCHITECTURES)}", param="model"
        )
    module, class_name = ARCHITECTURES[name]
    decoder: type[Decoder] = getattr(import_module(f"penstock.model.architectures.{module}"), class_name)
    return decoder
