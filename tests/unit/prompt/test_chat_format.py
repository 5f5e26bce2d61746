"""How prompts begin an answer decides how the answer is read."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.flow import OutputFormat, ReasoningMarkers, Request, SamplingParams, Tool, ToolUse
from penstock.prompt.chat_format import MAX_ROLES, ChatFormat
from penstock.prompt.template import ChatTemplate, NeedsRenderProcess

# As Qwen 3 has it: the model thinks by itself, unless that is done for it.
SWITCHED = (
    "{% for m in messages %}{{ m.role }}: {{ '<think>' ~ m.reasoning_content ~ '</think>' if m.reasoning_content }}"
    "{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: "
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# As DeepSeek R1 has it: it thinks always, and the prompt begins it.
ALWAYS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: <think>\n{% endif %}"
)
EFFORT = "{{ reasoning_effort }} {{ messages[0].content }} {% if not thinking %}</think>{% endif %}"
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
MARKS = ReasoningMarkers("<think>", "</think>")


def asked(content: str = "Hi", **fields: Any) -> Request:
    return Request(id="1", params=SamplingParams(), messages=[{"role": "user", "content": content}], **fields)


def output_format(source: str, request: Request) -> OutputFormat:
    chat_format = ChatFormat(ChatTemplate(source, {}))
    return chat_format.output_format(request, chat_format.render(request))


@pytest.mark.parametrize(
    ("source", "request_", "thinking", "opened"),
    [
        (SWITCHED, asked(), MARKS, False),
        (SWITCHED, asked(template_arguments={"enable_thinking": True}), MARKS, False),
        (SWITCHED, asked(template_arguments={"enable_thinking": False}), None, False),
        (SWITCHED, asked(reasoning_effort="none"), None, False),
        (SWITCHED, asked(reasoning_effort="high"), MARKS, False),
        (SWITCHED, asked("what does <think> do?"), MARKS, False),  # the client's own is nobody's thought
        (ALWAYS, asked(), MARKS, True),
        (ALWAYS, asked(add_generation_prompt=False), MARKS, False),
        (PLAIN, asked("<think>"), None, False),
    ],
)
def test_what_the_prompt_has_begun(
    source: str, request_: Request, thinking: ReasoningMarkers | None, opened: bool
) -> None:
    assert output_format(source, request_) == OutputFormat(reasoning=thinking, in_reasoning=opened)


@pytest.mark.parametrize(
    ("begun", "thinking", "opened"),
    [("<think>hm, ", MARKS, True), ("<think>hm</think>", None, False), ("<think>hm</think>Yes", MARKS, False)],
)
def test_a_message_to_go_on_with(begun: str, thinking: ReasoningMarkers | None, opened: bool) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": begun}]
    request = Request(
        id="1",
        params=SamplingParams(),
        messages=messages,
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert output_format(SWITCHED, request) == OutputFormat(reasoning=thinking, in_reasoning=opened)


def test_calls_are_looked_for_where_tools_are_offered() -> None:
    assert output_format(PLAIN, asked()).tool_calls is None
    assert output_format(PLAIN, asked(tools=ToolUse(tools=(Tool(name="f"),)))).tool_calls == "generic"


@pytest.mark.parametrize(("effort", "told"), [("none", False), ("minimal", False), ("low", True), ("xhigh", True)])
def test_effort_where_the_template_has_a_switch(effort: str, told: bool) -> None:
    text = ChatFormat(ChatTemplate("{{ enable_thinking }}", {})).render(asked(reasoning_effort=effort))
    assert text == str(told)


def test_effort_in_the_templates_own_words() -> None:
    assert ChatFormat(ChatTemplate(EFFORT, {})).render(asked(reasoning_effort="low")).startswith("low Hi")


def test_a_model_that_does_not_reason_need_not_be_told() -> None:
    plain = ChatFormat(ChatTemplate(PLAIN, {}))
    assert plain.render(asked(reasoning_effort="none")) == plain.render(asked())


@pytest.mark.parametrize(
    ("source", "fields", "says"),
    [
        (PLAIN, {"reasoning_effort": "high"}, "has no say"),
        (ALWAYS, {"reasoning_effort": "none"}, "has no say"),
        (SWITCHED, {"reasoning_effort": "very"}, "must be one of"),
        (
            SWITCHED,
            {"reasoning_effort": "none", "template_arguments": {"enable_thinking": True}},
            "chat_template_kwargs.enable_thinking says otherwise",
        ),
    ],
)
def test_effort_that_cannot_be_had_is_refused(source: str, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        ChatFormat(ChatTemplate(source, {})).render(asked(**fields))
    assert caught.value.param == "reasoning_effort"


@pytest.mark.parametrize("wanted", [True, False])
def test_the_switch_is_called_as_the_template_calls_it(wanted: bool) -> None:
    other = SWITCHED.replace("enable_thinking", "thinking")
    plain = output_format(SWITCHED, asked(template_arguments={"enable_thinking": wanted}))
    assert output_format(SWITCHED, asked(enable_thinking=wanted)) == plain
    assert output_format(other, asked(enable_thinking=wanted)) == plain
    assert output_format(other, asked(template_arguments={"enable_thinking": wanted})) == plain


@pytest.mark.parametrize("given", ["field", "argument"])
def test_a_model_without_a_switch_does_what_it_does(given: str) -> None:
    def request(wanted: bool) -> Request:
        field = given == "field"
        return asked(enable_thinking=wanted) if field else asked(template_arguments={"enable_thinking": wanted})

    assert output_format(PLAIN, request(False)) == output_format(PLAIN, asked())
    assert output_format(ALWAYS, request(True)) == output_format(ALWAYS, asked())
    for source, wanted in ((PLAIN, True), (ALWAYS, False)):
        with pytest.raises(InvalidRequest, match="has no switch") as caught:
            output_format(source, request(wanted))
        assert caught.value.param == ("enable_thinking" if given == "field" else "chat_template_kwargs")


def test_two_words_on_thinking_that_contradict_each_other() -> None:
    with pytest.raises(InvalidRequest, match="is not the same as chat_template_kwargs") as caught:
        output_format(SWITCHED, asked(enable_thinking=True, template_arguments={"enable_thinking": False}))
    assert caught.value.param == "enable_thinking"
    with pytest.raises(InvalidRequest, match="is not the same as enable_thinking") as caught:
        output_format(SWITCHED, asked(enable_thinking=True, template_arguments={"thinking": False}))
    assert caught.value.param == "chat_template_kwargs"
    with pytest.raises(InvalidRequest) as caught:
        output_format(SWITCHED, asked(enable_thinking=True, reasoning_effort="none"))
    assert caught.value.param == "reasoning_effort"


GEMMA = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
    "{% endif %}<{{ 'model' if m.role == 'assistant' else m.role }}>{{ m.content | trim }}{% endfor %}"
)
LISTED = (
    "{% for m in messages %}{% if m.role in 'user assistant' %}{{ m.role }}: {{ m.content }}{% endif %}{% endfor %}"
)
STERN = LISTED.replace("{% endif %}", "{% else %}{{ raise_exception('no such role') }}{% endif %}")
BLENDED = "{% for m in messages %}{{ 'A' if m.role == 'assistant' else 'U' }}: {{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "knows"), [(PLAIN, True), (GEMMA, True), (LISTED, False), (STERN, False), (BLENDED, False)]
)
def test_roles_of_the_clients_own(source: str, knows: bool) -> None:
    chat_format = ChatFormat(ChatTemplate(source, {}))
    said = [{"role": "user", "content": "Hi"}, {"role": "critic", "content": "Boo"}]
    request = Request(id="1", params=SamplingParams(), messages=said)
    if knows:
        assert "critic" in chat_format.render(request)
        return
    with pytest.raises(InvalidRequest, match="'critic', which this model's chat template does not know") as caught:
        chat_format.render(request)
    assert caught.value.param == "messages[1].role"


def test_roles_are_not_kept_without_end() -> None:
    chat_format = ChatFormat(ChatTemplate(PLAIN, {}))
    for number in range(3 * MAX_ROLES):
        chat_format.render(
            Request(id="1", params=SamplingParams(), messages=[{"role": f"r{number}", "content": "Boo"}])
        )
    assert len(chat_format._other_roles) <= MAX_ROLES


def test_whether_a_role_is_known_is_found_out_where_there_is_time() -> None:
    chat_format = ChatFormat(ChatTemplate(PLAIN, {}))
    request = Request(id="1", params=SamplingParams(), messages=[{"role": "critic", "content": "Boo"}])
    with pytest.raises(NeedsRenderProcess):
        chat_format.render(request, may_wait=False)
    assert chat_format.render(request) == chat_format.render(request, may_wait=False)


def test_conversations_have_few_roles() -> None:
    chat_format = ChatFormat(ChatTemplate(PLAIN, {}))
    said = [{"role": f"r{number}", "content": "Boo"} for number in range(MAX_ROLES + 1)]
    with pytest.raises(InvalidRequest, match="different roles") as caught:
        chat_format.render(Request(id="1", params=SamplingParams(), messages=said))
    assert caught.value.param == "messages"


def test_variables_that_a_template_does_not_ask_for_are_refused() -> None:
    chat_format = ChatFormat(ChatTemplate(SWITCHED, {}))
    assert chat_format.render(asked(template_arguments={"enable_thinking": False}))
    with pytest.raises(InvalidRequest, match="'enable_thinkng'") as caught:
        chat_format.render(asked(template_arguments={"enable_thinkng": False}))
    assert caught.value.param == "chat_template_kwargs"


def test_past_reasoning_reaches_templates_that_read_it() -> None:
    said = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
    request = Request(id="1", params=SamplingParams(), messages=[{"role": "user", "content": "Hi"}, said])
    assert "<think>hm</think>Yes." in ChatFormat(ChatTemplate(SWITCHED, {})).render(request)
    assert "assistant: Yes." in ChatFormat(ChatTemplate(PLAIN, {})).render(request)


def test_interleaved_reasoning_keeps_its_order_where_it_is_shown() -> None:
    """Elsewhere the pieces of an answer are one message."""
    said = [{"role": "assistant", "content": text, "reasoning_content": text.lower()} for text in ("A", "B")]
    request = Request(id="1", params=SamplingParams(), messages=[{"role": "user", "content": "Hi"}, *said])
    shown = ChatFormat(ChatTemplate(SWITCHED, {})).render(request)
    assert shown.index("<think>a</think>A") < shown.index("<think>b</think>B")
    assert "assistant: A\nB\n" in ChatFormat(ChatTemplate(PLAIN, {})).render(request)


def test_a_budget_is_for_what_the_model_thinks() -> None:
    assert output_format(ALWAYS, asked(thinking_budget=3)) == OutputFormat(
        reasoning=MARKS, in_reasoning=True, reasoning_budget=3
    )
    assert output_format(SWITCHED, asked(thinking_budget=3)).reasoning_budget == 3
    assert output_format(SWITCHED, asked(thinking_budget=3, reasoning_effort="none")) == OutputFormat()


def test_a_budget_of_nothing_switches_thinking_off_where_that_can_be_done() -> None:
    assert output_format(SWITCHED, asked(thinking_budget=0)) == OutputFormat()
    assert output_format(SWITCHED, asked(thinking_budget=0, enable_thinking=True)).reasoning_budget == 0
    assert output_format(ALWAYS, asked(thinking_budget=0)) == OutputFormat(
        reasoning=MARKS, in_reasoning=True, reasoning_budget=0
    )
    assert output_format(PLAIN, asked(thinking_budget=0)) == OutputFormat()


@pytest.mark.parametrize(("source", "budget"), [(PLAIN, 3), (ALWAYS, -1)])
def test_budgets_that_cannot_be_kept_are_refused(source: str, budget: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        output_format(source, asked(thinking_budget=budget))
    assert caught.value.param == "thinking_budget"
