"""Puts together the parts of a server that all models share: journal, gateway, accounts, keys, HTTP."""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.flow.identity import Source
from penstock.settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from penstock.batch.protocol import BatchData
    from penstock.database.database import Database
    from penstock.deployment.autoscaler import Autoscaler
    from penstock.deployment.registry import ModelRegistry
    from penstock.gateway.accounting import Accounting
    from penstock.gateway.gateway import Gateway
    from penstock.gateway.keys.directory import KeyDirectory
    from penstock.gateway.keys.manager import KeyManager
    from penstock.gateway.limits.limiter import Limiter
    from penstock.gateway.safety.safety import Safety
    from penstock.http.response_store import ResponseStore
    from penstock.http.service import ModelManager, Service
    from penstock.observe.events import Listener
    from penstock.observe.observer import Observer
    from penstock.observe.trace.journal import Journal

RESPONSE_THREADS = 4  # that read and write stored responses in a database


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
