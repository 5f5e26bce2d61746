"""How the text of an answer is to be read: where it reasons, and how its family of models writes tool calls."""

from __future__ import annotations

from typing import Literal

import msgspec

GEMMA_CALL = "call:"


class CallSyntax(msgspec.Struct, frozen=True, kw_only=True):
    """How calls are written. `prompt` makes grammars from it, `stream` reads by it.

    object   open {"name": …, "arguments": …} close          for each call
    list     open [{"name": …, "arguments": …}, …] close     for all of them
    named    open name args_mark {…}                         for each call
    gemma    open call:name{key:value,…} close               for each call; strings stand between quotes of its own
    """

    shape: Literal["object", "list", "named", "gemma"]
    open: str  # "": a call is an answer that begins with the object itself
    close: str = ""
    gap: str = ""  # white space within the marks
    between: str = ""  # two calls
    arguments: str = "arguments"  # the key of the arguments
    # Other marks: of a call without one they may stand in front; of a list they are another beginning, bracket and all.
    also_open: tuple[str, ...] = ()
    id_mark: str = ""  # of `named`: what stands before a call's id, where the model writes one
    args_mark: str = ""  # of `named`
    quote: str = ""  # of `gemma`
    several: bool = True  # whether one answer may have more than one call

    @property
    def marks(self) -> tuple[str, ...]:
        marks = (self.open, self.close, *self.also_open, self.id_mark, self.args_mark, self.quote)
        return tuple(mark for mark in marks if mark)


class ReasoningMarkers(msgspec.Struct, frozen=True):
    """What stands before and behind a model's reasoning."""

    open: str
    close: str


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How one answer is to be read: `prompt.chat_format` decides, `stream.parts` follows."""

    calls: CallSyntax | None = None  # None: no tools were offered
    thinking: ReasoningMarkers | None = None  # None: the family does not reason aloud
    opened: bool = False  # the prompt ends within the reasoning
    budget: int | None = None  # most tokens of the reasoning
    bound: bool = False  # the answer is calls and nothing else: what is not yet one was to become one

    @property
    def marks(self) -> tuple[str, ...]:
        thinking = (self.thinking.open, self.thinking.close) if self.thinking is not None else ()
        return (*thinking, *(self.calls.marks if self.calls is not None else ()))
