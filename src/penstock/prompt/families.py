"""Families of models by their chat templates: how they write tool calls, and how they reason.

A family is recognised by what its template has in it. A new one is a row here, if its calls have a shape that
`flow.CallSyntax` knows.
"""

from __future__ import annotations

import msgspec

from penstock.flow.output_format import CallSyntax, ReasoningMarkers
from penstock.prompt.template import ChatTemplate


class Family(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    calls: CallSyntax
    signs: tuple[str, ...] = ()  # its template has all of them,
    no_signs: tuple[str, ...] = ()  # none of these,
    reads_tools: bool = True  # and looks at `tools`
    writes_itself: bool = True  # the template has words for tools, calls and results; else they are put into messages
    short_ids: bool = False  # calls are known by nine letters and digits


TAGGED = CallSyntax(shape="object", open="<tool_call>", close="</tool_call>", gap="\n", between="\n")
_LIST = CallSyntax(shape="list", open="[TOOL_CALLS]")
_NAMED = CallSyntax(shape="named", open="[TOOL_CALLS]", args_mark="[ARGS]")

# The first that fits counts.
FAMILIES = (
    Family(
        name="gemma 4",
        signs=("<|tool_call>", '<|"|>'),
        calls=CallSyntax(shape="gemma", open="<|tool_call>", close="<tool_call|>", quote='<|"|>'),
    ),
    Family(
        name="functiongemma",
        signs=("<start_function_call>", "<escape>"),
        calls=CallSyntax(shape="gemma", open="<start_function_call>", close="<end_function_call>", quote="<escape>"),
    ),
    Family(
        name="mistral, with ids",
        signs=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        calls=msgspec.structs.replace(_NAMED, id_mark="[CALL_ID]"),
        short_ids=True,
    ),
    Family(name="mistral", signs=("[TOOL_CALLS]", "[ARGS]"), calls=_NAMED, short_ids=True),
    Family(name="mistral, as a list", signs=("[TOOL_CALLS]",), calls=_LIST, short_ids=True),
    Family(
        name="phi 4",
        signs=("<|tool|>", "<|/tool|>"),
        calls=CallSyntax(shape="list", open="<|tool_call|>", close="<|/tool_call|>", also_open=("functools[",)),
        reads_tools=False,
        writes_itself=False,
    ),
    Family(
        name="llama 3",
        signs=('{"name": function name, "parameters": ', "<|start_header_id|>"),
        calls=CallSyntax(shape="object", open="", also_open=("<|python_tag|>",), arguments="parameters", several=False),
    ),
    Family(
        name="functionary",
        signs=("<function=", "</function>", "<|start_header_id|>"),
        calls=CallSyntax(shape="named", open="<function=", args_mark=">", close="</function>"),
    ),
    Family(
        name="nemotron",
        signs=("<TOOLCALL>", "</TOOLCALL>"),
        calls=CallSyntax(shape="list", open="<TOOLCALL>", close="</TOOLCALL>"),
    ),
    Family(
        name="hermes",  # and Qwen, Granite and many more
        signs=("<tool_call>", "</tool_call>", '"arguments'),
        no_signs=("<function=", "<arg_key>", "<parameter", "<tool_calls>"),
        calls=TAGGED,
    ),
)

# Of models that were told nothing about tools, or in a way that we do not know: they are told in plain words.
GENERIC = Family(name="generic", calls=TAGGED, writes_itself=False)

THINKING = (ReasoningMarkers("<think>", "</think>"), ReasoningMarkers("[THINK]", "[/THINK]"))

# What templates call the switch of the reasoning.
SWITCHES = ("enable_thinking", "thinking")


def family_of(template: ChatTemplate) -> Family:
    return next((family for family in FAMILIES if _fits(family, template)), GENERIC)


def thinking_of(template: ChatTemplate) -> ReasoningMarkers | None:
    return next((marks for marks in THINKING if marks.close in template.source), None)


def _fits(family: Family, template: ChatTemplate) -> bool:
    source = template.source.replace('\\"', '"')
    return (
        all(sign in source for sign in family.signs)
        and not any(sign in source for sign in family.no_signs)
        and (not family.reads_tools or "tools" in template.variables)
    )
