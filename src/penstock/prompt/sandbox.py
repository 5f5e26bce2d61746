"""A Jinja environment for untrusted templates: they come with the weights.

Jinja's immutable sandbox keeps a template away from Python's internals and from changing its arguments, but does not
bound its work. Here every rendering has a meter: each block, call, filter, slice and operator is charged for the size
of its operands and its result, and operations with a huge result (`'a' * 10**9`) are charged before they run. A
hostile template ends in an error instead of a hang or exhausted memory.

Templates can call only the filters and methods listed here. No filter returns an iterator, since a lazy value would be
charged when it is made, not when it works.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from penstock.prompt.charge_insertion import CONTAINS, SLICE, WEIGH, WORK, WRITE, ChargeInserter
from penstock.prompt.jinja_internals import Call, filter_call, object_types
from penstock.prompt.template_meter import (
    CHARS_PER_UNIT,
    ITEMS_PER_UNIT,
    LAZY,
    METER,
    TemplateNamespace,
    WorkMeter,
    current_meter,
)

# Filters of chat templates. True: it converts its value to text, whatever that is.
FILTERS = {
    **dict.fromkeys(("capitalize", "e", "escape", "indent", "join", "lower", "replace", "safe", "string"), True),
    **dict.fromkeys(("title", "tojson", "trim", "upper"), True),
    **dict.fromkeys(("abs", "attr", "count", "d", "default", "dictsort", "first", "float", "groupby", "int"), False),
    **dict.fromkeys(("items", "last", "length", "list", "map", "max", "min", "reject", "rejectattr"), False),
    **dict.fromkeys(("reverse", "round", "select", "selectattr", "sort", "sum", "unique"), False),
}
COMPARING = (
    "dictsort",
    "groupby",
    "max",
    "min",
    "sort",
    "unique",
)  # compare items with all their contents
PER_ITEM = ("join", "map", "reject", "rejectattr", "select", "selectattr", "sum", *COMPARING)
ANY_NUMBER = (
    "d",
    "default",
    "float",
    "int",
    "sum",
)  # their numbers are values, not widths or counts

_COPYING = (
    "capitalize",
    "casefold",
    "format",
    "format_map",
    "join",
    "lower",
    "removeprefix",
    "removesuffix",
    "replace",
)
_PADDING = ("center", "ljust", "rjust", "swapcase", "title", "upper", "zfill")
_ASKING = ("endswith", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace")
_SEARCHING = ("count", "find", "index", "partition", "replace", "split", "splitlines")
_SCANNING = ("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip")
METHODS: dict[type, frozenset[str]] = {
    str: frozenset((*_COPYING, *_PADDING, *_ASKING, *_SEARCHING, *_SCANNING, "isupper", "startswith")),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
}
_TYPES = object_types()
PASSING = (_TYPES.macro, _TYPES.loop, _TYPES.block)  # their calls only pass arguments on
LOOPING = (_TYPES.loop, _TYPES.cycler)
MAX_DATE_PATTERN = 200  # characters


class TemplateStop(jinja2.TemplateError):
    """The template called `raise_exception(...)` to reject the messages."""


class MaterializedList(list[Any]):
    """The result of a filter that returns an iterator in Jinja, and that `tojson` therefore rejects."""


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's part for training; it renders as its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # The optimizer would evaluate constant expressions at compile time, unmetered.
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, Generation])
        calls = {name: filter_call(name, self.filters[name]) for name in FILTERS}
        calls["tojson"] = lambda context, *args, **kwargs: to_json(*args, **kwargs)
        self.filters = {name: _meter_filter(name, calls[name], writes) for name, writes in FILTERS.items()}
        self.filters.update(CHARGE_FILTERS)
        tests: dict[str, Any] = self.tests
        tests |= {name: _meter_test(name, test) for name, test in tests.items()}
        del self.globals["lipsum"]
        self.globals.update(namespace=TemplateNamespace, raise_exception=_raise_exception, strftime_now=_strftime_now)

    def from_string(self, source: str | nodes.Template, *args: Any, **kwargs: Any) -> jinja2.Template:
        """Compile a template with charges in it."""
        tree = ChargeInserter().visit(self.parse(source) if isinstance(source, str) else source)
        tree.set_environment(self)
        return super().from_string(tree, *args, **kwargs)

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Without Jinja's rewriting of the traceback, whose frames are a reference cycle that holds the messages: the
        garbage collector counts objects, not megabytes."""
        raise  # Jinja calls this inside `except`

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        meter = current_meter()
        if isinstance(obj, PASSING):
            meter.charge((len(args) + len(kwargs)) // ITEMS_PER_UNIT)
        elif not callable(obj):
            raise TypeError(f"a chat template calls a {type(obj).__name__}, which cannot be called")
        elif (owner := _owner(obj)) is None:
            meter.charge_contents([*args, *kwargs.values()])
        else:
            _charge_method(meter, owner, obj.__name__, [*args, *kwargs.values()])
        result = super().call(context, obj, *args, **kwargs)
        meter.charge_size(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = current_meter()
        if operator == "**" and not (isinstance(right, int | float) and abs(right) <= 64):
            raise SecurityError("the power is too large for a chat template")
        if operator == "%" and isinstance(left, str):
            meter.charge_format(left, meter.charge_contents(right))
        if operator == "*":
            for many, count in ((left, right), (right, left)):
                if isinstance(many, str | bytes | list | tuple) and isinstance(count, int):
                    meter.charge(count * len(many) // CHARS_PER_UNIT)
        result = super().call_binop(context, operator, left, right)
        meter.charge_size(result)
        return result


def render_metered(template: jinja2.Template, variables: dict[str, Any], units: int) -> str:
    """Raises BudgetExceeded if it takes more than `units`."""
    token = METER.set(WorkMeter(units))
    try:
        return template.render(variables)
    except RecursionError:
        raise SecurityError("the chat template recurses without end") from None
    finally:
        METER.reset(token)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own `tojson` escapes HTML; models were trained on plain JSON."""
    if isinstance(value, MaterializedList):
        raise TypeError("the result of this filter is an iterator, which is no JSON; `| list` makes it a list")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


# --- methods


def _owner(function: Any) -> Any:
    """The object that a method belongs to; None for a function. Jinja wraps str.format."""
    owner = getattr(function, "__self__", None)
    return owner if owner is not None else getattr(getattr(function, "__wrapped__", None), "__self__", None)


def _charge_method(meter: WorkMeter, owner: Any, name: str, args: list[Any]) -> None:
    kind = next((kind for kind in METHODS if isinstance(owner, kind)), None)
    if kind is None and isinstance(owner, LOOPING):
        meter.charge_contents(args)
        return
    if kind is None or name not in METHODS[kind]:
        raise SecurityError(f"the method {name} is not supported in chat templates")
    if kind is str:
        _charge_text_method(meter, owner, name, args)
        return
    meter.charge_contents(args)
    if kind is not dict and name != "copy":  # `count` and `index` compare items
        meter.charge_contents(owner)


def _charge_text_method(meter: WorkMeter, owner: str, name: str, args: list[Any]) -> None:
    meter.check_numbers(args)
    extent = meter.charge_contents(args)
    if name not in ("endswith", "startswith"):
        meter.charge_size(owner)
    if name in ("format", "format_map"):
        meter.charge_format(owner, extent)
    elif name == "join":
        meter.charge(extent.items * len(owner) // CHARS_PER_UNIT)
    elif name == "replace" and len(args) >= 2:
        meter.charge_replacement(owner, args[0], args[1])
    for part in args:
        if name in _SCANNING:
            meter.charge_scan(owner, part)
        elif name in _SEARCHING:
            meter.charge_search(owner, part)


# --- filters and tests


def _meter_filter(name: str, plain: Call, writes: bool) -> Callable[..., Any]:
    """A filter with charges. It takes the context, so that Jinja never evaluates it at compile time."""

    def metered(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = current_meter()
        if name not in ANY_NUMBER:
            meter.check_numbers([*args, *kwargs.values()])
        meter.charge_contents([*args, *kwargs.values()])
        meter.charge_size(value)
        if isinstance(value, LAZY):
            value = [*value]
        if name in PER_ITEM and isinstance(value, str | list | tuple | dict):
            meter.charge(len(value))
        _charge_filter(meter, name, value, args, kwargs, writes=writes)
        result = plain(context, value, *args, **kwargs)
        if isinstance(result, Iterator):
            result = MaterializedList(result)
        meter.charge_size(result)
        return result

    return jinja2.pass_context(metered)


def _charge_filter(meter: WorkMeter, name: str, value: Any, args: Any, kwargs: Any, *, writes: bool) -> None:
    extent = meter.charge_contents(value) if writes or name in COMPARING else None
    given = [*args, *kwargs.values()]
    if name == "sum" and not isinstance([*args[1:], kwargs.get("start", 0)][0], int | float):
        raise SecurityError("`sum` adds up only numbers in a chat template")
    if extent is None:
        return
    if name == "tojson":
        meter.charge_indentation(extent.items * extent.depth, [*args[1:], kwargs.get("indent")][0] or 0)
        separators = [*args[2:], kwargs.get("separators")][0] or ()
        meter.charge(extent.items * sum(len(str(part)) for part in separators) // CHARS_PER_UNIT)
    elif name == "indent":
        meter.charge_indentation(str(value).count("\n") + 1, [*args, kwargs.get("width", 4)][0])
    elif name == "replace" and len(given) >= 2:
        old, new = [*args, *(kwargs[key] for key in ("old", "new") if key in kwargs)][:2]
        meter.charge_replacement(str(value), old, new)
        meter.charge_search(str(value), str(old))
    elif name == "trim" and given:
        meter.charge_scan(str(value), str(given[0]))
    elif name == "join" and given:
        separator = kwargs["d"] if "d" in kwargs else [*args, ""][0]
        meter.charge(extent.items * len(str(separator)) // CHARS_PER_UNIT)


def _meter_test(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A test with the charges of a comparison."""
    wants_environment = name in ("filter", "test")  # whether a filter or test of that name exists

    def weighed(context: Context, value: Any, *others: Any) -> Any:
        meter = current_meter()
        if others or wants_environment:
            meter.charge_contents([value, *others])
        else:
            meter.charge(1)
        if name == "in" and others:
            _charge_contains(meter, value, others[0])
        return plain(context.environment, value, *others) if wants_environment else plain(value, *others)

    return jinja2.pass_context(weighed)


def _charge_contains(meter: WorkMeter, part: Any, whole: Any) -> None:
    meter.charge_search(whole, part)
    if isinstance(whole, range):  # other values than integers are compared with each item
        meter.charge(len(whole))


# --- filters that `charge_insertion` puts into the template


def _work(context: Context, units: int) -> None:
    current_meter().charge(units)


def _write(context: Context, *values: Any) -> str:
    """`{{ }}` and `~`."""
    meter = current_meter()
    for value in values:
        meter.charge_contents(value)
    return str(values[0]) if len(values) == 1 else "".join(map(str, values))


def _weigh(context: Context, value: Any) -> Any:
    current_meter().charge_contents(value)
    return value


def _slice(context: Context, value: Any) -> Any:
    current_meter().charge_size(value)
    return value


def _contains(context: Context, part: Any, whole: Any) -> bool:
    meter = current_meter()
    meter.charge_contents(part)
    if isinstance(whole, dict) and not isinstance(part, tuple):
        meter.charge(1)
    else:
        meter.charge_contents(whole)
    _charge_contains(meter, part, whole)
    return part in whole


CHARGE_FILTERS = {
    name: jinja2.pass_context(function)
    for name, function in (
        (WORK, _work),
        (WRITE, _write),
        (WEIGH, _weigh),
        (SLICE, _slice),
        (CONTAINS, _contains),
    )
}


def _raise_exception(message: str) -> NoReturn:
    raise TemplateStop(message)


def _strftime_now(pattern: str) -> str:
    if len(pattern) > MAX_DATE_PATTERN:
        raise SecurityError("the pattern of a date is too long for a chat template")
    return datetime.now().astimezone().strftime(pattern)
