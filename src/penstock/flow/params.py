"""Sampling and stop parameters of a request."""

from __future__ import annotations

import math

import msgspec

from penstock.errors import InvalidRequest
from penstock.flow.constraint import Constraint

MAX_TEMPERATURE = 2.0  # over HTTP and on the command line; the library allows 100
MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOPS = 16
MAX_BIASES = 1024


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How tokens are sampled, and when to stop. The defaults sample the model's own distribution up to its end token or
    256 tokens. All fields are keyword arguments; values out of bounds raise InvalidRequest.

    `SamplingParams(temperature=0.7, top_p=0.9, max_tokens=64, stop=("\\n",))`

    `penstock.sample` documents the order in which these act on the logits.
    """

    max_tokens: int | None = 256  # None: up to the context; 0: only score the prompt
    min_tokens: int = 0  # end and stop tokens are banned before
    n: int = 1  # choices, sampled independently from the same prompt
    seed: int | None = None  # None: a fresh one for every request

    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # keep the k most likely tokens; 0: off
    top_p: float = 1.0  # keep the most likely tokens up to a total probability of p; 1: off
    min_p: float = 0.0  # keep tokens with at least this share of the largest probability; 0: off
    typical_p: float = 1.0  # keep tokens of the most typical surprise, total probability p; 1: off

    repetition_penalty: float = 1.0  # over prompt and output, divides or multiplies the logit
    presence_penalty: float = 0.0  # over the output, subtracted once
    frequency_penalty: float = 0.0  # over the output, subtracted per occurrence

    logit_bias: dict[int, float] = {}  # by token id, added to the logits: -100 .. 100
    allowed_tokens: tuple[int, ...] = ()  # no other ids are sampled; empty: all
    banned_tokens: tuple[int, ...] = ()  # ids that are never sampled

    constraint: Constraint | None = None  # grammar, schema, regex or choice that the output must match

    stop: tuple[str, ...] = ()  # strings that end the output and are not part of it
    stop_tokens: tuple[int, ...] = ()  # ids that end the output, beside the model's own
    ignore_eos: bool = False  # continue past the model's own end tokens
    include_stop_str_in_output: bool = False  # the output includes the stop string or stop token that ended it
    skip_special_tokens: bool = True  # False: special tokens appear in the text, except markers of calls and reasoning
    speculation: bool = True  # False: no tokens are drafted; they are the same with and without
    timeout_s: float | None = None  # from the request's arrival; the output ends there

    logprobs: int | None = None  # None: none; 0: of the sampled token; k: and of the k most likely
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        self._check("temperature", 0.0, 100.0)
        self._check("top_p", 0.0, 1.0, open_low=True)
        self._check("min_p", 0.0, 1.0)
        self._check("typical_p", 0.0, 1.0, open_low=True)
        self._check("repetition_penalty", 0.01, 100.0)
        self._check("presence_penalty", -100.0, 100.0)
        self._check("frequency_penalty", -100.0, 100.0)
        self._check("top_k", 0, 2**31 - 1)
        self._check("n", 1, MAX_CHOICES)
        self._check("min_tokens", 0, 2**31 - 1)
        if self.max_tokens is not None:
            self._check("max_tokens", 0, 2**31 - 1)
            if self.min_tokens > self.max_tokens:
                raise InvalidRequest(
                    f"min_tokens ({self.min_tokens}) is larger than max_tokens ({self.max_tokens})", param="min_tokens"
                )
        if self.seed is not None:
            self._check("seed", -(2**63), 2**64 - 1)
        if self.timeout_s is not None:
            self._check("timeout_s", 0.0, math.inf, open_low=True)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._check(name, 0, MAX_LOGPROBS)
        stop: object = self.stop
        if not isinstance(stop, tuple | list) or not all(isinstance(text, str) for text in stop):
            raise InvalidRequest(f"stop is a tuple of strings, got {stop!r}", param="stop")
        if len(self.stop) > MAX_STOPS:
            raise InvalidRequest(f"at most {MAX_STOPS} stop strings, got {len(self.stop)}", param="stop")
        if any(not text for text in self.stop):
            raise InvalidRequest("a stop string must not be empty", param="stop")
        if self.allowed_tokens and set(self.allowed_tokens) <= set(self.banned_tokens):
            raise InvalidRequest("every allowed token is banned", param="allowed_tokens")
        if len(self.logit_bias) > MAX_BIASES:
            raise InvalidRequest(
                f"logit_bias names at most {MAX_BIASES} tokens, got {len(self.logit_bias)}", param="logit_bias"
            )
        for token, bias in self.logit_bias.items():
            if not -100.0 <= bias <= 100.0:
                raise InvalidRequest(f"the bias of token {token} is {bias}, not in [-100, 100]", param="logit_bias")

    def _check(self, name: str, low: float, high: float, *, open_low: bool = False) -> None:
        value: object = getattr(self, name)
        if not isinstance(value, int if isinstance(low, int) else (int, float)) or isinstance(value, bool):
            kind = "an integer" if isinstance(low, int) else "a number"
            raise InvalidRequest(f"{name} must be {kind}, got {value!r}", param=name)
        inside = low < value <= high if open_low else low <= value <= high
        if not inside:  # also for NaN: every comparison with it is false
            raise InvalidRequest(f"{name} must be in {'(' if open_low else '['}{low}, {high}], got {value}", param=name)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def token_ids(self) -> dict[str, tuple[int, ...]]:
        """The fields that name token ids, for checking them against a vocabulary."""
        return {
            "logit_bias": tuple(self.logit_bias),
            "allowed_tokens": self.allowed_tokens,
            "banned_tokens": self.banned_tokens,
            "stop_tokens": self.stop_tokens,
        }
