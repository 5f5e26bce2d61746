"""The models of a server, from its settings: resolved, checked against each other, built, loaded and removed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from penstock import composition
from penstock.errors import InvalidRequest, InvalidSetting, ModelNotFound, PenstockError
from penstock.flow.identity import SequenceNumbers
from penstock.settings import ModelEntry, Settings, parse_bytes, parse_entry, settings_of
from penstock.settings.models import entry_label, parse_duration, served_names
from penstock.settings.server import MAX_FRONTENDS
from penstock.startup import preflight
from penstock.startup.find_models import FoundModel, find_model, upstream_key
from penstock.startup.sharing import (
    GPU_FRACTION,
    Claim,
    Machine,
    Node,
    ReplicaShare,
    host_bytes_needed,
    share_cluster,
    share_machine,
)
from penstock.store.files import ModelFiles
from penstock.system import resources

if TYPE_CHECKING:
    from penstock.cluster.ray_cluster import RayCluster
    from penstock.deployment.adapters import AdapterManager
    from penstock.deployment.local_model import LocalModel
    from penstock.deployment.protocol import ServedModel
    from penstock.deployment.registry import ModelRegistry
    from penstock.deployment.replica_set import ReplicaSet
    from penstock.deployment.residency import Residency, Resident
    from penstock.gateway.gateway import Gateway
    from penstock.observe.events import Listener
    from penstock.observe.trace.journal import Journal


ADAPTER_DRAIN_S = 60.0  # for the requests of an adapter that is removed
DRAIN_LOOK_S = 0.02  # between looks at the requests of a model that is removed


class ServerModels:
    """The models of one server, which share its secret, sequence numbers and journal. `share` first, then
    `build` once the engines of `replica_sets` start."""

    registry: ModelRegistry
    residency: Residency
    adapters: AdapterManager

    def __init__(
        self,
        settings: Settings,
        secret: bytes,
        journal: Journal | None = None,
        cluster: RayCluster | None = None,
        links: Path | None = None,
    ) -> None:
        """`cluster`: where the engines run; None: on this machine. `links`: the folder of the sockets by which further
        frontends reach them; None: there are none."""
        self.settings = settings
        self.links = links
        self.engine_paths: dict[str, list[Path]] = {}  # in `links`, by model
        self.secret = secret
        self.journal = journal
        self.cluster = cluster
        self.listener: Listener | None = journal  # of the events of its models
        self.replica_sets: dict[str, ReplicaSet] = {}  # of the models of the settings
        self.gateway: Gateway | None = None  # for models that are added at run time
        self._numbers = SequenceNumbers(parts=1 if links is None else 1 + MAX_FRONTENDS)
        self._claims: dict[str, Claim] = {}

    def spawn(self, found: Sequence[FoundModel], on_phase: Callable[[str], None] | None = None) -> None:
        """Start the engine processes of the models that are loaded at the start."""
        self._shares = self.share(found)
        for one in found:
            name = one.entry.name
            if one.files is not None:
                first = on_phase if not self.replica_sets else None
                self.replica_sets[name] = self.replica_set(one.entry, self._shares[name], first)
                if one.entry.load == "start":
                    self.replica_sets[name].spawn()

    def read_phases(self) -> None:
        """Pass on what the engines have reported of their start, before `start` waits for them."""
        for replicas in self.replica_sets.values():
            replicas.read_phases()

    def build(self, found: Sequence[FoundModel]) -> ModelRegistry:
        from penstock.deployment.adapter_store import AdapterStore
        from penstock.deployment.adapters import AdapterManager
        from penstock.deployment.registry import ModelRegistry
        from penstock.deployment.residency import Residency

        serve = self.settings.serve
        self.registry = ModelRegistry()
        store = AdapterStore(self.settings.data_folder / "adapters", parse_bytes(serve.max_adapter, "max_adapter"))
        self.adapters = AdapterManager(self.registry, store, [Path(root) for root in serve.adapter_roots])
        self.residency = Residency(serve.hang_s, resources.host_bytes, max_loaded=serve.max_loaded)
        for one in found:
            name = one.entry.name
            if one.files is None:
                self.registry.add(self.upstream(one.entry))
            else:
                model = self.local(one, self.replica_sets[name])
                self.registry.add(model)
                self.residency.add(self.resident(one, model, self._shares[name]))
                self.serve_adapters(one, model)
        return self.registry

    async def start(self) -> None:
        """`wait_for_engines`, with the adapters that were added before the last start."""
        await asyncio.to_thread(self.adapters.restore)
        await self.wait_for_engines()

    async def wait_for_engines(self) -> None:
        """Those that were spawned; raises what keeps one from starting."""
        spawned = {name: replicas for name, replicas in self.replica_sets.items() if replicas.replicas}

        async def start(name: str, replicas: ReplicaSet) -> None:
            try:
                await replicas.start()
            except PenstockError as error:
                if len(spawned) == 1:
                    raise
                raise type(error)(f"{name}: {error.message}", param=error.param) from None

        await asyncio.gather(*(start(name, replicas) for name, replicas in spawned.items()))

    def close(self, *, at_once: bool = False) -> None:
        """All engine processes."""
        for replicas in self.replica_sets.values():
            replicas.close(at_once=at_once)
        if hasattr(self, "registry"):
            for model in self.registry.local:
                model.replicas.close(at_once=at_once)

    def share(self, found: Sequence[FoundModel], *, at_start: bool = True) -> dict[str, list[ReplicaShare]]:
        """Check local models against each other and against those there are; returns the shares of the new ones. Later
        than at the start, memory is looked at when a model is loaded: others may make room for it then."""
        claims = dict(self._claims)
        for number, one in enumerate(found):
            if one.files is not None:
                claims[one.entry.name] = self._claim(one.entry, one.files, number if at_start else None)
        if self.cluster is None:
            shares = share_machine(list(claims.values()), _machine(), check_memory=at_start)
        else:
            shares = share_cluster(list(claims.values()), [Node(*size) for size in self.cluster.nodes()])
        self._claims = claims
        new = {one.entry.name for one in found}
        return {name: share for name, share in zip(claims, shares, strict=True) if name in new}

    def replica_set(
        self, entry: ModelEntry, shares: list[ReplicaShare], on_phase: Callable[[str], None] | None = None
    ) -> ReplicaSet:
        paths = None
        if self.links is not None:
            first = sum(map(len, self.engine_paths.values()))
            paths = [self.links / f"engine-{first + number}" for number in range(len(shares))]
            self.engine_paths[entry.name] = paths
        return composition.replica_set(shares, entry, self.secret, self.journal, on_phase, self.cluster, paths)

    def local(self, found: FoundModel, replicas: ReplicaSet) -> LocalModel:
        entry = found.entry
        assert found.files is not None
        settings = settings_of(self.settings, entry)
        model = composition.local_model(settings, found.files, replicas, self._numbers, self.listener)
        model.card = replace(model.card, **_card_fields(entry))
        return model

    def upstream(self, entry: ModelEntry) -> ServedModel:
        from penstock.deployment.protocol import ModelCard
        from penstock.deployment.upstream_endpoint import DEFAULT_CAPABILITIES, Endpoint

        assert entry.upstream is not None
        capabilities: Any = frozenset(entry.capabilities) or DEFAULT_CAPABILITIES
        endpoint = Endpoint(
            name=entry.name,
            url=entry.upstream,
            model=entry.upstream_model or entry.name,
            key=upstream_key(entry, entry.name),
            capabilities=capabilities,
            max_tokens_field=entry.max_tokens_field,
            connect_s=entry.connect_s,
            first_token_s=entry.first_token_s,
            idle_s=entry.idle_s,
        )
        card = ModelCard(
            name=entry.name,
            context=entry.model.context,
            capabilities=capabilities,
            remote=True,
            owner=endpoint.host,
            created=int(time.time()),
            **_card_fields(entry),
        )
        return composition.upstream_model(endpoint, card, self._numbers, entry.tokenizer, self.listener)

    def resident(self, found: FoundModel, model: LocalModel, shares: list[ReplicaShare]) -> Resident:
        from penstock.deployment.residency import Resident

        entry, claim = found.entry, self._claims[found.entry.name]
        keep_alive_s = None if entry.idle_after is None else parse_duration(entry.idle_after)
        fractions: dict[int, float] = {}
        for share in shares if claim.on_gpu else ():
            own = share.settings.cache.memory_fraction or GPU_FRACTION
            for gpu in share.gpus or range(share.settings.engine.tensor_parallel):
                fractions[gpu] = fractions.get(gpu, 0.0) + own
        return Resident(
            model,
            needed_bytes=0 if claim.on_gpu or self.cluster is not None else host_bytes_needed(claim),
            gpu_fractions=fractions if self.cluster is None else {},
            pinned=entry.pinned,
            keep_alive_s=keep_alive_s,
            keeps_replicas=bool(entry.min_replicas),
        )

    # --- at run time: http.service.ModelManager

    def _check_one_frontend(self, what: str) -> None:
        """Raises InvalidRequest: further frontends have the models that they started with."""
        if self.links is not None:
            raise InvalidRequest(f"a server with several frontends cannot {what}: restart it with --frontends 1")

    async def add(self, entry: Mapping[str, Any], *, trusted: bool) -> ServedModel:
        """Serve another model from now on, by an entry as in [[models]]. A local one is loaded now, unless it says on
        demand. Only a `trusted` client may name a variable of the environment, whose value is sent to the upstream;
        others those of the settings, for the upstream that has them there. Raises InvalidRequest or what is wrong with
        the model."""
        self._check_one_frontend("add models")
        variable = entry.get("api_key_env")
        known = [(one.api_key_env, one.upstream) for one in self.settings.models]
        if variable is not None and not trusted and (variable, entry.get("upstream")) not in known:
            raise InvalidRequest(
                "api_key_env: only a client with an admin_key may name it, unless an entry of [[models]] has it with "
                "this upstream",
                param="api_key_env",
            )
        try:
            parsed = parse_entry(entry, self.settings)
        except InvalidSetting as error:
            raise InvalidRequest(error.message, param=error.param) from None
        self._check_free(parsed)
        if parsed.upstream is not None:
            return await self._add_upstream(parsed)
        found = await asyncio.to_thread(find_model, self.settings, parsed)
        self._check_free(parsed)  # finding it may have taken long
        shares = self.share([found], at_start=False)[parsed.name]
        local = self.local(found, self.replica_set(parsed, shares))
        self.registry.add(local)
        self._route(parsed, local)
        self.residency.add(self.resident(found, local, shares))
        try:
            self.serve_adapters(found, local)
            if parsed.load == "start":
                await self.load(local)
        except BaseException:  # it is there as a whole or not at all
            await self.remove(local)
            raise
        return local

    async def _add_upstream(self, entry: ModelEntry) -> ServedModel:
        try:
            model = await asyncio.to_thread(self.upstream, entry)  # its tokenizer may have to be downloaded
        except InvalidSetting as error:
            raise InvalidRequest(error.message, param=error.param) from None
        self._check_free(entry)
        self.registry.add(model)
        self._route(entry, model)
        return model

    async def remove(self, model: ServedModel) -> None:
        """It finishes its requests first. A local model goes with its adapters."""
        from penstock.deployment.adapter_model import AdapterModel
        from penstock.deployment.local_model import LocalModel
        from penstock.gateway.route_model import RouteModel

        if isinstance(model, AdapterModel):
            await self.adapters.remove(model, ADAPTER_DRAIN_S)
            return
        self._check_one_frontend("remove models")
        own = self.registry.adapters_of(model) if isinstance(model, LocalModel) else []
        left = [one for one in self.registry if not isinstance(one, RouteModel) and one not in (model, *own)]
        if not left:
            raise InvalidRequest(f"{model.card.name} is the only model: it cannot be removed", param="model")
        for adapter in own:
            adapter.removed = True
            self.registry.remove(adapter.card.name)
        self.registry.remove(model.card.name)
        if self.gateway is not None:
            self.gateway.forget(model.card.name)
        if isinstance(model, LocalModel):
            await self.residency.remove(model)
            self._claims.pop(model.name, None)
            while model.preparing:
                await asyncio.sleep(DRAIN_LOOK_S)
        while any(one.load().open for one in model.deployments):
            await asyncio.sleep(DRAIN_LOOK_S)
        model.close()

    async def load(self, model: LocalModel) -> None:
        await self.residency.ensure_loaded(self.residency.find(model))

    async def unload(self, model: LocalModel) -> None:
        self._check_one_frontend("unload models")
        await self.residency.unload(model)

    async def sleep(self, model: LocalModel) -> None:
        self._check_one_frontend("put models to sleep")
        await self.residency.sleep(model)

    def expires_in(self, model: LocalModel) -> float | None:
        return self.residency.expires_in(model)

    def is_pinned(self, model: LocalModel) -> bool:
        return self.residency.find(model).pinned

    def serve_adapters(self, found: FoundModel, model: LocalModel) -> None:
        """Those of the settings."""
        from penstock.deployment.adapters import serve_adapter

        for one in found.entry.model.adapter_entries:
            files = found.adapters[one.name]
            serve_adapter(self.registry, model, one.name, files, price=one.price, aliases=one.aliases)

    def _route(self, entry: ModelEntry, model: ServedModel) -> None:
        if self.gateway is not None:
            self.gateway.add(entry, model)

    def _check_free(self, entry: ModelEntry) -> None:
        """Its names are free, and its fallbacks exist."""
        for one in entry.fallback:
            name = one if isinstance(one, str) else one.model
            try:
                self.registry.find(name)
            except ModelNotFound:
                raise InvalidRequest(f"fallback: there is no model {name!r}", param="fallback") from None
        for key, name in served_names(entry):
            with contextlib.suppress(ModelNotFound):
                owner = self.registry.find(name)
                raise InvalidRequest(f"{key}: {name!r} is taken by the model {owner.card.name!r}", param=key)

    def _claim(self, entry: ModelEntry, files: ModelFiles, number: int | None) -> Claim:
        settings = settings_of(self.settings, entry)
        return Claim(
            entry_label(number, entry.name),
            settings,
            preflight.uses_gpu(settings) if self.cluster is None else self.cluster.uses_gpu(settings.model.device),
            entry.most_replicas,
            entry.gpus,
            entry.load == "start",
            sum(path.stat().st_size for path in files.weights),
        )


def _card_fields(entry: ModelEntry) -> dict[str, Any]:
    from penstock.deployment.protocol import Price

    price = None if entry.price is None else Price(**msgspec.to_builtins(entry.price))
    return {"aliases": entry.aliases, "price": price, "region": entry.region}


def _machine() -> Machine:
    return Machine(resources.cores(), resources.host_bytes(), resources.gpu_count())
