"""Tools: what a client offers, and what a model makes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from penstock.errors import InvalidRequest

MAX_TOOLS = 128
MAX_SCHEMA_BYTES = 64 * 1024  # of one tool's parameters, as JSON
MAX_ALL_SCHEMAS_BYTES = 256 * 1024
MAX_DEPTH = 64  # of schemas and of arguments

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may ask to have called. What calls it is the caller of the library."""

    name: str
    description: str = ""  # for the model
    parameters: dict[str, Any] = {}  # JSON Schema of the arguments, which calls are held to
    strict: bool = False  # a schema that cannot be enforced whole is refused; else what cannot be is left out

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise _wrong(f"the name {self.name[:64]!r} is not made of 1 to 128 letters, digits, _, - and .")
        kind = self.parameters.get("type", "object")
        if kind not in ("object", ["object"]):
            raise _wrong(f"the parameters of {self.name} must be the schema of an object, got the type {kind!r}")
        if is_nested_deeper(self.parameters, MAX_DEPTH):
            raise _wrong(f"the parameters of {self.name} are nested more than {MAX_DEPTH} levels deep")
        if self.schema_bytes > MAX_SCHEMA_BYTES:
            raise _wrong(f"the parameters of {self.name} are longer than {MAX_SCHEMA_BYTES} bytes")

    @property
    def schema_bytes(self) -> int:
        return len(msgspec.json.encode(self.parameters))


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a request, and how they may be used."""

    tools: tuple[Tool, ...]
    choice: Literal["auto", "required", "named"] = "auto"  # call as the model likes; at least one; the one of `name`
    name: str | None = None  # with "named": this one must be called
    parallel: bool = True  # several calls in one answer

    def __post_init__(self) -> None:
        if not 1 <= len(self.tools) <= MAX_TOOLS:
            raise _wrong(f"1 to {MAX_TOOLS} tools can be offered, got {len(self.tools)}")
        names = [tool.name for tool in self.tools]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise _wrong(f"two tools are called {twice}")
        if sum(tool.schema_bytes for tool in self.tools) > MAX_ALL_SCHEMAS_BYTES:
            raise _wrong(f"the parameters of all tools are longer than {MAX_ALL_SCHEMAS_BYTES} bytes")
        if (self.choice == "named") != (self.name is not None) or (self.name is not None and self.name not in names):
            raise InvalidRequest(f"tool_choice: there is no tool called {self.name!r}", param="tool_choice")

    @classmethod
    def of(cls, tools: ToolUse | Sequence[Tool | Mapping[str, Any]]) -> ToolUse:
        """Tools to be used as the model likes, each as it is or as OpenAI writes it."""
        if isinstance(tools, ToolUse):
            return tools
        return cls(tools=tuple(tool if isinstance(tool, Tool) else _from_openai(tool) for tool in tools))

    @property
    def allowed(self) -> tuple[Tool, ...]:
        """Those a call may be of."""
        return tuple(tool for tool in self.tools if self.name in (None, tool.name))


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call the model made, whole."""

    id: str
    name: str
    arguments: str  # JSON, as the model wrote it


class CallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a call. The first piece of a call has its id and name; the arguments of all pieces concatenate."""

    index: int  # of the call within its choice
    id: str | None = None
    name: str | None = None
    arguments: str = ""


def is_nested_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects stand in each other more than this many levels deep."""
    level = [value]
    for _ in range(levels + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _from_openai(tool: Mapping[str, Any]) -> Tool:
    try:
        return msgspec.convert(tool["function"], Tool)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise _wrong(f"a tool is a Tool, or {{'type': 'function', 'function': {{...}}}}: {error}") from None


def _wrong(message: str) -> InvalidRequest:
    return InvalidRequest(f"tools: {message}", param="tools")
