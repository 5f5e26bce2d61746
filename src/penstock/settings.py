"""All settings of an engine, resolved once: defaults < file < environment < arguments.

A setting has one flat name everywhere: `block_size` in `LLM(block_size=...)`, `--block-size` on the command line,
`PENSTOCK_BLOCK_SIZE` in the environment, and `block_size` under `[cache]` in a TOML file. Settings are frozen; what is
derived from them (the device "auto" stands for, the number of cache blocks) is returned by whoever derives it, never
written back.
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
NO_SETTINGS = frozenset({"PENSTOCK_CACHE", "PENSTOCK_CPU"})  # read where they are needed, by `store` and `kernels`
# Names of variables that hold what is nobody else's business: OPENAI_API_KEY, HF_TOKEN, OTEL_EXPORTER_OTLP_HEADERS, …
_SECRET = re.compile(r"(\w+_)?(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS|HEADERS)(_\w+)?", re.IGNORECASE)
# What Kubernetes tells every container of a service called penstock, or penstock-something.
_OF_A_SERVICE = re.compile(r"PENSTOCK_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://.*")  # as PENSTOCK_PORT, too
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


# The description is the setting's --help; bounds are checked when settings are resolved.
Positive = Annotated[int, Meta(ge=1)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stage's settings."""


class ModelSettings(Section, frozen=True):
    model: Annotated[
        str, Meta(description="Catalogue name, folder, .gguf file, hub id, or pypi:<package>[==version]/<file>.")
    ] = "smollm2"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], Meta(description="Type the model computes in.")
    ] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="Where the model runs.")] = "auto"
    load_format: Annotated[
        Literal["auto", "dummy"], Meta(description="dummy: random weights from the model's config alone.")
    ] = "auto"
    quantize: Annotated[
        Literal["int8", "int4"] | None,
        Meta(
            description="What float weights become as they are loaded, for the native CPU kernels. [default: they stay]"
        ),
    ] = None
    context: Annotated[
        Positive | None, Meta(description="Most tokens of a sequence. [default: the model's own, or what fits memory]")
    ] = None


class CacheSettings(Section, frozen=True):
    block_size: Annotated[int, Meta(ge=1, le=1024, description="Tokens per KV block.")] = 16
    kv_memory: Annotated[
        str | None, Meta(description="Memory for KV blocks, such as 2GiB. [default: by memory-fraction]")
    ] = None
    memory_fraction: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(description="Share of the device's memory to use. [default: 0.9; on a CPU 0.25 of what is free]"),
    ] = None
    kv_dtype: Annotated[
        Literal["auto", "float32", "float16", "int8"],
        Meta(description="Type of the KV cache. auto: float16 with the native CPU kernels, elsewhere the model's."),
    ] = "auto"
    prefix_caching: Annotated[bool, Meta(description="Reuse the KV of prompts that begin alike.")] = True


class ScheduleSettings(Section, frozen=True):
    step_tokens: Annotated[
        Positive | None,
        Meta(
            description="Most tokens one step computes. [default: 512 on a CPU; on a GPU 8192, or 16384 if the weights "
            "take 4 GiB or less]"
        ),
    ] = None
    max_sequences: Annotated[
        Positive | None, Meta(description="Most sequences running at once. [default: 64 on a CPU, 512 on a GPU]")
    ] = None
    max_waiting: Annotated[
        int, Meta(ge=1, description="Sequences that may wait beside those that run; more are refused.")
    ] = 100_000
    policy: Annotated[
        Literal["fcfs", "priority"],
        Meta(description="Who goes first: by arrival, or by the priority of requests, the smallest first."),
    ] = "fcfs"
    lookahead: Annotated[
        Literal[0, 1] | None,
        Meta(description="Steps planned ahead of the last result. [default: 0 on a CPU, 1 on a GPU]"),
    ] = None


class EngineSettings(Section, frozen=True):
    isolate: Annotated[bool, Meta(description="Run the engine in its own process.")] = False
    threads: Annotated[
        Positive | None, Meta(description="CPU threads of the model. [default: the cores this process may use]")
    ] = None


class ServeSettings(Section, frozen=True):
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")] = 8000
    api_key: Annotated[
        str | None, Meta(description="Key that clients must send, or several with commas between. [default: none]")
    ] = None
    allow_origin: Annotated[
        str | None,
        Meta(
            description="Origin whose pages may call from a browser, such as https://app.example; several with commas "
            "between, or *: any. [default: none]"
        ),
    ] = None
    allow_host: Annotated[
        str | None,
        Meta(
            description="Name that clients may call this server by where no key is required, such as penstock.lan or "
            "*.example.com, beside localhost and IP addresses; several with commas between, or *: any. [default: none]"
        ),
    ] = None
    unprotected: Annotated[bool, Meta(description="Allow another host than loopback without an API key.")] = False
    drain_s: Annotated[float, Meta(ge=0, description="Seconds that requests get to finish at shutdown.")] = 30.0
    stall_s: Annotated[float, Meta(gt=0, description="Seconds a client may leave unread what it was sent.")] = 60.0
    hang_s: Annotated[
        float, Meta(gt=0, description="Seconds an engine that has work may give no sign of life before it is replaced.")
    ] = 300.0
    default_max_tokens: Annotated[
        Positive | None,
        Meta(
            description="Most tokens of a chat answer whose request names no limit. [default: to the end of the "
            "context]"
        ),
    ] = None
    max_body: Annotated[str, Meta(description="Largest request body, such as 16MiB.")] = "16MiB"

    @property
    def keys(self) -> tuple[str, ...]:
        return _listed(self.api_key)

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(origin.lower() for origin in _listed(self.allow_origin))  # as browsers write them

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host.lower() for host in _listed(self.allow_host))


