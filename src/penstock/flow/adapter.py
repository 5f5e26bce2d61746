"""A LoRA adapter as requests name it: which files, and which content of them."""

from __future__ import annotations

import msgspec


class Adapter(msgspec.Struct, array_like=True, frozen=True):
    """An engine loads it from `path` when a Submit first names it, so engines are told of adapters by no other way.

    Name and version together decide what the engine computes: its weights and the keys of its KV blocks.
    """

    name: str  # without the base's
    version: str  # hexadecimal hash of its content
    path: str  # folder or file, on the engine's host
    rank: int  # the largest of its projections
    num_bytes: int = 0  # of its file
    tables: tuple[str, ...] = ()  # "head", "embed": which of them it changes

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.version
