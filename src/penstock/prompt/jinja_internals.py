"""All that Penstock uses of Jinja beyond its documented API: which argument a built-in filter expects in front of its
value, and the types of the objects that templates call. Tried with Jinja 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jinja2
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from penstock.system.slow_paths import warn_slow_path

Call = Callable[..., Any]  # (context, value, *args, **kwargs)
KNOWN = {"join": "eval_context", "map": "context", "first": "environment", "upper": None}


class ObjectTypes(NamedTuple):
    """Of what a template can call beside functions."""

    macro: type
    block: type  # `self.name`
    loop: type  # `loop(...)` of a recursive loop
    cycler: type


@cache
def object_types() -> ObjectTypes:
    """Found out by rendering a template that has one of each: Jinja does not document where they are."""
    seen: dict[str, type] = {}

    def see(name: str, value: object) -> str:
        seen[name] = type(value)
        return ""

    source = (
        "{% macro m() %}{% endmacro %}{% block b %}{% endblock %}{{ see('macro', m) }}{{ see('block', self.b) }}"
        "{% for _ in [1] %}{{ see('loop', loop) }}{% endfor %}{{ see('cycler', cycler(1)) }}"
    )
    jinja2.Environment().from_string(source, {"see": see}).render()  # noqa: S701  (its own text)
    return ObjectTypes(**seen)


def filter_call(name: str, function: Callable[..., Any]) -> Call:
    """A function (context, value, ...) that calls a built-in filter as Jinja does."""
    return _with_front(function) if _knows_front() else _through_jinja(name)


def _front(function: Callable[..., Any]) -> str | None:
    """What a filter expects in front of its value."""
    marked = getattr(function, "jinja_pass_arg", None)
    return None if marked is None else str(marked.name)


@cache
def _knows_front() -> bool:
    filters = jinja2.Environment().filters  # noqa: S701
    try:
        known = {name: _front(filters[name]) for name in KNOWN} == KNOWN
    except (AttributeError, KeyError):
        known = False
    if not known:
        warn_slow_path("jinja2", "mark of what a filter expects", "chat templates are rendered more slowly")
    return known


def _with_front(function: Callable[..., Any]) -> Call:
    front = _front(function)
    if front is None:
        return lambda context, *args, **kwargs: function(*args, **kwargs)
    if front == "context":
        return function
    if front == "eval_context":
        return lambda context, *args, **kwargs: function(context.eval_ctx, *args, **kwargs)
    return lambda context, *args, **kwargs: function(context.environment, *args, **kwargs)


def _through_jinja(name: str) -> Call:
    """By the documented way, which looks the filter up each time."""
    plain = ImmutableSandboxedEnvironment()

    def through(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        return plain.call_filter(name, value, args, kwargs, context=context)

    return through
