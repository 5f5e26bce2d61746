"""W3C Trace Context: which trace a request belongs to (`traceparent`), told back in `traceresponse`."""

from __future__ import annotations

import re
import secrets

from starlette.types import Scope

from penstock.flow import Trace

# version "00": trace id, parent span, flags, all lower-case hex; ids of zeros are none.
_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED = 1


def incoming(scope: Scope) -> Trace | None:
    """The request's place in its client's trace; what is not a traceparent is ignored, as the standard asks."""
    values = [value for key, value in scope["headers"] if key == b"traceparent"]
    if len(values) != 1 or not (match := _PARENT.fullmatch(values[0])):
        return None
    version, trace, span, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more) or not trace.strip(b"0") or not span.strip(b"0"):
        return None
    return Trace(trace.decode(), _new(8), span.decode(), int(flags, 16) & SAMPLED)


def fresh() -> Trace:
    """Of a request that belongs to none."""
    return Trace(_new(16), _new(8), None, SAMPLED)


def outgoing(trace: Trace) -> bytes:
    return f"00-{trace.id}-{trace.span}-{trace.flags:02x}".encode()


def _new(num_bytes: int) -> str:
    """A random id, which is never all zeros: a client would take it for none."""
    return secrets.token_hex(num_bytes - 1) + f"{secrets.randbelow(255) + 1:02x}"
