"""Adapters that were added while the server ran, on disk: a record of each, and the files of those that were uploaded.

<root>/records/<key>.json          its base, name and source
<root>/files/<key>/<version>/      uploaded: as PEFT names the files, or adapter.gguf
<root>/drafts/<random>/            an upload under way; what a crash has left is removed an hour later
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec

from penstock.errors import InvalidRequest, PenstockError, RequestTooLarge, StorageFull, StorageUnavailable
from penstock.settings.sections import PriceSettings
from penstock.store.adapter import open_adapter
from penstock.store.adapter_spec import MAX_CONFIG_BYTES, AdapterFiles
from penstock.store.disk import key_of, write_whole
from penstock.store.peft_adapter import CONFIG, WEIGHTS
from penstock.system import typed

logger = logging.getLogger(__name__)

MIN_FREE_BYTES = 1 << 30  # of the disk, which stay free for everything else
STALE_S = 3600.0
GGUF = "adapter.gguf"
FILES = {"config": CONFIG, "weights": WEIGHTS, "gguf": GGUF}  # field of a form -> file


class AdapterRecord(msgspec.Struct, frozen=True, kw_only=True):
    base: str
    name: str
    source: str  # "": uploaded
    version: str
    aliases: tuple[str, ...] = ()
    price: PriceSettings | None = None


class AdapterStore:
    """Blocks. Nothing is written before something is kept."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        """`max_bytes`: of an uploaded adapter."""
        self.root, self.max_bytes = root, max_bytes

    def new_upload(self, num_bytes: int) -> Upload:
        """`num_bytes`: as far as the client says. Raises StorageFull or StorageUnavailable."""
        try:
            drafts = self.root / "drafts"
            drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
            if shutil.disk_usage(drafts).free - num_bytes < MIN_FREE_BYTES:
                raise StorageFull("the server's disk has no room for this adapter: remove others, or send less")
            return Upload(self, drafts / secrets.token_hex(16))
        except OSError as error:
            raise self._unusable(error) from None

    def publish(self, upload: Upload, base: str, name: str) -> AdapterFiles:
        """Move the files of a complete upload to their place. The same content again replaces itself."""
        draft = upload.opened
        target = self.folder(base, name) / draft.spec.version
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if target.exists():
                return self.uploaded(base, name, draft.spec.version)
            upload.path.rename(target)
        except OSError as error:
            raise self._unusable(error) from None
        return self.uploaded(base, name, draft.spec.version)

    def folder(self, base: str, name: str) -> Path:
        return self.root / "files" / _key(base, name)

    def uploaded(self, base: str, name: str, version: str) -> AdapterFiles:
        folder = self.folder(base, name) / version
        return open_adapter(folder / GGUF if (folder / GGUF).exists() else folder)

    def keep(self, record: AdapterRecord) -> None:
        try:
            path = self._record(record.base, record.name)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, msgspec.json.encode(record))
        except OSError as error:
            raise self._unusable(error) from None

    def forget(self, base: str, name: str) -> None:
        """Its record: it does not come back with the next start."""
        self._record(base, name).unlink(missing_ok=True)

    def drop_files(self, files: AdapterFiles) -> None:
        """Of an upload that nothing uses any more. Others' files are left alone."""
        version = files.path if files.spec.format == "peft" else files.path.parent
        if version.is_relative_to(self.root / "files"):
            shutil.rmtree(version, ignore_errors=True)
            with contextlib.suppress(OSError):  # another version is there
                version.parent.rmdir()

    def records(self) -> list[AdapterRecord]:
        """Of all adapters that were kept, by servers before this one. Removes what uploads have left that broke off."""
        for draft in (self.root / "drafts").glob("*"):
            if time.time() - draft.stat().st_mtime > STALE_S:
                shutil.rmtree(draft, ignore_errors=True)
        found = []
        for path in sorted((self.root / "records").glob("*.json")):
            try:
                found.append(typed.decode_json(path.read_bytes(), AdapterRecord))
            except (OSError, msgspec.DecodeError) as error:
                logger.warning("the record %s of an adapter cannot be read: %s", path, error)
        return found

    def _record(self, base: str, name: str) -> Path:
        return self.root / "records" / f"{_key(base, name)}.json"

    def _unusable(self, error: OSError) -> StorageUnavailable:
        """The client is not told the path; the log is."""
        logger.error("cannot use the folder of adapters %s: %s; set another --data-dir", self.root, error.strerror)
        return StorageUnavailable("the server cannot use its folder of adapters; its log says why")


class Upload:
    """The files of an adapter while they arrive. Leaving the context without `AdapterStore.publish` removes them."""

    def __init__(self, store: AdapterStore, path: Path) -> None:
        self.path = path
        self.opened: AdapterFiles
        self._max_bytes = store.max_bytes
        self._files: dict[str, BinaryIO] = {}
        self._sizes: dict[str, int] = {}
        path.mkdir(mode=0o700)

    def write(self, field: str, data: bytes) -> None:
        """Raises RequestTooLarge or StorageFull."""
        self._sizes[field] = self._sizes.get(field, 0) + len(data)
        most = MAX_CONFIG_BYTES if field == "config" else self._max_bytes
        if self._sizes[field] > most:
            raise RequestTooLarge(f"{field} is larger than {most} bytes", param=field)
        try:
            if field not in self._files:
                self._files[field] = (self.path / FILES[field]).open("xb")
            self._files[field].write(data)
        except OSError as error:
            raise StorageFull(f"the server's disk has no room for this adapter ({error.strerror})") from error

    def complete(self) -> AdapterFiles:
        """All has arrived: durable from now on, and checked to be an adapter."""
        given = set(self._files)
        if given not in ({"gguf"}, {"config", "weights"}):
            raise InvalidRequest(
                "send config (adapter_config.json) and weights (adapter_model.safetensors), or gguf", param="weights"
            )
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        try:
            self.opened = open_adapter(self.path / GGUF if given == {"gguf"} else self.path)
        except PenstockError as error:
            shown = error.message.replace(f"{self.path}/", "").replace(str(self.path), "the upload")
            raise type(error)(shown, param=error.param) from None
        return self.opened

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()
        shutil.rmtree(self.path, ignore_errors=True)


def _key(base: str, name: str) -> str:
    return key_of(f"{base}-{name}", f"{base}@{name}")
