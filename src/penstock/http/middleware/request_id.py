"""Request ids, and the access log that has them."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.flow import Trace
from penstock.http.error_response import ErrorFormats
from penstock.http.middleware import trace_context
from penstock.http.middleware.headers import get_header

access_log = logging.getLogger("penstock.access")

_RESPONSE_HEADERS = (b"x-request-id", b"request-id")  # OpenAI's clients read the first, Anthropic's the second
_VALID_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestIdMiddleware:
    """The outermost middleware: takes the client's x-request-id or makes one, for the response headers, errors and the
    access log. Fills `scope["state"]`, which all others read."""

    def __init__(self, app: ASGIApp, *, start_traces: bool = False, error_formats: ErrorFormats | None = None) -> None:
        """`start_traces`: a request without a `traceparent` starts a trace."""
        self.app = app
        self.start_traces = start_traces
        self.error_formats = error_formats or ErrorFormats()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        client_id = get_header(scope, b"x-request-id") or b""
        request_id = client_id.decode() if _VALID_ID.fullmatch(client_id) else f"req-{uuid.uuid4().hex}"
        trace = trace_context.read_traceparent(scope) or (trace_context.new_trace() if self.start_traces else None)
        scope.setdefault("state", {}).update(
            request_id=request_id, accepted=time.monotonic(), trace=trace, error_formats=self.error_formats
        )
        headers = [(name, request_id.encode()) for name in _RESPONSE_HEADERS]
        if trace is not None:
            headers.append((b"traceresponse", trace_context.format_traceresponse(trace)))
        start, status, complete = time.perf_counter(), 0, False

        async def send_with_id(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *headers]
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            if not complete:  # otherwise logged and answered already: Starlette raises it all the same
                raise
        finally:
            _log_access(scope, request_id, status, (time.perf_counter() - start) * 1000, trace)


def _log_access(scope: Scope, request_id: str, status: int, spent_ms: float, trace: Trace | None) -> None:
    path = scope["raw_path"].decode("ascii", "replace")  # percent-encoded: a path cannot forge log lines
    access_log.info(
        "%s %s %s %.1f ms %s", scope["method"], path, status or "gone", spent_ms, request_id,
        extra={
            "request_id": request_id, "method": scope["method"], "path": path, "status": status or None,
            "ms": round(spent_ms, 1), "trace_id": None if trace is None else trace.id,
        },
    )  # fmt: skip
