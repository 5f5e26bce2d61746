"""Which requests a frontend answers by itself: those that generate. All others are the control process's."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.http.api.openai import rerank
from penstock.http.middleware.version_prefix import PREFIX

HEADER = b"x-penstock-frontend"  # of every answer: the number of the frontend that has the connection
OWN = frozenset(
    (
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/responses/input_tokens", "/v1/messages",
        "/v1/messages/count_tokens", "/v1/embeddings", *rerank.PATHS, "/v1/moderations", "/tokenize", "/detokenize",
        "/api/chat", "/api/generate", "/api/embed", "/api/embeddings",
    )
)  # fmt: skip


class FrontendGate:
    """The outermost application of a frontend."""

    def __init__(self, own: ASGIApp, control: ASGIApp, number: int) -> None:
        self._own, self._control = own, control
        self._header = (HEADER, str(number).encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_number(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), self._header]
            await send(message)

        app = self._own if self._is_own(scope) else self._control
        await app(scope, receive, send_with_number)

    def _is_own(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["method"] != "POST":
            return False
        path = scope["path"]
        return path in OWN or PREFIX + path in OWN
