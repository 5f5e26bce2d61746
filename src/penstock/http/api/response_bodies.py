"""Base structs of response bodies, in all APIs."""

from __future__ import annotations

import msgspec


class Body(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """gc=False: they live only until they are encoded."""


class TaggedBody(Body, kw_only=True, frozen=True, tag_field="type"):
    """With a `type` field, as the newer APIs have: the struct's tag, which is also the name of an event."""
