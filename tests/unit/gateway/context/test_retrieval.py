"""A little RAG over the project's own documentation: which sections are left of all at a budget of 1,000 tokens.

| questions | kept |
|---|---|
| `QUESTIONS`, with which the weight of titles and word endings were chosen | 35 of 36 |
| `IN_TERMS`, written later, in the terms of the documentation | 45 of 45 |
| `PARAPHRASED`, written later, in other words than the documentation: BM25 finds words, not meanings | 37 of 60 |

The share of a long document was chosen with every other question, 60 of 71 kept; of the rest it is 57 of 70.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from helpers.context_models import prompt_model
from helpers.documentation_questions import IN_TERMS, PARAPHRASED
from penstock.flow import Request, SamplingParams
from penstock.flow.context import Document
from penstock.gateway.context import ranking
from penstock.gateway.context.fit import ContextFitter
from penstock.gateway.context.prompt_model import PromptModel
from penstock.gateway.context.ranking import bm25_scores, order
from penstock.settings.context import ContextBudget, ContextSettings

DOCS = Path(__file__).parents[4] / "docs"
FILES = (
    "BATCH", "CONTEXT", "DEPLOY", "OBSERVE", "PLANNER", "ROUTING", "SAFETY", "SERVER", "STRUCTURED", "TENANTS", "UI",
)  # fmt: skip
BUDGET, SHARE, PARAPHRASED_SHARE = 1000, 0.9, 0.55

# The section that has the answer.
QUESTIONS = {
    "Which requests go first, those of a batch or those of clients that wait?": "BATCH#Priority",
    "What happens to a batch when the server crashes or restarts?": "BATCH#Durability",
    "Through which states does a batch go until it is completed?": "BATCH#From validating to completed",
    "How can I watch the progress of a batch?": "BATCH#Watching",
    "How do I run it as a systemd service?": "DEPLOY#The service",
    "How do I configure nginx as a proxy in front?": "DEPLOY#The proxy",
    "How do I scrape it with Prometheus and get a Grafana dashboard?": "DEPLOY#Monitoring",
    "Why was my prompt not in the prefix cache?": "OBSERVE#Cache-miss explainer",
    "What does the sampling lab show of the next token?": "OBSERVE#The sampling lab",
    "How do I set SLO objectives and get alerts by webhook?": "OBSERVE#SLO objectives and alerts",
    "Which Prometheus metrics are there?": "OBSERVE#Metrics",
    "How do I export traces to OpenTelemetry, and logs as JSON?": "OBSERVE#Traces and logs",
    "How is the memory of the KV cache per token computed?": "PLANNER#Memory",
    "How does tensor parallelism over several devices change the plan?": "PLANNER#Several devices",
    "What speedup does speculative decoding give by acceptance of drafts?": "PLANNER#Speculative decoding",
    "How many replicas does a rate of requests need, and how long do they wait?": "PLANNER#Load",
    "How accurate are the planner's predictions against measurements?": "PLANNER#Accuracy",
    "What does the planner not model?": "PLANNER#Not modelled",
    "How do I add an upstream with api_key_env?": "ROUTING#Upstreams",
    "Which model takes over when another fails, and within which deadline?": "ROUTING#Fallback",
    "How does model auto choose by size class?": "ROUTING#Routes",
    "How do I serve several models with [[models]] in the config?": "SERVER#Several models",
    "How do Claude Code and the Anthropic SDK connect to /v1/messages?": "SERVER#Anthropic Messages API",
    "What is previous_response_id, and how long are responses stored?": "SERVER#OpenAI Responses API",
    "Which routes of Ollama are there, and what does keep_alive do?": "SERVER#Ollama's API",
    "Which Host headers are accepted against DNS rebinding?": "SERVER#Accepted hosts",
    "How do I allow a web page of another origin (CORS)?": "SERVER#Cross-origin requests (CORS)",
    "What happens when a client disconnects or reads slowly?": "SERVER#Disconnects and slow clients",
    "What happens to requests when the engine process crashes or hangs?": "SERVER#Engine crashes and hangs",
    "How does a shutdown drain running requests?": "SERVER#Shutdown",
    "How do I force the output to match a regex on the command line?": "STRUCTURED#In Python and on the command line",
    "Which finish_reason is dead_end?": "STRUCTURED#Finish reasons",
    "Which EBNF or GBNF grammars are supported?": "STRUCTURED#EBNF",
    "How are reasoning and the thinking budget handled?": "STRUCTURED#Reasoning",
    "What limits are there on the compilation of constraints?": "STRUCTURED#Compilation limits",
    "How do I build the web interface?": "UI#Building it",
}


@cache
def sections() -> list[Document]:
    """The second-level sections of the documentation, each a document, and what stands before the first of a file."""
    found = []
    for name in FILES:
        intro, *parts = re.split(r"^## (.*)$", (DOCS / f"{name}.md").read_text(), flags=re.MULTILINE)
        title, _, text = intro.partition("\n")
        titles = [f"{title.lstrip('# ')}: {part}" for part in parts[::2]]
        found.append(Document(id=f"{name}#", title=title.lstrip("# "), text=text.strip()))
        found += [
            Document(id=f"{name}#{part}", title=whole, text=text.strip())
            for part, whole, text in zip(parts[::2], titles, parts[1::2], strict=True)
        ]
    return found


cached_terms = cache(ranking._terms)


@cache
def token_count(text: str) -> int:
    (tokens,) = PromptModel.count(prompt_model("smollm2"), [text])
    return tokens


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same texts are read for each question: their words and tokens are found once."""
    monkeypatch.setattr(ranking, "_terms", cached_terms)
    monkeypatch.setattr(prompt_model("smollm2"), "count", lambda texts: [token_count(text) for text in texts])


def kept_documents(question: str, documents: list[Document]) -> list[str]:
    settings = ContextSettings(budget=ContextBudget(documents=BUDGET))
    scores = bm25_scores(question, documents)
    request = Request(
        id="r",
        params=SamplingParams(),
        messages=[{"role": "user", "content": question}],
        documents=tuple(documents),
        context=settings,
    )
    ranked = [(documents[place], scores[place]) for place in order(scores)]
    made = ContextFitter(request, settings, prompt_model("smollm2"), ranked, cuts=True).fit()
    assert sum(one.tokens for one in made.draft.documents) <= BUDGET
    return [one.document.id for one in made.draft.documents]


@pytest.mark.parametrize(
    ("questions", "share"),
    [
        ({question: (name,) for question, name in QUESTIONS.items()}, SHARE),
        (IN_TERMS, SHARE),
        (PARAPHRASED, PARAPHRASED_SHARE),
    ],
    ids=["tuned", "in-terms", "paraphrased"],
)
def test_the_right_section_is_kept(questions: dict[str, tuple[str, ...]], share: float) -> None:
    documents = sections()
    assert {name for names in questions.values() for name in names} <= {document.id for document in documents}
    missed = [
        question
        for question, names in questions.items()
        if not set(names).intersection(kept_documents(question, documents))
    ]
    assert len(questions) >= 30
    assert len(missed) <= (1 - share) * len(questions), missed
