"""The composition root: the only module that knows all the others, on both sides of the border.

Each function imports the stages that it puts together, so that a command loads what it uses, when it does: a server
starts its engine process before it imports the web stack.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import __version__
from penstock.errors import InvalidRequest, InvalidSetting, ModelInvalid
from penstock.flow import Engine, SamplingParams
from penstock.flow.identity import SequenceNumbers, Source
from penstock.flow.prefix import draw_secret
from penstock.flow.transfer import TransferSetup
from penstock.settings import ModelEntry, ObserveSettings, Settings
from penstock.startup import process_tuning
from penstock.store.files import ModelFiles
from penstock.store.progress import Progress
from penstock.store.resolve import resolve, resolve_draft_model
from penstock.store.spec_check import chosen_context
from penstock.system.heap import trim_heap

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from penstock.batch.protocol import BatchData
    from penstock.cluster.ray_cluster import RayCluster
    from penstock.database.database import Database
    from penstock.deployment.autoscaler import Autoscaler
    from penstock.deployment.local_model import LocalModel
    from penstock.deployment.protocol import Capability, ModelCard
    from penstock.deployment.registry import ModelRegistry
    from penstock.deployment.replica_set import ReplicaSet
    from penstock.deployment.upstream_endpoint import Endpoint
    from penstock.deployment.upstream_model import UpstreamModel
    from penstock.engine.loop import EngineLoop
    from penstock.flow.ranks import RankLogits, RankPages, RankStep
    from penstock.gateway.accounting import Accounting
    from penstock.gateway.gateway import Gateway
    from penstock.gateway.keys.directory import KeyDirectory
    from penstock.gateway.keys.manager import KeyManager
    from penstock.gateway.limits.limiter import Limiter
    from penstock.gateway.safety.safety import Safety
    from penstock.http.response_store import ResponseStore
    from penstock.http.service import ModelManager, Service
    from penstock.observe.events import Emit, Listener
    from penstock.observe.observer import Observer
    from penstock.observe.trace.journal import Journal
    from penstock.pipeline import Pipeline
    from penstock.startup.sharing import ReplicaShare
    from penstock.tokenize.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

RESPONSE_THREADS = 4  # that read and write stored responses in a database


def model(settings: Settings, pulling: Progress | None = None) -> ModelFiles:
    """The model's files for a frontend, downloaded if need be. Recommended sampling parameters that are out of bounds
    are dropped with a warning."""
    if settings.models:
        raise InvalidSetting("[[models]] is for penstock serve: name one model", param="models")
    files = _resolve(settings, pulling)
    drafts, _, draft_model = settings.engine.speculate.partition(":")
    if drafts == "draft" and draft_model:
        resolve_draft_model(draft_model, progress=pulling)
    sampling = {}
    for name, value in files.sampling.items():
        try:
            SamplingParams(**{name: value})  # type: ignore[arg-type]
        except InvalidRequest as error:
            logger.warning("ignored a recommended sampling parameter of %s: %s", files.name, error.message)
        else:
            sampling[name] = value
    return msgspec.structs.replace(files, sampling=sampling)


def _resolve(settings: Settings, pulling: Progress | None = None) -> ModelFiles:
    return resolve(settings.model.model, progress=pulling, weights=settings.model.load_format != "dummy")


def pipeline(settings: Settings, files: ModelFiles) -> Pipeline:
    """The pipeline of a library: without events."""
    from penstock.tokenize.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(files.tokenizer) if files.tokenizer is not None else None
    trim_heap()  # before the weights take their memory
    return _pipeline(settings, files, tokenizer)


def engine(settings: Settings) -> tuple[Engine, dict[str, Any]]:
    """For a library: an engine that is ready, in this process or in its own, and its facts. It records no events."""
    settings = msgspec.structs.replace(settings, observe=ObserveSettings(events=False))
    if settings.engine.isolate or settings.engine.tensor_parallel > 1:  # a process group is of a whole process
        from penstock.engine.process import ProcessEngine

        remote = ProcessEngine(settings, draw_secret())
        return remote, remote.wait_ready()
    from penstock.engine.local import LocalEngine

    loop, facts = engine_loop(settings)
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
    files = _resolve(settings)  # no download: the frontend has resolved it before
    with process_tuning.fast_start():
        from penstock.startup import build

        return build.engine_loop(settings, files, begun, secret, report, transfer)


def follow_rank_0(
    settings: Settings,
    rank: int,
    meeting: str,
    loaded: Callable[[int], RankPages],
    steps: Iterable[RankStep | RankLogits],
) -> None:
    """The work of any other rank of a tensor-parallel engine: see `forward.torch_backend`. `meeting` is the folder
    where the ranks meet."""
    files = _resolve(settings)
    with process_tuning.fast_start():
        from penstock.startup import build

    build.follow_rank_0(settings, files, rank, meeting, loaded, steps)


def journal(settings: Settings, source: Source) -> Journal | None:
    """What listens to the events of a server, whose first replica is `source`; None with `--no-events`."""
    asked = settings.observe
    if not asked.events:
        return None
    from penstock.observe.epoch import Epoch
    from penstock.observe.trace.journal import Journal

    epoch = Epoch.now()
    listeners = []
    if asked.otel_endpoint is not None:
        from penstock.observe.trace.otel import to_endpoint

        listeners.append(to_endpoint(__version__, asked.otel_endpoint, epoch).export)
    return Journal(source, keep_texts=asked.keep_texts, listeners=listeners, epoch=epoch)


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
    from penstock.deployment.prefill_pool import PrefillPool
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
        settings, gpu = shares[number % len(shares)]
        settings = msgspec.structs.replace(settings, cache=settings.cache.for_replica(number))
        tell = on_phase if number == 0 else None
        path = None if listen is None else listen[number]
        role, transfer = None, None
        if entry.prefill_replicas:
            role = Role.PREFILL if number < entry.prefill_replicas else Role.DECODE
            transfer = TransferSetup(entry.kv_transport, exports=role is Role.PREFILL)

        def spawn() -> ProcessEngine:
            if cluster is None:
                return ProcessEngine(settings, secret, tell, gpu=gpu, listen=path, transfer=transfer)
            from penstock.cluster.ray_engine import RayEngine

            return RayEngine(settings, secret, cluster, tell, gpus=int(gpu is not None))

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


def local_model(
    settings: Settings,
    files: ModelFiles,
    replicas: ReplicaSet,
    numbers: SequenceNumbers,
    journal: Listener | None = None,
) -> LocalModel:
    """A model around its replicas. `numbers` are the server's."""
    from penstock.deployment.local_model import LocalModel
    from penstock.deployment.protocol import ModelCard
    from penstock.tokenize.tokenizer import Tokenizer

    if files.tokenizer is None:
        raise ModelInvalid(f"{files.name} has no tokenizer, so it cannot be served", param="model")
    tokenizer = Tokenizer.load(files.tokenizer)
    emit = None if journal is None else journal.record
    pipeline = _pipeline(settings, files, tokenizer, emit, settings.serve.default_max_tokens, numbers)
    capabilities: set[Capability] = {"completion", "embedding", "structured_output", "logprobs", "token_ids"}
    if pipeline.chat_format is not None:
        capabilities |= {"chat", "tools"}
        if pipeline.chat_format.reasoning is not None:
            capabilities.add("reasoning")
    card = ModelCard(
        name=files.name,
        context=pipeline.context,
        capabilities=frozenset(capabilities),
        drafts=settings.engine.speculate.partition(":")[0],  # not from where: that is a path of the server
        recommended={**files.sampling, **({} if files.max_tokens is None else {"max_tokens": files.max_tokens})},
        created=int(time.time()),
    )
    return LocalModel(card, files, pipeline, tokenizer, replicas, max_waiting=settings.schedule.max_waiting)


