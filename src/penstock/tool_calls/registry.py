"""All tool-call syntaxes. A new one is a module with a ToolCallSyntax, and a line here."""

from __future__ import annotations

from collections.abc import Set

from penstock.flow import OutputFormat
from penstock.tool_calls.functionary import Functionary
from penstock.tool_calls.gemma import FunctionGemma, Gemma4
from penstock.tool_calls.generic import Generic
from penstock.tool_calls.hermes import Hermes
from penstock.tool_calls.llama3_json import Llama3Json
from penstock.tool_calls.mistral import Mistral, MistralList, MistralWithIds
from penstock.tool_calls.nemotron import Nemotron
from penstock.tool_calls.phi4 import Phi4
from penstock.tool_calls.syntax import ToolCallSyntax

GENERIC = Generic()
# In the order in which a chat template is compared with them; a template that is like none of them gets GENERIC.
SYNTAXES: dict[str, ToolCallSyntax] = {
    syntax.name: syntax
    for syntax in (
        Gemma4(),
        FunctionGemma(),
        MistralWithIds(),
        Mistral(),
        MistralList(),
        Phi4(),
        Llama3Json(),
        Functionary(),
        Nemotron(),
        Hermes(),
        GENERIC,
    )
}


def detect_syntax(template_source: str, template_variables: Set[str]) -> ToolCallSyntax:
    """The syntax of the models whose chat template this is."""
    for syntax in SYNTAXES.values():
        if syntax.signs is not None and syntax.signs.match(template_source, template_variables):
            return syntax
    return GENERIC


def output_markers(output_format: OutputFormat) -> tuple[str, ...]:
    """All texts in an output that the parser must see, even where their tokens are special."""
    markers = SYNTAXES[output_format.tool_calls].markers if output_format.tool_calls is not None else ()
    reasoning = output_format.reasoning
    return (reasoning.open, reasoning.close, *markers) if reasoning is not None else markers
