"""Puts together engines: the loop of one in this process or its own, and the replicas of a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.composition.model_side import resolve_files
from penstock.flow import Engine
from penstock.flow.identity import Source
from penstock.flow.prefix import draw_secret
from penstock.flow.transfer import TransferSetup
from penstock.settings import ModelEntry, ObserveSettings, Settings
from penstock.startup import process_tuning
from penstock.system.heap import trim_heap

if TYPE_CHECKING:
    from penstock.cluster.ray_cluster import RayCluster
    from penstock.deployment.replica_set import ReplicaSet
    from penstock.engine.loop import EngineLoop
    from penstock.forward.rank_forward import Leader
    from penstock.observe.trace.journal import Journal
    from penstock.startup.sharing import ReplicaShare


def engine(settings: Settings) -> tuple[Engine, dict[str, Any]]:
    """For a library: an engine that is ready, in this process or in its own, and its facts. It records no events."""
    settings = msgspec.structs.replace(settings, observe=ObserveSettings(events=False))
    if settings.engine.isolate or settings.engine.tensor_parallel > 1:  # a process group is of a whole process
        from penstock.engine.process import ProcessEngine

        remote = ProcessEngine(settings, draw_secret())
        return remote, remote.wait_ready()
    from penstock.engine.local import LocalEngine

    loop, facts = engine_loop(settings)
    trim_heap()  # what loading has left
    if facts["device"] == "cpu":
        return LocalEngine(loop), facts
    from penstock.startup.torch_process import release_device_memory

    return LocalEngine(loop, release_device_memory), facts


def engine_loop(
    settings: Settings,
    secret: bytes | None = None,
    report: Callable[[str], None] | None = None,
    transfer: TransferSetup | None = None,
) -> tuple[EngineLoop, dict[str, Any]]:
    """The loop of an engine: `engine.serve` runs it in a process of its own, `engine.local` in this one. `secret` is
    the server's (`flow.prefix`); `report` is told each phase of the start; `transfer` says how it exchanges KV blocks
    with other engines."""
    begun = time.monotonic()
    files = resolve_files(settings)  # no download: the frontend has resolved it before
    with process_tuning.fast_start():
        from penstock.startup import build

        return build.engine_loop(settings, files, begun, secret, report, transfer)


def follow_rank_0(
    settings: Settings,
    rank: int,
    meeting: str,
    leader: Leader,
) -> None:
    """What any other rank of a tensor-parallel engine does: see `forward.torch_backend`. `meeting` is the folder where
    the ranks meet."""
    files = resolve_files(settings)
    with process_tuning.fast_start():
        from penstock.startup import build

    build.follow_rank_0(settings, files, rank, meeting, leader)


def replica_set(
    shares: Sequence[ReplicaShare],
    entry: ModelEntry,
    secret: bytes,
    journal: Journal | None = None,
    on_phase: Callable[[str], None] | None = None,
    cluster: RayCluster | None = None,
    listen: Sequence[Path] | None = None,
) -> ReplicaSet:
    """The supervised engine processes of a model for a server, at most one per share: none is started yet. `secret` is
    the server's: the same for all of its engines, before and after a restart. `on_phase` is told what the first replica
    does until it is ready. `cluster`: where they run; None: on this machine.
    `listen`: where further frontends find each."""
    from penstock.deployment.prefill_pool import PrefillPool, role_of
    from penstock.deployment.protocol import Role
    from penstock.deployment.replica import Replica
    from penstock.deployment.replica_set import ReplicaSet
    from penstock.deployment.scale_policy import ScaleLimits
    from penstock.engine.process import ProcessEngine
    from penstock.observe.events import Scaled

    def make_replica(number: int) -> Replica:
        source = Source(entry.name, number)
        report = None if journal is None else (lambda: journal.replica(source).level)
        emit = None if journal is None else journal.record
        settings, gpus = shares[number % len(shares)]
        settings = msgspec.structs.replace(settings, cache=settings.cache.for_replica(number))
        tell = on_phase if number == 0 else None
        path = None if listen is None else listen[number]
        role = role_of(number, entry.prefill_replicas)
        transfer = None if role is None else TransferSetup(entry.kv_transport, exports=role is Role.PREFILL)

        def spawn() -> ProcessEngine:
            if cluster is None:
                return ProcessEngine(settings, secret, tell, gpus=gpus, listen=path, transfer=transfer)
            from penstock.cluster.ray_engine import RayEngine

            return RayEngine(settings, secret, cluster, tell, gpus=len(gpus), transfer=transfer)

        return Replica(spawn, source, emit, report=report, role=role)

    def tell_scaled(before: int, after: int, reason: str) -> None:
        if journal is not None:
            journal.record(Scaled("", journal.clock(), entry.name, before, after, reason))

    limits = None
    if entry.max_replicas is not None:
        limits = ScaleLimits(entry.least_replicas, entry.max_replicas, entry.scale_up_s, entry.scale_down_s)
    emit = None if journal is None else journal.record
    prefill = PrefillPool(secret, entry.prefill_min_tokens, emit) if entry.prefill_replicas else None
    return ReplicaSet(make_replica, entry.first_replicas, limits=limits, on_scaled=tell_scaled, prefill=prefill)