def upstream_model(
    endpoint: Endpoint,
    card: ModelCard,
    numbers: SequenceNumbers,
    tokenizer: str | None = None,
    journal: Listener | None = None,
) -> UpstreamModel:
    """A model of another server. `tokenizer` is a source of models whose tokenizer counts its tokens."""
    from penstock.deployment.protocol import CAPABILITIES
    from penstock.deployment.upstream_model import UpstreamModel

    if unknown := sorted(set(endpoint.capabilities) - set(CAPABILITIES)):
        known = ", ".join(CAPABILITIES)
        raise InvalidSetting(f"{card.name}: capabilities: {unknown[0]!r} is none of {known}", param="capabilities")
    counter = None
    if tokenizer is not None:
        from penstock.tokenize.tokenizer import Tokenizer

        files = resolve(tokenizer, weights=False)
        if files.tokenizer is None:
            raise ModelInvalid(f"{tokenizer} has no tokenizer", param="tokenizer")
        counter = Tokenizer.load(files.tokenizer)
    return UpstreamModel(endpoint, card, numbers, counter, None if journal is None else journal.record)


def gateway(
    settings: Settings,
    models: ModelRegistry,
    secret: bytes,
    journal: Listener | None = None,
    safety: Safety | None = None,
) -> Gateway:
    """What routes requests to the models. `secret` is the server's."""
    from penstock.gateway.fallback import RetryPlan
    from penstock.gateway.gateway import Gateway, chain_of
    from penstock.gateway.route_model import RouteModel
    from penstock.gateway.router import Router

    asked = settings.routing
    router = Router(asked.routing_policy, secret=secret, region=asked.region, ttft_target_s=asked.ttft_target_s)
    for model in models.local:
        model.replicas.pick = router.pick
    plan = RetryPlan(
        deadline_s=asked.fallback_deadline_s, first_token_s=asked.fallback_after_s, rounds=asked.fallback_rounds
    )
    for route in settings.routes:
        models.add(RouteModel(route.name, route.models, route.policy, models.find, router, int(time.time())))
    chains = {entry.name: chain_of(entry) for entry in settings.models}
    emit = None if journal is None else journal.record
    contexts = {entry.name: entry.context_defaults for entry in settings.models if entry.context_defaults is not None}
    return Gateway(router, models.find, chains, plan, contexts=contexts, safety=safety, emit=emit)


