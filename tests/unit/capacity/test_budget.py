from typing import Any

import pytest

from penstock.capacity.budget import Budget, Prompt, budget
from penstock.errors import InvalidRequest
from penstock.flow import Message


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
        "documents": 5,
        "user": 3,
        "template": 4 * 2 + 1,
        "output": 10,
    }
    assert [part.each for part in made.parts if part.each] == [[3, 1], [4, 1]]
    assert sum(part.tokens for part in made.parts) == made.used_tokens == made.prompt_tokens + 10 == 33
    assert (made.free_tokens, made.fits, made.longest_output) == (67, True, 77)


def test_too_much() -> None:
    made = shared(PROMPT, context=30)
    assert (made.free_tokens, made.fits, made.longest_output) == (-3, False, 7)
    assert shared(PROMPT, context=33).fits
    assert shared(PROMPT, context=5).longest_output == 0


def test_documents_stand_before_the_users_words() -> None:
    assert PROMPT.messages()[-1] == {"role": "user", "content": "one two three four\n\nfive\n\nso what now"}
    assert [message["role"] for message in PROMPT.messages()] == ["system", "user", "assistant", "user"]


def test_without_a_template_texts_just_follow() -> None:
    made = shared(PROMPT, template=False)
    assert {part.name: part.tokens for part in made.parts}["template"] == 1  # the tokenizer's own beginning


def test_nothing_at_all_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        shared(Prompt())
    assert caught.value.param == "user"
