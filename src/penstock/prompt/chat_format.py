"""How to talk to one model: its chat template renders the prompt, and determines the format of the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flow import Message, OutputFormat, Request
from penstock.prompt.reasoning import SWITCHES, detect_markers
from penstock.prompt.template import ChatTemplate, NeedsRenderProcess
from penstock.prompt.template_messages import (
    ShowUnparsed,
    merge_assistant_messages,
    template_messages,
    template_tools,
)
from penstock.prompt.unparsed_arguments import ArgumentPlaceholders, wrap_in_object
from penstock.tool_calls.registry import detect_syntax

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
MAX_ROLES = 64
_OFF = ("none", "minimal")
_PROBE = "penstock-probe"
_STANDARD_ROLES = ("system", "user", "assistant", "tool")  # that `template_messages` adapts to the template


class ChatFormat:
    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.tool_calls = detect_syntax(template.source, template.variables)
        self.reasoning = detect_markers(template.source)
        self.switch = next((name for name in SWITCHES if name in template.variables), None)  # of the reasoning
        self.system_role = _takes_system_messages(template)
        self.shows_reasoning = "reasoning_content" in template.source
        self.shows_documents = "documents" in template.variables and _shows_documents(template)
        self._other_roles: dict[str, bool] = {}  # roles that clients used, and whether the template knows them

    def render(self, request: Request, *, may_wait: bool = True) -> str:
        """`may_wait`: see ChatTemplate.render."""
        placeholders = ArgumentPlaceholders()
        try:
            text = placeholders.replace(self._render(request, placeholders.add, may_wait=may_wait))
        except InvalidRequest:
            if not placeholders:
                raise
            text = None  # the template may require objects
        return self._render(request, wrap_in_object, may_wait=may_wait) if text is None else text

    def _render(self, request: Request, show_unparsed: ShowUnparsed, *, may_wait: bool) -> str:
        messages, tools = request.messages or [], request.tools.tools if request.tools is not None else ()
        if not self.shows_reasoning:
            messages = merge_assistant_messages(messages)
        self._check_roles(messages, may_wait=may_wait)
        return self.template.render(
            template_messages(messages, self.tool_calls, tools, show_unparsed, system_role=self.system_role),
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            tools=template_tools(tools) if tools and self.tool_calls.template_renders_tools else None,
            arguments=self._template_arguments(request),
            may_wait=may_wait,
        )

    def output_format(self, request: Request, prompt: str) -> OutputFormat:
        """`prompt` is the rendered text of this request."""
        tool_calls = self.tool_calls.name if request.tools is not None else None
        calls_only = request.tools is not None and request.tools.choice != "auto"
        if request.thinking_budget is not None:
            self._check_budget(request.thinking_budget)
        markers = self.reasoning
        if markers is None:
            return OutputFormat(tool_calls=tool_calls, calls_only=calls_only)
        # The text that the model continues. Markers further up, in the client's own texts, mean nothing.
        begun = _last_text(request.messages) if request.continue_final_message else prompt
        if begun.rstrip().endswith(markers.close):  # the reasoning is over, or switched off
            return OutputFormat(tool_calls=tool_calls, calls_only=calls_only)
        if request.continue_final_message:
            in_reasoning = begun.rfind(markers.open) > begun.rfind(markers.close)
        else:
            in_reasoning = request.add_generation_prompt and begun.rstrip().endswith(markers.open)
        return OutputFormat(
            tool_calls=tool_calls,
            reasoning=markers,
            in_reasoning=in_reasoning,
            calls_only=calls_only,
            reasoning_budget=request.thinking_budget,
        )

    def _check_budget(self, budget: int) -> None:
        if budget < 0:
            raise InvalidRequest(f"thinking_budget must be 0 or more, got {budget}", param="thinking_budget")
        if budget and self.reasoning is None:
            raise InvalidRequest(
                "thinking_budget is not supported: this model does not think before it answers",
                param="thinking_budget",
            )

    def _template_arguments(self, request: Request) -> dict[str, Any]:
        """Variables beside messages and tools: how much to reason, in the template's own terms."""
        effort, arguments = request.reasoning_effort, self._switch_reasoning(request)
        if unknown := sorted(arguments.keys() - self.template.variables):
            raise InvalidRequest(
                f"chat_template_kwargs has {unknown[0][:64]!r}, which this model's chat template does not ask for",
                param="chat_template_kwargs",
            )
        if effort is None:
            off = request.thinking_budget == 0 and self.switch is not None
            return {str(self.switch): False, **arguments} if off else arguments
        if effort not in EFFORTS:
            raise _wrong_effort(f"must be one of {', '.join(EFFORTS)}, got {effort[:64]!r}")
        if "reasoning_effort" in self.template.variables:
            wanted: dict[str, Any] = {"reasoning_effort": effort}
        elif self.switch is not None:
            wanted = {self.switch: effort not in _OFF}
        elif self.reasoning is None and effort in _OFF:
            return arguments  # the model does not reason anyway
        else:
            raise _wrong_effort("is not supported: this model's chat template has no say in how much it reasons")
        for name, value in wanted.items():
            if arguments.get(name, value) != value:
                raise _wrong_effort(f"is {effort}, but chat_template_kwargs.{name} says otherwise")
        return {**arguments, **wanted}

    def _check_roles(self, messages: Sequence[Message], *, may_wait: bool) -> None:
        """To learn whether the template knows a role takes several renderings: only threads that may wait do that."""
        if len({role for message in messages if isinstance(role := message.get("role"), str)}) > MAX_ROLES:
            raise InvalidRequest(f"the messages have more than {MAX_ROLES} different roles", param="messages")
        for place, message in enumerate(messages):
            role = message.get("role")
            if role in _STANDARD_ROLES or not isinstance(role, str):
                continue
            if role not in self._other_roles:
                if not may_wait:
                    raise NeedsRenderProcess
                if len(self._other_roles) == MAX_ROLES:  # clients choose the names
                    self._other_roles.clear()
                self._other_roles[role] = _knows_role(self.template, role)
            if not self._other_roles[role]:
                where = f"messages[{place}].role"
                raise InvalidRequest(
                    f"{where} is {role[:64]!r}, which this model's chat template does not know", param=where
                )

    def _switch_reasoning(self, request: Request) -> dict[str, Any]:
        """The request's template arguments, with the switch for reasoning under the name that this template has for it.
        Models that never or always reason have none; for them a request for what they do anyway is ignored."""
        arguments, known = dict(request.template_arguments), self.template.variables
        wanted = {"enable_thinking": request.enable_thinking} if request.enable_thinking is not None else {}
        for name in SWITCHES:
            if name not in known and isinstance(arguments.get(name), bool):
                wanted[f"chat_template_kwargs.{name}"] = arguments.pop(name)
        for param, on in wanted.items():
            if self.switch is None and on != (self.reasoning is not None):
                raise InvalidRequest(
                    f"{param} is not supported: this model's chat template has no switch for reasoning",
                    param=param.partition(".")[0],
                )
            if self.switch is not None and arguments.setdefault(self.switch, on) != on:
                by_name = self.switch in request.template_arguments
                other = f"chat_template_kwargs.{self.switch}" if by_name else "enable_thinking"
                raise InvalidRequest(f"{param} is not the same as {other}", param=param.partition(".")[0])
        return arguments


