"""All settings of an engine, resolved once: defaults < file < environment < arguments.

A setting has one flat name everywhere: `block_size` in `LLM(block_size=...)`, `--block-size` on the command line,
`PENSTOCK_BLOCK_SIZE` in the environment, and `block_size` under `[cache]` in a TOML file. Settings are frozen; derived
values (the device that "auto" selects, the number of KV blocks) are returned, never written back.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from penstock.errors import InvalidSetting
from penstock.settings.data_dir import DATABASE, data_folder
from penstock.settings.models import (
    ENGINE_SECTIONS,
    ModelEntry,
    check_entries,
    check_entry,
    entry_label,
    parse_entries,
    parse_one,
    served_names,
    source_name,
)
from penstock.settings.routes import RouteEntry, check_routes, parse_routes
from penstock.settings.safety import SafetyEntry, parse_safety
from penstock.settings.sections import (
    AdapterEntry,
    CacheSettings,
    EngineSettings,
    ModelSettings,
    Positive,
    PriceSettings,
    ScheduleSettings,
    Section,
    error_in_words,
)
from penstock.settings.server import ObserveSettings, RoutingSettings, ServeSettings, TenantSettings
from penstock.settings.unknown import unknown_section, unknown_setting
from penstock.settings.unused import check_own_used, check_used
from penstock.system import typed

__all__ = [
    "ENV_PREFIX",
    "LOOPBACK",
    "SECTIONS",
    "AdapterEntry",
    "CacheSettings",
    "EngineSettings",
    "ModelEntry",
    "ModelSettings",
    "ObserveSettings",
    "Positive",
    "PriceSettings",
    "RoutingSettings",
    "SafetyEntry",
    "ScheduleSettings",
    "Section",
    "ServeSettings",
    "Settings",
    "TenantSettings",
    "child_environment",
    "from_wire",
    "load",
    "parse_bytes",
    "parse_entry",
    "settings_of",
    "strays",
    "to_wire",
]

ENV_PREFIX = "PENSTOCK_"
NO_SETTINGS = frozenset({"PENSTOCK_CACHE", "PENSTOCK_CPU"})  # read by `store` and `kernels`
# Variables that hold secrets: OPENAI_API_KEY, HF_TOKEN, OTEL_EXPORTER_OTLP_HEADERS, …
_SECRET = re.compile(r"(\w+_)?(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS|HEADERS)(_\w+)?", re.IGNORECASE)
# Variables that Kubernetes sets in every container for a service called penstock, or penstock-something.
_OF_A_SERVICE = re.compile(r"PENSTOCK_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://.*")  # also the value of PENSTOCK_PORT there
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Settings(Section, frozen=True):
    """`models` are the entries of [[models]]; empty: the one model of `model`. `routes` and `safety` are those of
    [[routes]] and [[safety]]."""

    model: ModelSettings = ModelSettings()
    cache: CacheSettings = CacheSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    engine: EngineSettings = EngineSettings()
    routing: RoutingSettings = RoutingSettings()
    serve: ServeSettings = ServeSettings()
    tenants: TenantSettings = TenantSettings()
    observe: ObserveSettings = ObserveSettings()
    models: tuple[ModelEntry, ...] = ()
    routes: tuple[RouteEntry, ...] = ()
    safety: tuple[SafetyEntry, ...] = ()

    @property
    def needs_key(self) -> bool:
        """Whether clients need an API key, of the settings or of the database."""
        return bool(self.serve.keys) or self.tenants.keys

    @property
    def needs_database(self) -> bool:
        """For keys or usage."""
        return self.tenants.keys or self.tenants.ledger

    @property
    def shares_stores(self) -> bool:
        """Whether stored responses, files and batches are in the database, for several servers."""
        return (self.tenants.database or "").startswith("postgres")

    @property
    def data_folder(self) -> Path:
        return data_folder(self.serve.data_dir)

    @property
    def database_url(self) -> str:
        return self.tenants.database or f"sqlite:///{self.data_folder / DATABASE}"


ENTRIES = ("models", "routes", "safety")  # of which a file has several, as in [[models]]
# flat name -> section; names are unique across sections
SECTIONS = {
    name: section.name
    for section in msgspec.structs.fields(Settings)
    if section.name not in ENTRIES
    for name in section.type.__struct_fields__
}


def load(
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    file: Path | None = None,
    models: Sequence[str] = (),
) -> Settings:
    """Resolve the settings. Arguments that are None count as absent. `models` are sources, each of which is an entry of
    [[models]], named by the source."""
    values: dict[str, Any] = {section: {} for section in (*SECTIONS.values(),)}
    content = _read(file) if file else {}
    raw_entries, raw_routes = content.pop("models", []), content.pop("routes", [])
    raw_safety = content.pop("safety", [])
    if models:
        if raw_entries:
            raise InvalidSetting("models on the command line and [[models]] exclude each other", param="models")
        raw_entries = [{"name": source_name(source), "model": source} for source in models]
    for section, entries in content.items():
        if section not in values or not isinstance(entries, dict):
            raise InvalidSetting(f"{file}: {unknown_section(section, entries, SECTIONS, ENTRIES)}", param=section)
        values[section].update(entries)
    for name, section in SECTIONS.items():
        text = environ.get(ENV_PREFIX + name.upper())
        if text is not None and not (name == "port" and _SERVICE_URL.fullmatch(text)):
            values[section][name] = text.split(",") if name == "adapters" else text
    for name, value in (arguments or {}).items():
        if name not in SECTIONS:
            raise InvalidSetting(f"unknown setting {name!r}; known: {', '.join(SECTIONS)}", param=name)
        if value is not None:
            values[SECTIONS[name]][name] = value
    if raw_entries:
        if "model" in values["model"]:
            raise InvalidSetting("model and [[models]] exclude each other: name the model in an entry", param="model")
        if values["model"].get("adapters"):
            raise InvalidSetting("adapters belong to one model: name them in its entry of [[models]]", param="adapters")
        values["models"] = parse_entries(raw_entries, values, SECTIONS)
    if raw_routes:
        values["routes"] = parse_routes(raw_routes)
    if raw_safety:
        values["safety"] = parse_safety(raw_safety)
    try:
        settings = from_wire(values)
        _check(settings)
    except InvalidSetting as error:
        variable = ENV_PREFIX + (error.param or "").upper()
        if variable in environ and (arguments or {}).get(error.param or "") is None:
            raise InvalidSetting(f"{error.message} (from {variable} in the environment)", param=error.param) from None
        raise
    return settings


def parse_entry(raw: Mapping[str, Any], settings: Settings) -> ModelEntry:
    """An entry of [[models]] that is added at run time. Raises InvalidSetting."""
    plain = msgspec.structs.replace(settings, model=msgspec.structs.replace(settings.model, adapters=()))
    values = parse_one(dict(raw), None, msgspec.to_builtins(plain), SECTIONS)
    entry = typed.convert(values, ModelEntry, strict=False)
    _check_engine(settings_of(settings, entry))
    check_own_used(entry, settings)
    check_entry(entry, entry_label(None, entry.name), {})
    return entry


def settings_of(settings: Settings, entry: ModelEntry) -> Settings:
    """The settings of one model of several, as if it were the only one."""
    engine = {name: getattr(entry, name) for name in ENGINE_SECTIONS}
    return msgspec.structs.replace(settings, **engine, models=())


def strays(environ: Mapping[str, str] = os.environ) -> str | None:
    """A warning about PENSTOCK_ variables that are no settings. No error: other software may set them."""
    known = {ENV_PREFIX + name.upper() for name in SECTIONS}
    unknown = []
    for name in sorted(name for name in environ if name.startswith(ENV_PREFIX)):
        ours = name in known or name in NO_SETTINGS
        of_a_service = _OF_A_SERVICE.fullmatch(name) or (
            name.endswith("_PORT") and _SERVICE_URL.fullmatch(environ[name])
        )
        if not (ours or of_a_service):
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            unknown.append(name + (f" (did you mean {close[0]}?)" if close else ""))
    return f"ignored environment variables, not settings of Penstock: {', '.join(unknown)}" if unknown else None


def to_wire(settings: Settings) -> dict[str, Any]:
    """Settings for an engine process, without keys and addresses."""
    observe = ObserveSettings(events=settings.observe.events, log_format=settings.observe.log_format)
    cache = settings.cache
    if settings.model.adapters and cache.adapter_memory is None:
        cache = msgspec.structs.replace(cache, adapter_memory="auto")
    engine_settings = msgspec.structs.replace(
        settings,
        cache=cache,
        model=msgspec.structs.replace(settings.model, adapters=()),  # requests name them, with their paths
        serve=ServeSettings(),
        tenants=TenantSettings(),
        routing=RoutingSettings(),
        observe=observe,
        models=(),
        routes=(),
        safety=(),
    )
    return msgspec.to_builtins(engine_settings)  # type: ignore[no-any-return]


def child_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment of child processes: without settings and without variables that look like secrets, since other
    processes of the same user can read it."""
    return {
        name: value
        for name, value in environ.items()
        if name in NO_SETTINGS or not (name.startswith(ENV_PREFIX) or _SECRET.fullmatch(name))
    }


