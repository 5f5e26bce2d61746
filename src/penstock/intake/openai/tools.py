"""Tools, and which of them is to be called."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, model_validator

from penstock.flow import Tool, ToolUse
from penstock.flow.tools import MAX_TOOLS
from penstock.intake.openai.fields import STRING, Strict, only, shaped
from penstock.intake.openai.formats import Name

_OBJECT = "<object>"


class Function(Strict):
    name: Name
    description: str | None = Field(None, description="What it does, for the model to read.")
    parameters: dict[str, Any] | None = Field(
        None, description="JSON Schema of the arguments, which are an object. Default: there are none."
    )
    strict: bool | None = Field(
        None, description="Calls always keep to `parameters`, so this changes nothing. Taken for compatibility."
    )


class FunctionTool(Strict):
    type: Literal["function"]
    function: Function

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        return only("function", value, 'tools of type "function"')


class FunctionName(Strict):
    name: str


class NamedChoice(Strict):
    type: Literal["function"]
    function: FunctionName

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        return only("function", value, 'choices of type "function"')


def _word_or_object(value: Any) -> str | None:
    return STRING if isinstance(value, str) else _OBJECT if isinstance(value, dict) else None


Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag(STRING)] | Annotated[NamedChoice, Tag(_OBJECT)],
    shaped(_word_or_object, 'one of "none", "auto" and "required", or an object that names a function'),
]


def tool_use(
    tools: list[FunctionTool] | None, choice: str | NamedChoice | None, parallel: bool | None
) -> ToolUse | None:
    """None: no tools, or none is to be called."""
    if not tools or choice == "none":
        return None
    name = choice.function.name if isinstance(choice, NamedChoice) else None
    return ToolUse(
        tools=tuple(to_tool(tool.function) for tool in tools),
        choice="named" if name is not None else "required" if choice == "required" else "auto",
        name=name,
        parallel=parallel is not False,
    )


def to_tool(function: Function) -> Tool:
    return Tool(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters or {},
        strict=bool(function.strict),
    )
