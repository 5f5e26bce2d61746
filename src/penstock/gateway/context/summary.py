"""Dropped turns as a summary by a served model. Summaries are remembered: the same turns have the same summary, so a
conversation that grows pays for one only when more of it is dropped, and its prompts begin alike."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.flow import Message, Request, SamplingParams
from penstock.gateway.context.helper_models import owned_request
from penstock.gateway.context.texts import message_text
from penstock.gateway.context.turns import CHARS_PER_TOKEN, Conversation

MAX_SUMMARIES = 1000
DEFAULT_WINDOW = 4096  # tokens of a model whose context is not known
INSTRUCTIONS = (
    "Summarize the conversation that follows. Keep names, numbers, decisions and open questions. "
    "Write only the summary."
)


class SummaryCache:
    """The latest summaries, by tenant, model and turns."""

    def __init__(self, size: int = MAX_SUMMARIES) -> None:
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._size = size

    def get(self, key: bytes) -> str | None:
        if key in self._texts:
            self._texts.move_to_end(key)
        return self._texts.get(key)

    def put(self, key: bytes, text: str) -> None:
        self._texts[key] = text
        while len(self._texts) > self._size:
            self._texts.popitem(last=False)


def transcript(messages: Sequence[Message], conversation: Conversation, turns: Sequence[int]) -> str:
    """The turns as a text, by role."""
    lines = [
        f"{messages[place].get('role')}: {message_text(messages[place])}"
        for number in turns
        for place in conversation.history[number].places
    ]
    return "\n\n".join(lines)


def summary_key(request: Request, model: str, text: str, max_tokens: int) -> bytes:
    parts = [request.tenant, request.salt, model, str(max_tokens), text]
    return hashlib.blake2b("\0".join(parts).encode(errors="replace"), digest_size=16).digest()


def summary_request(request: Request, request_id: str, text: str, max_tokens: int, context: int | None) -> Request:
    """`context` of the model that writes it: of a longer text it gets the end."""
    window = ((context or DEFAULT_WINDOW) - max_tokens) // 2  # half of it, for texts with short tokens
    messages = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": text[-max(window, 64) * CHARS_PER_TOKEN :]},
    ]
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return replace(owned_request(request, request_id), params=params, messages=messages, salt=request.salt)
