"""Token budget: the parts of a prompt and the reserved output against the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from penstock.errors import InvalidRequest
from penstock.flow import Message, Tokenizer
from penstock.flow.context import ContextTrace, Document
from penstock.gateway.context.documents import PlacedDocument, block
from penstock.gateway.context.fit import DEFAULT_OUTPUT as DEFAULT_OUTPUT
from penstock.gateway.context.placement import document_blocks
from penstock.gateway.context.texts import message_text


class BudgetPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    tokens: int
    each: list[int] | None = None  # of each turn, each document


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The parts add up to `used_tokens`."""

    context: int
    parts: list[BudgetPart]
    prompt_tokens: int
    used_tokens: int
    free_tokens: int  # negative: tokens over the context
    fits: bool
    longest_output: int
    assembled: ContextTrace | None = None  # what context assembly makes of it, on request


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """Its parts in order; documents come before the user's text."""

    system: str = ""
    history: Sequence[Message] = ()
    documents: Sequence[str | Document] = ()
    user: str = ""

    def given(self) -> list[Document]:
        """Documents, by number where they have no id."""
        return [
            Document(id=str(number + 1), text=one) if isinstance(one, str) else one
            for number, one in enumerate(self.documents)
        ]

    def placed(self) -> list[PlacedDocument]:
        """Documents as context assembly puts them before the user's text."""
        return [PlacedDocument(one, one.text, 0) for one in self.given()]

    def messages(self) -> list[Message]:
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        last = "\n\n".join(text for text in (document_blocks(self.placed()), self.user) if text)
        question: list[Message] = [{"role": "user", "content": last}] if last else []
        return [*system, *self.history, *question]


def budget(
    prompt: Prompt,
    *,
    tokenizer: Tokenizer,
    render: Callable[[list[Message]], list[int]] | None,
    reserved_output: int,
    context: int,
) -> Budget:
    """`render` gives the tokens of a conversation in its chat template; None: no template, texts are concatenated.

    `template` is the prompt's tokens beyond its parts; negative where the template trims or merges text.
    """

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special=False))

    messages = prompt.messages()
    if not messages:
        raise InvalidRequest("user is required, or one of system, history and documents", param="user")
    parts = [
        BudgetPart(name="system", tokens=count(prompt.system)),
        _several("history", [count(message_text(message)) for message in prompt.history]),
        _several("documents", [count(block(one.document, one.text)) for one in prompt.placed()]),
        BudgetPart(name="user", tokens=count(prompt.user)),
    ]
    if render is not None:
        prompt_tokens = len(render(messages))
    else:
        prompt_tokens = len(tokenizer.encode("\n\n".join(str(message["content"]) for message in messages)))
    template = prompt_tokens - sum(part.tokens for part in parts)
    used = prompt_tokens + reserved_output
    return Budget(
        context=context,
        parts=[
            *parts,
            BudgetPart(name="template", tokens=template),
            BudgetPart(name="output", tokens=reserved_output),
        ],
        prompt_tokens=prompt_tokens,
        used_tokens=used,
        free_tokens=context - used,
        fits=used <= context,
        longest_output=max(0, context - prompt_tokens),
    )


def _several(name: str, each: list[int]) -> BudgetPart:
    return BudgetPart(name=name, tokens=sum(each), each=each)
