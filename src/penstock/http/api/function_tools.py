"""Function tools: their schema and the choice between them, in the forms that OpenAI's two APIs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import Field

from penstock.flow import Tool, ToolUse
from penstock.http.api.fields import StrictModel
from penstock.http.api.response_format import Name
from penstock.http.parse.unions import ByJsonType


class Function(StrictModel):
    name: Name
    description: str | None = Field(None, description="What it does, for the model to read.")
    parameters: dict[str, Any] | None = Field(
        None, description="JSON Schema of the arguments, which are an object. Default: there are none."
    )
    strict: bool | None = Field(
        None,
        description="Refuse `parameters` that cannot be enforced whole. Default: calls keep to what can be, and "
        "the header `x-penstock-warnings` names the rest.",
    )


Named = TypeVar("Named")
ToolChoiceOr = Annotated[
    Literal["none", "auto", "required"] | Named,
    ByJsonType('one of "none", "auto" and "required", or an object that names a function'),
]


class NamedFunctionChoice(Protocol):
    """A tool choice that names a function, in either of OpenAI's forms."""

    @property
    def name(self) -> str: ...


def tool_use(
    functions: Sequence[Function], choice: str | NamedFunctionChoice | None, parallel: bool | None
) -> ToolUse | None:
    """None without tools, and with `tool_choice: none`."""
    if not functions or choice == "none":
        return None
    name = None if choice is None or isinstance(choice, str) else choice.name
    return ToolUse(
        tools=tuple(map(_tool, functions)),
        choice="named" if name is not None else "required" if choice == "required" else "auto",
        name=name,
        parallel=parallel is not False,
    )


def _tool(function: Function) -> Tool:
    return Tool(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters or {},
        strict=bool(function.strict),
    )
