"""Work for a client that may hang up meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

Result = TypeVar("Result")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work. Raises ClientDisconnect if the client hangs up first; the work is cancelled and has ended
    then."""
    doing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watching.cancel()
        gone = doing.cancel()  # False: it is done
    if gone:
        await asyncio.wait({doing})
        if doing.cancelled():
            raise ClientDisconnect
    return doing.result()


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
