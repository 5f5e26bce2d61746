"""The memory of a GPU that an engine gives back when it sleeps."""

from __future__ import annotations

from typing import NamedTuple

import torch

from penstock.errors import OutOfMemory
from penstock.forward.device_arena import DeviceArena
from penstock.startup.preflight import readable


class ReleasableMemory(NamedTuple):
    weights: DeviceArena
    kv: DeviceArena
    adapters: DeviceArena

    def release(self) -> None:
        for arena in self:
            arena.release()

    def restore(self) -> None:
        """Raises OutOfMemory, and has none then."""
        try:
            for arena in self:
                arena.restore()
        except torch.OutOfMemoryError as error:
            self.release()
            needed = sum(arena.size for arena in self)
            raise OutOfMemory(
                f"the engine cannot wake: weights, KV cache and adapters take {readable(needed)} of GPU memory, which "
                f"others use meanwhile: {error}",
                param="model",
            ) from None
