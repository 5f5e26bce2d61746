"""The adapters of a server's models: those of the settings, and those added and removed while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace as replace_fields

from penstock.deployment.adapter_model import AdapterModel
from penstock.deployment.adapter_store import AdapterRecord, AdapterStore, Upload
from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import Price
from penstock.deployment.registry import ModelRegistry
from penstock.errors import AdapterBusy, AlreadyExists, InvalidRequest, PenstockError
from penstock.settings.sections import ADAPTER_NAME, AdapterEntry, PriceSettings
from penstock.store.adapter import check_adapter, check_files, open_adapter
from penstock.store.adapter_source import resolve_adapter
from penstock.store.adapter_spec import AdapterFiles
from penstock.store.package import SCHEME
from penstock.store.resolve import is_hub_id

logger = logging.getLogger(__name__)

DRAIN_LOOK_S = 0.01
FORGET_S = 10.0  # for engines to let go of an adapter


class AdapterManager:
    """One per server. Belongs to one event loop; disks and hubs are read in threads."""

    def __init__(self, registry: ModelRegistry, store: AdapterStore, roots: Sequence[Path]) -> None:
        """`roots`: folders from which adapters may be loaded at run time."""
        self.registry, self.store = registry, store
        self._roots = [root.expanduser().resolve() for root in roots]
        # Of a server with further frontends: has them serve what the registry has, and counts their open requests.
        self.on_change: Callable[[], Awaitable[None]] | None = None
        self.open_elsewhere: Callable[[AdapterModel], int] = lambda model: 0
        self._changing = asyncio.Lock()  # one adapter is added at a time
        self._draining: set[asyncio.Task[None]] = set()

    def restore(self) -> None:
        """The adapters added before the last start, for the models that are served now. Blocks."""
        for record in self.store.records():
            own = f"{record.base}@{record.name}"
            base = next((one for one in self.registry.local if one.name == record.base), None)
            if base is None or self.registry.name_of(own) is not None:
                continue  # of another server that shares the folder, or the settings have it, too
            try:
                files = self._open_kept(record)
                check_files(files, base.files)
                self._serve(base, record, files)
            except PenstockError as error:
                logger.warning("the adapter %s, which was added before the start, is not back: %s", own, error.message)

    async def add(
        self, entry: AdapterEntry, base: str | None, *, replace: bool = False, bare: bool = False
    ) -> AdapterModel:
        """From its source: an id of the hub, a wheel, or a path inside the configured folders. Raises AlreadyExists for
        a name that is taken, unless it is to be replaced. `bare`: clients will leave out the base's name."""
        model = self._base(base)
        async with self._changing:
            self._check_free(model, entry, replace=replace, bare=bare)
            files = await asyncio.to_thread(self._open, entry.source)
            await asyncio.to_thread(check_files, files, model.files)
            return await self._adopt(model, entry, files, source=entry.source, replace=replace)

    async def add_upload(
        self, upload: Upload, name: str, base: str | None, *, price: PriceSettings | None, replace: bool
    ) -> AdapterModel:
        model = self._base(base)
        entry = adapter_entry(name, "", price=price)
        async with self._changing:
            self._check_free(model, entry, replace=replace)
            opened = await asyncio.to_thread(upload.complete)
            named = replace_fields(opened, spec=replace_fields(opened.spec, name=name))
            await asyncio.to_thread(check_files, named, model.files)
            files = await asyncio.to_thread(self.store.publish, upload, model.name, name)
            return await self._adopt(model, entry, files, source="", replace=replace)

    async def remove(self, model: AdapterModel, timeout_s: float) -> None:
        """New requests find it no more; returns once its running ones have ended. Raises AdapterBusy if that takes
        longer: then it is let go of as soon as they have."""
        self.registry.remove(model.card.name)
        await asyncio.to_thread(self.store.forget, model.base.name, model.adapter.name)
        letting_go = self._let_go(model)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(letting_go)
        except TimeoutError:
            raise AdapterBusy(
                f"{model.card.name} takes no more requests, but {self.open(model)} of it still run after "
                f"{timeout_s:g} s; it is let go of when they have ended"
            ) from None

    def open(self, model: AdapterModel) -> int:
        """Requests that have not ended, in all frontends."""
        return model.open + self.open_elsewhere(model)

    async def residency(self) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
        """What the engines say of adapters: by base, name and version, an entry for each replica that knows it."""
        found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        for base in self.registry.local:
            for replica in base.replicas.replicas:
                with contextlib.suppress(PenstockError, TimeoutError):
                    async with asyncio.timeout(FORGET_S):
                        for one in await replica.ask("adapters"):
                            key = (base.name, one["name"], one["version"])
                            found.setdefault(key, []).append({"replica": replica.source.replica, **one})
        return found

    def _base(self, name: str | None) -> LocalModel:
        model = self.registry.find_local(name)
        if model.base is not model:
            raise InvalidRequest(f"model: {model.card.name} is an adapter itself", param="model")
        if model.replicas.facts.get("adapter_bytes") == 0:
            raise InvalidRequest(
                f"model: the engine of {model.name} runs no adapters: on a GPU start it with adapter_memory",
                param="model",
            )
        return model

    def _check_free(self, base: LocalModel, entry: AdapterEntry, *, replace: bool, bare: bool = False) -> None:
        own = f"{base.name}@{entry.name}"
        if bare and (owner := self.registry.name_of(entry.name)) not in (None, own):
            raise AlreadyExists(f"the name {entry.name!r} is taken by {owner}", param="name")
        for name in (own, *entry.aliases):
            owner = self.registry.name_of(name)
            if (
                owner is not None
                and not (replace and owner == own)
                and not (name != own and owner.endswith(f"@{name}"))
            ):
                raise AlreadyExists(f"the name {name!r} is taken by {owner}", param="name")

    def _open(self, source: str) -> AdapterFiles:
        if source.startswith(SCHEME) or (is_hub_id(source) and not self._inside(source)):
            return open_adapter(resolve_adapter(source, paths=False))
        if not self._roots:
            raise InvalidRequest(
                "this server loads no adapters from paths: start it with --adapter-folders", param="source"
            )
        path = self._inside(source)
        if path is None:
            raise InvalidRequest(f"{source[:200]!r} is not in one of the server's adapter_folders", param="source")
        return open_adapter(path)

    def _inside(self, source: str) -> Path | None:
        """Where a path leads, if that is in one of the folders; so must be the files there. A relative path begins in
        any of the folders. Links are followed before the check."""
        for root in self._roots:
            try:
                path = (root / source).resolve(strict=True)
                files = [one.resolve(strict=True) for one in path.glob("adapter_*")] if path.is_dir() else []
            except (OSError, ValueError, RuntimeError):  # not there, a NUL, links in a circle
                continue
            if path != root and all(one.is_relative_to(root) for one in (path, *files)):
                return path
        return None

    def _open_kept(self, record: AdapterRecord) -> AdapterFiles:
        if not record.source:
            return self.store.uploaded(record.base, record.name, record.version)
        return self._open(record.source)

    async def _adopt(
        self, base: LocalModel, entry: AdapterEntry, files: AdapterFiles, *, source: str, replace: bool
    ) -> AdapterModel:
        """Serve it, instead of one of the same name if there is one, and keep a record of it."""
        record = AdapterRecord(
            base=base.name,
            name=entry.name,
            source=source,
            version=files.spec.version,
            aliases=entry.aliases,
            price=entry.price,
        )
        await asyncio.to_thread(self.store.keep, record)
        if replace and (old := self.registry.name_of(f"{base.name}@{entry.name}")) is not None:
            replaced = self.registry.find(old)
            self.registry.remove(old)
            assert isinstance(replaced, AdapterModel)
            if replaced.adapter.version != files.spec.version:
                self._let_go(replaced)
        model = self._serve(base, record, files)
        await self._tell_frontends()
        return model

    async def _tell_frontends(self) -> None:
        if self.on_change is not None:
            await self.on_change()

    def _serve(self, base: LocalModel, record: AdapterRecord, files: AdapterFiles) -> AdapterModel:
        return serve_adapter(self.registry, base, record.name, files, price=record.price, aliases=record.aliases)

    def _let_go(self, model: AdapterModel) -> asyncio.Task[None]:
        """Once its requests have ended: the engines' memory, and its files if they were uploaded."""
        model.removed = True

        async def drain() -> None:
            await self._tell_frontends()
            while self.open(model):
                await asyncio.sleep(DRAIN_LOOK_S)
            for replica in model.replicas.replicas:
                with contextlib.suppress(PenstockError, TimeoutError):
                    async with asyncio.timeout(FORGET_S):
                        await replica.ask("forget_adapter", name=model.adapter.name, version=model.adapter.version)
            if all(one.adapter.path != model.adapter.path for one in self.registry.adapters):  # it came back meanwhile
                await asyncio.to_thread(self.store.drop_files, model.adapter_files)

        task = asyncio.create_task(drain())
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)
        return task


def serve_adapter(
    registry: ModelRegistry,
    base: LocalModel,
    name: str,
    files: AdapterFiles,
    *,
    price: PriceSettings | None = None,
    aliases: tuple[str, ...] = (),
) -> AdapterModel:
    check_adapter(files.spec, base.files.spec)
    own_price = None if price is None else Price(**msgspec.to_builtins(price))
    model = AdapterModel(base, name, files, price=own_price, aliases=aliases)
    registry.add(model)
    return model


def adapter_entry(
    name: str,
    source: str,
    *,
    aliases: tuple[str, ...] = (),
    price: PriceSettings | None = None,
    param: str = "name",
) -> AdapterEntry:
    """Raises InvalidRequest; `param` is the name's."""
    if not re.fullmatch(ADAPTER_NAME, name):
        raise InvalidRequest(
            f"{param} must have letters, digits, '.', '_' and '-' only, at most 100; got {name[:100]!r}", param=param
        )
    for alias in aliases:
        if not re.fullmatch(r"[^\s@,]{1,200}", alias):
            raise InvalidRequest(f"aliases: {alias[:200]!r} has spaces, commas or @ in it", param="aliases")
    return AdapterEntry(name=name, source=source, aliases=aliases, price=price)
