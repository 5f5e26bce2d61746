"""What the bodies of answers are made of, in all APIs."""

from __future__ import annotations

import msgspec


class Body(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """Base of all of them; they live no longer than it takes to encode them."""


class TaggedBody(Body, kw_only=True, frozen=True, tag_field="type"):
    """Base of what says what it is, in the newer APIs: the tag of a struct is its `type`, and the name of an event."""
