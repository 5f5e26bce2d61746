from __future__ import annotations

from typing import Any

import pytest

from penstock import Tool, ToolUse
from penstock.errors import InvalidRequest
from penstock.flow.tools import MAX_SCHEMA_BYTES, MAX_TOOLS


def nested(levels: int) -> dict[str, Any]:
    return {} if levels == 0 else {"items": nested(levels - 1)}


LONG = {"type": "object", "description": "x" * (MAX_SCHEMA_BYTES - 100)}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Tool(name=""), "is not made of"),
        (lambda: Tool(name="a b"), "is not made of"),
        (lambda: Tool(name='a"b'), "is not made of"),
        (lambda: Tool(name="x" * 129), "is not made of"),
        (lambda: Tool(name="f", parameters={"type": "string"}), "schema of an object"),
        (lambda: Tool(name="f", parameters={"type": ["object", "null"]}), "schema of an object"),
        (lambda: Tool(name="f", parameters={"description": "x" * MAX_SCHEMA_BYTES}), "longer than"),
        (lambda: Tool(name="f", parameters=nested(65)), "levels deep"),
        (lambda: ToolUse(tools=()), "got 0"),
        (lambda: ToolUse(tools=tuple(Tool(name=f"f{n}") for n in range(MAX_TOOLS + 1))), "got 129"),
        (lambda: ToolUse(tools=(Tool(name="f"), Tool(name="f"))), "two tools are called f"),
        (lambda: ToolUse(tools=tuple(Tool(name=f"f{n}", parameters=LONG) for n in range(5))), "all tools are longer"),
        (lambda: ToolUse.of([{"type": "function"}]), "a tool is a Tool"),
        (lambda: ToolUse.of([{"function": {"description": "f"}}]), "a tool is a Tool"),
        (lambda: ToolUse.of(["f"]), "a tool is a Tool"),  # type: ignore[list-item]
    ],
)
def test_refused(make: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        make()
    assert caught.value.param == "tools"


@pytest.mark.parametrize(("choice", "name"), [("named", None), ("named", "g"), ("auto", "f")])
def test_a_choice_names_a_tool_that_is_there(choice: Any, name: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ToolUse(tools=(Tool(name="f"),), choice=choice, name=name)
    assert caught.value.param == "tool_choice"


def test_tools_as_openai_writes_them() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
    function = {"name": "f", "description": "d", "parameters": parameters, "strict": True}
    tool = Tool(name="f", description="d", parameters=parameters, strict=True)

    use = ToolUse.of([{"type": "function", "function": function}, Tool(name="g")])

    assert use == ToolUse(tools=(tool, Tool(name="g")))
    assert ToolUse.of(use) is use
    assert [tool.name for tool in use.allowed] == ["f", "g"]
    assert [tool.name for tool in ToolUse(tools=use.tools, choice="named", name="g").allowed] == ["g"]
