"""penstock serve: the HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import os
import signal
import socket
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock import composition
from penstock.cli.options import ENGINE, given_settings, settings_options
from penstock.cli.progress import download_bar
from penstock.cli.text import context_note, size_text
from penstock.errors import PenstockError
from penstock.flow.identity import Source
from penstock.flow.prefix import draw_secret
from penstock.frontends.count import frontend_count
from penstock.http.event_loop import prefer_event_loop, run_loop
from penstock.http.port import bind
from penstock.http.start_status import StartStatus
from penstock.observe.logs import configure
from penstock.settings import ENV_PREFIX, LOOPBACK, Settings, load, strays
from penstock.settings.unused import check_used_by_server
from penstock.startup.find_models import FoundModel, check_names, find_models
from penstock.startup.server_models import ServerModels
from penstock.system import gc_control
from penstock.system.daemon_thread import run_in_daemon_thread
from penstock.system.heap import trim_heap
from penstock.system.private_folder import PrivateFolder

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from penstock.cluster.ray_cluster import RayCluster
    from penstock.deployment.protocol import ServedModel
    from penstock.deployment.registry import ModelRegistry
    from penstock.frontends.supervisor import FrontendSet
    from penstock.http.server import HttpServer
    from penstock.http.service import Service
    from penstock.observe.observer import Observer

logger = logging.getLogger(__name__)

MAX_NAMED_ADAPTERS = 8  # of a model, when the server is ready
PHASE_S = 0.05  # between two looks at the engine's phases
ON_DISK_S = 0.2  # enough to find a model on this machine: its engine process is then started before anything else

Say = Callable[[str], None]


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@settings_options("serve", "tenants", "observe", "routing", *ENGINE, but=("model", "isolate"))  # always isolated
def serve(**values: Any) -> None:
    """Serve MODEL (a catalogue name, folder, .gguf file, hub id or pypi: source) over HTTP.

    Several models share the machine. Options of each go into [[models]] of the settings file: see docs/SERVER.md.
    """
    with _errors_as_objects() if _log_format(values) == "json" else contextlib.nullcontext():
        _start(values)


def _start(values: dict[str, Any]) -> None:
    started = time.monotonic()
    sources = values.pop("models")
    one = {"model": sources[0]} if len(sources) == 1 else {}
    several = sources if len(sources) > 1 else ()
    settings = load(given_settings(values) | one, file=values["config"], models=several)
    configure(settings.observe.log_format)

    for_people = settings.observe.log_format == "human"

    def say(text: str) -> None:
        if for_people:
            click.echo(click.style(f"{time.monotonic() - started:5.1f} s  ", dim=True) + text, err=True)
        else:
            logger.info("%s", text)

    def warn(text: str) -> None:
        click.secho(f"warning: {text}", fg="yellow", err=True) if for_people else logger.warning("%s", text)

    if ignored := strays():
        warn(ignored)
    if settings.serve.host not in LOOPBACK and not settings.needs_key:
        warn(f"every client that reaches {settings.serve.host} can use this server: no api_key is set")
    if "*" in settings.serve.origins and not settings.needs_key:
        warn("every web page in a browser on this machine can use this server: allow_origin is * and no api_key is set")
    if settings.observe.events and settings.observe.otel_endpoint is not None:
        from penstock.observe.trace.otel import exporter_class

        exporter_class()  # raises here if the package is missing, not after the engine has started
    check_used_by_server(settings)
    check_names(settings)  # before the port: an unknown model is reported first
    frontends = frontend_count(settings)
    listener = bind(settings.serve, shared=frontends > 1)
    cluster = None
    if settings.serve.cluster is not None:
        from penstock.cluster.ray_cluster import RayCluster

        cluster = RayCluster(settings.serve.cluster)  # before the event loop: Ray handles signals until that does
        say(f"cluster: {', '.join(f'{count:g} {name}' for name, count in cluster.processors.items())}")
    try:
        sys.exit(run_loop(_serve(settings, frontends, listener, cluster, say, for_people)))
    finally:
        if cluster is not None:
            cluster.close()


def _log_format(values: dict[str, Any]) -> Any:
    """The log format, before the settings are loaded: their errors are logged in it, too."""
    if given := values["log_format"] or os.environ.get(f"{ENV_PREFIX}LOG_FORMAT"):
        return given
    try:
        return tomllib.loads(values["config"].read_text(encoding="utf-8"))["observe"]["log_format"]
    except (AttributeError, OSError, ValueError, LookupError, TypeError):  # no file, no TOML, no such setting
        return None


@contextlib.contextmanager
def _errors_as_objects() -> Iterator[None]:
    """With JSON logs, the error that ends the start is a JSON line, too."""
    configure("json")
    try:
        yield
    except PenstockError as error:
        logger.error("%s", error.message, exc_info="--debug" in sys.argv[1:])
        sys.exit(1)
    except Exception as error:
        logger.error("%s: %s", type(error).__name__, error, exc_info=True)
        sys.exit(1)


class LoadedServer(NamedTuple):
    http: HttpServer
    app: ASGIApp
    service: Service
    observer: Observer | None
    models: ServerModels
    frontends: FrontendSet | None


async def _serve(
    settings: Settings,
    frontends: int,
    listener: socket.socket,
    cluster: RayCluster | None,
    say: Say,
    for_people: bool,
) -> int:
    """Answers from the start on: with what it waits for (`http.starting`), until the model is loaded."""
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):  # until the server installs its own
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        async with contextlib.AsyncExitStack() as closing:
            try:
                with gc_control.paused():
                    loaded = await _load(settings, frontends, listener, cluster, closing, say, for_people)
                return await _run_loaded(settings, loaded, closing, say, for_people)
            except asyncio.CancelledError:
                say("stopped before the server was ready")
                raise
    return 0


async def _load(
    settings: Settings,
    frontends: int,
    listener: socket.socket,
    cluster: RayCluster | None,
    closing: contextlib.AsyncExitStack,
    say: Say,
    for_people: bool,
) -> LoadedServer:
    """`closing` gets what has to be closed, as it is opened."""
    status, http = StartStatus("finding the model"), None
    finding = _find_models(settings, status, say, for_people)
    await asyncio.wait({finding}, timeout=ON_DISK_S)
    if not finding.done():
        http = await _listen(settings, status, listener, closing, say)
    found = await finding
    for one in found:
        say(f"model {one.entry.name}: {_kind(one)}")
    journal = composition.journal(settings, Source(found[0].entry.name))
    safety = await asyncio.to_thread(composition.safety, settings, journal)
    status.begin("starting the engine")
    sockets = None if frontends == 1 else closing.enter_context(PrivateFolder())
    models = ServerModels(settings, draw_secret(), journal, cluster, sockets)
    closing.push(functools.partial(_close_models, models))
    models.spawn(found, status.begin)
    say("engine process started; loading weights")
    if http is None:
        http = await _listen(settings, status, listener, closing, say)
    await _import_app(models)
    further = None if sockets is None else _spawn_frontends(settings, frontends, listener, sockets, closing)
    database = await asyncio.to_thread(composition.database, settings)
    if database is not None:
        closing.callback(database.close)
    registry = models.build(found)
    models.gateway = composition.gateway(settings, registry, models.secret, journal, safety)
    accounting = composition.accounting(settings, database, journal)
    app, service, observer = composition.server(
        settings, registry, models.gateway, journal, models, accounting, database
    )
    closing.callback(service.close)
    for part in (service.key_manager, safety, accounting):
        if part is not None:
            closing.push_async_callback(part.close)
    await accounting.start()
    loading_keys = None if service.key_manager is None else asyncio.create_task(service.key_manager.start())
    await models.start()
    if loading_keys is not None:
        await loading_keys
    if further is not None:
        further.attach(service, models, journal)
        closing.push_async_callback(further.close)  # before what their requests need
    return LoadedServer(http, app, service, observer, models, further)


def _spawn_frontends(
    settings: Settings, count: int, listener: socket.socket, sockets: Path, closing: contextlib.AsyncExitStack
) -> FrontendSet:
    from penstock.frontends.supervisor import FrontendSet

    frontends = FrontendSet(settings, count, listener, sockets)
    closing.push_async_callback(frontends.close)
    frontends.spawn()
    return frontends


def _close_models(
    models: ServerModels, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    """At once if the start was interrupted."""
    models.close(at_once=kind is not None and issubclass(kind, asyncio.CancelledError))


async def _run_loaded(
    settings: Settings, loaded: LoadedServer, closing: contextlib.AsyncExitStack, say: Say, for_people: bool
) -> int:
    from penstock.http.server import serve as serve_http

    http, app, service, observer, models, frontends = loaded
    gc_control.tune_for_server()
    trim_heap()
    prefer_event_loop()
    if settings.tenants.keys and not settings.serve.keys and service.key_manager and not len(service.key_manager.keys):
        say("there are no keys yet: `penstock keys create --tenant NAME` creates one")
    _report_loaded(models.registry, settings, say)
    swapping = asyncio.create_task(models.residency.run())
    closing.callback(swapping.cancel)
    announce = functools.partial(_announce, models.registry, say, for_people)
    waits = {"drain_s": settings.serve.drain_s, "hang_s": settings.serve.hang_s}
    return await serve_http(http, app, service, observer, announce, **waits, frontends=frontends)


def _kind(found: FoundModel) -> str:
    if found.files is None:
        return f"upstream {found.entry.upstream}"
    return f"{found.files.spec.architecture}, {found.files.spec.weights}"


def _report_loaded(registry: ModelRegistry, settings: Settings, say: Say) -> None:
    for model in registry.local:
        facts = model.replicas.facts
        if not facts:
            continue
        label = f"{model.name}: " if len(registry) > 1 else ""
        size = size_text(facts["weights_bytes"])
        say(f"{label}weights loaded in {facts['load_s']:.1f} s ({size} as {facts['weights']}); engine ready")
        if facts["speculation"] != "off":
            say(f"{label}drafts tokens with {facts['speculation']}")
        if note := context_note(facts["context"], model.files.spec.context, settings):
            say(label + note)


def _find_models(
    settings: Settings, status: StartStatus, say: Say, for_people: bool
) -> asyncio.Future[list[FoundModel]]:
    """Downloads those that are not on this machine."""

    def find() -> list[FoundModel]:
        with download_bar(None if for_people else say) as bar:

            def report(what: str, done_bytes: int, total_bytes: int | None) -> None:
                bar(what, done_bytes, total_bytes)
                status.download(what, done_bytes, total_bytes)

            return find_models(settings, report)

    return run_in_daemon_thread(find, "find model")


async def _listen(
    settings: Settings, status: StartStatus, listener: socket.socket, closing: contextlib.AsyncExitStack, say: Say
) -> HttpServer:
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would read the metadata of all packages for them
    from penstock.http import starting
    from penstock.http.server import HttpServer

    http = HttpServer(starting.build(status, settings))
    await http.start(listener.dup())  # further frontends have the socket, too
    closing.push_async_callback(http.close)
    say(f"listening on {http.url}; requests are answered once the model is loaded")
    return http


async def _import_app(models: ServerModels) -> None:
    """The event loop answers meanwhile, with the engine's phases."""
    importing = asyncio.ensure_future(asyncio.to_thread(importlib.import_module, "penstock.http.app"))
    while not importing.done():
        models.read_phases()
        await asyncio.wait({importing}, timeout=PHASE_S)
    await importing


