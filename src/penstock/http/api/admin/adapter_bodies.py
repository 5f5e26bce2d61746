"""LoRA adapters as JSON."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from penstock.deployment.adapter_model import AdapterModel
from penstock.deployment.protocol import Price
from penstock.errors import InvalidRequest
from penstock.settings import PriceSettings
from penstock.settings.sections import error_in_words
from penstock.system import typed

Body = TypeVar("Body", bound=msgspec.Struct)


class NewAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An adapter to serve as `model@name`."""

    name: str
    source: str  # a path inside `adapter_folders`, a hub id, or pypi:
    model: str | None = None  # its base; null: the server's first model
    aliases: list[str] = []
    price: PriceSettings | None = None  # null: the base's
    replace: bool = False  # one of the same name makes way


class LoadLoraAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As vLLM has it."""

    lora_name: str
    lora_path: str  # a path inside `adapter_folders`, or a hub id
    base_model_name: str | None = None
    load_inplace: bool = False  # replace one of the same name


class UnloadLoraAdapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As vLLM has it."""

    lora_name: str
    lora_int_id: int | None = None  # accepted for clients of vLLM: names are unique here


class AdapterResidency(msgspec.Struct, frozen=True, kw_only=True):
    """Of one replica that knows the adapter."""

    replica: int
    state: str  # "resident", "loading", "evicted" or "failed"
    bytes: int
    hits: int  # sequences that found it in memory
    loads: int  # from disk
    in_use: int  # sequences that have it now
    error: str | None = None  # why it could not be loaded


class AdapterObject(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["adapter"] = "adapter"
    id: str  # base@name
    name: str
    model: str  # its base
    aliases: list[str]
    version: str  # hash of its content
    rank: int
    alpha: float
    rslora: bool
    modules: list[str]
    format: Literal["peft", "gguf"]
    made_for: str  # the base that its files name
    bytes: int
    price: Price | None
    created: int  # seconds since 1970: since when it is served
    open: int  # requests that have not ended
    residency: list[AdapterResidency]  # empty: no engine has needed it so far


class AdapterList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[AdapterObject]


class RemovedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    deleted: bool = True


ANSWERS = (NewAdapter, LoadLoraAdapter, UnloadLoraAdapter, AdapterObject, AdapterList, RemovedAdapter)


def describe_adapter(
    model: AdapterModel, open: int, residency: dict[tuple[str, str, str], list[dict[str, Any]]] | None = None
) -> AdapterObject:
    """`open`: its requests that have not ended."""
    spec, card = model.adapter_files.spec, model.card
    known = (residency or {}).get((model.base.name, model.adapter.name, model.adapter.version), [])
    return AdapterObject(
        id=card.name,
        name=model.adapter.name,
        model=model.base.name,
        aliases=list(card.aliases),
        version=spec.version,
        rank=spec.rank,
        alpha=spec.alpha,
        rslora=spec.rslora,
        modules=list(spec.modules),
        format=spec.format,
        made_for=spec.base,
        bytes=spec.num_bytes,
        price=card.price,
        created=card.created,
        open=open,
        residency=[typed.convert(one, AdapterResidency) for one in known],
    )


def read_fields(kind: type[Body], raw: dict[str, Any]) -> Body:
    """Raises InvalidRequest, which names the field."""
    try:
        return typed.convert(raw, kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        param = path.strip("`").removeprefix("$").strip(".") or None
        raise InvalidRequest(f"{param or 'the body'} {error_in_words(what)}", param=param) from None
