from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.flow import Message
from penstock.gateway.context.budget import Budget, Prompt, budget


class Words:
    """A tokenizer of words."""

    vocab_size = 10

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        return [0] * (len(text.split()) + add_special)


def render(messages: list[Message]) -> list[int]:
    """Two tokens around every message, and one to begin the answer."""
    return [0] * (sum(len(str(message["content"]).split()) + 2 for message in messages) + 1)


def shared(prompt: Prompt, *, output: int = 10, context: int = 100, template: bool = True) -> Budget:
    tokenizer: Any = Words()
    return budget(
        prompt, tokenizer=tokenizer, render=render if template else None, reserved_output=output, context=context
    )


PROMPT = Prompt(
    system="be brief",
    history=[{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d"}],
    documents=["one two three four", "five"],
    user="so what now",
)


def test_parts_add_up() -> None:
    made = shared(PROMPT)
    assert {part.name: part.tokens for part in made.parts} == {
        "system": 2,
        "history": 4,
        "documents": 4 + 1 + 2 * 3,  # each in its tags
        "user": 3,
        "template": 4 * 2 + 1 + 2,  # the tags around all documents
        "output": 10,
    }
    assert [part.each for part in made.parts if part.each] == [[3, 1], [7, 4]]
    assert sum(part.tokens for part in made.parts) == made.used_tokens == made.prompt_tokens + 10 == 41
    assert (made.free_tokens, made.fits, made.longest_output) == (59, True, 69)


def test_too_much() -> None:
    made = shared(PROMPT, context=38)
    assert (made.free_tokens, made.fits, made.longest_output) == (-3, False, 7)
    assert shared(PROMPT, context=41).fits
    assert shared(PROMPT, context=5).longest_output == 0


def test_documents_stand_before_the_users_words() -> None:
    text = (
        '<documents>\n<document id="1">\none two three four\n</document>\n'
        '<document id="2">\nfive\n</document>\n</documents>\n\nso what now'
    )
    assert PROMPT.messages()[-1] == {"role": "user", "content": text}
    assert [message["role"] for message in PROMPT.messages()] == ["system", "user", "assistant", "user"]


def test_without_a_template_texts_just_follow() -> None:
    made = shared(PROMPT, template=False)
    assert {part.name: part.tokens for part in made.parts}[
        "template"
    ] == 3  # the tags, and the tokenizer's own beginning


def test_nothing_at_all_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        shared(Prompt())
    assert caught.value.param == "user"
