"""The HTTP client of moderation hooks (`gateway.safety`). Opened with the first request."""

from __future__ import annotations

import aiohttp

from penstock.deployment.upstream_client import environment_proxy

MAX_ANSWER = 1 << 20  # bytes
MAX_CONNECTIONS = 64


class HookClient:
    """Belongs to one event loop. The caller limits the time."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> bytes:
        """The body of a response with status 200. Redirects are not followed: texts go to the configured host only."""
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS), cookie_jar=aiohttp.DummyCookieJar()
            )
        proxy = environment_proxy(url)
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False, proxy=proxy) as response:
            if response.status != 200:
                raise ValueError(f"it answered with status {response.status}")
            data = bytearray()
            async for piece in response.content.iter_any():
                data += piece
                if len(data) > MAX_ANSWER:
                    raise ValueError(f"its answer has more than {MAX_ANSWER} bytes")
            return bytes(data)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
