"""Transfers of KV blocks as the engine's loop sees them: queries that the frontend asks in turn.

    prefill replica: kv_export ─────────────────────────────────────────────► kv_export_end
    decode replica:              kv_import ─► kv_import_result* (or kv_import_cancel)

The loop holds and publishes blocks, threads copy them. Queries name a prompt by its root key (`flow.prefix`), tenant
and tokens: both engines compute the same keys from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.cache import CacheManager, Holding, PrefixChain
from penstock.engine.transfer.exporter import Exporter
from penstock.engine.transfer.importer import Import
from penstock.engine.transfer.messages import Fetch
from penstock.errors import InvalidRequest
from penstock.flow.transfer import TransferSetup

JOIN_S = 1.0  # a thread whose channel was closed ends at once


class KvMemory(NamedTuple):
    """The memory of the KV blocks of an engine."""

    groups: Sequence[NDArray[np.uint8]]  # of [blocks, bytes]
    layout: str  # what the bytes of a block mean: the same in two engines if they may exchange them


class Arriving(NamedTuple):
    """A prompt whose blocks are being fetched."""

    transferred: Import
    chain: PrefixChain
    present: Holding  # what was cached before: it is not evicted for the rest
    missing: Holding
    cached_tokens: int


class BlockTransfers:
    """`reserve`: blocks that an import leaves free in each group."""

    def __init__(
        self,
        setup: TransferSetup,
        secret: bytes,
        cache: CacheManager,
        memory: KvMemory,
        reserve: Callable[[], int] = lambda: 0,
    ) -> None:
        self._secret = secret
        self._cache = cache
        self._memory = memory
        self._reserve = reserve
        self._exporter = Exporter(setup, secret, memory.groups, memory.layout) if setup.exports else None
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
        """For the frontend: where other engines fetch blocks, and what theirs must look like."""
        address = None if self._exporter is None else self._exporter.address
        return {"kv_transfer": address, "kv_layout": self._memory.layout}

    def close(self) -> None:
        """The engine is dropped."""
        for transfer in list(self._imports):
            self._cancel(transfer)
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
        return {"blocks": holding.num_blocks, "address": self._exporter.address}

    def _end_export(self, transfer: str) -> None:
        """Once it is fetched or given up: the blocks may be evicted. Nothing if there is no such transfer."""
        holding = None if self._exporter is None else self._exporter.end(transfer)
        if holding is not None:
            self._cache.release_holding(holding)

    def _import(self, transfer: str, address: str, root: bytes, tenant: str, tokens: list[int]) -> bool:
        """Begin to fetch what is not cached here of a prompt; False: there are too few blocks for it."""
        self._release_stopped()
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
        self._imports[transfer] = Arriving(transferred, chain, present, missing, cached_tokens)
        return True

    def _result(self, transfer: str) -> dict[str, Any] | None:
        """None: it goes on. Otherwise what has arrived, once; it is cached from then on."""
        arriving = self._imports.get(transfer)
        if arriving is None:
            raise InvalidRequest(f"there is no transfer {transfer}")
        return self._finish(transfer) if arriving.transferred.ended else None

    def _cancel(self, transfer: str) -> None:
        """Give the blocks back. Nothing if there is no such transfer."""
        arriving = self._imports.get(transfer)
        if arriving is not None:
            arriving.transferred.stop(JOIN_S)
            self._release_stopped()

    def _release_stopped(self) -> None:
        """Give back the blocks of imports that were cancelled. A thread that has not ended may still write: its blocks
        stay held until a later look, at the latest when the next import begins."""
        for transfer, arriving in list(self._imports.items()):
            if arriving.transferred.stopped and arriving.transferred.ended:
                self._finish(transfer)

    def _finish(self, transfer: str) -> dict[str, Any]:
        transferred, chain, present, missing, cached_tokens = self._imports.pop(transfer)
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
