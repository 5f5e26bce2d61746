"""Protocols between stages; the composition root passes the implementations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from penstock.errors import PenstockError
from penstock.flow.constraint import Constraint
from penstock.flow.messages import Cancel, Frame, Query, Reply, Submit
from penstock.flow.step import StepPlan, StepResult


class TextStream(Protocol):
    """Token ids in, text out, never a partial character."""

    @property
    def fixed_texts(self) -> Mapping[int, str] | None:
        """Texts of tokens that may come next without a `push`, because neither does their text depend on the tokens
        before them, nor the other way round. None: there are none such here."""

    @property
    def holds_text(self) -> bool:
        """Whether part of a character waits for its other bytes."""

    def push(self, token: int) -> str:
        """The text that this token completes; may be empty."""

    def flush(self) -> str:
        """The rest at the end of the sequence, incomplete characters replaced."""


class Vocabulary(Protocol):
    """What response writers need of a tokenizer."""

    @property
    def special_ids(self) -> Collection[int]: ...

    def token_bytes(self, token: int) -> bytes: ...

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str: ...

    def text_stream(self, prompt: Sequence[int], *, skip_special: bool = True) -> TextStream: ...


class Tokenizer(Vocabulary, Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def longest(self) -> int:
        """Characters of the longest token."""

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """`add_special`: with the special tokens that the model expects around a sequence."""

    def encode_batch(self, texts: list[str], *, add_special: bool = True) -> list[list[int]]:
        """The same for several texts, on several cores."""

    def text_stream(
        self, prompt: Sequence[int], *, skip_special: bool = True, show: Collection[int] = ()
    ) -> TextStream:
        """For the output after the prompt. `show`: special tokens that appear in the text."""

    def mark(self, text: str) -> int | None:
        """The single token of this text, such as `<think>`; None, if it takes several."""


class ConstraintChecker(Protocol):
    def check(self, constraint: Constraint) -> None:
        """Raises InvalidRequest, whose param is the constraint's, for one that cannot be compiled. Waits for the
        compiler."""

    def close(self) -> None: ...


class Backend(Protocol):
    """Runs steps on one kind of device. Owns the forward pass and the sampler, with their slots, weights and KV pages.
    Steps are collected in the order they were launched."""

    def launch(self, plan: StepPlan) -> None:
        """Run a step, or queue it on the device and return."""

    def collect(self) -> StepResult:
        """The result of the oldest step launched and not collected. Waits for it."""

    def reset(self) -> None:
        """Drop launched steps without collecting them: their sequences have failed."""

    def release_memory(self) -> bool:
        """Give the memory of weights and KV pages back to the device; there are no steps under way. False: it cannot,
        and has to be built anew."""

    def restore_memory(self) -> None:
        """After `release_memory`: take it again, KV pages without content. Raises OutOfMemory, and has none then."""


class Engine(Protocol):
    """An engine as the frontend sees it, in this process or in another. Not thread-safe. Messages are answered by what
    `receive` gives: each Submit by Deltas, the last of which has a `finish`, each Query by one Reply."""

    def submit(self, message: Submit) -> None: ...

    def cancel(self, message: Cancel) -> None: ...

    def query(self, message: Query) -> None: ...

    def receive(self, timeout_s: float | None = None) -> list[Frame | Reply]:
        """What has happened since; waits up to `timeout_s` (None: for as long as sequences are open) if nothing has."""

    def close(self) -> None: ...


class WatchedEngine(Engine, Protocol):
    """An engine in its own process, for an event loop to watch over. It starts by itself; read with `receive(0)`."""

    facts: dict[str, Any] | None  # once it is up
    failure: PenstockError | None  # what kept it from starting
    dead: str | None  # once its process has ended: how

    @property
    def handles(self) -> tuple[int, ...]:
        """File descriptors that become readable when there is something to receive. Edge-triggered: read until empty,
        and look again after every message sent."""

    def end(self, why: str) -> None:
        """Of one that hangs: kill it, and tell of it as of one that died."""

    def kill(self) -> None:
        """End it at once; nothing more is received."""
