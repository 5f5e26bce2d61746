"""A little RAG over the project's own documentation: which sections are left of all at a budget of 1,000 tokens."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.context_models import prompt_model
from penstock.flow import Request, SamplingParams
from penstock.flow.context import Document
from penstock.gateway.context.fit import ContextFitter
from penstock.gateway.context.ranking import bm25_scores, order
from penstock.settings.context import ContextBudget, ContextSettings

DOCS = Path(__file__).parents[4] / "docs"
FILES = ("BATCH", "DEPLOY", "OBSERVE", "PLANNER", "ROUTING", "SERVER", "STRUCTURED", "UI")
BUDGET, SHARE = 1000, 0.9

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


def sections() -> list[Document]:
    """The second-level sections of the documentation, each a document."""
    found = []
    for name in FILES:
        parts = re.split(r"^## (.*)$", (DOCS / f"{name}.md").read_text(), flags=re.MULTILINE)
        found += [
            Document(id=f"{name}#{title}", title=f"{parts[0].splitlines()[0].lstrip('# ')}: {title}", text=text.strip())
            for title, text in zip(parts[1::2], parts[2::2], strict=True)
        ]
    return found


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


def test_the_right_section_is_kept() -> None:
    documents = sections()
    names = {document.id for document in documents}
    assert set(QUESTIONS.values()) <= names
    missed = [question for question, name in QUESTIONS.items() if name not in kept_documents(question, documents)]
    assert len(QUESTIONS) >= 30
    assert len(missed) <= (1 - SHARE) * len(QUESTIONS), missed
