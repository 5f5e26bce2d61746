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
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock import assemble
from penstock.cli.options import ENGINE, given_settings, settings_options
from penstock.cli.progress import download_bar
from penstock.cli.text import context_note, size_text
from penstock.errors import InvalidSetting, PenstockError
from penstock.flow.identity import SequenceNumbers, Source
from penstock.flow.prefix import draw_secret
from penstock.http.port import bind
from penstock.http.start_status import StartStatus
from penstock.observe.logs import configure
from penstock.settings import ENV_PREFIX, LOOPBACK, Settings, load, strays
from penstock.startup import preflight
from penstock.store.resolve import check_name
from penstock.system import gc_control
from penstock.system.daemon_thread import run_in_daemon_thread
from penstock.system.heap import trim_heap

if TYPE_CHECKING:
    from penstock.http.server import HttpServer
    from penstock.store.files import ModelFiles

logger = logging.getLogger(__name__)

# Switch interval of the interpreter. With Python's 5 ms, a thread that parses a long body stalls the event loop twice
# as long (bench/stalls_json.py).
THREAD_TURN_S = 0.001
ON_DISK_S = 0.2  # enough to find a model on this machine: its engine process is then started before anything else

Say = Callable[[str], None]


@click.command()
@click.argument("model", required=False)
@settings_options("serve", "observe", *ENGINE, but=("model", "isolate"))  # always isolated
def serve(**values: Any) -> None:
    """Serve MODEL (a catalogue name, folder, .gguf file, hub id or pypi: source) over HTTP."""
    with _errors_as_objects() if _log_format(values) == "json" else contextlib.nullcontext():
        _start(values)


def _start(values: dict[str, Any]) -> None:
    started = time.monotonic()
    settings = load(given_settings(values), file=values["config"])
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
    if settings.serve.host not in LOOPBACK and not settings.serve.keys:
        warn(f"every client that reaches {settings.serve.host} can use this server: no api_key is set")
    if "*" in settings.serve.origins and not settings.serve.keys:
        warn("every web page in a browser on this machine can use this server: allow_origin is * and no api_key is set")
    if settings.observe.events and settings.observe.otel_endpoint is not None:
        from penstock.observe.trace.otel import exporter_class

        exporter_class()  # raises here if the package is missing, not after the engine has started
    if settings.models:
        raise InvalidSetting("[[models]] cannot be served yet", param="models")
    check_name(settings.model.model)  # before the port: an unknown model is reported first
    listener = bind(settings.serve)
    sys.exit(_run(_serve(settings, listener, say, for_people)))


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


async def _serve(settings: Settings, listener: socket.socket, say: Say, for_people: bool) -> int:
    """Answers from the start on: with what it waits for (`http.starting`), until the model is loaded."""
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):  # until the server installs its own
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    status, replicas, http = StartStatus("finding the model"), None, None
    loading = contextlib.ExitStack()
    loading.enter_context(gc_control.paused())
    try:
        finding = _find_model(settings, status, say, for_people)
        await asyncio.wait({finding}, timeout=ON_DISK_S)
        if not finding.done():
            http = await _listen(settings, status, listener, say)
        files = await finding
        preflight.check(settings, files.spec)
        say(f"model {files.name}: {files.spec.architecture}, {files.spec.weights}")
        journal = assemble.journal(settings, Source(files.name))
        status.begin("starting the engine")
        secret = draw_secret()
        replicas = assemble.replica_set(settings, files.name, secret, journal, status.begin)
        replicas.spawn()
        say("engine process started; loading weights")
        if http is None:
            http = await _listen(settings, status, listener, say)
        await asyncio.to_thread(importlib.import_module, "penstock.http.app")  # the event loop answers meanwhile
        from penstock.deployment.registry import ModelRegistry

        model = assemble.local_model(settings, files, replicas, SequenceNumbers(), journal)
        models = ModelRegistry([model])
        gateway = assemble.gateway(settings, models, secret, journal)
        app, service, observer = assemble.server(settings, models, gateway, journal)
        with contextlib.closing(service):
            await replicas.start()
            loading.close()
            gc_control.tune_for_server()
            trim_heap()
            sys.setswitchinterval(THREAD_TURN_S)
            facts = replicas.facts
            say(f"weights loaded in {facts['load_s']:.1f} s ({size_text(facts['weights_bytes'])}); engine ready")
            if note := context_note(facts["context"], files.spec.context, settings):
                say(note)
            from penstock.http.server import serve as serve_http

            announce = functools.partial(_announce, files.name, facts, say, for_people)
            options = {"drain_s": settings.serve.drain_s, "hang_s": settings.serve.hang_s}
            return await serve_http(http, app, service, observer, announce, **options)
    except asyncio.CancelledError:
        say("stopped before the server was ready")
        if replicas is not None:
            replicas.close(at_once=True)
        return 0
    finally:
        loading.close()
        if replicas is not None:
            replicas.close()
        if http is not None:
            await http.close()


def _find_model(settings: Settings, status: StartStatus, say: Say, for_people: bool) -> asyncio.Future[ModelFiles]:
    """Downloads it if it is not on this machine."""

    def find() -> ModelFiles:
        with download_bar(None if for_people else say) as bar:

            def report(what: str, done_bytes: int, total_bytes: int | None) -> None:
                bar(what, done_bytes, total_bytes)
                status.download(what, done_bytes, total_bytes)

            return assemble.model(settings, report)

    return run_in_daemon_thread(find, "find model")


async def _listen(settings: Settings, status: StartStatus, listener: socket.socket, say: Say) -> HttpServer:
    from penstock.http import starting
    from penstock.http.server import HttpServer

    http = HttpServer(starting.build(status, settings.serve))
    await http.start(listener)
    say(f"listening on {http.url}; requests are answered once the model is loaded")
    return http


def _announce(model: str, facts: dict[str, Any], say: Callable[[str], None], for_people: bool, url: str) -> None:
    if not for_people:
        say(f"ready: {url}")
        return
    say("ready")
    rows = {
        "url": f"{url}/v1",
        "model": model,
        "device": f"{facts['device']}, {facts['kernels']} kernels, {facts['dtype']}",
        "KV cache": f"{facts['kv_tokens']:,} tokens of {facts['kv_dtype']} ({size_text(facts['kv_bytes'])}), "
        f"room for {facts['kv_tokens'] / facts['context']:.1f} requests at the full context",
        "context": f"{facts['context']:,} tokens",
        "interface": f"{url}/ui",
        "docs": f"{url}/docs",
    }
    width = max(map(len, rows))
    click.echo("\n" + "\n".join(f"  {name:{width}}  {value}" for name, value in rows.items()) + "\n", err=True)


def _run(main: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return asyncio.run(main)
    return uvloop.run(main)
