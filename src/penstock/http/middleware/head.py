"""HEAD requests: load balancers and monitors send them to see whether the server answers."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMiddleware:
    """Answers HEAD as GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        head_sent = asyncio.Event()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                head_sent.set()

        app_task = asyncio.ensure_future(self.app({**scope, "method": "GET"}, receive, send_head))
        head_task = asyncio.ensure_future(head_sent.wait())
        try:
            await asyncio.wait({app_task, head_task}, return_when=asyncio.FIRST_COMPLETED)
            if app_task.done():
                app_task.result()
        finally:  # the body is not sent, and that of a live feed would not end by itself
            app_task.cancel()
            head_task.cancel()
