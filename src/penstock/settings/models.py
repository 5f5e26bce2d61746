"""The entries of [[models]]: several models behind one server.

An entry has fields of its own and, beside them, any setting of [model], [cache], [schedule] and [engine] under its flat
name. What an entry does not set comes from those sections, as for a server with one model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from penstock.errors import InvalidSetting, did_you_mean
from penstock.settings.context import ContextSettings
from penstock.settings.sections import (
    CacheSettings,
    EngineSettings,
    ModelSettings,
    Positive,
    PriceSettings,
    ScheduleSettings,
    Section,
    error_in_words,
)
from penstock.system import typed

ENGINE_SECTIONS = ("model", "cache", "schedule", "engine")
Capability = Literal[
    "chat", "completion", "embedding", "tools", "structured_output", "reasoning", "logprobs", "token_ids", "extensions"
]  # extensions: fields beside those of OpenAI's API, as vLLM and Penstock have them
CAPABILITIES: tuple[Capability, ...] = get_args(Capability)
Seconds = Annotated[float, Meta(gt=0)]
DEFAULT_KEEP_ALIVE = "5m"  # of a model whose `min_replicas` is 0
_NAME = re.compile(r"[^\s@,][^\s@,]*")


class FallbackSettings(Section, frozen=True):
    """A model that stands in for another."""

    model: str
    max_tokens: Positive | None = None


class ModelEntry(Section, frozen=True, kw_only=True):
    name: str
    aliases: tuple[str, ...] = ()
    price: PriceSettings | None = None
    region: str | None = None
    fallback: tuple[str | FallbackSettings, ...] = ()
    context_defaults: ContextSettings | None = None  # how prompts are assembled where requests leave it open
    # Of a local model:
    replicas: Positive = 1  # at the start, if `max_replicas` lets their number change
    min_replicas: Annotated[int, Meta(ge=0)] | None = None  # 0: unloaded when idle (`keep_alive`)
    max_replicas: Positive | None = None  # None: `replicas` at all times
    scale_up_s: Seconds = 3.0  # that the load must exceed the replicas before there are more
    scale_down_s: Seconds = 60.0  # that fewer replicas would do before one goes
    prefill_replicas: Annotated[int, Meta(ge=0)] = 0  # of `replicas`: they compute long prompts for the others
    prefill_min_tokens: Positive = 512  # of a prompt, not cached, for which a prefill replica computes it
    kv_transport: Literal["shared-memory", "tcp"] = "shared-memory"  # how the blocks of such prompts travel
    gpus: tuple[Annotated[int, Meta(ge=0)], ...] = ()  # its replicas take them in turn; none: all there are
    load: Literal["start", "demand"] = "start"
    pinned: bool = False  # never unloaded to make room
    keep_alive: str | None = None  # of an idle model, such as "5m"; None: it stays loaded
    model: ModelSettings = ModelSettings()
    cache: CacheSettings = CacheSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    engine: EngineSettings = EngineSettings()
    # Of an upstream:
    upstream: str | None = None  # the URL of an OpenAI-compatible API
    upstream_model: str | None = None  # its name there
    api_key_env: str | None = None  # the environment variable that holds its key
    capabilities: tuple[str, ...] = ()
    tokenizer: str | None = None  # a source of models, whose tokenizer counts tokens
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    connect_s: Seconds = 5.0
    first_token_s: Seconds = 60.0
    idle_s: Seconds = 60.0

    @property
    def most_replicas(self) -> int:
        return self.replicas if self.max_replicas is None else self.max_replicas

    @property
    def least_replicas(self) -> int:
        """0 where an idle model is unloaded."""
        if self.min_replicas is not None:
            return self.min_replicas
        return 0 if self.keep_alive is not None else 1

    @property
    def first_replicas(self) -> int:
        """Replicas at the start, or when the model is loaded."""
        return max(self.replicas, self.min_replicas or 1)

    @property
    def idle_after(self) -> str | None:
        """The duration after which an idle model is unloaded; None: it stays."""
        return DEFAULT_KEEP_ALIVE if self.keep_alive is None and self.min_replicas == 0 else self.keep_alive


_OWN = frozenset(ModelEntry.__struct_fields__) - frozenset(ENGINE_SECTIONS)
_LOCAL_ONLY = (
    "context_defaults", "replicas", "min_replicas", "max_replicas", "scale_up_s", "scale_down_s", "gpus", "load",
    "pinned", "keep_alive", "prefill_replicas", "prefill_min_tokens", "kv_transport",
)  # fmt: skip
_NEEDED = {  # for a field to have an effect
    "prefill_min_tokens": "prefill_replicas", "kv_transport": "prefill_replicas", "scale_up_s": "max_replicas",
    "scale_down_s": "max_replicas",
}  # fmt: skip
_UPSTREAM_ONLY = (
    "upstream_model", "api_key_env", "capabilities", "tokenizer", "max_tokens_field", "connect_s", "first_token_s",
    "idle_s",
)  # fmt: skip


def parse_entries(
    raw: Any, values: Mapping[str, Mapping[str, Any]], sections: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The entries as `Settings.models` takes them. `values` are those of the other sections, `sections` the section of
    each flat name. Raises InvalidSetting, which names the entry and the key."""
    if not isinstance(raw, list) or not all(isinstance(entry, dict) for entry in raw):
        raise InvalidSetting("models must be a list of tables: [[models]]", param="models")
    return [parse_one(entry, number, values, sections) for number, entry in enumerate(raw)]


