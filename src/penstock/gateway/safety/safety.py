"""Safety rules at work: requests are checked before they reach a model, answers while they leave, texts on request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.deployment.local_model import is_long
from penstock.deployment.protocol import Call, ServedModel
from penstock.deployment.ticket import Ticket
from penstock.errors import ContentRejected, SafetyUnavailable
from penstock.flow import Request
from penstock.gateway.safety.choice_filter import Context, RuleFilter
from penstock.gateway.safety.matcher import SLICE, Expired, Matcher
from penstock.gateway.safety.moderation_hook import Hook, Verdict
from penstock.gateway.safety.request_texts import readings, request_texts, texts_of
from penstock.gateway.safety.rules import Rules, Ruleset
from penstock.observe import events
from penstock.observe.events import Emit
from penstock.pipeline import prompt_field
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream

logger = logging.getLogger(__name__)

LONG_TEXT = 20_000  # characters; matching more happens in a thread, which costs 80 µs. Most searches take 1 or 2
SHORT_WORK = 2_000_000  # bytes times program steps that the event loop may have to wait for: 34 ms in the worst case
MIN_SLICE = 256  # bytes: smaller slices are not worth it
LOOP_S = 0.0003  # of a search in slices of that work, which goes to a thread if it is not done by then
MATCH_S = 10.0  # for all texts of a request
MAX_REVIEWS = 16  # choices of an answer, or texts to moderate, that hooks look at together
MAX_HOOK_TEXT = 1 << 20  # characters that a hook gets; more counts as a failure of the hook


class Hit(NamedTuple):
    rule: str
    why: str  # the text that matched, a hook's categories, or why it gave none
    unchecked: bool = False  # its hook failed, and is closed then


class Safety:
    """One per server. Belongs to one event loop."""

    def __init__(
        self,
        rules: Rules,
        *,
        emit: Emit | None = None,
        keep_texts: bool = False,
        close: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep_texts`: events say what matched. `close`: of the client that hooks use."""
        self.rules = rules
        self.hits: Counter[tuple[str, str]] = Counter()  # by rule and where: input, output, moderation
        self._emit = emit
        self._keep_texts = keep_texts
        self._close = close
        self._clock = clock

    async def close(self) -> None:
        if self._close is not None:
            await self._close()

    # --- requests

    async def check(self, requests: Sequence[Request]) -> None:
        """Raises ContentRejected for a request that matches a rule."""
        ruleset = self.rules.of(requests[0].tenant, "input")
        if not ruleset:
            return
        in_thread = is_long(list(requests))
        for request in requests:
            if request.tokens is None:
                texts = await asyncio.to_thread(request_texts, request) if in_thread else request_texts(request)
                await self._check_texts(ruleset, request, texts)

    async def prepare(self, model: ServedModel, requests: list[Request]) -> Call:
        """`ServedModel.prepare`, with the rules for the output; and those for prompts of token ids, whose text depends
        on the model."""
        for request in requests:
            if request.tokens is not None and (ruleset := self.rules.of(request.tenant, "input")):
                text = await asyncio.to_thread(_decode, model, request.tokens)
                await self._check_texts(ruleset, request, [text])
        call = await model.prepare(requests)
        output = self.rules.of(requests[0].tenant, "output")
        if output.matcher is not None or output.size is not None:
            longest = 0 if output.matcher is None else output.matcher.longest
            for active, request in zip(call.active_requests, requests, strict=True):
                report = partial(self._report, active.id, "output")
                context = Context(_continued(model, request, longest + 1), model.vocabulary.token_bytes)
                active.filter_output(partial(RuleFilter, output.matcher, output.size, report, context))
        return call

    def review_answer(self, ticket: Ticket, tenant: str) -> None:
        """Have hooks review the answer before the client gets any of it."""
        output = self.rules.of(tenant, "output")
        if output.hooks and ticket.submits()[0].task == "generate":
            ticket.review = partial(self._review, output)

    async def _check_texts(self, ruleset: Ruleset, request: Request, texts: list[str]) -> None:
        field, total = prompt_field(request), sum(map(len, texts))
        if ruleset.size is not None and total > ruleset.size.characters:
            self._report(request.id, "input", ruleset.size.rule, field, "")
            raise ContentRejected(
                f"the request has {total} characters of text, but the safety rule {ruleset.size.rule!r} allows "
                f"{ruleset.size.characters}",
                param=field,
            )
        found = None if ruleset.matcher is None else await self._find(ruleset.matcher, texts)
        hit = None if found is None else Hit(*found)
        if hit is None and ruleset.hooks:
            hit = await self._ask_hooks(ruleset, "\n\n".join(texts))
        if hit is not None:
            self._report(request.id, "input", hit.rule, field, hit.why)
            if hit.unchecked:
                message = (
                    f"the safety rule {hit.rule!r} could not check the request, so it is rejected; try again later"
                )
            else:
                message = f"the request matches the safety rule {hit.rule!r}"
            raise ContentRejected(message, param=field)

    async def _find(self, matcher: Matcher, texts: list[str]) -> tuple[str, str] | None:
        slice_bytes = SHORT_WORK // matcher.search_size - matcher.overlap
        escaped = sum(len(text) for text in texts if "\\" in text)  # which take 1 µs a character to read
        if slice_bytes >= MIN_SLICE and sum(map(len, texts)) <= LONG_TEXT and escaped <= MIN_SLICE:
            with contextlib.suppress(Expired):
                return _match(matcher, texts, self._clock() + LOOP_S, self._clock, slice_bytes)
        try:
            return await asyncio.to_thread(_match, matcher, texts, self._clock() + MATCH_S, self._clock)
        except Expired:
            raise SafetyUnavailable(f"the text could not be checked within {MATCH_S:g} s: shorten it") from None

    async def _ask_hooks(self, ruleset: Ruleset, text: str) -> Hit | None:
        """The first hook whose verdict is against the text, and why."""
        for hook, verdict in await self._verdicts(ruleset, text):
            if verdict.flagged:
                why = verdict.failure or ", ".join(verdict.categories)
                return Hit(hook.rule, why, unchecked=verdict.failure is not None)
        return None

    async def _verdicts(self, ruleset: Ruleset, text: str) -> list[tuple[Hook, Verdict]]:
        """Of all hooks. Raises SafetyUnavailable."""
        if not text:
            return []
        if len(text) > MAX_HOOK_TEXT:
            raise SafetyUnavailable(f"the text has more than {MAX_HOOK_TEXT} characters, which no hook is asked about")
        verdicts = await asyncio.gather(*(hook.check(text) for hook in ruleset.hooks))
        return list(zip(ruleset.hooks, verdicts, strict=True))

    # --- answers

    async def _review(self, ruleset: Ruleset, ticket: Ticket) -> None:
        """The answer is complete, and none of it is shown yet: take from it the choices that a hook flags."""
        slots = asyncio.Semaphore(MAX_REVIEWS)

        async def review(active: ActiveRequest, choice: ChoiceStream) -> None:
            calls = choice.choice().calls if choice.finish is not None else ()
            called = [text for call in calls for text in (call.name, call.arguments)]
            parts = [choice.text, "".join(choice.reasoning or ()), *called]
            try:
                async with slots:
                    hit = await self._ask_hooks(ruleset, "\n\n".join(filter(None, parts)))
            except SafetyUnavailable as error:
                hit = Hit(ruleset.hooks[0].rule, error.message, unchecked=True)
            if hit is not None:
                choice.cut(hit.rule, text=0, reasoning=0, arguments={}, tokens=0)
                self._report(active.id, "output", hit.rule, "answer", hit.why)

        async with asyncio.TaskGroup() as group:
            for active in ticket.active_requests:
                for choice in active.choices:
                    group.create_task(review(active, choice))

    # --- texts

    async def moderate(self, texts: Sequence[str], tenant: str, request: str = "") -> list[dict[str, bool]]:
        """Of each text, which of the tenant's rules it matches, of inputs and outputs."""
        ruleset, names = self.rules.of(tenant, None), self.rules.names_of(tenant)
        slots = asyncio.Semaphore(MAX_REVIEWS)

        async def matching(text: str) -> list[str]:
            async with slots:
                return await self._matching_rules(ruleset, text)

        results = []
        for found in await asyncio.gather(*map(matching, texts)):
            for rule in found:
                self._report(request, "moderation", rule, "input", "")
            results.append({name: name in found for name in names})
        return results

    async def _matching_rules(self, ruleset: Ruleset, text: str) -> list[str]:
        found = [] if ruleset.matcher is None else await asyncio.to_thread(self._match_all, ruleset.matcher, text)
        found += [limit.rule for limit in ruleset.sizes if len(text) > limit.characters]
        return found + [hook.rule for hook, verdict in await self._verdicts(ruleset, text) if verdict.flagged]

    def _match_all(self, matcher: Matcher, text: str) -> list[str]:
        try:
            deadline = self._clock() + MATCH_S
            found = [matcher.find_all(reading, deadline, self._clock) for reading in readings(text)]
            return list(dict.fromkeys(rule for rules in found for rule in rules))
        except Expired:
            raise SafetyUnavailable(f"the text could not be checked within {MATCH_S:g} s: shorten it") from None

    def _report(self, request: str, where: str, rule: str, part: str, matched: str) -> None:
        self.hits[rule, where] += 1
        name = events.http_request_id(request)
        logger.info("request %s: the %s matches the safety rule %s", name, where, rule, extra={"request_id": name})
        if self._emit is not None:
            text = matched if self._keep_texts else None
            self._emit(events.SafetyHit(name, time.monotonic(), rule, where, part, text))


def _match(
    matcher: Matcher, texts: list[str], deadline: float, clock: Callable[[], float], slice_bytes: int = SLICE
) -> tuple[str, str] | None:
    """The first match in any reading. Raises Expired."""
    for number, text in enumerate(texts):
        if number and clock() > deadline:
            raise Expired
        for reading in readings(text):
            if found := matcher.find(reading, deadline, clock, slice_bytes):
                return found
    return None


def _continued(model: ServedModel, request: Request, length: int) -> str:
    """The end of the text that an answer continues; "" if it begins behind a template."""
    if request.text is not None:
        return request.text[-length:]
    if request.tokens is not None:
        return _decode(model, request.tokens[-length:])[-length:]
    if not (request.continue_final_message and request.messages):
        return ""
    return "".join(texts_of(request.messages[-1].get("content")))[-length:]


def _decode(model: ServedModel, tokens: list[int]) -> str:
    try:
        return model.vocabulary.decode(tokens, skip_special=False)
    except (IndexError, KeyError, OverflowError, TypeError, ValueError):
        return ""  # ids out of the vocabulary: the model rejects them
