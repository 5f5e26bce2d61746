"""A model of a running server, as `run` and `chat` use it: the same calls as a model that was loaded here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from penstock.cli.remote import DEFAULT_URL, Remote, ServerSilent
from penstock.errors import ModelNotFound, PenstockError
from penstock.flow import Chunk, Constraint, Message, SamplingParams

LOOK_S = 0.5  # for a server that was not asked for
ANSWER_S = 600.0  # between two pieces of an answer; a model may have to be loaded first
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


class ServedModel:
    interrupts: Literal["now", "between chunks"] = "now"
    can_chat = True

    def __init__(self, remote: Remote, card: dict[str, Any]) -> None:
        self.remote = remote
        self.name: str = card["id"]
        self.context: int | None = card.get("max_model_len")
        # A server that does not say what it recommends gets only what differs from the neutral values.
        self.knows_sampling = "recommended" in card
        recommended = dict(card.get("recommended", {}))
        self.max_tokens: int | None = recommended.pop("max_tokens", None)
        self.recommended: dict[str, Any] = recommended
        self.output_tokens = 0  # of the last answer

    def stream(self, prompt: str | list[Message], params: SamplingParams) -> Iterator[Chunk]:
        """The answer, piece by piece. Leaving the loop early closes the connection, and so cancels the rest."""
        body = self._body(prompt, params) | {"stream": True, "stream_options": {"include_usage": True}}
        self.output_tokens = 0
        for data in self.remote.stream(_path(prompt), body, ANSWER_S):
            if data.get("usage"):
                self.output_tokens = data["usage"]["completion_tokens"]
            for choice in data.get("choices", ()):
                delta = choice.get("delta") or {"content": choice.get("text")}
                reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
                if (text := delta.get("content") or "") or reasoning:
                    yield Chunk(choice.get("index", 0), text, [], reasoning=reasoning)

    def complete(self, prompt: str | list[Message], params: SamplingParams) -> tuple[list[str], dict[str, Any]]:
        """The texts of all choices, and the whole answer."""
        answer = self.remote.post(_path(prompt), self._body(prompt, params), ANSWER_S)
        texts = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in answer["choices"]]
        return [text or "" for text in texts], answer

    def _body(self, prompt: str | list[Message], params: SamplingParams) -> dict[str, Any]:
        given = {"messages": prompt} if isinstance(prompt, list) else {"prompt": prompt}
        sampling = {
            name: getattr(params, name)
            for name in SAMPLING
            if self.knows_sampling or getattr(params, name) != getattr(SamplingParams(), name)
        }
        optional = {"max_tokens": params.max_tokens, "seed": params.seed, "stop": list(params.stop) or None}
        if params.n > 1:
            optional["n"] = params.n
        if params.constraint is not None:
            optional |= _constraint(params.constraint)
        return {"model": self.name, **given, **sampling} | {
            name: value for name, value in optional.items() if value is not None
        }


def _path(prompt: str | list[Message]) -> str:
    return "/v1/chat/completions" if isinstance(prompt, list) else "/v1/completions"


def _constraint(constraint: Constraint) -> dict[str, Any]:
    if constraint.kind == "json_schema":
        schema = {"name": "answer", "schema": msgspec.json.decode(constraint.source), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    source: Any = msgspec.json.decode(constraint.source) if constraint.kind == "choice" else constraint.source
    return {"structured_outputs": {constraint.kind: source}}


def cards(remote: Remote, timeout_s: float | None = None) -> list[dict[str, Any]]:
    """The models of a server."""
    try:
        return list(remote.get("/v1/models", timeout_s)["data"])
    except (KeyError, TypeError):
        raise ServerSilent(f"{remote.url}/v1/models does not list models: is that an OpenAI-compatible API?") from None


def find(remote: Remote, name: str | None) -> ServedModel:
    """A model of this server; the first one that is ready, if no name is given."""
    known = cards(remote)
    if name is None and known:
        ready = [card for card in known if card.get("state", "ready") == "ready"]
        return ServedModel(remote, (ready or known)[0])
    for card in known:
        if name is not None and name.removesuffix(":latest") in (card["id"], *card.get("aliases", ())):
            return ServedModel(remote, card)
    have = ", ".join(card["id"] for card in known)
    raise ModelNotFound(f"the server at {remote.url} has no model {name!r}; it has {have or 'none'}", param="model")


def look_around(name: str | None, key: str | None) -> ServedModel | None:
    """A model of the Penstock server at the default address, if one answers there and has this model."""
    remote = Remote(DEFAULT_URL, key)
    try:
        known = cards(remote, LOOK_S)
        return find(remote, name) if known and all("capabilities" in card for card in known) else None
    except PenstockError:  # none, another one, one that wants a key, or not this model: it is loaded here
        return None