def parse_one(
    raw: dict[str, Any], number: int | None, values: Mapping[str, Mapping[str, Any]], sections: Mapping[str, str]
) -> dict[str, Any]:
    """`parse_entries` of one of them. `number`: None for an entry that is in no list."""
    here = entry_label(number, raw.get("name") if isinstance(raw.get("name"), str) else None)
    engine_names = {name: section for name, section in sections.items() if section in ENGINE_SECTIONS}
    engine_names.pop("isolate")
    parsed: dict[str, Any] = {section: dict(values[section]) for section in ENGINE_SECTIONS}
    for name, value in raw.items():
        if name not in engine_names and name not in _OWN:
            raise InvalidSetting(f"{here}: {_unknown(name, [*_OWN, *engine_names], sections)}", param=name)
        if value is not None:  # a JSON null: as if the field was not there
            (parsed[engine_names[name]] if name in engine_names else parsed)[name] = value
    _check_kind(raw, engine_names, here)
    for name, needed in _NEEDED.items():
        if raw.get(name) is not None and not raw.get(needed):
            raise InvalidSetting(f"{here}: {name} needs {needed}", param=name)
    try:
        typed.convert(parsed, ModelEntry, strict=False)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        param = _key(path.strip("`").removeprefix("$").strip("."))
        raise InvalidSetting(f"{here}: {param} {error_in_words(what)}", param=param) from None
    return parsed


def _key(path: str) -> str:
    """Of a place in a parsed entry: `cache.kv_memory` is kv_memory, `price.input` itself."""
    first, _, rest = path.partition(".")
    return (rest if first in ENGINE_SECTIONS else path) or "models"


def _check_kind(raw: dict[str, Any], engine_names: Iterable[str], here: str) -> None:
    """Either a local model or an upstream, with the fields of its kind."""
    if not isinstance(raw.get("name"), str) or not _NAME.fullmatch(raw["name"]):
        raise InvalidSetting(f"{here}: name is required: a text without spaces, commas and @", param="name")
    is_upstream = raw.get("upstream") is not None
    if is_upstream == (raw.get("model") is not None):
        raise InvalidSetting(f"{here}: either model or upstream is required, and not both", param="model")
    others = (*_LOCAL_ONLY, *engine_names) if is_upstream else _UPSTREAM_ONLY
    wrong = [name for name in others if raw.get(name) is not None and name != "context"]
    if wrong:
        other = "a model of this server" if is_upstream else "an upstream"
        raise InvalidSetting(f"{here}: {wrong[0]} is a field of {other}", param=wrong[0])
    if is_upstream and not _is_url(raw["upstream"]):
        raise InvalidSetting(f"{here}: upstream must be an http or https URL, without a key in it", param="upstream")


def check_entries(entries: Sequence[ModelEntry]) -> None:
    """Names and aliases are unique; fallbacks are models."""
    owners: dict[str, str] = {}
    for number, entry in enumerate(entries):
        check_entry(entry, entry_label(number, entry.name), owners)
    for number, entry in enumerate(entries):
        for one in entry.fallback:
            name = one if isinstance(one, str) else one.model
            if name.removesuffix(":latest") not in owners:
                raise InvalidSetting(
                    f"{entry_label(number, entry.name)}: fallback: there is no model {name!r}", param="fallback"
                )


def check_entry(entry: ModelEntry, here: str, owners: dict[str, str]) -> None:
    """What can be said of one entry. `here`: how errors name it. `owners`: of the names of entries before; those of
    this one are added."""
    for key, name in served_names(entry):
        if not _NAME.fullmatch(name) and key != "adapters":
            raise InvalidSetting(f"{here}: {key}: {name!r} has spaces, commas or @ in it", param=key)
        plain = name.removesuffix(":latest")
        if plain in owners:
            raise InvalidSetting(f"{here}: {key}: {name!r} is a name of {owners[plain]} already", param=key)
        owners[plain] = here
    if entry.context_defaults is not None and (conflict := entry.context_defaults.conflict()) is not None:
        field = f"context_defaults.{conflict[0]}"
        raise InvalidSetting(f"{here}: {field} {conflict[1]}", param=field)
    if unknown := sorted(set(entry.capabilities) - set(CAPABILITIES)):
        known = ", ".join(CAPABILITIES)
        raise InvalidSetting(f"{here}: capabilities: {unknown[0]!r} is none of {known}", param="capabilities")
    if entry.keep_alive is not None:
        parse_duration(entry.keep_alive, f"{here}: keep_alive")
    _check_scaling(entry, here)
    if entry.prefill_replicas and (why := _pool_conflict(entry)) is not None:
        raise InvalidSetting(f"{here}: prefill_replicas: {why}", param="prefill_replicas")


