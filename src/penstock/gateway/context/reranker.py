"""Relevance as a served chat model judges it: the probability of "yes" against "no" as the first token of its answer,
one prefill for each document. All prompts begin alike up to the document, so that the prefix cache computes that once.

The wording is the one that Qwen3-Reranker was trained with (https://huggingface.co/Qwen/Qwen3-Reranker-0.6B); every
instruction-tuned model can answer it, those made for it best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.deployment.local_model import LocalModel
from penstock.errors import ContextOverflow, by_code
from penstock.flow import Request, SamplingParams, TokenLogprobs, Vocabulary
from penstock.flow.params import MAX_LOGPROBS
from penstock.gateway.context.control_tokens import ControlTokens
from penstock.stream.active_request import ActiveRequest

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
MARKUP = 64  # tokens of the chat template around the texts, at most
MIN_DOCUMENT = 16  # tokens that a query leaves for each document, at least
CHARS_PER_TOKEN = 16  # of a text that is tokenized to be cut, at most
BATCH = 32  # texts that are tokenized together: their tokens are freed together, which holds the interpreter


def judge_requests(
    model: LocalModel,
    request: Request,
    query: str,
    documents: Sequence[str],
    *,
    instruction: str = INSTRUCTION,
    max_document: int | None = None,
) -> list[Request]:
    """One for each document, like `request` in all but the prompt. A document that is longer than `max_document`
    tokens, or than the context, is judged by its beginning. For a thread. Raises ContextOverflow for a query that
    leaves no room for documents."""
    tokenizer, control = model.tokenizer, ControlTokens(model.vocabulary)
    model.pipeline.check_length(len(query) + len(instruction), "query")
    head = f"<Instruct>: {control.defuse(instruction)}\n<Query>: {control.defuse(query)}\n<Document>: "
    used = sum(map(len, tokenizer.encode_batch([SYSTEM, head], add_special=False)))
    room = model.pipeline.context - used - MARKUP - 1
    if room < MIN_DOCUMENT:
        raise ContextOverflow(
            f"the query has some {used} tokens with its instruction, which leaves no room for documents in a context "
            f"of {model.pipeline.context}: shorten it",
            param="query",
        )
    room = min(room, max_document or room)
    texts = [control.defuse(text[: room * CHARS_PER_TOKEN]) for text in documents]
    batches = [texts[begin : begin + BATCH] for begin in range(0, len(texts), BATCH)]
    shown = [text for batch in batches for text in _beginnings(model, batch, room)]
    return [
        replace(
            request,
            id=f"{request.id}-{number}",
            params=SamplingParams(max_tokens=1, temperature=0.0, logprobs=MAX_LOGPROBS),
            messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": head + text}],
            enable_thinking=False,
        )
        for number, text in enumerate(shown)
    ]


def _beginnings(model: LocalModel, texts: list[str], room: int) -> list[str]:
    """The texts, those of more than `room` tokens by their first ones."""
    tokenizer = model.tokenizer
    tokens = tokenizer.encode_batch(texts, add_special=False)
    return [text if len(ids) <= room else tokenizer.decode(ids[:room]) for text, ids in zip(texts, tokens, strict=True)]


def cut_query(model: LocalModel, query: str) -> str:
    """Its end, of half of the context at most."""
    room = model.pipeline.context // 2
    tokens = model.tokenizer.encode(query[-room * CHARS_PER_TOKEN :], add_special=False)
    return query if len(tokens) <= room else model.tokenizer.decode(tokens[-room:])


def relevance(judged: ActiveRequest, vocabulary: Vocabulary) -> float:
    """0 to 1. Raises what kept the model from answering."""
    logprobs = judged.choices[0].logprobs
    if not logprobs:
        message, code = judged.error or ("the request ended without an answer", None)
        raise by_code(code, message)
    return yes_probability(logprobs[0], vocabulary)


def yes_probability(first: TokenLogprobs, vocabulary: Vocabulary) -> float:
    """Of "yes" against "no", however they are spelled. Only the most likely tokens are known: a word that is not among
    them has at most the probability of the last, and counts as that."""
    known = {first.token: first.logprob, **dict(first.top)}
    sums = {"yes": 0.0, "no": 0.0}
    for token, logprob in known.items():
        text = vocabulary.token_bytes(token).decode(errors="ignore").strip().lower()
        for word in sums:
            if text and word.startswith(text):
                sums[word] += math.exp(logprob)
    least = math.exp(min(known.values()))
    yes, no = (total or least for total in sums.values())
    return yes / (yes + no)
