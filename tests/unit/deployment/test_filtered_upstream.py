"""An upstream's answer under safety rules: it ends at a match, and so does the connection."""

from __future__ import annotations

import asyncio

from helpers.scripted_upstream import Exchange, ScriptedUpstream, answer
from penstock.deployment.protocol import ModelCard
from penstock.deployment.ticket import Ticket
from penstock.deployment.upstream_endpoint import Endpoint
from penstock.deployment.upstream_model import UpstreamModel
from penstock.flow import FinishReason, Request, SamplingParams
from penstock.flow.identity import SequenceNumbers
from penstock.gateway.safety.rules import Rules
from penstock.gateway.safety.safety import Safety
from penstock.settings import SafetyEntry

RULE = SafetyEntry(name="secrets", terms=("secret plan",), on="output")


def test_a_match_across_chunks_ends_the_answer() -> None:
    async def script(exchange: Exchange) -> None:
        await answer(exchange, "my sec", "ret ", "plan ", "is long")

    async def main() -> tuple[Ticket, Safety]:
        safety = Safety(Rules([RULE]))
        async with ScriptedUpstream(script).running() as upstream:
            endpoint = Endpoint(name="big", url=upstream.url, model="there")
            card = ModelCard(name="big", capabilities=endpoint.capabilities, remote=True)
            model = UpstreamModel(endpoint, card, SequenceNumbers())
            request = Request(id="r", params=SamplingParams(), messages=[{"role": "user", "content": "hi"}])
            ticket = await model.submit(await safety.prepare(model, [request]))
            await ticket.finished()
            assert not model.upstream.load().open
            await model.upstream.close()
            return ticket, safety

    ticket, safety = asyncio.run(main())
    assert ticket.error is None
    choice = ticket.active_requests[0].completion().choices[0]
    assert (choice.text, choice.finish, choice.stop) == ("my ", FinishReason.CONTENT_FILTER, "secrets")
    assert safety.hits["secrets", "output"] == 1