def _check_scaling(entry: ModelEntry, here: str) -> None:
    most, least = entry.max_replicas, entry.min_replicas
    wrong: tuple[str, str] | None = None
    if most is None and least is not None:
        wrong = "min_replicas", "needs max_replicas; without it the number of replicas is fixed"
    elif most is not None and entry.replicas > most:
        wrong = "replicas", f"is {entry.replicas}, more than max_replicas ({most})"
    elif most is not None and least is not None and least > most:
        wrong = "min_replicas", f"is {least}, more than max_replicas ({most})"
    elif least == 0 and entry.pinned:
        wrong = "min_replicas", "is 0, but the model is pinned: it stays loaded"
    elif entry.pinned and entry.keep_alive is not None and parse_duration(entry.keep_alive) is not None:
        wrong = "keep_alive", "unloads an idle model, but the model is pinned: leave one of them out"
    elif least and entry.keep_alive is not None:
        wrong = (
            "keep_alive",
            f"unloads an idle model, but min_replicas is {least}: set it to 0, or leave one of them out",
        )
    if wrong is not None:
        raise InvalidSetting(f"{here}: {wrong[0]} {wrong[1]}", param=wrong[0])


def _pool_conflict(entry: ModelEntry) -> str | None:
    """Why replicas of this model cannot be divided into prefill and decode pools."""
    if entry.max_replicas is not None:
        return "the number of replicas is fixed with pools: leave max_replicas out"
    if entry.prefill_replicas >= entry.replicas:
        return f"{entry.prefill_replicas} of {entry.replicas} replicas: at least one must be left to decode"
    if not entry.cache.prefix_caching:
        return "blocks travel between prefix caches: set prefix_caching"
    if entry.engine.tensor_parallel > 1:
        return "the blocks of an engine with tensor_parallel do not travel: set one of them"
    if entry.model.device == "cuda" or entry.model.dtype != "auto":
        return "only the native CPU kernels exchange KV blocks: set device cpu and dtype auto"
    drafts = entry.engine.speculate.partition(":")[0]
    if drafts in ("draft", "eagle", "mtp"):
        return f"blocks travel without the keys and values of speculate {drafts}: set another, or off"
    return None


def served_names(entry: ModelEntry) -> Iterator[tuple[str, str]]:
    """All names that clients may use, of the model and its adapters, with the key of the entry that says so."""
    yield "name", entry.name
    for alias in entry.aliases:
        yield "aliases", alias
    for adapter in entry.model.adapter_entries:
        yield "adapters", f"{entry.name}@{adapter.name}"
        for alias in adapter.aliases:
            yield "adapters.aliases", alias


def parse_duration(text: str, label: str = "keep_alive") -> float | None:
    """Seconds of "5m", "1h30m", "90" or "0"; None for a negative one: for ever. The notation is Ollama's."""
    units = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
    match = re.fullmatch(r"([+-]?)((?:[0-9.]{1,16}(?:ns|us|µs|ms|s|m|h))+|[0-9.]{1,16})", text.strip())
    try:
        parts = re.findall(r"([0-9.]+)(ns|us|µs|ms|s|m|h|)", match[2]) if match else []
        seconds = sum(float(number) * units[unit] for number, unit in parts)
    except ValueError:
        match = None
    if match is None:
        raise InvalidSetting(f"{label} must be a duration such as 5m, 1h30m or -1, got {text!r}", param="keep_alive")
    return None if match[1] == "-" else seconds


def source_name(source: str) -> str:
    """The name of a model that was given by its source alone: "models/a.gguf" is a."""
    last = source.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    return re.sub(r"[\s@,]+", "-", last) or source


def entry_label(number: int | None, name: str | None) -> str:
    """How errors name an entry: "models[1] (big)", or "big" if it was added at run time and has no number."""
    if number is None:
        return name or "the model"
    return f"models[{number}]" + (f" ({name})" if name else "")


def _unknown(name: str, known: Sequence[str], sections: Mapping[str, str]) -> str:
    if name in sections:
        return f"{name} is a setting of the whole server: it goes under [{sections[name]}]"
    return f"there is no setting {name}{did_you_mean(name, known)}"


def _is_url(text: Any) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except (ValueError, TypeError, AttributeError):
        return False
