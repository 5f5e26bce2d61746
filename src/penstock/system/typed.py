"""Typed decoding by msgspec that several threads may begin at once.

msgspec builds the tables of a struct at its first use and attaches them to the class before they are complete. The
interpreter's lock may change hands while annotations are resolved, and a second thread that finds an incomplete table
reads null pointers: the process dies (seen with 0.22). So types are prepared one at a time here, and no other module
names a type to msgspec.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_preparing = threading.Lock()
_prepared: set[Any] = set()


@overload
def decode_json(raw: bytes | str | msgspec.Raw, kind: type[T]) -> T: ...
@overload
def decode_json(raw: bytes | str | msgspec.Raw, kind: Any) -> Any: ...
def decode_json(raw: Any, kind: Any) -> Any:
    """Raises msgspec.DecodeError, of which ValidationError is one."""
    _prepare(kind)
    return msgspec.json.decode(raw, type=kind)


@overload
def convert(value: Any, kind: type[T], *, strict: bool = True) -> T: ...
@overload
def convert(value: Any, kind: Any, *, strict: bool = True) -> Any: ...
def convert(value: Any, kind: Any, *, strict: bool = True) -> Any:
    """A value of JSON's types as `kind`. Not `strict`: numbers may be text. Raises msgspec.ValidationError."""
    _prepare(kind)
    return msgspec.convert(value, kind, strict=strict)


@overload
def json_decoder(kind: type[T]) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    with _preparing:
        return msgspec.json.Decoder(kind)


def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with _preparing:
        return msgspec.msgpack.Decoder(kind)


def _prepare(kind: Any) -> None:
    if kind not in _prepared:
        json_decoder(kind)
        _prepared.add(kind)
