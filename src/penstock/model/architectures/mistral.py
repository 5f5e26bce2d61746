"""Mistral."""

from __future__ import annotations

from penstock.model.architectures.llama import Llama


class Mistral(Llama):
    """Llama with a sliding window, which is in the spec."""
