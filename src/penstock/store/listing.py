"""Which models there are: those of the catalogue, and those the cache folder holds besides."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.store import hub, sidecar
from penstock.store.catalogue import CATALOGUE
from penstock.store.disk import cache_root
from penstock.store.files import ModelFiles


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # what `resolve` takes
    source: str
    pulled: bool
    disk_bytes: int  # what it takes on disk; 0 if it is not pulled
    size_bytes: int | None = None  # of its weights, pulled or not; None: not known
    about_bytes: int | None = None  # where size_bytes is not known
    license: str | None = None
    description: str = ""
    architecture: str | None = None
    parameters: str | None = None
    quantization: str | None = None
    quantizations: tuple[str, ...] = ()  # of the catalogue, by `<name>-<quantization>`
    verified: bool | None = None  # pulled by this project, with a known checksum; None: not of the catalogue
    catalogue: bool = False


def known_models(cache: Path | None = None) -> list[KnownModel]:
    """The catalogue first, in its order; then the others by name."""
    root = cache or cache_root()
    pulled = {entry.key for entry in CATALOGUE.values()}
    others = [_pulled_model(folder) for folder in _children(root / "models") if folder.name not in pulled]
    others += [_from_hub(note) for note in _children(root / "hub")]
    return [*_catalogue(root), *sorted((model for model in others if model), key=lambda model: model.name)]


def _catalogue(root: Path) -> list[KnownModel]:
    models = []
    for entry in CATALOGUE.values():
        folder = root / "models" / entry.key
        files = sidecar.read(folder)
        pulled = files is not None or (folder / entry.filename).is_file()
        weights = files.weights[0].stat().st_size if files is not None else None
        models.append(
            KnownModel(
                name=entry.name,
                source=entry.source,
                pulled=pulled,
                disk_bytes=_model_bytes(folder, files) if pulled else 0,
                size_bytes=entry.size_bytes or weights,
                about_bytes=entry.about_bytes,
                license=entry.license,
                description=entry.description,
                architecture=entry.architecture,
                parameters=entry.parameters,
                quantization=entry.quantization,
                quantizations=entry.quantizations,
                verified=entry.verified,
                catalogue=True,
            )
        )
    return models


def _pulled_model(folder: Path) -> KnownModel | None:
    files = sidecar.read(folder)
    if files is None:
        return None
    return KnownModel(
        name=files.name,
        source=files.name,
        pulled=True,
        disk_bytes=_model_bytes(folder, files),
        size_bytes=files.weights[0].stat().st_size,
        license=files.license,
        architecture=files.spec.architecture,
        quantization=files.spec.weights,
    )


def _from_hub(note: Path) -> KnownModel | None:
    record = hub.read_record(note)
    if record is None or not (folder := Path(record.folder)).is_dir():
        return None
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return KnownModel(name=record.hub_id, source="hub", pulled=True, disk_bytes=_disk_bytes(folder), size_bytes=size)


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _model_bytes(folder: Path, files: ModelFiles | None) -> int:
    """With weights that lie elsewhere, in the hub client's cache."""
    elsewhere = [path for path in files.weights if folder not in path.parents] if files is not None else []
    return _disk_bytes(folder) + sum(path.stat().st_size for path in elsewhere)


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
