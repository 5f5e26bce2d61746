"""What of the tools' schemas calls are held to: all of it, or what can be enforced where a tool is not strict."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.flow import CallSyntax, Constraint, Tool, ToolUse
from penstock.grammar.unenforceable_keywords import relaxed
from penstock.prompt import gemma_schema
from penstock.prompt.answer_grammar import TokenOf, closed

CHECK_LIMIT_S = 30.0  # for all tools of one request: those of others wait meanwhile


def enforceable(
    use: ToolUse,
    syntax: CallSyntax,
    token_of: TokenOf,
    check: Callable[[Constraint], None],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[ToolUse, tuple[str, ...]]:
    """The tools with schemas that can be enforced, and a warning for each that had to be relaxed. Raises for the first
    one that is strict and cannot be enforced, for the first whose schema is wrong in itself, and if the schemas take
    too long to check."""
    until = clock() + CHECK_LIMIT_S

    def check_schema(schema: dict[str, Any]) -> None:
        if clock() > until:
            raise InvalidRequest(f"it takes more than {CHECK_LIMIT_S:g} s to check the parameters of all tools")
        check(Constraint.json_schema(schema))

    tools, warnings = [], []
    for place, tool in enumerate(use.tools):
        made, left_out = closed(tool.parameters), list[str]()
        try:
            if tool.strict:
                check_schema(made)
            else:
                made, left_out = relaxed(made, check_schema)
        except InvalidRequest as error:
            field = f"tools[{place}].function.parameters"
            raise type(error)(f"{field} ({tool.name}): {error.message}", param=field) from None
        if syntax.shape == "gemma" and not tool.strict:
            made, unknown = gemma_schema.relaxed(made, bounded_strings=token_of(syntax.quote) is not None)
            left_out = sorted({*left_out, *unknown})
        tools.append(msgspec.structs.replace(tool, parameters=made) if left_out else tool)
        if left_out:
            warnings.append(_warning(tool, left_out))
    return msgspec.structs.replace(use, tools=tuple(tools)), tuple(warnings)


def _warning(tool: Tool, left_out: list[str]) -> str:
    return f"calls of the tool {tool.name} are not held to {', '.join(left_out)} of its parameters"
