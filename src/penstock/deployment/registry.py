"""The models of a server by the names that clients may use: `name[:tag][@adapter]`, where `:latest` is implied."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from penstock.deployment.adapter_model import AdapterModel
from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import ServedModel
from penstock.errors import InvalidRequest, ModelNotFound

LATEST = ":latest"
MAX_LISTED = 20  # names in an error


class ModelRegistry:
    """In the order in which they were added. The first model is the default."""

    def __init__(self, models: Iterable[ServedModel] = (), *, owners: dict[str, ServedModel] | None = None) -> None:
        """`owners`: of all names of another registry, of whose models these are some; nothing is added or removed."""
        self._models: dict[str, ServedModel] = {}  # by name
        self._names: dict[str, ServedModel] = {}  # and by alias
        self._owners = self._names if owners is None else owners
        self._adapters: dict[str, list[AdapterModel]] = {}  # by their names without the base's
        for model in models:
            if owners is not None:
                self._models[model.card.name] = model
                self._names.update((untagged(name), model) for name in (model.card.name, *model.card.aliases))
            else:
                self.add(model)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._models.values()))

    def __len__(self) -> int:
        return len(self._models)

    def allowed(self, names: Collection[str] | None) -> ModelRegistry:
        """Only the models that have one of these names; None: all. An adapter is a model of its own: the name of its
        base does not allow it."""
        if names is None:
            return self
        found = {id(model) for name in names if (model := self._look_up(name)) is not None}
        return ModelRegistry((model for model in self if id(model) in found), owners=self._owners)

    @property
    def default(self) -> ServedModel:
        """The model of requests that name none."""
        return next(iter(self._models.values()))

    @property
    def local(self) -> list[LocalModel]:
        """Those with engines: without adapters, which have their base's."""
        return [model for model in self if isinstance(model, LocalModel) and model.base is model]

    @property
    def adapters(self) -> list[AdapterModel]:
        return [model for model in self if isinstance(model, AdapterModel)]

    def adapters_of(self, base: LocalModel) -> list[AdapterModel]:
        return [model for model in self.adapters if model.base is base]

    def add(self, model: ServedModel) -> None:
        """Raises InvalidRequest if one of its names is taken. An adapter's name without its base's is an alias of it,
        as long as no other model has that name."""
        names = [model.card.name, *model.card.aliases]
        for name in names:
            owner = self._names.get(untagged(name))
            if owner is not None and not _only_bare(owner, untagged(name)):
                raise InvalidRequest(f"the name {name!r} is taken by the model {owner.card.name!r}", param="name")
        self._models[model.card.name] = model
        self._names.update((untagged(name), model) for name in names)
        if isinstance(model, AdapterModel):
            self._adapters.setdefault(model.adapter.name, []).append(model)
            self._update_bare(model.adapter.name)
        for name in names:
            if untagged(name) in self._adapters:
                self._update_bare(untagged(name))

    def remove(self, name: str) -> None:
        model = self.find(name)
        freed = [name for name, other in self._names.items() if other is model]
        del self._models[model.card.name]
        for name in freed:
            del self._names[name]
        if isinstance(model, AdapterModel):
            self._adapters[model.adapter.name].remove(model)
            freed.append(model.adapter.name)
        for name in freed:
            self._update_bare(name)

    def _update_bare(self, bare: str) -> None:
        """The adapter's name alone stands for it if it is the only one of that name, and no model has it."""
        adapters = self._adapters.get(bare, [])
        owner = self._names.get(bare)
        if isinstance(owner, AdapterModel) and _only_bare(owner, bare):
            del self._names[bare]
            owner = None
        unique = len(adapters) == 1 and (owner is None or owner is adapters[0])
        for one in adapters:
            one.bare_alias = unique
        if unique:
            self._names[bare] = adapters[0]

    def find(self, name: str | None) -> ServedModel:
        """None: the default. Raises ModelNotFound, which lists what there is."""
        if name is None:
            if not self._models:
                raise ModelNotFound("there is no model for this API key", param="model")
            return self.default
        found = self._look_up(name)
        if found is not None:
            return found
        base, at, adapter = name.rpartition("@")
        if at and (model := self._names.get(untagged(base))) is not None:
            own = [one.card.name for one in self.adapters if one.base is model]
            others = f"; it has {_listed(own)}" if own else ""
            raise ModelNotFound(
                f"the model {model.card.name!r} has no adapter {adapter[:128]!r}{others}", param="model"
            )
        names = list(self._models)  # not by their cards: that of a route looks for its models here
        others = f"; this server has {_listed(names)}" if names else ""
        raise ModelNotFound(f"the model {name[:128]!r} does not exist{others}", param="model")

    def name_of(self, name: str | None) -> str | None:
        """The name of the model that has this name or alias; None: there is none."""
        if name is None:
            return self.default.card.name if self._models else None
        found = self._look_up(name)
        return None if found is None else found.card.name

    def _look_up(self, name: str) -> ServedModel | None:
        """An adapter also by any name of its base."""
        found = self._names.get(untagged(name))
        base, at, adapter = name.rpartition("@")
        if found is None and at and (owner := self._owners.get(untagged(base))) is not None:
            found = self._names.get(f"{owner.card.name}@{untagged(adapter)}")
        return found

    def find_local(self, name: str | None) -> LocalModel:
        """For what needs the model's tokenizer or engine here. Raises InvalidRequest for an upstream."""
        model = self.find(name) if name is not None or not self.local else self.local[0]
        if not isinstance(model, LocalModel):
            raise InvalidRequest(
                f"{model.card.name} is an upstream or a route: this needs a model that runs here", param="model"
            )
        return model


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:MAX_LISTED])) + (", …" if len(names) > MAX_LISTED else "")


def _only_bare(owner: ServedModel, name: str) -> bool:
    """Whether it has the name only as an adapter without its base's name, until another model takes it."""
    return isinstance(owner, AdapterModel) and owner.adapter.name == name and name not in owner.own_aliases


def untagged(name: str) -> str:
    return name.removesuffix(LATEST)
