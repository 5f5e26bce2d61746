from __future__ import annotations

import pytest

from helpers.context_models import DOCUMENTS_TEMPLATE, prompt_model
from penstock.flow import Message, Request, SamplingParams
from penstock.flow.context import Document
from penstock.gateway.context import texts
from penstock.gateway.context.documents import cut_text
from penstock.gateway.context.fit import ContextFitter
from penstock.gateway.context.ranking import bm25_scores, order
from penstock.gateway.context.summary import SummaryCache
from penstock.gateway.context.texts import sentences, words
from penstock.gateway.context.turns import TurnCost, choose_turns, split
from penstock.settings.context import ContextBudget, ContextSettings


def cost(tokens: int | None, characters: int = 40) -> TurnCost:
    return TurnCost(tokens, 1, characters)


@pytest.mark.parametrize(
    ("room", "budget", "first", "kept"),
    [
        (44, None, 0, "1111"),
        (43, None, 0, "0111"),
        (22, None, 0, "0011"),
        (100, 20, 0, "0011"),
        (33, None, 1, "1011"),
        (11, None, 3, "1000"),
        (5, None, 1, "0000"),
    ],
)
def test_the_oldest_turns_go_first(room: int, budget: int | None, first: int, kept: str) -> None:
    chosen = choose_turns([cost(10)] * 4, room=room, budget=budget, first=first)
    assert "".join(str(int(one)) for one in chosen) == kept


def test_a_turn_that_cannot_be_counted_is_never_kept() -> None:
    assert choose_turns([cost(1), cost(None), cost(1)], room=100, budget=None) == [False, False, True]


def test_the_beginning_moves_in_steps() -> None:
    """A conversation that grows begins alike for several turns, so that the prefix cache hits."""
    starts = []
    for number in range(20, 40):
        kept = choose_turns([cost(10)] * number, room=110, budget=None, step_characters=160)
        assert any(kept)
        starts.append(kept.index(True))
    assert starts == sorted(starts)
    assert len(set(starts)) <= 6


def test_turns_begin_with_the_user_and_hold_their_tool_calls() -> None:
    roles = ["system", "user", "assistant", "tool", "assistant", "user", "user", "assistant", "system", "user"]
    found = split([{"role": role, "content": role} for role in roles])
    assert found.system == (0, 8)
    assert [turn.places for turn in found.history] == [(1, 2, 3, 4), (5, 6, 7)]
    assert found.last.places == (9,)


def test_a_template_with_documents_gets_them_as_its_variable() -> None:
    model = prompt_model(DOCUMENTS_TEMPLATE)
    assert model.shows_documents
    assert not prompt_model("smollm2").shows_documents
    messages: list[Message] = [{"role": "user", "content": "Where?"}]
    documents = (Document(id="a", text="Here it is."),)
    request = Request(id="r", params=SamplingParams(), messages=messages, documents=documents)
    made = ContextFitter(request, ContextSettings(), model, [(documents[0], 1.0)], cuts=True).fit()
    assert made.place == "template"
    assert made.request.messages == messages
    assert "Here it is." in model.pipeline.render(made.request)


def test_bm25_ranks_in_any_script() -> None:
    given = ["Bananas are yellow.", "Paris is the capital of France.", "東京は日本の首都です。", ""]
    documents = [Document(id=str(place), text=text) for place, text in enumerate(given)]
    assert order(bm25_scores("What is the capital of France?", documents))[0] == 1
    assert order(bm25_scores("日本の首都", documents))[0] == 2
    assert bm25_scores("", documents) == [0.0] * 4
    assert words("Straße 日本語") == ["strasse", "日本", "本語"]


def test_texts_are_cut_at_sentence_borders() -> None:
    text = 'One two. Three four! "Five." Six\nSeven eight nine'
    assert "".join(sentences(text)) == text
    count = lambda texts: [len(one.split()) for one in texts]  # noqa: E731
    assert cut_text(text, 4, count, 1000) == "One two. Three four! "
    assert cut_text(text, 1, count, 1000) == ""


@pytest.mark.parametrize("piece", range(1, 12))
def test_sentences_are_the_same_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    text = 'One. Two!  "Three."\tFour\n\n\nFive… 六。！七? "'
    whole = ["One. ", "Two!  ", '"Three."\t', "Four\n\n\n", "Five… ", "六。！", "七? ", '"']
    assert sentences(text) == whole
    monkeypatch.setattr(texts, "PIECE", piece)
    assert sentences(text) == whole


def test_hostile_texts_take_linear_time() -> None:
    for text in ("." * 10**6, ".'" * 10**6, " " * 10**6, "\n " * 10**6):
        assert "".join(sentences(text)) == text


def test_summaries_are_remembered_and_bounded() -> None:
    cache = SummaryCache(2)
    for name in (b"1", b"2", b"3"):
        cache.put(name, name.decode())
    assert [cache.get(name) for name in (b"1", b"2", b"3")] == [None, "2", "3"]


def test_settings_of_a_request_go_over_the_defaults_of_its_model() -> None:
    defaults = ContextSettings(budget=ContextBudget(total=2000, output=100), history="summarize", summary_model="s")
    own = ContextSettings(budget=ContextBudget(total=1000), history="keep_first", keep_first=2)
    merged = own.over(defaults)
    assert (merged.budget.total, merged.budget.output, merged.summary_model) == (1000, 100, None)
    assert merged.conflict() is None
    assert ContextSettings().over(defaults) == defaults
    assert ContextSettings(keep_first=1).conflict() == ("keep_first", "goes with history: keep_first only")
    assert ContextSettings(budget=ContextBudget(total=10, output=10)).conflict() is not None


def test_a_smaller_total_of_a_request_leaves_out_limits_of_the_defaults_that_have_no_room_in_it() -> None:
    defaults = ContextSettings(budget=ContextBudget(total=4000, output=512, documents=1500, history=200))
    merged = ContextSettings(budget=ContextBudget(total=500)).over(defaults)
    assert merged.conflict() is None
    assert merged.budget == ContextBudget(total=500, history=200)
    own = ContextSettings(budget=ContextBudget(total=500, documents=600)).over(defaults)
    assert own.conflict() == ("budget.documents", "must be less than budget.total, which is 500")


def test_the_model_of_a_ranking_belongs_to_it() -> None:
    defaults = ContextSettings(rank="reranker", rank_model="judge")
    assert ContextSettings(rank="reranker").over(defaults).rank_model == "judge"
    for other in (ContextSettings(rank="embedding"), ContextSettings(rank="bm25")):
        merged = other.over(defaults)
        assert (merged.rank, merged.rank_model, merged.conflict()) == (other.rank, None, None)


def test_a_model_of_a_ranking_without_a_model_is_a_conflict() -> None:
    for rank in (None, "bm25", "score", "given"):
        conflict = ContextSettings(rank=rank, rank_model="judge").conflict()
        assert conflict is not None
        assert conflict[0] == "rank_model"
