"""Tools of chat completions, which wrap a function in an object."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from penstock.flow.tools import MAX_TOOLS
from penstock.http.api.fields import StrictModel
from penstock.http.api.function_tools import Function, ToolChoiceOr


class FunctionTool(StrictModel):
    only = ("function", 'tools of type "function"')

    type: Literal["function"]
    function: Function


class FunctionName(StrictModel):
    name: str


class NamedChoice(StrictModel):
    only = ("function", 'choices of type "function"')

    type: Literal["function"]
    function: FunctionName

    @property
    def name(self) -> str:
        return self.function.name


Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = ToolChoiceOr[NamedChoice]
