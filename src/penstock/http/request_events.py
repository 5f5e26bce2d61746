"""The events of one request from its arrival until it is submitted or rejected."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from types import TracebackType

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from penstock.errors import PenstockError
from penstock.flow import Request, SamplingParams
from penstock.http.background import BATCH
from penstock.http.middleware.tenants import identity_of
from penstock.observe import events
from penstock.observe.events import Emit

MAX_NAME = 128  # characters of a model's name that are recorded
CLIENT_DISCONNECTED = 499  # nginx's status: the client disconnected before its request was complete


class RequestEvents:
    """A context manager around the work until the request has its ticket; an exception inside is its rejection. After
    that, `Service.finish` emits the last event."""

    def __init__(self, scope: Scope, kind: str, emit: Emit | None) -> None:
        self.name = uuid.uuid4().hex  # the request's id, part of the response's
        self.identity = identity_of(scope)
        self._emit = emit
        if emit is not None:
            state = scope["state"]
            accepted, request_id, trace = state["accepted"], state["request_id"], state["trace"]
            tenant, auth_s = self.identity.tenant, state.get("auth_s", 0.0)
            emit(events.Accepted(self.name, accepted, request_id, kind, trace, tenant, BATCH.get(), auth_s))

    def parsed(self, *, model: str | None = None, stream: bool = False) -> None:
        """`model`: as the client named it."""
        if self._emit is not None:
            named = None if model is None else model[:MAX_NAME]
            self._emit(events.Parsed(self.name, time.monotonic(), stream, named))

    def validated(self, requests: Sequence[Request]) -> None:
        if self._emit is not None:
            params = requests[0].params if requests else SamplingParams()
            self._emit(events.Validated(self.name, time.monotonic(), _loggable(params)))

    def answered(self) -> None:
        """For a request that is answered without the engine, such as one that only asks to load the model."""
        if self._emit is not None:
            self._emit(events.Finished(self.name, time.monotonic(), []))

    def __enter__(self) -> RequestEvents:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None or self._emit is None:
            return
        match error:
            case PenstockError():
                reason = (error.status, error.code, error.message)
            case ClientDisconnect():
                reason = (CLIENT_DISCONNECTED, "client_gone", "the client disconnected before its request was complete")
            case _:
                reason = (500, PenstockError.code, type(error).__name__)
        self._emit(events.Rejected(self.name, time.monotonic(), *reason))


def _loggable(params: SamplingParams) -> dict[str, object]:
    """The parameters that differ from their defaults. Of the client's texts (stop strings, constraint) only that they
    are set."""
    fields = msgspec.to_builtins(params)
    if "stop" in fields:
        fields["stop"] = len(fields["stop"])
    if "constraint" in fields:
        fields["constraint"] = True
    return fields  # type: ignore[no-any-return]
