"""A LoRA adapter as a model of its own: `base@adapter` shares the base's pipeline and replicas; its requests name the
adapter, which an engine loads when it first needs it."""

from __future__ import annotations

import time

from msgspec.structs import replace

from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import Call, ModelCard, Price
from penstock.deployment.ticket import Ticket
from penstock.errors import ModelNotFound
from penstock.flow import Request
from penstock.startup.adapters import adapter_of
from penstock.store.adapter_spec import AdapterFiles


class AdapterModel(LocalModel):
    """A ServedModel. Everything but its card and the adapter of its requests is the base's."""

    def __init__(
        self,
        base: LocalModel,
        name: str,
        files: AdapterFiles,
        *,
        price: Price | None = None,
        aliases: tuple[str, ...] = (),
    ) -> None:
        """`price`: None: the base's."""
        self._base = base
        self.adapter_files = files
        self.adapter = adapter_of(name, files)
        self.removed = False  # no more requests; those it has go on
        self.own_aliases = aliases  # beside its name without the base's
        self.own_price, self._created = price, int(time.time())
        self._bare_alias = False
        self._tickets: set[Ticket] = set()
        self._based_on = base.card
        self._card = self._make_card()
        self.files, self.pipeline, self.tokenizer, self.replicas = (
            base.files,
            base.pipeline,
            base.tokenizer,
            base.replicas,
        )
        self.ensure_loaded = self.keep_alive = None  # the base's, which is what is loaded

    @property
    def card(self) -> ModelCard:
        """The base's may change: its context does with the engine's memory."""
        if self._based_on is not self._base.card:
            self._based_on = self._base.card
            self._card = self._make_card()
        return self._card

    @card.setter
    def card(self, card: ModelCard) -> None:
        raise AttributeError("the card of an adapter follows its base's")

    @property
    def base(self) -> LocalModel:
        return self._base

    @property
    def bare_alias(self) -> bool:
        """Whether clients may leave out the base's name: no other model has the adapter's."""
        return self._bare_alias

    @bare_alias.setter
    def bare_alias(self, unique: bool) -> None:
        if unique != self._bare_alias:
            self._bare_alias = unique
            self._card = self._make_card()

    @property
    def open(self) -> int:
        """Requests that have not ended."""
        self._tickets = {ticket for ticket in self._tickets if not ticket.done}
        return len(self._tickets)

    async def prepare(self, requests: list[Request]) -> Call:
        self._check_there()
        return await self._base.prepare([replace(request, adapter=self.adapter) for request in requests])

    async def submit(self, call: Call) -> Ticket:
        self._check_there()
        ticket = await self._base.submit(call)
        if len(self._tickets) > 2 * self.replicas.open:  # mostly of requests that have ended
            _ = self.open
        self._tickets.add(ticket)
        return ticket

    def end_all(self, why: str) -> None:
        """The base also ends the requests of its adapters."""

    def close(self) -> None:
        """The base has the threads."""

    def _check_there(self) -> None:
        if self.removed:
            raise ModelNotFound(f"the adapter {self.card.name!r} has been removed", param="model")

    def _make_card(self) -> ModelCard:
        base, bare = self._base.card, self.adapter.name
        return replace(
            base,
            name=f"{base.name}@{bare}",
            aliases=(*((bare,) if self._bare_alias else ()), *(one for one in self.own_aliases if one != bare)),
            price=self.own_price or base.price,
            parent=base.name,
            created=self._created,
        )
