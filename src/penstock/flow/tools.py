"""Tools that a client offers, and the calls that a model makes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from penstock.errors import InvalidRequest
from penstock.system import typed

MAX_TOOLS = 128
MAX_SCHEMA_BYTES = 64 * 1024  # of one tool's parameters, as JSON
MAX_ALL_SCHEMAS_BYTES = 256 * 1024
MAX_DEPTH = 64  # of schemas and of arguments

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call. The client runs it and sends the result back."""

    name: str
    description: str = ""  # for the model
    parameters: dict[str, Any] = {}  # JSON Schema of the arguments; the grammar enforces it
    strict: bool = False  # reject a schema with keywords that cannot be enforced, instead of dropping them

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise _tools_error(f"the name {self.name[:64]!r} is not made of 1 to 128 letters, digits, _, - and .")
        kind = self.parameters.get("type", "object")
        if kind not in ("object", ["object"]):
            raise _tools_error(f"the parameters of {self.name} must be the schema of an object, got the type {kind!r}")
        if is_nested_deeper(self.parameters, MAX_DEPTH):
            raise _tools_error(f"the parameters of {self.name} are nested more than {MAX_DEPTH} levels deep")
        if self.schema_bytes > MAX_SCHEMA_BYTES:
            raise _tools_error(f"the parameters of {self.name} are longer than {MAX_SCHEMA_BYTES} bytes")

    @property
    def schema_bytes(self) -> int:
        return len(msgspec.json.encode(self.parameters))


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a request, and its `tool_choice`."""

    tools: tuple[Tool, ...]
    choice: Literal["auto", "required", "named"] = "auto"  # any calls or none; at least one call; one call of `name`
    name: str | None = None  # of the tool, with "named"
    parallel: bool = True  # several calls in one response

    def __post_init__(self) -> None:
        if not 1 <= len(self.tools) <= MAX_TOOLS:
            raise _tools_error(f"1 to {MAX_TOOLS} tools can be offered, got {len(self.tools)}")
        names = [tool.name for tool in self.tools]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise _tools_error(f"two tools are called {twice}")
        if sum(tool.schema_bytes for tool in self.tools) > MAX_ALL_SCHEMAS_BYTES:
            raise _tools_error(f"the parameters of all tools are longer than {MAX_ALL_SCHEMAS_BYTES} bytes")
        if (self.choice == "named") != (self.name is not None) or (self.name is not None and self.name not in names):
            raise InvalidRequest(f"tool_choice: there is no tool called {self.name!r}", param="tool_choice")

    @classmethod
    def of(cls, tools: ToolUse | Sequence[Tool | Mapping[str, Any]]) -> ToolUse:
        """`auto` use of tools, each a Tool or in OpenAI's shape."""
        if isinstance(tools, ToolUse):
            return tools
        return cls(tools=tuple(tool if isinstance(tool, Tool) else _from_openai(tool) for tool in tools))

    @property
    def allowed(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        return tuple(tool for tool in self.tools if self.name in (None, tool.name))


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A complete call."""

    id: str
    name: str
    arguments: str  # JSON, as the model wrote it


class CallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a call. The first piece has the id and the name; the arguments of all pieces concatenate."""

    index: int  # of the call within its choice
    id: str | None = None
    name: str | None = None
    arguments: str = ""


def is_nested_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested more than `levels` deep."""
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
        return typed.convert(tool["function"], Tool)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise _tools_error(f"a tool is a Tool, or {{'type': 'function', 'function': {{...}}}}: {error}") from None


def _tools_error(message: str) -> InvalidRequest:
    return InvalidRequest(f"tools: {message}", param="tools")
