"""The cache folder, and how files get into it: whole or not at all, by one process at a time.

<root>/models/<key>/     a pulled model: weights and sidecar
<root>/sidecars/<key>/   the sidecar of a GGUF file that lies elsewhere
<root>/hub/<key>.json    where huggingface_hub put a snapshot
<root>/adapters/<key>/   LoRA adapters from wheels; <key>.json as in hub/
<root>/partial/<key>/    a pull under way, or the leavings of one that was killed
<root>/locks/<key>.lock
<root>/bytecode/         of what was installed without (`penstock.startup.bytecode`)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import InvalidSetting

CACHE_VARIABLE = "PENSTOCK_CACHE"


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    if chosen := environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    if (xdg := environ.get("XDG_CACHE_HOME")) and Path(xdg).is_absolute():  # the standard says to ignore others
        return Path(xdg) / "penstock"
    return Path("~/.cache/penstock").expanduser()


def key_of(label: str, identity: str) -> str:
    """A file name that people can read and that no two identities share."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-.")[:60]
    return f"{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


@contextmanager
def writing_to(root: Path) -> Iterator[None]:
    """Reports disk errors (failing, full, forbidden) in terms of the cache folder."""
    try:
        yield
    except OSError as error:
        raise InvalidSetting(
            f"cannot use the cache folder {root}: {error.strerror or error}; make room or set {CACHE_VARIABLE} to "
            "another folder",
            param="cache",
        ) from error


def write_whole(path: Path, content: bytes) -> None:
    """Readers see the old content or the new, never a part."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def whole_output(out: Path) -> Iterator[Path]:
    """A path beside `out` to write a file or a folder to. It becomes `out` in the end; after an error nothing of it is
    left. Disk errors are reported in terms of `out`, which must not exist."""
    draft = out.parent / f".{out.name}.{secrets.token_hex(4)}"
    try:
        if out.exists():
            raise InvalidSetting(f"{out} exists already", param="out")
        out.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        draft.rename(out)
    except OSError as error:
        raise InvalidSetting(f"cannot write {out}: {error.strerror or error}", param="out") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        with suppress(OSError):
            draft.unlink()


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold `path` against all other processes and threads; calls `on_wait` if it is taken.

    The kernel frees the lock of a process that dies. The file stays: removing it would let two in at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
