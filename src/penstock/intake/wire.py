"""HTTP/1.1 on a connection, as uvicorn speaks it, with a bound on what stands before a body: its parser has none, and
nobody has shown a key by then."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024  # of the request line and headers, give or take what one read brings


class Protocol(HttpToolsProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._within_head = False
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if self._within_head else 0
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.logger.warning("a request with headers of more than %d bytes was refused", MAX_HEAD_BYTES)
            self.transport.write(STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.cycle is not None and isinstance(exc, TimeoutError):  # the kernel's patience: see `port`
            self.cycle.scope["state"]["unread"] = True
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._within_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._within_head = False
        super().on_headers_complete()
