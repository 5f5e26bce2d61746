"""Rules over the chunks of an answer: text, reasoning, arguments of tool calls, tokens and log-probabilities."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from functools import cache
from typing import ClassVar

import pytest
import re2

from penstock.flow import (
    Cancel,
    Chunk,
    Delta,
    FinishReason,
    OutputFormat,
    ReasoningMarkers,
    SamplingParams,
    Submit,
    TokenLogprobs,
)
from penstock.gateway.safety.choice_filter import Context, RuleFilter
from penstock.gateway.safety.rules import Rules, Ruleset
from penstock.settings import SafetyEntry
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream

SECRET = SafetyEntry(name="secrets", terms=("secret plan",), patterns=("sk-[a-z]{4}",))
THINKING = OutputFormat(reasoning=ReasoningMarkers("<think>", "</think>"), tool_calls="hermes")
ALTERNATIVES = "d!"
CALL = ("x", "", '{"a": "')


class Letters:
    """Token 97 is "a". Token 0 is special: it has no text."""

    fixed_texts: ClassVar[dict[int, str]] = {0: "", **{token: chr(token) for token in range(1, 128)}}
    holds_text = False

    def push(self, token: int) -> str:
        return self.fixed_texts[token]

    def flush(self) -> str:
        return ""


@cache
def output_rules(rules: tuple[SafetyEntry, ...]) -> Ruleset:
    """Compiled once: matchers remember the steps of all answers."""
    return Rules(rules).of("", "output")


class Answer:
    """An answer under rules, of single letters as tokens."""

    def __init__(
        self,
        *rules: SafetyEntry,
        output_format: OutputFormat | None = None,
        stop: tuple[str, ...] = (),
        logprobs: int | None = 0,
    ) -> None:
        self.hits: list[tuple[str, str, str]] = []
        params = SamplingParams(logprobs=logprobs, stop=stop)
        ruleset = output_rules(rules)
        self.active = ActiveRequest(
            "r",
            [Submit("r/0", [1], params, 0, 99)],
            lambda index: ChoiceStream(index, params, Letters(), output_format),
        )
        context = Context(token_bytes=lambda token: chr(token).encode())
        self.active.filter_output(
            lambda: RuleFilter(ruleset.matcher, ruleset.size, lambda *hit: self.hits.append(hit), context)
        )
        self.chunks: list[Chunk] = []
        self.cancel: Cancel | None = None
        self.num_short = 0  # tokens that took the short way

    def say_tokens(self, text: str) -> Answer:
        """Each letter by itself, the short way where it can."""
        for letter in text:
            shown = self.active.short_way(0).push_token(ord(letter))
            if shown is None:
                self.say(letter, end=False)
            else:
                self.num_short += 1
                self.chunks += [Chunk(0, shown, [])]
        return self.say("")

    def say(self, *pieces: str, end: bool = True) -> Answer:
        for place, piece in enumerate(pieces):
            tokens = [ord(letter) for letter in piece]
            finish = FinishReason.LENGTH if end and place == len(pieces) - 1 else None
            scored = self.active.submits[0].params.logprobs is not None
            top = [(ord(letter), -2.0) for letter in ALTERNATIVES]
            logprobs = [TokenLogprobs(token, -1.0, 1, [(token, -1.0), *top]) for token in tokens] if scored else None
            chunk, cancel = self.active.push(Delta(id="r/0", tokens=tokens, logprobs=logprobs, finish=finish))
            self.chunks += [chunk] if chunk is not None else []
            self.cancel = self.cancel or cancel
        return self

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def reasoning(self) -> str:
        return "".join(chunk.reasoning for chunk in self.chunks)

    @property
    def arguments(self) -> str:
        return "".join(call.arguments for chunk in self.chunks for call in chunk.calls)

    @property
    def tokens(self) -> str:
        return "".join(chr(token) for chunk in self.chunks for token in chunk.tokens)

    @property
    def finish(self) -> FinishReason | None:
        return self.chunks[-1].finish

    def check(self) -> None:
        """Chunks and the whole answer agree; log-probabilities are those of the tokens."""
        choice = self.active.completion().choices[0]
        assert (choice.text, choice.reasoning or "") == (self.text, self.reasoning)
        assert "".join(call.arguments for call in choice.calls) == self.arguments
        assert "".join(map(chr, choice.tokens)) == self.tokens
        assert choice.hidden_tokens == self.chunks[-1].hidden_tokens
        assert (choice.hidden_tokens > 0) == (choice.finish is FinishReason.CONTENT_FILTER)
        assert [entry.token for entry in choice.logprobs or ()] == choice.tokens
        shown = [entry.token for chunk in self.chunks for entry in chunk.logprobs or ()]
        assert shown == choice.tokens
        assert (choice.finish, choice.stop) == (self.finish, self.chunks[-1].stop)


def test_a_match_ends_the_answer_and_nothing_of_it_is_shown() -> None:
    answer = Answer(SECRET).say(*"our Secret plan is", end=False)
    assert (answer.text, answer.tokens, answer.finish) == ("our ", "our ", FinishReason.CONTENT_FILTER)
    assert answer.chunks[-1].stop == "secrets"
    assert answer.cancel == Cancel("r/0", FinishReason.CONTENT_FILTER, at_output=16)
    choice = answer.active.choices[0]
    assert (choice.output_tokens, choice.hidden_tokens) == (16, 12)  # they are counted as generated
    assert answer.hits == [("secrets", "text", "Secret plan")]
    answer.say("more", end=False)
    answer.check()


def test_text_without_a_match_is_all_shown_in_time() -> None:
    answer = Answer(SECRET)
    answer.say(*"a secretary", end=False)
    assert answer.text == answer.tokens == "a secretary"
    answer.say(" sk-abc")
    assert (answer.text, answer.finish, answer.hits) == ("a secretary sk-abc", FinishReason.LENGTH, [])
    answer.check()


def test_the_end_may_complete_a_match() -> None:
    answer = Answer(SECRET).say(*"a secret plan")
    assert (answer.text, answer.tokens, answer.finish) == ("a ", "a ", FinishReason.CONTENT_FILTER)
    answer.check()


def test_of_a_piece_with_a_match_no_token_is_shown() -> None:
    answer = Answer(SECRET).say("so ", "it is sk-abcd!", end=False)
    assert (answer.text, answer.tokens) == ("so it is ", "so ")
    answer.check()


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("<think>my secret plan</think>ok", ("my ", "", "")),
        ("<think>fine</think>the secret plan", ("fine", "the ", "")),
        ('<think>x</think><tool_call>{"name": "f", "arguments": {"a": "secret plan"}}</tool_call>', CALL),
        ('<think>x</think><tool_call>{"name": "secret plan", "arguments": {"a": 1}}</tool_call>', ("x", "", "")),
        ('<think>x</think><tool_call>{"name": "f", "arguments": {"a": "\\u0073ecret\\tplan"}}</tool_call>', CALL),
    ],
)
def test_in_reasoning_and_arguments_at_every_split(written: str, shown: tuple[str, str, str]) -> None:
    for cut in range(len(written) + 1):
        answer = Answer(SECRET, output_format=THINKING).say(written[:cut], written[cut:])
        assert (answer.reasoning, answer.text, answer.arguments) == shown, cut
        assert answer.finish is FinishReason.CONTENT_FILTER
        assert "ecret" not in answer.tokens
        answer.check()


def test_tokens_wait_for_text_that_a_stop_string_holds_back() -> None:
    answer = Answer(SECRET, stop=("sk-zz",)).say(*"is sk-abcd", end=False)
    assert (answer.text, answer.tokens, answer.finish) == ("is ", "is ", FinishReason.CONTENT_FILTER)
    answer.check()


def test_sizes_count_all_parts() -> None:
    size = SafetyEntry(name="short", max_chars=8)
    answer = Answer(size, output_format=THINKING).say("<think>12345</think>", *"6789")
    assert (answer.reasoning, answer.text, answer.finish) == ("12345", "678", FinishReason.CONTENT_FILTER)
    assert answer.hits == [("short", "text", "")]
    answer.check()
    assert Answer(size).say("12345678").finish is FinishReason.LENGTH


def test_nothing_leaks_from_random_answers() -> None:
    draw = random.Random(3)
    parts: list[Callable[[], str]] = [
        lambda: draw.choice(("secret plan", "sk-abcd", "secret", "sk-", "plan ", "a b ")),
        lambda: "".join(draw.choices("abs ek-", k=draw.randrange(6))),
    ]
    for _ in range(400):
        reasoning, text, argument = ("".join(draw.choice(parts)() for _ in range(3)) for _ in range(3))
        call = f'<tool_call>{{"name": "f", "arguments": {{"a": "{argument}"}}}}</tool_call>'
        written = f"<think>{reasoning}</think>{text}{call}"
        cuts = sorted(draw.sample(range(len(written)), 6))
        pieces = [written[a:b] for a, b in zip([0, *cuts], [*cuts, len(written)], strict=True)]
        answer = Answer(SECRET, output_format=THINKING).say(*pieces)
        answer.check()
        free = Answer(SafetyEntry(name="none", max_chars=9999), output_format=THINKING).say(written)
        whole = (free.reasoning, free.text, free.arguments)
        matches = [_first_match(part) for part in whole]
        assert (answer.finish is FinishReason.CONTENT_FILTER) == any(place is not None for place in matches)
        shown = (answer.reasoning, answer.text, answer.arguments)
        for part, seen, place in zip(whole, shown, matches, strict=True):
            assert part.startswith(seen)
            assert place is None or len(seen) <= place
        assert answer.finish is FinishReason.CONTENT_FILTER or shown == whole


def test_single_tokens_take_the_short_way_and_show_the_same() -> None:
    draw = random.Random(4)
    taken = total = 0
    for number in range(300):
        parts = draw.choices(
            ("secret plan", "secret", "sk-abc", "plan a ", "s\0o ", "abc sk-abcde", "secret \0plan"),
            k=draw.randrange(1, 8),
        )
        text = "".join(parts)
        size = SafetyEntry(name="size", max_chars=draw.randrange(5, 60)) if number % 3 == 0 else None
        rules = (SECRET,) if size is None else (SECRET, size)
        short = Answer(*rules, logprobs=None).say_tokens(text)
        long = Answer(*rules).say(*text, "")
        assert (short.text, short.finish, short.hits) == (long.text, long.finish, long.hits), text
        ends = [answer.active.completion().choices[0] for answer in (short, long)]
        assert ends[0].text == ends[1].text == short.text
        assert (ends[0].tokens, ends[0].hidden_tokens) == (ends[1].tokens, ends[1].hidden_tokens), text
        assert (short.cancel, short.chunks[-1].hidden_tokens) == (long.cancel, ends[0].hidden_tokens)
        if short.finish is FinishReason.LENGTH:
            taken, total = taken + short.num_short, total + len(text)
    assert taken > total / 2


def test_a_token_that_has_never_come_takes_the_short_way_too() -> None:
    output_rules.cache_clear()
    answer = Answer(SECRET, logprobs=None).say_tokens("quite new words, secrecy")
    assert answer.num_short == len("quite new words, secrecy") - 1  # the first opens the way
    assert answer.text == "quite new words, secrecy"


@pytest.mark.parametrize("said", ["an answer", "a secret plan"])
def test_an_answer_under_rules_leaves_no_garbage(said: str) -> None:
    """The collector would have to find it."""
    ruleset, params = output_rules((SECRET,)), SamplingParams()

    def answer() -> None:
        submit = Submit("r/0", [1], params, 0, 99)
        active = ActiveRequest("r", [submit], lambda index: ChoiceStream(index, params, Letters()))
        active.filter_output(lambda: RuleFilter(ruleset.matcher, None, lambda *hit: None))
        for letter in said:
            active.push(Delta(id="r/0", tokens=[ord(letter)]))
        active.push(Delta(id="r/0", finish=FinishReason.LENGTH))
        assert (active.completion().choices[0].finish is FinishReason.LENGTH) == (said == "an answer")

    answer()  # what is made once is there
    gc.collect()
    gc.disable()
    try:
        answer()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_alternatives_that_would_make_a_match_are_hidden() -> None:
    answer = Answer(SECRET).say(*"sk-abc. secret plan")
    assert (answer.text, answer.finish) == ("sk-abc. ", FinishReason.CONTENT_FILTER)
    answer.check()
    choice = answer.active.completion().choices[0]
    shown = [entry for chunk in answer.chunks for entry in chunk.logprobs or ()]
    assert shown == choice.logprobs
    alternatives = ["".join(chr(token) for token, _ in entry.top) for entry in shown]
    assert alternatives == ["sd!", "kd!", "-d!", "ad!", "bd!", "cd!", ".!", " d!"]  # "sk-abcd" is a match


def test_alternatives_in_prompts_are_hidden() -> None:
    answer = Answer(SECRET)
    prompt = [TokenLogprobs(7, -1.0, 1, [(8, -0.5)])]
    answer.active.push(Delta(id="r/0", tokens=[65], logprobs=[], prompt_logprobs=prompt))
    assert answer.active.prompt_logprobs == [None, TokenLogprobs(7, -1.0, 1, [])]


def _first_match(text: str) -> int | None:
    found = [re2.compile(source).search(text) for source in (r"(?i)\bsecret\s{1,4}plan\b", "sk-[a-z]{4}")]
    return min((match.start() for match in found if match is not None), default=None)
