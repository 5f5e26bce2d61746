"""One request on its way in, from the client's messages to sequences for the engine:

    accept:  render ─► tokenize ─► check ─► constrain ─► ActiveRequest with its Submits

and on its way out, in `stream.active_request`:

    push:    Delta ─► text ─► reasoning | text | tool calls ─► stop strings ─► Chunk, and a Cancel if one ends it early

An embedding request goes the same way; its answer is one Delta without tokens that carries the vector.

Nothing here waits or sends. `deployment` carries Submits and Cancels to an engine and Deltas back: an event loop in
`replica`, a plain loop in `sync_driver`.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import get_args

import msgspec

from penstock.errors import ContextOverflow, InvalidRequest
from penstock.flow import (
    Constraint,
    ConstraintChecker,
    OutputFormat,
    Pooling,
    Request,
    SamplingParams,
    Submit,
    TextStream,
)
from penstock.flow import Tokenizer as TokenizerProtocol
from penstock.flow.identity import SequenceNumbers
from penstock.observe import events
from penstock.observe.events import Emit
from penstock.prompt.answer_grammar import answer_constraint
from penstock.prompt.chat_format import ChatFormat
from penstock.prompt.template import ChatTemplate
from penstock.store.spec import ModelSpec
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream, NoText
from penstock.stream.scored import Scored
from penstock.tool_calls.argument_schema import enforceable_tools
from penstock.tool_calls.registry import output_markers

logger = logging.getLogger(__name__)

ID_PIECE = 1 << 16  # token ids checked at once: other threads run in between
MAX_OPENING = 160  # characters of a prompt for lists of requests
POOLINGS: tuple[str, ...] = get_args(Pooling)


class Pipeline:
    """The input stages of one model, in their order. The state of a request is in its ActiveRequest."""

    def __init__(
        self,
        spec: ModelSpec,
        tokenizer: TokenizerProtocol | None,
        template: ChatTemplate | None,
        *,
        context: int,
        constraints: ConstraintChecker | None = None,
        by_priority: bool = True,
        default_max_tokens: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        emit: Emit | None = None,
        model: str = "",
        numbers: SequenceNumbers | None = None,
    ) -> None:
        """`context` bounds prompt and output together, in tokens. `constraints`: None takes any constraint unchecked,
        for an engine that will say what is wrong with it. `by_priority`: whether the engine heeds priorities.
        `default_max_tokens`: of requests that name no limit; None: to the end of the context. `model` is its name in
        events. `numbers`: the server's, shared by all of its pipelines; None: this is the only pipeline."""
        self.spec = spec
        self.tokenizer = tokenizer
        self.template = template
        self.chat_format = ChatFormat(template) if template is not None else None
        self.context = context
        self.constraints = constraints
        self.by_priority = by_priority
        self.default_max_tokens = default_max_tokens
        self.clock = clock
        self.emit = emit
        self.model = model
        self._numbers = numbers or SequenceNumbers()

    def accept(self, request: Request, *, may_wait: bool = True) -> ActiveRequest:
        """Turn a request into sequences for the engine, or raise InvalidRequest before any model time is spent. Raises
        NeedsRenderProcess instead of waiting for the process that renders what takes long, unless it `may_wait`."""
        text = self.render(request, may_wait=may_wait)
        return self.activate(request, text, self.encode(request, text))

    def render(self, request: Request, *, may_wait: bool = True) -> str:
        """The first part of `accept`: the prompt's text, of a length that may fit the context."""
        text = self._render(request, may_wait=may_wait)
        self.check_length(len(text), prompt_field(request))
        return text

    def activate(self, request: Request, text: str, tokens: list[int]) -> ActiveRequest:
        """The last part of `accept`, once the text has been tokenized."""
        self._check(request, tokens)
        output_format = self._output_format(request, text, self._max_output(request, tokens))
        params, warnings = self._apply_constraints(request, output_format)
        submits = self._submits(request, tokens, params)
        kind = Scored if params.max_tokens == 0 else ChoiceStream

        def make_choice(choice: int) -> ChoiceStream:
            return kind(choice, params, self._text_stream(tokens, params, output_format), output_format)

        active = ActiveRequest(request.id, submits, make_choice, (*request.warnings, *warnings))
        active.context = request.context_trace
        return active

    def tokenize(self, request: Request) -> list[int]:
        """The prompt as the model will see it. It may be longer than the context, unless its characters alone show that
        it cannot fit."""
        return self.encode(request, self.render(request))

    def close(self) -> None:
        if self.template is not None:
            self.template.close()
        if self.constraints is not None:
            self.constraints.close()

    def _render(self, request: Request, *, may_wait: bool = True) -> str:
        """The prompt's text; "" for one of token ids."""
        for name in ("context", "documents"):
            if getattr(request, name):  # `gateway.context` would have assembled it
                raise InvalidRequest(f"{name} is not supported here: only a server assembles prompts", param=name)
        if request.messages is None:
            for name in ("tools", "reasoning_effort", "enable_thinking", "thinking_budget"):
                if getattr(request, name) is not None:
                    raise InvalidRequest(f"{name} goes with messages only", param=name)
            return request.text or ""
        if self.tokenizer is None:
            raise InvalidRequest("this model has no tokenizer: give the messages as token ids", param="messages")
        if self.chat_format is None:
            raise InvalidRequest("this model has no chat template: give a plain prompt", param="messages")
        start = self.clock()
        text = self.chat_format.render(request, may_wait=may_wait)
        if self.emit is not None:
            self.emit(events.Rendered(request.id, self.clock(), start, self.model))
        return text

    def check_length(self, characters: int, param: str) -> None:
        """Raise ContextOverflow for a text that cannot fit: tokenizing it could take half a minute and gigabytes."""
        if self.tokenizer is None or characters <= self.context:
            return
        least = -(-characters // self.tokenizer.longest)
        if least > self.context:
            raise ContextOverflow(
                f"the text has {characters} characters, which are at least {least} tokens, but the context holds "
                f"{self.context}: shorten it",
                param=param,
            )

    def encode(self, request: Request, text: str) -> list[int]:
        if request.tokens is not None:
            return self.record_prompt(request, self.clock(), request.tokens)
        field = prompt_field(request)
        if self.tokenizer is None:
            raise InvalidRequest(f"this model has no tokenizer: give the {field} as token ids", param=field)
        start = self.clock()
        try:
            # A template writes special tokens itself.
            tokens = self.tokenizer.encode(text, add_special=request.messages is None)
        except InvalidRequest as error:  # it does not know what the client calls the text
            raise InvalidRequest(error.message, param=field) from None
        return self.record_prompt(request, start, tokens)

    def record_prompt(self, request: Request, start: float, tokens: list[int]) -> list[int]:
        """The prompt of these tokens, truncated if the request says so; emits Tokenized."""
        tokens = self._truncate(request, tokens)
        if self.emit is not None:
            self.emit(events.Tokenized(request.id, self.clock(), start, tokens, self.model, _opening(request)))
        return tokens

    def _truncate(self, request: Request, tokens: list[int]) -> list[int]:
        """The last tokens that fit, if the request allows that."""
        keep = request.truncate_prompt_tokens
        if keep is None:
            return tokens
        if keep == -1:
            keep = self.context - (0 if request.task == "embed" else _least_output(request.params))
        return tokens[-keep:] if 0 < keep < len(tokens) else tokens

    def _check(self, request: Request, tokens: list[int]) -> None:
        """Check prompt and parameters against the model and its engine."""
        if request.priority and not self.by_priority:
            raise InvalidRequest("priority has no effect under this server's policy", param="priority")
        if request.task == "embed":
            self._check_input(request, tokens)
            return
        where = prompt_field(request)
        if not tokens:
            raise InvalidRequest("the prompt is empty", param=where)
        check_ids(tokens, self.spec.vocab_size, where)
        params = request.params
        for name, ids in params.token_ids().items():
            check_ids(ids, self.spec.vocab_size, name)
        room = self.context - len(tokens)
        asked = _least_output(params)
        if asked > room and not (request.fit_context and room > 0):
            field = "min_tokens" if params.max_tokens is None else "max_tokens"
            raise ContextOverflow(
                f"the prompt has {len(tokens)} tokens and up to {asked} more were asked for, but the context holds "
                f"{self.context}: shorten the prompt{f' or lower {field}' if room > 0 else ''}",
                param=field if room > 0 else where,
            )

    def _check_input(self, request: Request, tokens: list[int]) -> None:
        """Check the prompt of an embedding. Special tokens around an empty text do not count as one."""
        if not tokens or request.text == "":
            raise InvalidRequest("the input is empty", param="input")
        check_ids(tokens, self.spec.vocab_size, "input")
        if len(tokens) > self.context:
            raise ContextOverflow(
                f"the input has {len(tokens)} tokens, but the context holds {self.context}: shorten it", param="input"
            )
        if request.pooling not in POOLINGS:
            raise InvalidRequest(f"pooling must be {' or '.join(POOLINGS)}, got {request.pooling!r}", param="pooling")

    def _output_format(self, request: Request, text: str, max_output: int) -> OutputFormat | None:
        """How to parse the output; None: it is all text."""
        if request.messages is None or self.chat_format is None:
            return None
        output_format = self.chat_format.output_format(request, text)
        budget = output_format.reasoning_budget
        if budget is not None and budget >= max_output:  # it cannot be exceeded
            output_format = msgspec.structs.replace(output_format, reasoning_budget=None)
        is_plain = output_format.tool_calls is None and output_format.reasoning is None
        return None if is_plain else output_format

    def _apply_constraints(
        self, request: Request, output_format: OutputFormat | None
    ) -> tuple[SamplingParams, tuple[str, ...]]:
        """The request's parameters with what its tools and the model's reasoning make of the constraint, and warnings
        of what in the tools' schemas is not enforced."""
        params = request.params
        warnings: tuple[str, ...] = ()
        if request.task != "generate":
            return params, warnings
        check = self.constraints.check if self.constraints is not None else _pass
        if params.constraint is not None:
            check(params.constraint)
        if output_format is None or self.chat_format is None or self.tokenizer is None:
            return params, warnings
        use = request.tools
        if use is not None:
            use, warnings = enforceable_tools(use, self.chat_format.tool_calls, self.tokenizer.mark, check)
        whole = answer_constraint(output_format, use, params.constraint, self.tokenizer.mark)
        if whole is None or whole == params.constraint:
            return params, warnings
        try:
            check(whole)
        except InvalidRequest as error:  # each part of it was fine
            field = "tools" if request.tools is not None else (params.constraint or whole).param
            raise type(error)(error.message, param=field) from None
        return msgspec.structs.replace(params, constraint=whole), warnings

    def _submits(self, request: Request, tokens: list[int], params: SamplingParams) -> list[Submit]:
        """One sequence for each choice."""
        now = self.clock()
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        later_params = msgspec.structs.replace(params, prompt_logprobs=None)  # the first choice's will do for all
        return [
            Submit(
                id=f"{request.id}/{choice}",
                tokens=tokens,
                params=params if choice == 0 else later_params,
                seed=seed % 2**64,
                max_output=self._max_output(request, tokens),
                choice=choice,
                end_tokens=() if params.ignore_eos else self.spec.end_tokens,
                priority=request.priority,
                background=request.background,
                salt=request.salt,
                tenant=request.tenant,
                arrival=now,
                deadline_s=params.timeout_s,
                task=request.task,
                pooling=request.pooling,
                number=self._numbers.draw(),
                forced=request.forced,
                inspect=request.inspect,
                tier=request.tier,
                weight=request.weight,
                include_drafts=request.include_drafts,
                adapter=request.adapter,
            )
            for choice in range(params.n)
        ]

    def _max_output(self, request: Request, tokens: list[int]) -> int:
        """How many tokens the sequence may produce."""
        if request.task == "embed":
            return 0
        room, params = self.context - len(tokens), request.params
        if params.max_tokens is not None:
            return min(max(params.max_tokens, 1), room)
        return room if self.default_max_tokens is None else min(max(self.default_max_tokens, params.min_tokens), room)

    def _text_stream(
        self, prompt: Sequence[int], params: SamplingParams, output_format: OutputFormat | None
    ) -> TextStream:
        if self.tokenizer is None:
            return NoText()
        skip = params.skip_special_tokens
        if output_format is None:
            return self.tokenizer.text_stream(prompt, skip_special=skip)
        tokens = map(self.tokenizer.mark, output_markers(output_format))
        shown = frozenset(token for token in tokens if token is not None)
        return self.tokenizer.text_stream(prompt, skip_special=skip, show=shown)


def _least_output(params: SamplingParams) -> int:
    """Tokens that the context must have room for beside the prompt."""
    return max(params.min_tokens if params.max_tokens is None else params.max_tokens, 1)


def _opening(request: Request) -> str:
    """How its text begins: that of the last message of a user."""
    text = request.text or ""
    for message in reversed(request.messages or ()):
        if message.get("role") == "user":
            content = message.get("content")
            text = content if isinstance(content, str) else ""
            break
    return text[: 2 * MAX_OPENING].strip()[:MAX_OPENING]


def _pass(constraint: Constraint) -> None:
    """A checker that accepts any constraint."""


def prompt_field(request: Request) -> str:
    """The API field that holds the prompt, for errors."""
    if request.messages is not None:
        return "messages"
    return "input" if request.task == "embed" else "prompt"


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    for begin in range(0, len(ids), ID_PIECE):
        piece = ids[begin : begin + ID_PIECE]
        if min(piece) < 0 or max(piece) >= vocab_size:
            wrong = next(token for token in piece if not 0 <= token < vocab_size)
            raise InvalidRequest(f"{param}: token id {wrong} is not in the vocabulary of {vocab_size}", param=param)
