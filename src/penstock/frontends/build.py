"""What a frontend process serves with: the models over links to their engines, and the application."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace
from starlette.types import ASGIApp

from penstock import composition
from penstock.deployment.adapter_model import AdapterModel
from penstock.deployment.prefill_pool import PrefillPool, role_of
from penstock.deployment.registry import ModelRegistry
from penstock.deployment.replica import Replica
from penstock.deployment.replica_set import ReplicaSet
from penstock.engine.linked import LinkedEngine, wait_for_engine
from penstock.flow.identity import SequenceNumbers, Source
from penstock.flow.prefix import KEY_BYTES
from penstock.frontends.control_link import ControlLink
from penstock.frontends.messages import EndEngine, PromptSent, ServedAdapter, StartFrontend
from penstock.frontends.remote import RemoteAccounting, RemoteMetrics, RemoteResponseStore
from penstock.gateway.gateway import Gateway
from penstock.http.app import build_frontend
from penstock.http.service import Service
from penstock.observe.events import Emit
from penstock.settings import ModelEntry, Settings, settings_of
from penstock.startup.find_models import FoundModel
from penstock.startup.server_models import ServerModels
from penstock.store.adapter_spec import AdapterFiles

if TYPE_CHECKING:
    from penstock.database.database import Database

NEXT_ENGINE_S = 60.0  # a frontend waits so long for the engine that replaces a dead one, with what it has to do


def find_models(settings: Settings) -> list[FoundModel]:
    """Those that the control process has found: they are on this machine, and fit."""
    if not settings.models:
        files = composition.model(settings)
        sections = {name: getattr(settings, name) for name in ("model", "cache", "schedule", "engine")}
        return [FoundModel(ModelEntry(name=files.name, pinned=True, **sections), files)]
    return [
        FoundModel(entry) if entry.upstream is not None else _find_model(settings_of(settings, entry), entry)
        for entry in settings.models
    ]


def _find_model(settings: Settings, entry: ModelEntry) -> FoundModel:
    return FoundModel(entry, replace(composition.model(settings), name=entry.name))


def linked_replicas(
    entry: ModelEntry,
    paths: Sequence[Path],
    secret: bytes,
    emit: Emit | None,
    end_engine: Callable[[Source, str], None],
) -> ReplicaSet:
    """The engines of a model, which the control process has started and supervises. `end_engine` asks it to end one
    that hangs."""

    def make_replica(number: int) -> Replica:
        source, path = Source(entry.name, number), paths[number]
        wait, role = partial(wait_for_engine, path, NEXT_ENGINE_S), role_of(number, entry.prefill_replicas)
        link = partial(LinkedEngine, path, partial(end_engine, source))
        return Replica(link, source, emit, wait_for_next=wait, role=role)

    prefill = PrefillPool(secret, entry.prefill_min_tokens, emit) if entry.prefill_replicas else None
    return ReplicaSet(make_replica, len(paths), prefill=prefill)


class FrontendModels(ServerModels):
    """The models of a frontend process. They neither come nor go, but for adapters."""

    def __init__(self, settings: Settings, start: StartFrontend, link: ControlLink) -> None:
        super().__init__(settings, start.secret)
        self._link = link
        self.listener = link if settings.observe.events else None
        self._emit = link.record if settings.observe.events else None
        self._paths = {name: [Path(path) for path in paths] for name, paths in start.engines.items()}
        self._numbers = SequenceNumbers(*start.numbers)
        self._removed: list[AdapterModel] = []  # that have open requests

    async def connect(self, found: Sequence[FoundModel]) -> ModelRegistry:
        """Waits for the engines."""
        self.registry = ModelRegistry()
        for one in found:
            name = one.entry.name
            if one.files is None:
                self.registry.add(self.upstream(one.entry))
                continue
            for path in self._paths[name]:
                await wait_for_engine(path, float("inf"))
            replicas = linked_replicas(one.entry, self._paths[name], self.secret, self._emit, self._end_engine)
            replicas.spawn()
            self.replica_sets[name] = replicas
            model = self.local(one, replicas)
            self.registry.add(model)
        await self.wait_for_engines()
        return self.registry

    def serve(self, adapters: Sequence[ServedAdapter]) -> None:
        """These and no others. Requests of those that go end as they began."""
        wanted = {(one.base, one.name, one.spec.version, one.price, one.aliases): one for one in adapters}
        for model in self.registry.adapters:
            version = model.adapter.version
            if wanted.pop((model.base.name, model.adapter.name, version, model.own_price, model.own_aliases), None):
                continue
            self.registry.remove(model.card.name)
            model.removed = True
            self._removed.append(model)
        bases = {base.name: base for base in self.registry.local}
        for one in wanted.values():
            files = AdapterFiles(Path(one.path), Path(one.weights), one.spec)
            self.registry.add(AdapterModel(bases[one.base], one.name, files, price=one.price, aliases=one.aliases))

    def open_by_adapter(self) -> list[tuple[tuple[str, str], int]]:
        """By id and version."""
        self._removed = [model for model in self._removed if model.open]
        models = (*self.registry.adapters, *self._removed)
        return [((model.card.name, model.adapter.version), model.open) for model in models if model.open]

    def tell_sent(self, source: Source, keys: Sequence[bytes]) -> None:
        """The other frontends, where there is a choice of replicas, that one of them got a prompt of these keys."""
        if len(self.replica_sets[source.model].replicas) > 1:
            self._link.tell(PromptSent(source, b"".join(keys)))

    def note_sent(self, message: PromptSent) -> None:
        """What another frontend has told."""
        keys = [message.keys[place : place + KEY_BYTES] for place in range(0, len(message.keys), KEY_BYTES)]
        replicas = self.replica_sets.get(message.source.model)
        for replica in [] if replicas is None else replicas.replicas:
            if replica.source == message.source and replica.prefixes is not None:
                replica.prefixes.add(keys)

    def _end_engine(self, source: Source, why: str) -> None:
        self._link.tell(EndEngine(source, why))


def build_server(
    settings: Settings, models: ModelRegistry, gateway: Gateway, link: ControlLink, database: Database | None
) -> tuple[ASGIApp, Service]:
    """The application of the frontend. `database` is that of keys."""
    emit = link.record if settings.observe.events else None
    key_manager = None if database is None else composition.key_manager(database)
    fail_open = settings.tenants.limits_unavailable == "open"
    service = Service(
        models,
        gateway,
        RemoteMetrics(link, Source(models.default.card.name)),
        stall_s=settings.serve.stall_s,
        emit=emit,
        keep_texts=settings.observe.keep_texts,
        accounting=RemoteAccounting(link, durable=settings.needs_database, fail_open=fail_open, emit=emit),
        default_max_tokens=settings.serve.default_max_tokens,
        keys=composition.key_directory(settings, key_manager),
        key_manager=key_manager,
        end_revoked=settings.tenants.revoked_streams == "end",
        responses=RemoteResponseStore(link, what="response"),
        completions=RemoteResponseStore(link, what="completion"),
    )
    gateway.on_helper_end = service.count
    return build_frontend(service, settings), service
