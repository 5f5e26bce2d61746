"""Which requests are lines of a batch: they run as background requests, and their records name the batch."""

from __future__ import annotations

from contextvars import ContextVar

# The id of the batch that the current request belongs to; None: it is interactive. A context variable, since a line
# goes the way of any request, through the routes of all APIs.
BATCH: ContextVar[str | None] = ContextVar("batch", default=None)
# Which line of it, such as "batch_…/17". The usage of its answer has this id: a line that runs again after a restart is
# charged once.
LINE: ContextVar[str | None] = ContextVar("line", default=None)
