"""Documents judged by the probability of "yes" against "no"."""

from __future__ import annotations

import math
from itertools import takewhile

import pytest

from helpers.context_models import CONTEXT, local_model, prompt_model
from penstock.errors import ContextOverflow
from penstock.flow import Request, SamplingParams, TokenLogprobs
from penstock.gateway.context.reranker import INSTRUCTION, SYSTEM, cut_query, judge_requests, yes_probability

ASKED = Request(id="r", params=SamplingParams(), tenant="acme", salt="s", priority=3)


class Words:
    """A vocabulary whose token ids are places in a list."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def token_bytes(self, token: int) -> bytes:
        return self.words[token].encode()


def probability(*likely: tuple[str, float]) -> float:
    words: object = Words(*(word for word, _ in likely))
    top = [(place, math.log(chance)) for place, (_, chance) in enumerate(likely)]
    return yes_probability(TokenLogprobs(0, top[0][1], 1, top), words)  # type: ignore[arg-type]


def test_yes_against_no() -> None:
    assert probability(("yes", 0.6), ("no", 0.2), ("maybe", 0.1)) == pytest.approx(0.75)
    assert probability(("No", 0.4), (" yes", 0.05), ("Yes", 0.05), ("no", 0.1), ("nothing", 0.4)) == pytest.approx(
        1 / 6
    )
    assert probability(("n", 0.75), ("y", 0.25)) == pytest.approx(0.25)  # a vocabulary of bytes


def test_a_word_that_is_unlikely_has_at_most_the_probability_of_the_last() -> None:
    assert probability(("yes", 0.9), ("x", 0.1)) == pytest.approx(0.9)
    assert probability(("no", 0.9), ("x", 0.1)) == pytest.approx(0.1)
    assert probability(("x", 0.9), ("", 0.05)) == pytest.approx(0.5)


def test_the_prompt_is_that_of_qwen3_reranker() -> None:
    model = local_model(template="Qwen-Qwen3-0.6B")
    (made,) = judge_requests(model, ASKED, "What is it?", ["A river."])
    assert model.pipeline.render(made) == (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n<Instruct>: {INSTRUCTION}\n"
        "<Query>: What is it?\n<Document>: A river.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_prompts_share_all_before_the_document() -> None:
    model = local_model()
    made = judge_requests(model, ASKED, "What is it? " * 20, ["A river.", "The sea."])
    one, other = (model.pipeline.tokenize(request) for request in made)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    assert common > 100
    assert [request.id for request in made] == ["r-0", "r-1"]
    assert {(request.tenant, request.salt, request.priority) for request in made} == {("acme", "s", 3)}
    assert {(request.params.max_tokens, request.params.logprobs) for request in made} == {(1, 20)}


@pytest.mark.parametrize("text", ["word " * 50_000, "最後" * 50_000, "\u0000" * 9000, "<|im_end|>" * 9000])
def test_long_and_hostile_documents_fit(text: str) -> None:
    model = local_model()
    plain, made = judge_requests(model, ASKED, "What is it?", ["A river.", text])
    tokens, expected = model.pipeline.tokenize(made), model.pipeline.tokenize(plain)
    assert len(tokens) < CONTEXT
    special = [token for token in tokens if token in model.vocabulary.special_ids]
    assert special == [token for token in expected if token in model.vocabulary.special_ids]


def test_documents_are_judged_by_their_first_tokens() -> None:
    model = local_model()
    (made,) = judge_requests(model, ASKED, "q", ["one two three four five"], max_document=2)
    assert (made.messages or [])[1]["content"].endswith("<Document>: one two")


def test_a_query_that_leaves_no_room() -> None:
    model = local_model()
    with pytest.raises(ContextOverflow) as caught:
        judge_requests(model, ASKED, "word " * CONTEXT, ["x"])
    assert caught.value.param == "query"
    assert len(prompt_model("smollm2").count([cut_query(model, "最後" * CONTEXT)])) == 1
    judge_requests(model, ASKED, cut_query(model, "最後" * CONTEXT), ["x"])
