"""A name that stands for several models, such as `auto`: a policy chooses one for each request, the others are its
fallback.

size      by the size class of the request (`gateway.size_class`); the models are listed from small to large
others    by the policy of that name (`gateway.policies`) over the models' deployments
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.deployment.protocol import Call, Deployment, ModelCard, PromptCount, ServedModel, State
from penstock.deployment.ticket import Ticket
from penstock.errors import ModelNotFound
from penstock.flow import Request, Vocabulary
from penstock.flow.routing import Considered, Decision
from penstock.gateway.candidate import Candidate, Demand
from penstock.gateway.decision import decide
from penstock.gateway.router import Router
from penstock.gateway.size_class import size_class
from penstock.prompt.chat_format import ChatFormat
from penstock.settings.models import Capability

SIZE = "size"
CHARS_PER_TOKEN = 4  # of a prompt that no model has tokenized yet

# The state of a route is that of its model that is nearest to READY.
_ORDER = (State.READY, State.ASLEEP, State.UNLOADED, State.STARTING, State.RESTARTING, State.DRAINING, State.CLOSED)


class RouteModel:
    """A ServedModel."""

    def __init__(
        self,
        name: str,
        models: Sequence[str],
        policy: str,
        find: Callable[[str], ServedModel],
        router: Router,
        created: int = 0,
    ) -> None:
        """`models` are names, looked up with `find` for each request: models come and go."""
        self.policy = policy
        self._name = name
        self.names = tuple(models)
        self._find = find
        self._router = router
        self._created = created

    @property
    def models(self) -> list[ServedModel]:
        """The models that exist now. Raises ModelNotFound if none does."""
        if not (found := self._existing()):
            raise ModelNotFound(f"none of the models of {self._name!r} exists: {', '.join(self.names)}", param="model")
        return found

    def _existing(self) -> list[ServedModel]:
        found = []
        for name in self.names:
            with contextlib.suppress(ModelNotFound):
                found.append(self._find(name))
        return found

    def rank(self, requests: Sequence[Request]) -> tuple[list[ServedModel], Decision]:
        """The models in the order in which they are to be tried."""
        models = self.models
        return _by_size(models, requests) if self.policy == SIZE else self._by_policy(models, requests)

    def _by_policy(self, models: list[ServedModel], requests: Sequence[Request]) -> tuple[list[ServedModel], Decision]:
        """Each model as its least busy deployment."""
        router = self._router
        demand = Demand(
            prompt_tokens=sum(map(_characters, requests)) // CHARS_PER_TOKEN,
            max_output=requests[0].params.max_tokens,
            region=router.region,
            ttft_target_s=router.ttft_target_s,
        )
        decision = decide(demand, [self._candidate(model) for model in models], self.policy)
        by_name = {model.card.name: model for model in models}
        return [by_name[one.name] for one in decision.considered], decision

    def _candidate(self, model: ServedModel) -> Candidate:
        candidates = [self._router.candidate(one) for one in model.deployments]
        if not candidates:
            return Candidate(name=model.card.name, model=model.card.name, price=model.card.price)
        best = min(candidates, key=lambda one: (one.blocked is not None, one.queued_tokens))
        return msgspec.structs.replace(best, name=model.card.name)

    # --- as a ServedModel

    @property
    def card(self) -> ModelCard:
        """It has every capability that one of its models has."""
        cards = [model.card for model in self._existing()]
        contexts = [card.context for card in cards if card.context is not None]
        capabilities: frozenset[Capability] = frozenset().union(*(card.capabilities for card in cards))
        return ModelCard(
            name=self._name, context=max(contexts, default=None), capabilities=capabilities, created=self._created
        )

    @property
    def state(self) -> State:
        return min((model.state for model in self._existing()), key=_ORDER.index, default=State.UNLOADED)

    @property
    def deployments(self) -> Sequence[Deployment]:
        """None of its own."""
        return ()

    @property
    def sampling(self) -> dict[str, Any]:
        """Neutral values: the model that is chosen has its own recommendations."""
        return {"temperature": 1.0, "top_k": 0, "top_p": 1.0}

    @property
    def template_variables(self) -> frozenset[str]:
        return self.models[0].template_variables

    @property
    def chat_format(self) -> ChatFormat | None:
        return self.models[0].chat_format

    @property
    def vocabulary(self) -> Vocabulary:
        return self.models[0].vocabulary

    def count_prompt(self, request: Request) -> PromptCount:
        """For the model that would be tried first; another one may answer."""
        return self.rank([request])[0][0].count_prompt(request)._replace(estimated=True)

    async def prepare(self, requests: list[Request]) -> Call:
        return await self.rank(requests)[0][0].prepare(requests)

    async def submit(self, call: Call) -> Ticket:
        return await self.rank(call.requests)[0][0].submit(call)

    def end_all(self, why: str) -> None: ...

    def close(self) -> None: ...


def _by_size(models: list[ServedModel], requests: Sequence[Request]) -> tuple[list[ServedModel], Decision]:
    """The chosen one, then larger ones, then smaller ones."""
    found = size_class(requests)
    place = found.index(len(models))
    ranked = [*models[place:], *reversed(models[:place])]
    considered = tuple(
        Considered(model.card.name, order == 0, found.reason if order == 0 else f"choice {order + 1}", float(order))
        for order, model in enumerate(ranked)
    )
    return ranked, Decision(policy=SIZE, chosen=ranked[0].card.name, considered=considered)


def _characters(request: Request) -> int:
    texts = [request.text or "", *(str(one.get("content") or "") for one in request.messages or ())]
    return sum(map(len, texts)) + CHARS_PER_TOKEN * len(request.tokens or ())