class ObserveSettings(Section, frozen=True):
    events: Annotated[bool, Meta(description="Record what every stage does with every request: /ui and /observe.")] = (
        True
    )
    keep_texts: Annotated[bool, Meta(description="Keep prompts and answers with the record of a request.")] = False
    log_format: Annotated[Literal["human", "json"], Meta(description="How log lines are written.")] = "human"
    otel_endpoint: Annotated[
        str | None,
        Meta(description="Where spans go by OTLP, such as http://localhost:4318/v1/traces. [default: nowhere]"),
    ] = None
    slo_ttft_p95: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="Objective: seconds to the first token, 95th percentile.")
    ] = None
    slo_tokens_per_s_p50: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="Objective: tokens per second of an answer, median.")
    ] = None
    slo_error_rate: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, Meta(description="Objective: share of requests that fail.")
    ] = None
    slo_kv_use: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None, Meta(description="Objective: share of the KV blocks in use.")
    ] = None
    slo_queue_depth: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="Objective: sequences that wait.")
    ] = None
    slo_window_s: Annotated[float, Meta(gt=0, description="Seconds that objectives are measured over.")] = 300.0
    slo_webhook: Annotated[
        str | None, Meta(description="URL that alerts are posted to when they begin and end. [default: none]")
    ] = None


class Settings(Section, frozen=True):
    model: ModelSettings = ModelSettings()
    cache: CacheSettings = CacheSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    engine: EngineSettings = EngineSettings()
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
    """The settings in force. Arguments that are None are as good as absent."""
    values: dict[str, dict[str, Any]] = {field: {} for field in Settings.__struct_fields__}
    for section, entries in (_read(file) if file else {}).items():
        if section not in values or not isinstance(entries, dict):
            raise InvalidSetting(f"{file}: unknown section [{section}]; there are {', '.join(values)}", param=section)
        values[section].update(entries)
    for name, section in SECTIONS.items():
        text = environ.get(ENV_PREFIX + name.upper())
        if text is not None and not (name == "port" and _SERVICE_URL.fullmatch(text)):
            values[section][name] = text
    for name, value in (arguments or {}).items():
        if name not in SECTIONS:
            raise InvalidSetting(f"unknown setting {name!r}; there are {', '.join(SECTIONS)}", param=name)
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
    """What to warn of, if there are variables that look like settings and are none. Unlike a file or a command line, an
    environment is not written for us alone, so they are no error."""
    known = {ENV_PREFIX + name.upper() for name in SECTIONS}
    told = []
    for name in sorted(name for name in environ if name.startswith(ENV_PREFIX)):
        ours = name in known or name in NO_SETTINGS
        of_a_service = _OF_A_SERVICE.fullmatch(name) or (
            name.endswith("_PORT") and _SERVICE_URL.fullmatch(environ[name])
        )
        if not (ours or of_a_service):
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            told.append(name + (f" (did you mean {close[0]}?)" if close else ""))
    return f"no setting of Penstock, and ignored, in the environment: {', '.join(told)}" if told else None


def to_wire(settings: Settings) -> dict[str, Any]:
    """For an engine process, which has no business with keys or addresses."""
    observe = ObserveSettings(events=settings.observe.events, log_format=settings.observe.log_format)
    told = msgspec.structs.replace(settings, serve=ServeSettings(), observe=observe)
    return msgspec.to_builtins(told)  # type: ignore[no-any-return]


def child_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For every process that we start to work for us: without settings, which it is told if it needs any, and without
    whatever looks like a secret. What it can read, other processes of its user can read, too."""
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
        said = _misplaced(param, path.strip("`").removeprefix("$.")) if unknown else f"{param} {_in_words(what)}"
        raise InvalidSetting(said, param=param) from None


def _in_words(what: str) -> str:
    """Of "Expected `int` <= 65535": "must be a whole number <= 65535"."""
    names = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
    told = re.sub(r"`(\w+)(?: \| null)?`", lambda match: names.get(match[1], match[1]), what)
    return told.replace("Expected", "must be")


def _misplaced(name: str, section: str) -> str:
    """What is wrong with a setting that its section does not know."""
    if name in SECTIONS:
        return f"{name} is not a setting of [{section}]: it goes under [{SECTIONS[name]}]"
    close = difflib.get_close_matches(name, SECTIONS, n=1)
    return f"[{section}] has no setting {name}" + (f"; did you mean {close[0]}?" if close else "")


def _listed(text: str | None) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def parse_bytes(text: str, param: str) -> int:
    """ "2GiB", "512M", "1e9": as people write memory sizes."""
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
    """What single fields cannot say of themselves."""
    if settings.cache.kv_memory is not None:
        parse_bytes(settings.cache.kv_memory, "kv_memory")
    parse_bytes(settings.serve.max_body, "max_body")
    if settings.serve.api_key is not None and not settings.serve.keys:  # a variable that was to be filled, and is not
        raise InvalidSetting("api_key is empty: nobody would need a key; give one, or leave it out", param="api_key")
    if not all(key.isascii() and key.isprintable() for key in settings.serve.keys):  # a secret: not shown
        raise InvalidSetting("api_key must be of printable ASCII characters: headers hold no others", param="api_key")
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
            f"host {settings.serve.host} can be reached from elsewhere: set api_key (--api-key KEY), or "
            "unprotected (--unprotected) if that is meant",
            param="host",
        )
    schedule = settings.schedule
    if schedule.step_tokens and schedule.max_sequences and schedule.step_tokens < schedule.max_sequences:
        raise InvalidSetting(
            f"step_tokens ({schedule.step_tokens}) must be at least max_sequences ({schedule.max_sequences}): "
            "every running sequence may need a token in every step",
            param="step_tokens",
        )
