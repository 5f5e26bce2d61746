"""A prompt that one replica computes for another: prefill, export, import; then the request itself is submitted.

    prefill replica    computes the prompt's full blocks ─► kv_export ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄► kv_export_end
                                                             ┊ blocks, engine to engine
    decode replica                                           kv_import ─► kv_import_result ─► Submit

If any of these steps fails, the decode replica computes what it does not have: a handoff can only save work. It is part
of a request (`deferred`): the client's ticket is the decode replica's from the start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.deployment.prefill_request import PrefillRequest
from penstock.deployment.protocol import Call
from penstock.errors import PenstockError
from penstock.flow import FinishReason, SamplingParams, Submit
from penstock.flow.transfer import TRANSFER_S
from penstock.observe import events

if TYPE_CHECKING:
    from penstock.deployment.prefill_pool import PrefillPool
    from penstock.deployment.replica import Replica
    from penstock.stream.active_request import ActiveRequest

logger = logging.getLogger(__name__)

POLL_S = 0.004  # between two looks at an import


class HandoffFailed(Exception):
    """`cause` is a label of `penstock_kv_transfer_failures_total`."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class Handoff:
    """Of one request with one prompt."""

    def __init__(
        self, pool: PrefillPool, active: ActiveRequest, prefiller: Replica, decoder: Replica, expected: int
    ) -> None:
        """`expected`: tokens of the prompt that the decoder is expected to have cached."""
        submit, block_size = active.submits[0], decoder.facts["block_size"]
        self._expected = expected
        # Full blocks and one token more: the last token of a prompt is always computed where the output is.
        self._tokens = submit.tokens[: (len(submit.tokens) - 1) // block_size * block_size + 1]
        self._pool = pool
        self._active = active
        self._submit = submit
        self._prefiller = prefiller
        self._decoder = decoder
        self._id = f"{submit.id}/prefill"

    @property
    def prefilled_tokens(self) -> int:
        """Tokens of the prompt that the decode replica need not compute if the transfer succeeds."""
        return len(self._tokens) - 1

    async def run(self) -> bool:
        """Returns when the request can be submitted to the decode replica. False: that has to compute the prompt, or
        part of it."""
        try:
            await self._run()
            return True
        except HandoffFailed as error:
            self._pool.totals.failures[error.cause] += 1
            logger.info("%s: %s computes the prompt: %s", self._submit.id, self._decoder.name, error)
            return False
        except asyncio.CancelledError:
            self._pool.totals.failures["cancelled"] += 1
            raise
        except Exception:  # the request must not be lost with it
            logger.exception("the handoff of %s failed", self._submit.id)
            self._pool.totals.failures["internal"] += 1
            return False

    async def _run(self) -> None:
        start = time.monotonic()
        found = await self._prefill()
        prefilled = self._tell("prefill_replica", start)
        self._active.cached_limit = max(found, self._expected)
        imported = await self._transfer()
        transferred = self._tell("kv_transfer", prefilled)
        self._active.cached_limit = max(found, imported["cached_tokens"])
        self._pool.totals.add(imported["blocks"], imported["bytes"], transferred - prefilled)
        if imported["cause"] is not None:
            raise HandoffFailed(imported["cause"], imported["message"])

    async def _prefill(self) -> int:
        """Returns how many of the tokens the prefill replica found cached."""
        request = PrefillRequest(_prefill_submit(self._submit, self._id, self._tokens[:-1]))
        try:
            ticket = self._prefiller.submit(Call([], [request]))
        except PenstockError as error:
            raise HandoffFailed("prefill", error.message) from None
        ticket.left = True  # no client waits for it: if the engine dies, no other one computes it again
        try:
            end = await request.ended
        except asyncio.CancelledError:
            self._prefiller.cancel(ticket)
            raise
        if end.finish is not FinishReason.LENGTH:
            raise HandoffFailed("prefill", end.error or f"the prefill replica ended it: {end.finish}")
        return end.cached_tokens

    async def _transfer(self) -> dict[str, Any]:
        """What `kv_import_result` says at the end."""
        root = self._pool.root_of(self._submit)
        prompt = {"transfer": self._id, "root": root, "tenant": self._submit.tenant, "tokens": self._tokens}
        try:
            async with asyncio.timeout(TRANSFER_S):
                exported = await self._ask(self._prefiller, "kv_export", **prompt)
                if exported is None:
                    raise HandoffFailed("no_blocks", "the prefill replica holds too many blocks for transfers already")
                if not exported["blocks"]:
                    raise HandoffFailed("evicted", "the prefill replica no longer has the blocks")
                return await self._import(exported["address"], prompt)
        except TimeoutError:
            raise HandoffFailed("timeout", f"the blocks were not there after {TRANSFER_S:g} s") from None
        finally:
            self._prefiller.tell("kv_export_end", transfer=self._id)

    async def _import(self, address: str, prompt: dict[str, Any]) -> dict[str, Any]:
        try:
            if not await self._ask(self._decoder, "kv_import", address=address, **prompt):
                raise HandoffFailed("no_blocks", "the decode replica has too few free blocks")
            while (result := await self._ask(self._decoder, "kv_import_result", transfer=self._id)) is None:
                await asyncio.sleep(POLL_S)
        except BaseException:  # a cancellation, too
            self._decoder.tell("kv_import_cancel", transfer=self._id)
            raise
        return dict(result)

    async def _ask(self, replica: Replica, kind: str, **arguments: Any) -> Any:
        try:
            return await replica.ask(kind, **arguments)
        except PenstockError as error:
            raise HandoffFailed("prefill" if replica is self._prefiller else "decode", error.message) from None

    def _tell(self, stage: str, start: float) -> float:
        """The journal, of a stage that has ended; returns when."""
        now = time.monotonic()
        if self._pool.emit is not None:
            name = events.http_request_id(self._active.id)
            self._pool.emit(events.GatewayWork(name, now, start, stage))
        return now


def _prefill_submit(submit: Submit, name: str, tokens: list[int]) -> Submit:
    """What computes `tokens` and nothing else: the one token of output is not used. It has no number: the journal knows
    the request by its own sequences."""
    return replace(
        submit,
        id=name,
        tokens=tokens,
        params=SamplingParams(temperature=0.0),
        max_output=1,
        choice=0,
        end_tokens=(),
        number=0,
        forced=0,
        inspect=0,
        include_drafts=False,
    )
