"""A model that an upstream serves, as clients of this server see it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.deployment.local_model import is_long
from penstock.deployment.protocol import Call, Deployment, ModelCard, PromptCount, State
from penstock.deployment.ticket import Ticket
from penstock.deployment.upstream import Upstream
from penstock.deployment.upstream_endpoint import Endpoint
from penstock.deployment.upstream_request import UpstreamRequest
from penstock.deployment.upstream_usage import TokenCounter, estimate_prompt
from penstock.errors import InvalidRequest
from penstock.flow import Request, Vocabulary
from penstock.flow.identity import SequenceNumbers
from penstock.observe.events import Emit
from penstock.prompt.chat_format import ChatFormat

NEUTRAL_SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
MAX_CHOICES = 1024  # of one request, over all its prompts


class UpstreamModel:
    """A ServedModel with one deployment. Requests are checked against what the upstream declares."""

    chat_format: ChatFormat | None = None  # the upstream's template is not known

    def __init__(
        self,
        endpoint: Endpoint,
        card: ModelCard,
        numbers: SequenceNumbers,
        tokenizer: TokenCounter | None = None,
        emit: Emit | None = None,
    ) -> None:
        """`tokenizer` counts prompts and outputs until the upstream says what they were; None: their bytes count."""
        self.card = card
        self.upstream = Upstream(endpoint, card, emit)
        self._numbers = numbers
        self._tokenizer = tokenizer
        self._closing: asyncio.Task[None] | None = None

    @property
    def state(self) -> State:
        return self.upstream.state

    @property
    def deployments(self) -> Sequence[Deployment]:
        return (self.upstream,)

    @property
    def sampling(self) -> dict[str, Any]:
        """Neutral values, which are not sent: the upstream has its own defaults."""
        return dict(NEUTRAL_SAMPLING)

    @property
    def template_variables(self) -> frozenset[str]:
        return frozenset({"reasoning_effort"} if "reasoning" in self.card.capabilities else ())

    @property
    def vocabulary(self) -> Vocabulary:
        return self.upstream.vocabulary

    def count_prompt(self, request: Request) -> PromptCount:
        """With the named tokenizer, or as UTF-8 bytes; its template is not known."""
        if self._tokenizer is not None and request.text is not None:
            tokens = self._tokenizer.encode(request.text, add_special=False)
            return PromptCount(len(tokens), tokens, estimated=True)
        return PromptCount(estimate_prompt(request, self._tokenizer), estimated=True)

    async def prepare(self, requests: list[Request]) -> Call:
        if sum(request.params.n for request in requests) > MAX_CHOICES:
            raise InvalidRequest(f"the request asks for more than {MAX_CHOICES} choices", param="n")
        if is_long(requests):
            return Call(requests, [*await asyncio.to_thread(self._activate, requests)])
        return Call(requests, [*self._activate(requests)])

    def _activate(self, requests: list[Request]) -> list[UpstreamRequest]:
        active_requests = []
        for request in requests:
            active = UpstreamRequest(request, self.upstream.endpoint, self._tokenizer, self._numbers)
            active.check_context(self.card.context, exact=self._tokenizer is not None)
            active_requests.append(active)
        return active_requests

    async def submit(self, call: Call) -> Ticket:
        return self.upstream.submit(call)

    def end_all(self, why: str) -> None:
        self.upstream.end_all(why)

    def close(self) -> None:
        """Within the event loop; connections are closed soon after."""
        self._closing = asyncio.get_running_loop().create_task(self.upstream.close())
