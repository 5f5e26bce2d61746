"""How far the start of a server is. /ready shows it to clients without a key, so it names no model."""

from __future__ import annotations

import msgspec


class StartStatus(msgspec.Struct, omit_defaults=True):
    phase: str
    done_bytes: int | None = None  # of a download
    total_bytes: int | None = None  # None: not known

    def begin(self, phase: str) -> None:
        self.phase, self.done_bytes, self.total_bytes = phase, None, None

    def with_status(self, status: str) -> bytes:
        """As JSON."""
        return msgspec.json.encode({"status": status, **msgspec.to_builtins(self)})

    def download(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
        """A `store.progress.Progress`."""
        self.phase, self.done_bytes, self.total_bytes = "downloading the model", done_bytes, total_bytes
