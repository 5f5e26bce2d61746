"""W3C Trace Context: `traceparent` of the request, `traceresponse` of the response."""

from __future__ import annotations

import re
import secrets

from starlette.types import Scope

from penstock.flow import Trace

# version "00": trace id, parent span, flags, all lower-case hex; ids of zeros are invalid.
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED = 1


def read_traceparent(scope: Scope) -> Trace | None:
    """The request's span in its client's trace. An invalid header is ignored, as the standard asks."""
    values = [value for key, value in scope["headers"] if key == b"traceparent"]
    if len(values) != 1 or not (match := _TRACEPARENT.fullmatch(values[0])):
        return None
    version, trace, span, flags, rest = match.groups()
    if version == b"ff" or (version == b"00" and rest) or not trace.strip(b"0") or not span.strip(b"0"):
        return None
    return Trace(trace.decode(), _random_id(8), span.decode(), int(flags, 16) & SAMPLED)


def new_trace() -> Trace:
    return Trace(_random_id(16), _random_id(8), None, SAMPLED)


def format_traceresponse(trace: Trace) -> bytes:
    return f"00-{trace.id}-{trace.span}-{trace.flags:02x}".encode()


def _random_id(num_bytes: int) -> str:
    """Never all zeros: that is an invalid id."""
    return secrets.token_hex(num_bytes - 1) + f"{secrets.randbelow(255) + 1:02x}"