def from_wire(values: dict[str, Any]) -> Settings:
    try:
        return typed.convert(values, Settings, strict=False)  # environment values come as text
    except msgspec.ValidationError as error:
        # "Expected `int` >= 1 - at `$.cache.block_size`"; "Object contains unknown field `x` - at `$.cache`"
        what, _, path = str(error).partition(" - at ")
        unknown = re.search(r"unknown field `(\w+)`", what)
        param = unknown[1] if unknown else path.strip("`").rpartition(".")[2]
        message = (
            unknown_setting(param, path.strip("`").removeprefix("$."), SECTIONS)
            if unknown
            else f"{param} {error_in_words(what)}"
        )
        raise InvalidSetting(message, param=param) from None


def parse_bytes(text: str, param: str) -> int:
    """ "2GiB", "512M", "1e9": parse a memory size."""
    match = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    try:
        number = float(match[1]) if match else -1.0
    except ValueError:
        number = -1.0
    if match is None or not 0 < number < math.inf:
        raise InvalidSetting(f"{param} must be a size such as 2GiB or 512MB, got {text!r}", param=param)
    base = 1024 if match[3] else 1000
    return int(number * base ** " kmgt".index(match[2] or " "))


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSetting(f"cannot read settings file {file}: {error.strerror}", param="config") from None
    except UnicodeDecodeError:
        raise InvalidSetting(f"settings file {file} is not valid TOML: it is not UTF-8", param="config") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(f"settings file {file} is not valid TOML: {error}", param="config") from None


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return bool(re.fullmatch(r"https?://\S+", text) and parts.hostname and parts.port != 0)
    except ValueError:  # a port that is no number, half of a [::1]
        return False


