"""Mistral: Llama with a sliding window, which is in the spec."""

from __future__ import annotations

from penstock.model.architectures.llama import Llama


class Mistral(Llama):
    """Layers and tensors are Llama's."""
