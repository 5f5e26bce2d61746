"""The grammar of a whole response: reasoning where the model reasons, then the answer. The answer is text that may end
with tool calls, calls alone, or what `response_format` specifies."""

from __future__ import annotations

import json
import re
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flow import Constraint, OutputFormat, ReasoningMarkers, ToolUse
from penstock.grammar.constraint_grammar import to_lark
from penstock.grammar.lark import LarkRules, TokenOf, lark_json, lark_literal, lark_regex
from penstock.tool_calls.registry import SYNTAXES
from penstock.tool_calls.syntax import ToolCallSyntax

_ANY_TEXT = r"(.|\n)*"


def answer_constraint(
    output_format: OutputFormat, tools: ToolUse | None, response_format: Constraint | None, token_of: TokenOf
) -> Constraint | None:
    """The constraint of the whole output. `response_format` does not bind the reasoning, and calls may take its place.
    None: the output is free."""
    budgeted = output_format.reasoning_budget is not None
    if tools is None and (output_format.reasoning is None or (response_format is None and not budgeted)):
        return response_format
    return _GrammarWriter(output_format, tools, response_format, token_of).write()


class _GrammarWriter:
    def __init__(
        self,
        output_format: OutputFormat,
        tools: ToolUse | None,
        response_format: Constraint | None,
        token_of: TokenOf,
    ) -> None:
        self.output_format = output_format
        self.syntax = SYNTAXES[output_format.tool_calls] if output_format.tool_calls is not None else None
        self.tools = tools
        self.response_format = response_format
        self.rules = LarkRules(token_of)
        self.subgrammars: list[dict[str, Any]] = []

    def write(self) -> Constraint:
        reasoning, budget = self.output_format.reasoning, self.output_format.reasoning_budget
        thought = self._reasoning(reasoning) if reasoning is not None else ""
        if self.tools is not None and self.syntax is not None:
            answer = self._answer_with_tools(self.syntax, self.tools)
        else:
            answer = self._format_rule(self.response_format) if self.response_format is not None else "TEXT"
        text = _ANY_TEXT if self.syntax is None else self.syntax.free_text
        self.rules.define("SPACE", r"/[ \t\r\n]{1,8}/")
        self.rules.define("TEXT", f"/{text}/{self._except_reasoning()}")
        grammar = "\n".join([f"start: {thought} answer", f"answer: {answer}", *self.rules.lines])
        if self.subgrammars or budget is not None:  # in this form the compiler accepts sampling options of rules
            grammar = json.dumps({"grammars": [{"lark_grammar": grammar}, *self.subgrammars]}, ensure_ascii=False)
        return Constraint("grammar", grammar)

    # --- reasoning

    def _reasoning(self, markers: ReasoningMarkers) -> str:
        budget = self.output_format.reasoning_budget
        self.rules.define("ANYTHING", f"/{_ANY_TEXT}/")
        thoughts = self._budget_rule(budget, markers.close) if budget is not None else ""
        self.rules.define("thought", f"{thoughts or self.rules.up_to('ANYTHING', markers.close)} SPACE?")
        if self.output_format.in_reasoning:
            return "thought"
        self.rules.define("opened", f"SPACE? {self.rules.marker(markers.open)} thought")
        return "opened?"

    def _budget_rule(self, budget: int, marker: str) -> str:
        """At most `budget` tokens up to a marker. llguidance ends a rule with `max_tokens` after so many tokens
        of any text, and of several such rules the first: `cut`, after which only the marker can follow.
        `spelt` ends with the marker's letters."""
        close = self.rules.marker(marker)
        if budget == 0:
            return close
        self.rules.define(f"cut[max_tokens={budget}]", "UNCLOSED")
        self.rules.define("UNCLOSED", f"ANYTHING & ~{lark_regex(_ANY_TEXT + re.escape(marker) + _ANY_TEXT)}")
        self.rules.define(f"spelt[lazy, max_tokens={budget}]", f"ANYTHING {lark_literal(marker)}")
        return f"(cut {close} | spelt)"

    def _except_reasoning(self) -> str:
        """Keeps text from being reasoning that evades the budget, its opening marker spelt letter by letter."""
        markers, budget = self.output_format.reasoning, self.output_format.reasoning_budget
        if markers is None or budget is None or self.output_format.in_reasoning:
            return ""
        return " & ~" + lark_regex(rf"[ \t\r\n]*{re.escape(markers.open)}{_ANY_TEXT}")

    # --- the answer

    def _answer_with_tools(self, syntax: ToolCallSyntax, tools: ToolUse) -> str:
        several = tools.parallel and syntax.parallel and tools.choice != "named"
        calls = syntax.add_rules(self.rules, tools.allowed, several=several)
        only_calls = f"{self.rules.marker(syntax.opening)} {calls.first} {calls.more}"
        if tools.choice != "auto":
            return only_calls
        if self.response_format is not None:
            if not syntax.opening:
                raise InvalidRequest(
                    "response_format and tools cannot be used together with this model: it writes calls as plain JSON, "
                    "so that an answer in JSON could not be told from one",
                    param="response_format",
                )
            return f"{self._format_rule(self.response_format)} | {only_calls}"
        if not syntax.opening:
            return f"TEXT | {calls.first}"
        openings = {syntax.opening: f"{calls.first} {calls.more}", **calls.other_openings}
        return " | ".join(["TEXT", *(f"{self.rules.up_to('TEXT', each)} {body}" for each, body in openings.items())])

    def _format_rule(self, response_format: Constraint) -> str:
        source = response_format.source
        match response_format.kind:
            case "json_object":
                return lark_json({"type": "object"})
            case "json_schema":
                schema = json.loads(source)
                return lark_json(schema if isinstance(schema, dict) else {})
            case "regex":
                return lark_regex(source)
            case "choice":  # a terminal: see `grammar.constraint_grammar`
                return self.rules.define("CHOICE", " | ".join(map(lark_literal, json.loads(source))))
            case "grammar":
                self.subgrammars.append({"name": "response_format", "lark_grammar": to_lark(response_format)})
                return "@response_format"
