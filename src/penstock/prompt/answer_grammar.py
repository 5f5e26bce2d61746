"""The language of a whole answer, as a grammar: reasoning first where the model reasons, then text that may go on with
tool calls, or only calls, or what `response_format` wants."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flow import CallSyntax, Constraint, OutputFormat, ReasoningMarkers, Tool, ToolUse
from penstock.flow.output_format import GEMMA_CALL
from penstock.grammar import json_rule, literal
from penstock.grammar.close_objects import is_closable
from penstock.grammar.constraint_grammar import lark_of
from penstock.prompt import gemma_schema

MAX_CALLS = 16  # of one answer: models that have lost their thread call without end
TokenOf = Callable[[str], int | None]  # the token that stands for a mark, if the vocabulary has one

_TEXT = r"TEXT: /(.|\n)*/"
_NO_OBJECT = r"TEXT: /([ \t\r\n]*[^{ \t\r\n](.|\n)*)?/"  # where an object would be a call
_SPACE = r"SPACE: /[ \t\r\n]{1,8}/"


def constraint_of(
    output_format: OutputFormat, use: ToolUse | None, asked: Constraint | None, token_of: TokenOf
) -> Constraint | None:
    """`asked` is what the client wants of the answer: it does not bind the reasoning, and calls stand in its place."""
    if use is None and (output_format.thinking is None or (asked is None and output_format.budget is None)):
        return asked
    return _Writer(output_format, use, asked, token_of).write()


class _Writer:
    def __init__(
        self, output_format: OutputFormat, use: ToolUse | None, asked: Constraint | None, token_of: TokenOf
    ) -> None:
        self.output_format = output_format
        self.use = use
        self.asked = asked
        self.token_of = token_of
        self.rules: list[str] = []
        self.others: list[dict[str, Any]] = []  # grammars that this one refers to

    def write(self) -> Constraint:
        thought = self._thought(self.output_format.thinking) if self.output_format.thinking is not None else ""
        if self.use is None:
            answer = self._asked(self.asked) if self.asked is not None else "TEXT"
        else:
            assert self.output_format.calls is not None
            answer = self._with_calls(self.output_format.calls, self.use)
        lines = [f"start: {thought} answer", f"answer: {answer}", *self.rules, _SPACE]
        text = _NO_OBJECT if self.output_format.calls is not None and not self.output_format.calls.open else _TEXT
        lines.append(text + self._no_thought())
        grammar = "\n".join(lines)
        if self.others or self.output_format.budget is not None:  # where it stands, options of rules are not refused
            grammar = json.dumps({"grammars": [{"lark_grammar": grammar}, *self.others]}, ensure_ascii=False)
        return Constraint("grammar", grammar)

    def _thought(self, marks: ReasoningMarkers) -> str:
        self.rules.append(r"ANYTHING: /(.|\n)*/")
        thoughts = self._within(self.output_format.budget, marks.close) if self.output_format.budget is not None else ""
        self.rules.append(f"thought: {thoughts or self._upto('ANYTHING', marks.close)} SPACE?")
        if self.output_format.opened:
            return "thought"
        self.rules.append(f"opened: SPACE? {self._mark(marks.open)} thought")
        return "opened?"

    def _no_thought(self) -> str:
        """What keeps a text from being reasoning, where that has a budget: it is read by its letters."""
        marks = self.output_format.thinking
        if marks is None or self.output_format.budget is None or self.output_format.opened:
            return ""
        return " & ~" + _expression(rf"[ \t\r\n]*{re.escape(marks.open)}(.|\n)*")

    def _with_calls(self, syntax: CallSyntax, use: ToolUse) -> str:
        several = use.parallel and syntax.several and use.choice != "named"
        body = self._body(syntax, use, several)
        begin = self._mark(syntax.open)
        between = literal(syntax.between) if syntax.between else ""
        again = f"({between} {begin} {body}){{0,{MAX_CALLS - 1}}}" if several and syntax.shape != "list" else ""
        if use.choice != "auto":
            return f"{begin} {body} {again}"
        if self.asked is not None:
            if not syntax.open:
                raise InvalidRequest(
                    "response_format and tools cannot be used together with this model: it writes calls as plain JSON, "
                    "so that an answer in JSON could not be told from one",
                    param="response_format",
                )
            return f"{self._asked(self.asked)} | {begin} {body} {again}"
        if not syntax.open:
            return f"TEXT | {body}"
        others = "".join(f" | {self._upto('TEXT', mark)} rest_of_list" for mark in syntax.also_open)
        return f"TEXT | {self._upto('TEXT', syntax.open)} {body} {again}{others}"

    def _body(self, syntax: CallSyntax, use: ToolUse, several: bool) -> str:
        """A rule for what stands behind the opening mark, the closing one included."""
        names = [self._call(number, tool, syntax) for number, tool in enumerate(use.allowed)]
        self.rules.append(f"one: {' | '.join(names)}")
        inside = "one"
        if syntax.shape == "list":
            more = f'("," " "? one){{0,{MAX_CALLS - 1}}}' if several else ""
            self.rules.append(f'rest_of_list: one {more} "]"')
            inside = '"[" rest_of_list'
        gap = literal(syntax.gap) if syntax.gap else ""
        optional = " | ".join(self._mark(mark) for mark in syntax.also_open) if not syntax.open else ""
        close = f"{gap} {self._mark(syntax.close)}" if syntax.close else ""
        self.rules.append(f"body: {f'({optional})?' if optional else ''} {gap} {inside} {close}")
        return "body"

    def _call(self, number: int, tool: Tool, syntax: CallSyntax) -> str:
        rule = f"call_{number}"
        schema = closed(tool.parameters)
        if syntax.shape == "gemma":
            arguments = gemma_schema.rules(f"args_{number}", schema, self._mark(syntax.quote))
            self.rules += [f"{rule}: {literal(GEMMA_CALL + tool.name)} args_{number}", *arguments]
        elif syntax.shape == "named":
            call_id = f"{self._mark(syntax.id_mark)} /[a-zA-Z0-9]{{9}}/" if syntax.id_mark else ""
            arguments_mark = self._mark(syntax.args_mark)
            self.rules.append(f"{rule}: {literal(tool.name)} {call_id} {arguments_mark} {json_rule(schema)}")
        else:
            before = f'{{"name": {json.dumps(tool.name)}, "{syntax.arguments}": '
            self.rules.append(f'{rule}: {literal(before)} {json_rule(schema)} "}}"')
        return rule

    def _asked(self, asked: Constraint) -> str:
        match asked.kind:
            case "json_object":
                return json_rule({"type": "object"})
            case "json_schema":
                schema = json.loads(asked.source)
                return json_rule(schema if isinstance(schema, dict) else {})
            case "regex":
                return _expression(asked.source)
            case "choice":
                self.rules.append("CHOICE: " + " | ".join(map(literal, json.loads(asked.source))))
                return "CHOICE"  # a terminal: see `grammar.source`
            case "grammar":
                self.others.append({"name": "asked", "lark_grammar": lark_of(asked)})
                return "@asked"

    def _within(self, budget: int, mark: str) -> str:
        """At most so many tokens to behind a mark. A rule with `max_tokens` ends there, whatever its text is, and of
        several the first: `cut`, behind which nothing but the mark can follow. `spelt` ends with the mark's letters."""
        close = self._mark(mark)
        if budget == 0:
            return close
        within = _expression(rf"(.|\n)*{re.escape(mark)}(.|\n)*")
        self.rules += [
            f"cut[max_tokens={budget}]: UNCLOSED",
            f"UNCLOSED: ANYTHING & ~{within}",
            f"spelt[lazy, max_tokens={budget}]: ANYTHING {literal(mark)}",
        ]
        return f"(cut {close} | spelt)"

    def _upto(self, text: str, mark: str) -> str:
        """Text to behind a mark, be it written as the token it has or letter by letter."""
        rule = f"upto_{len(self.rules)}"
        token = self.token_of(mark)
        self.rules.append(f"{rule}_spelt[lazy]: {text} {literal(mark)}")
        if token is None:
            return f"{rule}_spelt"
        self.rules.append(f"{rule}: {text} <[{token}]> | {rule}_spelt")
        return rule

    def _mark(self, mark: str) -> str:
        """A mark as the model writes it: the token it has, or its letters."""
        if not mark:
            return ""
        token = self.token_of(mark)
        return literal(mark) if token is None else f"<[{token}]>"


def _expression(source: str) -> str:
    """A regular expression as Lark writes it, between slashes and in one line."""
    escaped = {"/": r"\/", "\n": r"\n"}
    return "/" + re.sub(r"\\.|/|\n", lambda found: escaped.get(found[0], found[0]), source, flags=re.DOTALL) + "/"


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of arguments without room for more than it names, unless it speaks of more: models fill such room."""
    shaped = {"type": "object", **schema}
    return {"properties": {}, **shaped, "additionalProperties": False} if is_closable(schema) else shaped