def _announce(registry: ModelRegistry, say: Say, for_people: bool, url: str) -> None:
    if not for_people:
        say(f"ready: {url}")
        return
    say("ready")
    rows = {"url": f"{url}/v1"}
    rows |= _rows_of_several(registry) if len(registry) > 1 else _rows_of_one(registry.default)
    rows |= {"interface": f"{url}/ui", "docs": f"{url}/docs"}
    width = max(map(len, rows))
    click.echo("\n" + "\n".join(f"  {name:{width}}  {value}" for name, value in rows.items()) + "\n", err=True)


def _summary(model: ServedModel) -> str:
    replicas = len(model.deployments)
    several = f", {replicas} replicas" if replicas > 1 else ""
    context = f", {model.card.context:,} tokens" if model.card.context is not None else ""
    return f"{'upstream ' + model.card.owner if model.card.remote else model.state.value}{several}{context}"


def _rows_of_several(registry: ModelRegistry) -> dict[str, str]:
    from penstock.deployment.adapter_model import AdapterModel

    rows, many = {}, {base.name for base in registry.local if len(registry.adapters_of(base)) > MAX_NAMED_ADAPTERS}
    for model in registry:
        if not isinstance(model, AdapterModel) or model.base.name not in many:
            rows[model.card.name] = _summary(model)
    return rows | {
        f"{base.name}@…": f"{len(registry.adapters_of(base)):,} adapters: `penstock adapters list` names them"
        for base in registry.local
        if base.name in many
    }


def _rows_of_one(model: ServedModel) -> dict[str, str]:
    from penstock.deployment.local_model import LocalModel

    facts = model.replicas.facts if isinstance(model, LocalModel) else {}
    if not facts:
        return {"model": f"{model.card.name}: {_summary(model)}"}
    return {
        "model": model.card.name,
        "device": f"{facts['device']}, {facts['kernels']} kernels, {facts['dtype']}",
        "KV cache": f"{facts['kv_tokens']:,} tokens of {facts['kv_dtype']} ({size_text(facts['kv_bytes'])}), "
        f"room for {facts['kv_tokens'] / facts['context']:.1f} requests at the full context",
        "context": f"{facts['context']:,} tokens",
    }
