"""The schemas that the arguments of calls are held to: those of the tools, or what can be enforced of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.flow import Constraint, Tool, ToolUse
from penstock.grammar.close_objects import is_closable
from penstock.grammar.lark import TokenOf
from penstock.grammar.unenforceable_keywords import drop_unenforceable
from penstock.tool_calls.syntax import ToolCallSyntax

CHECK_LIMIT_S = 30.0  # for all tools of one request


def close_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of arguments, closed to properties that it does not name unless it mentions others: models fill open
    objects without end."""
    complete = {"type": "object", **schema}
    return {"properties": {}, **complete, "additionalProperties": False} if is_closable(schema) else complete


def enforceable_tools(
    use: ToolUse,
    syntax: ToolCallSyntax,
    token_of: TokenOf,
    check: Callable[[Constraint], None],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[ToolUse, tuple[str, ...]]:
    """The tools with schemas that can be enforced, and a warning for each that had to be relaxed. Raises InvalidRequest
    for the first tool that is strict and cannot be enforced, for the first whose schema is invalid, and if all checks
    together take too long."""
    deadline = clock() + CHECK_LIMIT_S

    def check_schema(schema: dict[str, Any]) -> None:
        if clock() > deadline:
            raise InvalidRequest(f"it takes more than {CHECK_LIMIT_S:g} s to check the parameters of all tools")
        check(Constraint.json_schema(schema))

    tools, warnings = [], []
    for place, tool in enumerate(use.tools):
        schema, dropped = close_arguments(tool.parameters), list[str]()
        try:
            if tool.strict:
                check_schema(schema)
            else:
                schema, dropped = drop_unenforceable(schema, check_schema)
        except InvalidRequest as error:
            field = f"tools[{place}].function.parameters"
            raise type(error)(f"{field} ({tool.name}): {error.message}", param=field) from None
        if not tool.strict:
            schema, inexpressible = syntax.drop_inexpressible(schema, token_of)
            dropped = sorted({*dropped, *inexpressible})
        tools.append(msgspec.structs.replace(tool, parameters=schema) if dropped else tool)
        if dropped:
            warnings.append(_warning(tool, dropped))
    return msgspec.structs.replace(use, tools=tuple(tools)), tuple(warnings)


def _warning(tool: Tool, dropped: list[str]) -> str:
    return f"calls of the tool {tool.name} are not held to {', '.join(dropped)} of its parameters"