def _check(settings: Settings) -> None:
    """Checks across fields."""
    _check_engine(settings)
    for number, entry in enumerate(settings.models):
        try:
            _check_engine(settings_of(settings, entry))
            check_own_used(entry, settings)
        except InvalidSetting as error:
            raise InvalidSetting(f"{entry_label(number, entry.name)}: {error.message}", param=error.param) from None
    check_used(settings)
    check_entries(settings.models)
    check_routes(settings.routes, [name for one in settings.models for _, name in served_names(one)])
    for name in ("max_body", "max_file", "max_adapter"):
        parse_bytes(getattr(settings.serve, name), name)
    if settings.serve.api_key is not None and not settings.serve.keys:  # an unset variable
        raise InvalidSetting(
            "api_key is empty, which would disable authentication: set a key, or leave it out", param="api_key"
        )
    if settings.serve.admin_key is not None:
        other_keys = settings.serve.api_key is not None or settings.tenants.keys
        if not other_keys or not settings.serve.admin_keys:
            raise InvalidSetting("admin_key needs a value, and goes with api_key or keys", param="admin_key")
    if not all(key.isascii() and key.isprintable() for key in settings.serve.keys):  # a secret: not shown
        raise InvalidSetting("api_key must be printable ASCII, since it is sent in a header", param="api_key")
    for origin in settings.serve.origins:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@*]+", origin):
            raise InvalidSetting(
                f"allow_origin must be * or an origin such as https://app.example, without a path; got {origin!r}",
                param="allow_origin",
            )
    for host in settings.serve.hosts:
        if not re.fullmatch(r"\*|(\*\.)?[a-z0-9_.-]+|\[[0-9a-f:.]+\]", host):
            raise InvalidSetting(
                f"allow_host must be a host name such as penstock.lan, without a port, or *; got {host!r}",
                param="allow_host",
            )
    for server in settings.serve.mcp_servers:
        if not _is_url(server) or re.search(r"[@;,'\"]", server):
            raise InvalidSetting(
                f"mcp_server must be an http or https URL without a user, got {server!r}", param="mcp_server"
            )
    if settings.tenants.redis is not None:  # it may hold a password: not shown
        if not re.match(r"(rediss?|unix)://", settings.tenants.redis):
            raise InvalidSetting("redis must be a URL such as redis://host:6379/0", param="redis")
        if not settings.tenants.keys:
            raise InvalidSetting("redis goes with keys: only keys of the database have limits", param="redis")
    for name in ("otel_endpoint", "slo_webhook"):
        url = getattr(settings.observe, name)
        if url is not None and not _is_url(url):
            raise InvalidSetting(f"{name} must be an http or https URL", param=name)  # it may hold a secret: not shown
    if settings.serve.host not in LOOPBACK and not settings.needs_key and not settings.serve.unprotected:
        raise InvalidSetting(
            f"host {settings.serve.host} is not loopback: set api_key (--api-key KEY) or keys (--keys), or unprotected "
            "(--unprotected) to serve without a key",
            param="host",
        )


def _check_engine(settings: Settings) -> None:
    """Checks of one engine's settings."""
    settings.model.check()
    settings.cache.check()
    if settings.engine.pipeline_parallel > 1:
        raise InvalidSetting(
            "pipeline_parallel: Penstock does not divide the layers of a model among processes; tensor_parallel splits "
            "every layer",
            param="pipeline_parallel",
        )
    if settings.cache.kv_memory is not None:
        parse_bytes(settings.cache.kv_memory, "kv_memory")
    schedule = settings.schedule
    if schedule.step_tokens and schedule.max_sequences and schedule.step_tokens < schedule.max_sequences:
        raise InvalidSetting(
            f"step_tokens ({schedule.step_tokens}) must be at least max_sequences ({schedule.max_sequences}): "
            "every running sequence may need a token in every step",
            param="step_tokens",
        )
