"""Model folders from the Hugging Face hub, kept in huggingface_hub's own cache, which other tools share.

Where a complete snapshot lies is noted in our cache folder: from then on the model loads without asking the hub, and
without importing its client, which costs more than everything else here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec

from penstock.errors import ModelNotFound, PullFailed
from penstock.store.disk import key_of, write_whole, writing_to
from penstock.store.progress import Progress
from penstock.system import typed

FACTS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",  # only to say that it is not enough
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)
WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")  # not consolidated.safetensors: the same once more


class HubUnreachable(PullFailed):
    """Neither the hub nor its cache has the files."""


class Fetch(Protocol):
    def __call__(self, hub_id: str, patterns: tuple[str, ...], progress: Progress, *, offline: bool) -> Path:
        """The folder with the files that match, fetched unless `offline`."""


class Record(msgspec.Struct, frozen=True):
    """The content of hub/<key>.json."""

    hub_id: str
    folder: str


def ensure(
    hub_id: str, root: Path, progress: Progress, *, offline: bool = False, weights: bool = True, fetch: Fetch
) -> Path:
    """The folder of a model. Without `weights` only what describes it is fetched."""
    note = root / "hub" / f"{key_of(hub_id, hub_id)}.json"
    known = read_record(note)
    if known and Path(known.folder, "config.json").is_file():
        return Path(known.folder)
    folder = fetch(hub_id, FACTS + WEIGHTS if weights else FACTS, progress, offline=offline)
    if weights:
        with writing_to(root):
            note.parent.mkdir(parents=True, exist_ok=True)
            write_whole(note, msgspec.json.encode(Record(hub_id, str(folder))))
    return folder


def read_record(path: Path) -> Record | None:
    try:
        return typed.decode_json(path.read_bytes(), Record)
    except (OSError, msgspec.DecodeError):
        return None


def download(hub_id: str, patterns: tuple[str, ...], progress: Progress, *, offline: bool) -> Path:
    """The real Fetch."""
    from huggingface_hub import errors, snapshot_download  # 0.2 s, which only a pull should cost

    try:
        folder = snapshot_download(
            hub_id,
            allow_patterns=list(patterns),
            local_files_only=offline,
            tqdm_class=_bar(hub_id, progress),
        )
    except errors.GatedRepoError:
        raise PullFailed(
            f"{hub_id} is gated: accept its terms on the hub and log in with `hf auth login`", param="model"
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise ModelNotFound(
            f"there is no folder {hub_id}, and the hub has no model of that name (a private one needs a login with "
            "`hf auth login`)",
            param="model",
        ) from None
    except errors.LocalEntryNotFoundError:
        absent = f"there is no folder {hub_id}, and the hub's model of that name is not on this machine"
        if offline:
            raise ModelNotFound(f"{absent}; offline it cannot be fetched", param="model") from None
        raise HubUnreachable(f"{absent}; the hub cannot be reached", param="model") from None
    except Exception as error:  # the client's own, its transport's, the disk's: the kinds differ by version
        raise PullFailed(f"the hub did not deliver {hub_id}: {str(error).splitlines()[0]}", param="model") from error
    return Path(folder)


def _bar(what: str, progress: Progress) -> type[Any]:
    """A stand-in for tqdm that shows nothing and tells `progress` the bytes. The hub counts them in several bars."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            self.counts_bytes = options.get("unit") == "B"
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, amount: float | None = 1) -> None:
            self.n += amount or 0
            if self.counts_bytes:
                progress(what, int(self.n), int(self.total) if self.total else None)

    return Bar