def safety(settings: Settings, journal: Listener | None = None) -> Safety | None:
    """The safety rules, compiled; None: there are none. Raises InvalidSetting, which names the rule."""
    if not settings.safety:
        return None
    from penstock.deployment.hook_client import HookClient
    from penstock.gateway.safety.moderation_hook import make_hook
    from penstock.gateway.safety.rules import Rules
    from penstock.gateway.safety.safety import Safety

    client = HookClient()
    hooks = [make_hook(entry, client.post, dict(os.environ)) for entry in settings.safety if entry.hook is not None]
    emit = None if journal is None else journal.record
    rules = Rules(settings.safety, hooks)
    return Safety(rules, emit=emit, keep_texts=settings.observe.keep_texts, close=client.close)


def database(settings: Settings) -> Database | None:
    """The database of keys and usage, and of what servers share, with its tables; None: the server has nothing of it.
    Blocks."""
    if not (settings.needs_database or settings.shares_stores):
        return None
    from penstock.database.database import open_database

    return open_database(settings.database_url)


def accounting(settings: Settings, database: Database | None, journal: Listener | None = None) -> Accounting:
    """What records the usage of requests in the database, if there is one."""
    from penstock.gateway.accounting import Accounting

    emit = None if journal is None else journal.record
    if database is None or not settings.needs_database:
        return Accounting(emit=emit)
    from penstock.gateway.ledger.ledger import Ledger
    from penstock.gateway.ledger.store import UsageStore

    fail_open = settings.tenants.limits_unavailable == "open"
    return Accounting(Ledger(UsageStore(database)), limiter(settings), fail_open=fail_open, emit=emit)


def limiter(settings: Settings) -> Limiter | None:
    """What holds the limits of keys and tenants; None: the server has no keys with limits."""
    if not settings.tenants.keys:
        return None
    asked = settings.tenants
    if asked.redis is not None:
        from penstock.gateway.limits.redis_limiter import RedisLimiter

        return RedisLimiter(asked.redis, unavailable=asked.limits_unavailable)
    from penstock.gateway.limits.local_limiter import LocalLimiter

    return LocalLimiter()


def server(
    settings: Settings,
    models: ModelRegistry,
    gateway: Gateway,
    journal: Journal | None = None,
    manager: ModelManager | None = None,
    accounting: Accounting | None = None,
    database: Database | None = None,
) -> tuple[ASGIApp, Service, Observer | None]:
    """The HTTP frontend around the models: the application, the service its routes share, and the observer that reads
    the journal, if there is one. `manager` adds and removes models. `database` is that of keys, usage and what servers
    share."""
    from penstock.deployment.scaling_metrics import ScalingCollector
    from penstock.deployment.transfer_metrics import TransferCollector
    from penstock.gateway.accounting import Accounting
    from penstock.gateway.ledger.metrics import UsageCollector
    from penstock.gateway.limits.metrics import LimitsCollector
    from penstock.gateway.metrics import GatewayCollector
    from penstock.http.app import build
    from penstock.http.service import Service
    from penstock.observe.metrics import PrometheusMetrics

    accounting = accounting or Accounting(emit=None if journal is None else journal.record)
    if journal is not None:
        journal.find_model = models.name_of
    observer = None if journal is None else _observer(settings, models, journal, accounting)
    manager_of_keys = key_manager(database) if database is not None and settings.needs_database else None
    metrics = PrometheusMetrics(Source(models.default.card.name), journal, only_model=len(models) == 1)
    metrics.registry.register(GatewayCollector(gateway))
    metrics.tenants.registry.register(UsageCollector(accounting))
    if gateway.safety is not None:
        from penstock.gateway.safety.metrics import SafetyCollector

        metrics.registry.register(SafetyCollector(gateway.safety))
    if accounting.limiter is not None:
        metrics.registry.register(LimitsCollector(accounting.limiter))
    scaler = autoscaler(settings, models, observer)
    metrics.registry.register(ScalingCollector(lambda: models.local, scaler))
    shared = database if settings.shares_stores else None
    responses, completions = (None, None) if shared is None else response_stores(shared)
    metrics.registry.register(TransferCollector(lambda: models.local))
    service = Service(
        models,
        gateway,
        metrics,
        stall_s=settings.serve.stall_s,
        emit=None if journal is None else journal.record,
        keep_texts=settings.observe.keep_texts,
        manager=manager,
        accounting=accounting,
        default_max_tokens=settings.serve.default_max_tokens,
        keys=key_directory(settings, manager_of_keys),
        key_manager=manager_of_keys,
        end_revoked=settings.tenants.revoked_streams == "end",
        autoscaler=scaler,
        responses=responses,
        completions=completions,
        batch_data=None if shared is None else functools.partial(batch_data, shared),
    )
    gateway.on_helper_end = service.count
    return build(service, settings, observer), service, observer


