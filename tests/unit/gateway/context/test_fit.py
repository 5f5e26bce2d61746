"""Whatever the request, the assembled prompt keeps to the budget in real tokens, through real templates."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.context_models import TEMPLATES, prompt_model
from penstock.errors import ContextOverflow
from penstock.flow import Message, Request, SamplingParams
from penstock.flow.context import ContextTrace, Document
from penstock.gateway.context.fit import ContextFitter, Fitted
from penstock.gateway.context.trace import make_trace
from penstock.settings.context import ContextBudget, ContextSettings

SYSTEM, QUESTION = "You answer from the documents. ⚑system", "What now? ⚑question"

WORDS = ["alpha", "beta gamma.", "\n", "Δelta!", "12.5", "so: ", "最後。", "…"]
texts = st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """One turn, sometimes with a tool call and its result."""
    number = draw(st.integers(0, 10**6))
    turn: list[Message] = [{"role": "user", "content": f"u{number} {draw(texts)}"}]
    if draw(st.booleans()):
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
        turn.append({"role": "assistant", "content": "", "tool_calls": [call]})
        turn.append({"role": "tool", "content": f"r{number} {draw(texts)}", "tool_call_id": "abcdefghi"})
    return [*turn, {"role": "assistant", "content": f"a{number} {draw(texts)}"}]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    history = [message for turn in draw(st.lists(turns(), max_size=8)) for message in turn]
    documents = tuple(
        Document(id=f"d{place}", text=text or "x", pinned=draw(st.integers(0, 5)) == 0)
        for place, text in enumerate(draw(st.lists(texts, max_size=6)))
    )
    part = st.none() | st.integers(1, 400)
    context = ContextSettings(
        budget=ContextBudget(total=draw(st.integers(60, 900)), history=draw(part), documents=draw(part), output=10),
        history=(policy := draw(st.sampled_from(["drop_oldest", "keep_first", "keep_all"]))),
        keep_first=1 if policy == "keep_first" else None,
        placement=draw(st.sampled_from([None, "system", "user"])),
    )
    system: list[Message] = [{"role": "system", "content": SYSTEM}] if draw(st.booleans()) else []
    return Request(
        id="r",
        params=SamplingParams(max_tokens=10),
        messages=[*system, *history, {"role": "user", "content": QUESTION}],
        documents=documents,
        context=context,
    )


def fitted(request: Request, template: str) -> tuple[Fitted, ContextTrace]:
    assert request.context is not None
    pinned_first = sorted(request.documents, key=lambda one: not one.pinned)
    made = ContextFitter(
        request, request.context, prompt_model(template), [(one, None) for one in pinned_first], cuts=True
    ).fit()
    return made, make_trace(made, request.context, model="m", rank="given")


@pytest.mark.parametrize("template", TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(request=requests())
def test_prompts_keep_to_the_budget(template: str, request: Request) -> None:
    model, budget = prompt_model(template), (request.context or ContextSettings()).budget
    try:
        made, trace = fitted(request, template)
    except ContextOverflow:
        return
    tokens = len(model.pipeline.tokenize(made.request))
    assert tokens <= (budget.total or 0) - 10
    assert tokens == trace.prompt_tokens == sum(part.tokens for part in trace.parts)
    for kind, name in (("turn", "history"), ("document", "documents")):
        used, limit = sum(part.tokens for part in trace.parts if part.kind == kind), getattr(budget, name)
        assert limit is None or used <= limit
    _check_messages(request, made)
    _check_documents(request, made, trace)


def _check_messages(request: Request, made: Fitted) -> None:
    """The system prompt and the question are there, and turns are there whole or not at all."""
    before, after = request.messages or [], made.request.messages or []
    contents = [str(message["content"]) for message in after]
    assert QUESTION in contents[-1]
    if before[0]["role"] == "system":
        assert contents[0].startswith(SYSTEM)
    kept = [message for message in after[:-1] if message["role"] != "system"]
    groups: list[list[Message]] = []
    for message in before[:-1]:
        if message["role"] == "user":
            groups.append([])
        if message["role"] != "system":
            groups[-1].append(message)
    whole = [group for group, keep in zip(groups, made.draft.turns, strict=True) if keep]
    assert kept == [message for group in whole for message in group]
    if (request.context or ContextSettings()).history == "keep_all":
        assert all(made.draft.turns)


def _check_documents(request: Request, made: Fitted, trace: ContextTrace) -> None:
    prompt = "\n".join(str(message["content"]) for message in made.request.messages or ())
    entries = {part.id: part for part in trace.parts if part.kind == "document"}
    assert set(entries) == {one.id for one in request.documents}
    for document in request.documents:
        action = entries[document.id].action
        assert (f'<document id="{document.id}">' in prompt) == (action != "dropped")
        if document.pinned or action == "kept":
            assert action == "kept"
            assert document.text.strip() in prompt


def test_nothing_is_cut_that_has_room() -> None:
    history: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    documents = (Document(id="1", text="One. Two."),)
    context = ContextSettings()
    request = Request(
        id="r",
        params=SamplingParams(),
        messages=[*history, {"role": "user", "content": "c"}],
        documents=documents,
        context=context,
    )
    made, trace = fitted(request, TEMPLATES[0])
    assert all(made.draft.turns)
    assert {part.action for part in trace.parts} == {"kept"}


def test_what_must_stay_and_does_not_fit_is_an_error() -> None:
    context = ContextSettings(budget=ContextBudget(total=40, user=5))
    messages: list[Message] = [{"role": "user", "content": "word " * 100}]
    request = Request(id="r", params=SamplingParams(max_tokens=1), messages=messages, context=context)
    with pytest.raises(ContextOverflow) as caught:
        fitted(request, TEMPLATES[0])
    assert caught.value.param == "context.budget.user"


@pytest.mark.parametrize(("max_tokens", "advice"), [(1, "shorten it"), (80, "shorten it, or lower max_tokens")])
def test_an_overflow_adds_up_and_says_what_helps(max_tokens: int, advice: str) -> None:
    context = ContextSettings(budget=ContextBudget(total=100))
    words = 120 if max_tokens == 1 else 40
    messages: list[Message] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "word " * words}]
    request = Request(id="r", params=SamplingParams(max_tokens=max_tokens), messages=messages, context=context)
    with pytest.raises(ContextOverflow) as caught:
        fitted(request, TEMPLATES[0])
    message = caught.value.message
    assert message.endswith(f": {advice}")
    whole, parts = re.findall(r"has (\d+) tokens .*\((.*)\)", message)[0]
    assert int(whole) == sum(int(number) for number in re.findall(r"\d+", parts))
    assert [part.rpartition(" ")[0] for part in parts.split(", ")] == ["system", "last message", "chat template"]


@pytest.mark.parametrize(
    ("params", "output", "field"),
    [
        (SamplingParams(max_tokens=5000), None, "max_tokens"),
        (SamplingParams(max_tokens=None, min_tokens=5000), None, "min_tokens"),
        (SamplingParams(max_tokens=5), 100, "context.budget.output"),
    ],
)
def test_an_answer_that_leaves_no_room_for_a_prompt_names_its_field(
    params: SamplingParams, output: int | None, field: str
) -> None:
    context = ContextSettings(budget=ContextBudget(total=100, output=output))
    request = Request(id="r", params=params, messages=[{"role": "user", "content": "a"}], context=context)
    with pytest.raises(ContextOverflow) as caught:
        fitted(request, TEMPLATES[0])
    assert caught.value.param == field
    assert f"{field} reserves" in caught.value.message
