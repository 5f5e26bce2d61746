"""The adapters that a model's settings name: found, opened and checked before the engine starts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from penstock.errors import PenstockError
from penstock.flow.adapter import Adapter
from penstock.settings import AdapterEntry, Settings
from penstock.store.adapter import check_files, open_adapter
from penstock.store.adapter_source import resolve_adapter
from penstock.store.adapter_spec import AdapterFiles
from penstock.store.files import ModelFiles
from penstock.store.progress import Progress

THREADS = 4  # each file is read once, for its hash


def adapter_of(name: str, files: AdapterFiles) -> Adapter:
    """As requests name it."""
    spec = files.spec
    return Adapter(name, spec.version, str(files.path), spec.rank, spec.num_bytes, spec.tables)


def find_adapters(settings: Settings, base: ModelFiles, pulling: Progress | None = None) -> dict[str, AdapterFiles]:
    """By name; downloaded if need be. Raises what is wrong with one, with its name."""

    def find(entry: AdapterEntry) -> AdapterFiles:
        try:
            files = open_adapter(resolve_adapter(entry.source, progress=pulling))
            check_files(files, base)
        except PenstockError as error:
            raise type(error)(f"adapter {entry.name}: {error.message}", param="adapters") from None
        return files

    entries = settings.model.adapter_entries
    if not entries:
        return {}
    with ThreadPoolExecutor(THREADS, "adapters") as threads:
        return dict(zip([entry.name for entry in entries], threads.map(find, entries), strict=True))
