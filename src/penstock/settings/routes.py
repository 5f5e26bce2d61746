"""The entries of [[routes]]: names that stand for several models, of which a policy chooses one per request."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock.errors import InvalidSetting
from penstock.settings.sections import Section, error_in_words
from penstock.system import typed


class RouteEntry(Section, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[^\s@,]+$")]
    models: Annotated[tuple[str, ...], Meta(min_length=1)]  # with `size`, from small to large
    policy: Literal["size", "cost", "ttft", "load", "name"] = "size"


def parse_routes(raw: Any) -> list[dict[str, Any]]:
    """The entries as `Settings.routes` takes them. Raises InvalidSetting, which names the entry and the key."""
    if not isinstance(raw, list) or not all(isinstance(entry, dict) for entry in raw):
        raise InvalidSetting("routes must be a list of tables: [[routes]]", param="routes")
    for number, entry in enumerate(raw):
        for key in entry:
            if key not in RouteEntry.__struct_fields__:
                known = ", ".join(RouteEntry.__struct_fields__)
                raise InvalidSetting(f"{_label(number, entry)}: there is no setting {key}; known: {known}", param=key)
        try:
            typed.convert(entry, RouteEntry)
        except msgspec.ValidationError as error:
            what, _, path = str(error).partition(" - at ")
            param = path.strip("`").removeprefix("$").strip(".").partition("[")[0] or "routes"
            raise InvalidSetting(f"{_label(number, entry)}: {param} {error_in_words(what)}", param=param) from None
    return raw


def check_routes(routes: Collection[RouteEntry], names: Collection[str]) -> None:
    """Routes have names of their own, and lead to models; `names` are those of models and their aliases."""
    taken = {name.removesuffix(":latest") for name in names}
    known = set(taken)
    for number, route in enumerate(routes):
        here = _label(number, {"name": route.name})
        plain = route.name.removesuffix(":latest")
        if plain in taken:
            raise InvalidSetting(f"{here}: name: {route.name!r} is taken already", param="name")
        taken.add(plain)
        for name in route.models:
            if name.removesuffix(":latest") not in known:
                raise InvalidSetting(f"{here}: models: there is no model {name!r}", param="models")


def _label(number: int, entry: dict[str, Any]) -> str:
    """How errors name an entry: "routes[0] (auto)"."""
    name = entry.get("name")
    return f"routes[{number}]" + (f" ({name})" if isinstance(name, str) else "")