def _takes_system_messages(template: ChatTemplate) -> bool:
    messages: list[Message] = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "Hi"}]
    try:
        return _PROBE in template.render(messages)
    except InvalidRequest:
        return False


def _shows_documents(template: ChatTemplate) -> bool:
    document = {"id": "1", "doc_id": "1", "title": "Title", "text": _PROBE}
    try:
        return _PROBE in template.render([{"role": "user", "content": "Hi"}], arguments={"documents": [document]})
    except InvalidRequest:
        return False


def _knows_role(template: ChatTemplate, role: str) -> bool:
    """Whether it shows messages of this role, and differently from the user's and the assistant's. Tries several
    beginnings, since some templates require alternating turns."""
    user: Message = {"role": "user", "content": "Hi"}
    for before in ([user], [], [user, {"role": "assistant", "content": "Hello"}]):
        shown = _render_probe(template, before, role)
        if shown is not None and shown not in [
            _render_probe(template, before, other) for other in ("user", "assistant")
        ]:
            return True
    return False


def _render_probe(template: ChatTemplate, before: list[Message], role: str) -> str | None:
    """A conversation that ends with a message of this role; None if the template does not show that."""
    try:
        text = template.render([*before, {"role": role, "content": _PROBE}])
    except InvalidRequest:
        return None
    return text if _PROBE in text else None


def _last_text(messages: list[Message] | None) -> str:
    content = messages[-1].get("content") if messages else ""
    return content if isinstance(content, str) else ""


def _wrong_effort(text: str) -> InvalidRequest:
    return InvalidRequest(f"reasoning_effort {text}", param="reasoning_effort")
