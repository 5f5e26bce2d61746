"""The models that settings name, with their files: downloaded if need be, and checked as far as no engine is needed."""

from __future__ import annotations

import os

import msgspec
from msgspec.structs import replace

from penstock import composition
from penstock.errors import InvalidSetting, ModelNotFound, PenstockError
from penstock.settings import ModelEntry, Settings, settings_of
from penstock.settings.models import entry_label
from penstock.startup import preflight
from penstock.startup.adapters import find_adapters
from penstock.store.adapter_spec import AdapterFiles
from penstock.store.files import ModelFiles
from penstock.store.progress import Progress
from penstock.store.resolve import check_name


class FoundModel(msgspec.Struct):
    """An entry and, of a local model, its files."""

    entry: ModelEntry
    files: ModelFiles | None = None
    adapters: dict[str, AdapterFiles] = {}  # by name


def check_names(settings: Settings) -> None:
    """Raises ModelNotFound, before anything is downloaded, for a source that can be none."""
    if not settings.models:
        check_name(settings.model.model)
    for number, entry in enumerate(settings.models):
        if entry.upstream is None:
            try:
                check_name(entry.model.model)
            except ModelNotFound as error:
                raise ModelNotFound(f"{entry_label(number, entry.name)}: {error.message}", param="model") from None


def find_models(settings: Settings, progress: Progress | None = None) -> list[FoundModel]:
    """All models that the settings name, downloaded if need be. Without [[models]], one, which its files name."""
    if not settings.models:
        files = composition.model(settings, progress)
        sections = {name: getattr(settings, name) for name in ("model", "cache", "schedule", "engine")}
        preflight.check(settings, files.spec)
        entry = ModelEntry(name=files.name, pinned=True, **sections)
        return [FoundModel(entry, files, find_adapters(settings, files, progress))]
    return [find_model(settings, entry, number, progress) for number, entry in enumerate(settings.models)]


def find_model(
    settings: Settings, entry: ModelEntry, number: int | None = None, progress: Progress | None = None
) -> FoundModel:
    """Raises errors of the model's settings that name the entry. `number`: in the settings."""
    if entry.upstream is not None:
        upstream_key(entry, entry_label(number, entry.name))
        return FoundModel(entry)
    own = settings_of(settings, entry)
    try:
        if entry.prefill_replicas:
            preflight.check_pools(own, entry.kv_transport)
        files = replace(composition.model(own, progress), name=entry.name)
        preflight.check(own, files.spec)
        adapters = find_adapters(own, files, progress)
    except PenstockError as error:
        raise type(error)(f"{entry_label(number, entry.name)}: {error.message}", param=error.param) from None
    return FoundModel(entry, files, adapters)


def upstream_key(entry: ModelEntry, here: str) -> str | None:
    """The key for an upstream, from the environment. `here`: how errors name the entry."""
    if entry.api_key_env is None:
        return None
    if not (key := os.environ.get(entry.api_key_env)):
        raise InvalidSetting(
            f"{here}: api_key_env: the environment variable {entry.api_key_env} is not set", param="api_key_env"
        )
    return key
