"""One request on its way in: tells the events between its acceptance and the engine, and of its refusal if it gets no
further."""

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
from penstock.http.middleware.tenants import tenant_of
from penstock.observe import events
from penstock.observe.events import Emit

CLIENT_DISCONNECTED = 499  # nginx's status: the client disconnected before its request was complete


class RequestEvents:
    """`with` it until the request has its ticket; whoever answers it then tells its end (`Service.finish`)."""

    def __init__(self, scope: Scope, kind: str, emit: Emit | None) -> None:
        self.name = uuid.uuid4().hex
        self.tenant = tenant_of(scope)
        self._emit = emit
        if emit is not None:
            state = scope["state"]
            accepted, named, trace = state["accepted"], state["request_id"], state["trace"]
            emit(events.Accepted(self.name, accepted, named, kind, trace, self.tenant))

    def parsed(self, *, stream: bool = False) -> None:
        if self._emit is not None:
            self._emit(events.Parsed(self.name, time.monotonic(), stream))

    def validated(self, requests: Sequence[Request]) -> None:
        if self._emit is not None:
            params = requests[0].params if requests else SamplingParams()
            self._emit(events.Validated(self.name, time.monotonic(), _told(params)))

    def answered(self) -> None:
        """It needs no ticket: the answer is known. Of a request that only wants the model loaded."""
        if self._emit is not None:
            self._emit(events.Finished(self.name, time.monotonic(), []))

    def __enter__(self) -> RequestEvents:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None or self._emit is None:
            return
        match error:
            case PenstockError():
                told = (error.status, error.code, error.message)
            case ClientDisconnect():
                told = (CLIENT_DISCONNECTED, "client_gone", "the client hung up before its request was complete")
            case _:
                told = (500, PenstockError.code, type(error).__name__)
        self._emit(events.Rejected(self.name, time.monotonic(), *told))


def _told(params: SamplingParams) -> dict[str, object]:
    """Those that are not the defaults; of what is text (stop strings, a constraint) only that it is there."""
    told = msgspec.to_builtins(params)
    if "stop" in told:
        told["stop"] = len(told["stop"])
    if "constraint" in told:
        told["constraint"] = True
    return told  # type: ignore[no-any-return]
