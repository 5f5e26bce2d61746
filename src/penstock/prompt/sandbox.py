"""A Jinja environment for templates nobody has vetted: they come with the weights.

Jinja's own immutable sandbox keeps a template away from Python's internals and from changing its arguments. What it
does not bound is work. Here every rendering has a meter: each loop turn, call, filter, slice and operator is charged,
with the size of what it produced or looked at, and what would make something huge out of something small (`'a' *
10**9`) is charged before it is done. A hostile template ends in an error instead of a hang or a full memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_WORK = 500_000  # units of one rendering; a conversation of a thousand messages needs some ten thousand
CHARS_PER_UNIT = 64
LOOKS = 32  # at each character of the messages
MAX_NUMBER = 10_000  # as an argument of a filter or a string method: widths, counts, precisions
METER = "__meter__"
NUMBERS, TEXTS, LISTS = int | float, str | bytes, list | tuple

# What chat templates use. Those marked True turn their value into text, whatever it is.
FILTERS = {
    **dict.fromkeys(("capitalize", "e", "escape", "indent", "join", "lower", "replace", "safe", "string"), True),
    **dict.fromkeys(("title", "tojson", "trim", "upper"), True),
    **dict.fromkeys(("abs", "attr", "count", "d", "default", "dictsort", "first", "float", "groupby", "int"), False),
    **dict.fromkeys(("items", "last", "length", "list", "map", "max", "min", "reject", "rejectattr"), False),
    **dict.fromkeys(("reverse", "round", "select", "selectattr", "sort", "sum", "unique"), False),
}
COMPARING = ("dictsort", "groupby", "max", "min", "sort", "unique")  # what they are given, and may have to look at all
NOT_FOR_TEMPLATES = ("expandtabs", "translate")  # make much of little, and no template needs them


class TemplateStop(jinja2.TemplateError):
    """`raise_exception(...)` in a template: its author rejects these messages."""


class Meter:
    """The work of one rendering."""

    def __init__(self, chars: int = 0) -> None:
        """Beside what any rendering may take, each of so many characters that it was given may be looked at often."""
        self.left = MAX_WORK + chars * LOOKS // CHARS_PER_UNIT

    def charge(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            raise SecurityError("the chat template does not come to an end")

    def size(self, value: Any) -> None:
        """One unit, and what a text or container made on the way takes."""
        self.charge(1 + (len(value) // CHARS_PER_UNIT if isinstance(value, TEXTS | LISTS | dict) else 0))

    def text(self, value: Any) -> int:
        """What it costs to write a value out, or to compare it: containers may hold each other many times over. Gives
        how many things there are, times how deep they lie."""
        count, depth, level = 0, 0, [value]
        while level:
            below: list[Any] = []
            for item in level:
                self.size(item)
                if isinstance(item, dict):
                    below += [*item.keys(), *item.values()]
                elif isinstance(item, LISTS):
                    below += item
            count, depth, level = count + len(level), depth + 1, below
        return count * depth

    def margin(self, lines: int, width: Any) -> None:
        """So many lines are moved to the right, by a number of spaces or by a text."""
        self.charge(lines * (width if isinstance(width, int) else len(str(width))) // CHARS_PER_UNIT)

    def arguments(self, values: Any) -> None:
        for value in values:
            if isinstance(value, int) and abs(value) > MAX_NUMBER:
                raise SecurityError(f"the number {value} is too large for a chat template")

    def format(self, pattern: Any) -> None:
        """Widths of many digits, and those that are arguments themselves."""
        if isinstance(pattern, str) and re.search(r"\d{5,}|\*|\{[^}]*\{", pattern.replace("{{", "")):
            raise SecurityError("the format is too wide for a chat template")

    def replacement(self, text: str, old: Any, new: Any) -> None:
        """str.replace may put `new` at every place where `old` is."""
        self.charge(text.count(str(old)) * len(str(new)) // CHARS_PER_UNIT)


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's part for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # Not optimized: the optimizer would compute constant expressions at once, unmetered.
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[loopcontrols, Generation])
        known = {**self.filters, "tojson": to_json}
        self.filters = {name: _metered(name, known[name], writes) for name, writes in FILTERS.items()}
        tests: dict[str, Any] = self.tests
        tests |= {name: _weighed(test) for name, test in tests.items() if not hasattr(test, "jinja_pass_arg")}
        del self.globals["lipsum"]
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def turn(self) -> str:
        """Called at the start of every loop turn, so that `call` charges it."""
        return ""

    def sliced(self, value: Any) -> Any:
        """What a slice is taken of; called through `call`, which charges it."""
        return value

    def weighed(self, value: Any) -> Any:
        """What is compared with something; called through `call`, which has charged it."""
        return value

    def write(self, *values: Any) -> str:
        """What `{{ }}` and `~` do; called through `call`, which has charged the values."""
        return "".join(map(str, values))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for output in tree.find_all(nodes.Output):
            output.nodes = [
                part if isinstance(part, nodes.TemplateData) else _call("write", [part]) for part in output.nodes
            ]
        for block in tree.find_all(nodes.Node):
            for field, value in block.iter_fields():
                if isinstance(value, nodes.Concat):
                    setattr(block, field, _call("write", value.nodes))
                elif isinstance(value, list):
                    value[:] = [
                        _call("write", item.nodes) if isinstance(item, nodes.Concat) else item for item in value
                    ]
        for comparison in list(tree.find_all(nodes.Compare)):
            comparison.expr = _call("weighed", [comparison.expr])
            for operand in comparison.ops:
                operand.expr = _call("weighed", [operand.expr])
        for slice_ in list(tree.find_all(nodes.Getitem)):
            if isinstance(slice_.arg, nodes.Slice):
                slice_.node = _call("sliced", [slice_.node])
        for loop in tree.find_all(nodes.For):
            loop.body.insert(0, nodes.Output([_call("turn", [])]))
        tree.set_environment(self)
        return tree

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        meter = _meter(context)
        method = getattr(obj, "__wrapped__", obj)  # Jinja wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, TEXTS):
            if name in NOT_FOR_TEMPLATES:
                raise SecurityError(f"{name} is not for chat templates")
            meter.arguments([*args, *kwargs.values()])
            meter.text([*args, *kwargs.values()])
            if name.startswith("format"):
                meter.format(owner)
            if name == "replace" and len(args) >= 2:
                meter.replacement(owner, args[0], args[1])
            if name == "join" and args:
                meter.charge(len(args[0]) * len(owner) // CHARS_PER_UNIT)
        elif owner is self and name in ("write", "weighed"):
            meter.text(args)
        result = super().call(context, obj, *args, **kwargs)
        meter.size(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = _meter(context)
        if operator == "**" and not (isinstance(right, int | float) and abs(right) <= 64):
            raise SecurityError("the power is too large for a chat template")
        if operator == "%":
            meter.format(left)
            if isinstance(left, str):
                meter.text(right)
        if operator == "*":
            for many, count in ((left, right), (right, left)):
                if isinstance(many, TEXTS | LISTS) and isinstance(count, int):
                    meter.charge(max(0, count) * len(many) // CHARS_PER_UNIT)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > 4096:
            raise SecurityError("the number is too large for a chat template")
        meter.size(result)
        return result


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """`variables` has the messages, among others."""
    try:
        return template.render({**variables, METER: Meter(_chars(variables["messages"]))})
    except RecursionError:
        raise SecurityError("the chat template calls itself without end") from None


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own `tojson` escapes HTML; models were trained on plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _metered(name: str, plain: Callable[..., Any], writes: bool) -> Callable[..., Any]:
    """The filter as Jinja knows it, called with the context in front so that it can be charged."""
    wanted = getattr(plain, "jinja_pass_arg", None)

    def metered(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter = _meter(context)
        meter.arguments([*args, *kwargs.values()])
        meter.size(value)
        if name == "join":
            value = list(value)  # it may be a generator, such as the `map` filter gives
        extent = meter.text(value) if writes or name in COMPARING else 0
        if name == "sum" and not isinstance([*args[1:], kwargs.get("start", 0)][0], NUMBERS):
            raise SecurityError("only numbers are summed up in a chat template")
        if name == "tojson":
            meter.margin(extent, [*args[1:], kwargs.get("indent")][0] or 0)
        if name == "indent":
            meter.margin(str(value).count("\n") + 1, [*args, kwargs.get("width", 4)][0])
        if name == "replace" and len(args) >= 2:
            meter.replacement(str(value), args[0], args[1])
        if name == "join" and args:
            meter.charge(len(value) * len(str(args[0])) // CHARS_PER_UNIT)
        front = {
            None: (),
            "context": (context,),
            "eval_context": (context.eval_ctx,),
            "environment": (context.environment,),
        }
        result = plain(*front[wanted.name if wanted else None], value, *args, **kwargs)
        meter.size(result)
        return result

    return jinja2.pass_context(metered)


def _meter(context: Context) -> Meter:
    # `parent` holds what the rendering was given; a template's own `set` cannot reach it.
    meter = context.parent[METER]
    assert isinstance(meter, Meter)
    return meter


def _weighed(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The test as Jinja knows it, charged like a comparison if it is one: with something else."""

    def weighed(context: Context, value: Any, *others: Any) -> Any:
        if others:
            _meter(context).text([value, *others])
        return plain(value, *others)

    return jinja2.pass_context(weighed)


def _chars(messages: list[Any]) -> int:
    """Of the texts that are there without looking deeper."""
    texts = (value for message in messages for value in message.values())
    return sum(len(value) for value in texts if isinstance(value, str))


def _call(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    """Of one of our own functions, through `Sandbox.call`."""
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateStop(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