def response_stores(database: Database) -> tuple[ResponseStore, ResponseStore]:
    """Stored responses and chat completions that servers share."""
    from penstock.database.threads import DatabaseThreads
    from penstock.http.shared_responses import SharedResponseStore

    threads = DatabaseThreads(RESPONSE_THREADS, "responses")
    return SharedResponseStore(database, threads), SharedResponseStore(database, threads, what="completion")


def batch_data(database: Database) -> BatchData:
    """Files and batches that servers share."""
    from penstock.batch.shared_data import SharedData

    return SharedData(database)


def autoscaler(settings: Settings, models: ModelRegistry, observer: Observer | None) -> Autoscaler:
    """What changes the number of replicas of the models that have limits for it."""
    from penstock.deployment.autoscaler import Autoscaler

    def missed_slo() -> str | None:
        return None if observer is None else observer.monitor.missed_for_load

    asked = settings.observe
    target_s = asked.slo_ttft_p95 or settings.routing.ttft_target_s
    return Autoscaler(
        lambda: models.local, ttft_target_s=target_s, slo_window_s=asked.slo_window_s, missed_slo=missed_slo
    )


def key_manager(database: Database) -> KeyManager:
    """What keeps the keys of the database in memory."""
    from penstock.gateway.keys.manager import KeyManager
    from penstock.gateway.keys.store import KeyStore

    return KeyManager(KeyStore(database))


def key_directory(settings: Settings, manager: KeyManager | None) -> KeyDirectory:
    """Who clients are, by their keys."""
    from penstock.gateway.keys.configured import ConfiguredKeys
    from penstock.gateway.keys.directory import NoKeys, SeveralDirectories

    directories: list[KeyDirectory] = []
    if settings.serve.keys:
        directories.append(ConfiguredKeys(settings.serve.keys, settings.serve.admin_keys))
    if settings.tenants.keys:
        assert manager is not None
        directories.append(manager.keys)
    return SeveralDirectories(directories) if directories else NoKeys()


def _pipeline(
    settings: Settings,
    files: ModelFiles,
    tokenizer: Tokenizer | None,
    emit: Emit | None = None,
    default_max_tokens: int | None = None,
    numbers: SequenceNumbers | None = None,
) -> Pipeline:
    from penstock.grammar.checker import Checker
    from penstock.pipeline import Pipeline
    from penstock.prompt.template import ChatTemplate

    spec = files.spec
    return Pipeline(
        spec,
        tokenizer,
        ChatTemplate(files.chat_template, files.special_tokens) if files.chat_template is not None else None,
        context=chosen_context(spec, settings.model.context),
        constraints=Checker(files.tokenizer, spec.vocab_size, spec.end_tokens),
        by_priority=settings.schedule.policy in ("fair", "priority"),
        default_max_tokens=default_max_tokens,
        emit=emit,
        model=files.name,
        numbers=numbers,
    )


def _observer(settings: Settings, models: ModelRegistry, journal: Journal, accounting: Accounting) -> Observer:
    """What reads the journal: the history, the objectives and the views of requests."""
    from penstock.deployment.protocol import State
    from penstock.observe.gpu import Gpu
    from penstock.observe.history import History
    from penstock.observe.observer import Observer
    from penstock.observe.slo.monitor import SloMonitor
    from penstock.observe.slo.webhook import Webhook
    from penstock.observe.trace.views import View, ViewedModel

    asked = settings.observe
    history = History(journal)
    listeners = [Webhook(asked.slo_webhook).post] if asked.slo_webhook is not None else []

    def any_ready() -> bool:
        return any(model.state is State.READY for model in models)

    monitor = SloMonitor(journal, history, asked, any_ready, listeners, accounting.spend)

    def viewed(name: str) -> ViewedModel | None:
        for model in models.local:
            if model.name == name:
                return ViewedModel(model.tokenizer, model.replicas.facts.get("block_size", settings.cache.block_size))
        return None

    return Observer(journal, history, monitor, View(journal, viewed), Gpu())
