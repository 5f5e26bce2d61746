"""A session of 20 turns under a budget: how much of each prompt is a prefix of the one before, as the prefix cache
finds it in whole blocks."""

from __future__ import annotations

from itertools import pairwise, takewhile

from helpers.context_models import prompt_model
from penstock.flow import Message, Request, SamplingParams
from penstock.flow.context import Document
from penstock.gateway.context.fit import ContextFitter
from penstock.settings.context import ContextBudget, ContextSettings

BLOCK = 16
PINNED = Document(id="manual", text="The manual says so. " * 20, pinned=True)


def prompts() -> list[list[int]]:
    model, settings = prompt_model("smollm2"), ContextSettings(budget=ContextBudget(total=1500))
    messages: list[Message] = [{"role": "system", "content": "You are a helpful assistant of the manual."}]
    made = []
    for turn in range(20):
        messages.append({"role": "user", "content": f"Question {turn}: what about the {turn}th part of it? " * 3})
        documents = (PINNED, Document(id=f"d{turn}", text=f"Facts of part {turn}. " * 10))
        request = Request(
            id="r", params=SamplingParams(max_tokens=50), messages=list(messages), documents=documents, context=settings
        )
        fitted = ContextFitter(request, settings, model, [(one, None) for one in documents], cuts=True).fit()
        made.append(model.pipeline.tokenize(fitted.request))
        messages.append({"role": "assistant", "content": f"Part {turn} is fine, and so is what comes after it. " * 4})
    return made


def test_prompts_of_a_session_begin_alike() -> None:
    made = prompts()
    assert max(map(len, made)) > 1200  # the budget is reached
    total = cached = 0
    for before, after in pairwise(made):
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
        total, cached = total + len(after), cached + common // BLOCK * BLOCK
    assert cached / total > 0.6, cached / total
