"""How one model is spoken to, and how what it says is to be read: its chat template, and what family that is of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidRequest
from penstock.flow import Message, OutputFormat, Request
from penstock.prompt.families import SWITCHES, family_of, thinking_of
from penstock.prompt.template import ChatTemplate, NeedsRenderProcess
from penstock.prompt.template_messages import Raw, as_openai, for_template, join_answers
from penstock.prompt.unparsed_arguments import RawArguments, as_mapping

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_OFF = ("none", "minimal")
_PROBE = "penstock-probe"
_ROLES = ("system", "user", "assistant", "tool")  # that `conversation` makes what the template takes
MAX_ROLES = 64


class ChatFormat:
    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.family = family_of(template)
        self.thinking = thinking_of(template)
        self.switch = next((name for name in SWITCHES if name in template.variables), None)
        self.system_role = _takes_system(template)
        self.reads_thoughts = "reasoning_content" in template.source
        self._roles: dict[str, bool] = {}  # others than _ROLES that were asked for: whether the template knows them

    @property
    def marks(self) -> tuple[str, ...]:
        """All that stand for themselves in the text of an answer."""
        return OutputFormat(calls=self.family.calls, thinking=self.thinking).marks

    def render(self, request: Request, *, may_wait: bool = True) -> str:
        """`may_wait`: see ChatTemplate.render."""
        raw = RawArguments()
        try:
            text = raw.restore(self._render(request, raw.hold, may_wait=may_wait))
        except InvalidRequest:
            if not raw:
                raise
            text = None  # the template may want objects
        return self._render(request, as_mapping, may_wait=may_wait) if text is None else text

    def _render(self, request: Request, raw: Raw, *, may_wait: bool) -> str:
        messages, tools = request.messages or [], request.tools.tools if request.tools is not None else ()
        if not self.reads_thoughts:
            messages = join_answers(messages)
        self._check_roles(messages, may_wait=may_wait)
        native = self.family.writes_itself
        return self.template.render(
            for_template(messages, self.family, tools, raw, system_role=self.system_role),
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            tools=as_openai(tools) if tools and native else None,
            arguments=self._arguments(request),
            may_wait=may_wait,
        )

    def output_format(self, request: Request, prompt: str) -> OutputFormat:
        """`prompt` is what was rendered for this request."""
        calls, marks = self.family.calls if request.tools is not None else None, self.thinking
        bound = request.tools is not None and request.tools.choice != "auto"
        if request.thinking_budget is not None:
            self._check_budget(request.thinking_budget)
        if marks is None:
            return OutputFormat(calls=calls, bound=bound)
        # What the model goes on with. The client's own words further up may have marks in them that mean nothing.
        begun = _last_text(request.messages) if request.continue_final_message else prompt
        if begun.rstrip().endswith(marks.close):  # the reasoning is over, or is not wanted
            return OutputFormat(calls=calls, bound=bound)
        if request.continue_final_message:
            opened = begun.rfind(marks.open) > begun.rfind(marks.close)
        else:
            opened = request.add_generation_prompt and begun.rstrip().endswith(marks.open)
        return OutputFormat(calls=calls, thinking=marks, opened=opened, bound=bound, budget=request.thinking_budget)

    def _check_budget(self, budget: int) -> None:
        if budget < 0:
            raise InvalidRequest(f"thinking_budget must be 0 or more, got {budget}", param="thinking_budget")
        if budget and self.thinking is None:
            raise InvalidRequest(
                "thinking_budget is not supported: this model does not think before it answers",
                param="thinking_budget",
            )

    def _arguments(self, request: Request) -> dict[str, Any]:
        """What the template is told beside the messages: how much to reason, in its own words."""
        effort, arguments = request.reasoning_effort, self._switched(request)
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
            told: dict[str, Any] = {"reasoning_effort": effort}
        elif self.switch is not None:
            told = {self.switch: effort not in _OFF}
        elif self.thinking is None and effort in _OFF:
            return arguments  # it does not reason anyway
        else:
            raise _wrong_effort("is not supported: this model's chat template has no say in how much it reasons")
        for name, value in told.items():
            if arguments.get(name, value) != value:
                raise _wrong_effort(f"is {effort}, but chat_template_kwargs.{name} says otherwise")
        return {**arguments, **told}

    def _check_roles(self, messages: Sequence[Message], *, may_wait: bool) -> None:
        """Several renderings tell whether the template knows a role; so they are for a thread that may wait."""
        if len({role for message in messages if isinstance(role := message.get("role"), str)}) > MAX_ROLES:
            raise InvalidRequest(f"the messages have more than {MAX_ROLES} different roles", param="messages")
        for place, message in enumerate(messages):
            role = message.get("role")
            if role in _ROLES or not isinstance(role, str):
                continue
            if role not in self._roles:
                if not may_wait:
                    raise NeedsRenderProcess
                if len(self._roles) == MAX_ROLES:  # clients choose their names
                    self._roles.clear()
                self._roles[role] = _knows_role(self.template, role)
            if not self._roles[role]:
                where = f"messages[{place}].role"
                raise InvalidRequest(
                    f"{where} is {role[:64]!r}, which this model's chat template does not know", param=where
                )

    def _switched(self, request: Request) -> dict[str, Any]:
        """The template's arguments, with the switch for reasoning as this template calls it. Models that do not reason,
        or always do, have none, and need not be asked for what they do anyway."""
        arguments, known = dict(request.template_arguments), self.template.variables
        wanted = {"enable_thinking": request.enable_thinking} if request.enable_thinking is not None else {}
        for name in SWITCHES:
            if name not in known and isinstance(arguments.get(name), bool):
                wanted[f"chat_template_kwargs.{name}"] = arguments.pop(name)
        for param, on in wanted.items():
            if self.switch is None and on != (self.thinking is not None):
                raise InvalidRequest(
                    f"{param} is not supported: this model's chat template has no switch for reasoning",
                    param=param.partition(".")[0],
                )
            if self.switch is not None and arguments.setdefault(self.switch, on) != on:
                told = self.switch in request.template_arguments
                other = f"chat_template_kwargs.{self.switch}" if told else "enable_thinking"
                raise InvalidRequest(f"{param} is not the same as {other}", param=param.partition(".")[0])
        return arguments


def _takes_system(template: ChatTemplate) -> bool:
    messages: list[Message] = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "Hi"}]
    try:
        return _PROBE in template.render(messages)
    except InvalidRequest:
        return False


def _knows_role(template: ChatTemplate, role: str) -> bool:
    """Whether it shows what this role says, and not as somebody else's words. Some want turns to alternate."""
    user: Message = {"role": "user", "content": "Hi"}
    for before in ([user], [], [user, {"role": "assistant", "content": "Hello"}]):
        shown = _probed(template, before, role)
        if shown is not None and shown not in [_probed(template, before, other) for other in ("user", "assistant")]:
            return True
    return False


def _probed(template: ChatTemplate, before: list[Message], role: str) -> str | None:
    """A conversation that ends with what this role says; None if the template does not show that."""
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
