"""Transfers of KV blocks as the engine's loop sees them: queries that the frontend asks in turn.

    prefill replica: kv_export ─────────────────────────────────────────────► kv_export_end
    decode replica:              kv_import ─► kv_import_result* (or kv_import_cancel)

The loop holds and publishes blocks, threads copy them. Queries name a prompt by its root key (`flow.prefix`), tenant
and tokens: both engines compute the same keys from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.cache import CacheManager, Holding, PrefixChain
from penstock.engine.transfer.exporter import Exporter
from penstock.engine.transfer.importer import Import
from penstock.engine.transfer.messages import Fetch
from penstock.errors import InvalidRequest
from penstock.flow.transfer import HOLD_S, TransferSetup

JOIN_S = 1.0  # when the engine is dropped: a thread whose channel was closed ends at once


class KvMemory(NamedTuple):
    """The memory of the KV blocks of an engine."""

    groups: Sequence[NDArray[np.uint8]]  # of [blocks, bytes]
    layout: str  # what the bytes of a block mean: the same in two engines if they may exchange them
    tokens: int = 0  # of one prompt, whose blocks may be held for a transfer


class Arriving(NamedTuple):
    """A prompt whose blocks are being fetched."""

    transferred: Import
    chain: PrefixChain
    present: Holding  # what was cached before: it is not evicted for the rest
    missing: Holding
    cached_tokens: int
    until: float  # it is ended then


class BlockTransfers:
    """`reserve`: blocks that an import leaves free in each group. The loop calls `tend` at every turn."""

    def __init__(
        self,
        setup: TransferSetup,
        secret: bytes,
        cache: CacheManager,
        memory: KvMemory,
        reserve: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._secret = secret
        self._cache = cache
        self._memory = memory
        self._reserve = reserve
        self._clock = clock
        self._exporter = Exporter(setup, secret, memory.groups, memory.layout) if setup.exports else None
        self._exports: dict[str, float] = {}  # when they are ended, unless the frontend has done so
        self._imports: dict[str, Arriving] = {}
        self.queries: dict[str, Callable[..., Any]] = {
            "kv_export": self._export,
            "kv_export_end": self._end_export,
            "kv_import": self._import,
            "kv_import_result": self._result,
            "kv_import_cancel": self._cancel,
        }

    @property
    def facts(self) -> dict[str, Any]:
        """For the frontend: where other engines fetch blocks, what theirs must look like, and how much of a prompt they
        may have."""
        address = None if self._exporter is None else self._exporter.address
        return {"kv_transfer": address, "kv_layout": self._memory.layout, "kv_transfer_tokens": self._memory.tokens}

    @property
    def ending(self) -> bool:
        """A thread of a cancelled import has not ended: it may still write, so that its blocks are held."""
        return any(arriving.transferred.stopped for arriving in self._imports.values())

    def tend(self, wait_s: float = 0.0) -> None:
        """Give back the blocks of imports that were cancelled, once their threads have ended (wait so long for each),
        and of transfers that no frontend has ended in time."""
        if not self._exports and not self._imports:
            return
        now = self._clock()
        for transfer in [one for one, until in self._exports.items() if now >= until]:
            self._end_export(transfer)
        for transfer, arriving in list(self._imports.items()):
            if now >= arriving.until:
                arriving.transferred.stop()
            if arriving.transferred.stopped and arriving.transferred.join(wait_s):
                self._finish(transfer)

    def close(self) -> None:
        """The engine is dropped."""
        for arriving in self._imports.values():
            arriving.transferred.stop()
        self.tend(JOIN_S)
        if self._exporter is not None:
            for holding in self._exporter.close():
                self._cache.release_holding(holding)

    def _export(self, transfer: str, root: bytes, tenant: str, tokens: list[int]) -> dict[str, Any] | None:
        """Hold what is cached of a prompt; None: too many blocks are held for transfers already."""
        if self._exporter is None:
            raise InvalidRequest("this replica computes no prompts for others")
        self._end_export(transfer)  # of an earlier attempt
        holding = self._cache.hold_cached(PrefixChain(root, self._cache.block_size, tenant), tokens)
        if holding is None:
            return None
        self._exporter.open(transfer, holding)
        self._exports[transfer] = self._clock() + HOLD_S
        return {"blocks": holding.num_blocks, "address": self._exporter.address}

    def _end_export(self, transfer: str) -> None:
        """Once it is fetched or given up: the blocks may be evicted. Nothing if there is no such transfer."""
        self._exports.pop(transfer, None)
        holding = None if self._exporter is None else self._exporter.end(transfer)
        if holding is not None:
            self._cache.release_holding(holding)

    def _import(self, transfer: str, address: str, root: bytes, tenant: str, tokens: list[int]) -> bool:
        """Begin to fetch what is not cached here of a prompt; False: there are too few blocks for it."""
        if transfer in self._imports:  # of an earlier attempt, whose thread has not ended
            return False
        cache, chain = self._cache, PrefixChain(root, self._cache.block_size, tenant)
        cached_tokens = cache.lookup_prefix(chain, tokens).tokens
        present = cache.hold_cached(chain, tokens)
        if present is None:
            return False
        missing = cache.hold_missing(chain, tokens, self._reserve())
        if missing is None:
            cache.release_holding(present)
            return False
        fetch = Fetch(transfer, self._memory.layout, [sorted(blocks) for blocks in missing.blocks])
        transferred = Import(address, fetch, missing, self._memory.groups, self._secret)
        self._imports[transfer] = Arriving(transferred, chain, present, missing, cached_tokens, self._clock() + HOLD_S)
        return True

    def _result(self, transfer: str) -> dict[str, Any] | None:
        """None: it goes on. Otherwise what has arrived, once; it is cached from then on."""
        arriving = self._imports.get(transfer)
        if arriving is None:
            raise InvalidRequest(f"there is no transfer {transfer}")
        return self._finish(transfer) if arriving.transferred.ended else None

    def _cancel(self, transfer: str) -> None:
        """`tend` gives the blocks back. Nothing if there is no such transfer."""
        arriving = self._imports.get(transfer)
        if arriving is not None:
            arriving.transferred.stop()

    def _finish(self, transfer: str) -> dict[str, Any]:
        transferred, chain, present, missing, cached_tokens, _ = self._imports.pop(transfer)
        for group, index in transferred.arrived:
            self._cache.publish_held(missing, chain, group, index)
        self._cache.release_holding(missing)
        self._cache.release_holding(present)
        error = transferred.error
        return {
            "blocks": len(transferred.arrived),
            "bytes": transferred.num_bytes,
            "seconds": transferred.seconds,
            "cached_tokens": cached_tokens,
            "cause": None if error is None else error.cause,
            "message": None if error is None else str(error),
        }
