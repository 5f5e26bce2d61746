"""The models of a server by the names that clients may use: `name[:tag][@adapter]`, where `:latest` is implied."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import ServedModel
from penstock.errors import InvalidRequest, ModelNotFound

LATEST = ":latest"
MAX_LISTED = 20  # names in an error


class ModelRegistry:
    """In the order in which they were added. The first model is the default."""

    def __init__(self, models: Iterable[ServedModel] = ()) -> None:
        self._models: dict[str, ServedModel] = {}  # by name
        self._names: dict[str, ServedModel] = {}  # and by alias
        for model in models:
            self.add(model)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self._models.values()))

    def __len__(self) -> int:
        return len(self._models)

    def allowed(self, names: Collection[str] | None) -> ModelRegistry:
        """Only the models that have one of these names; None: all."""
        if names is None:
            return self
        known = {untagged(name) for name in names}
        return ModelRegistry(
            model for model in self if not known.isdisjoint(map(untagged, (model.card.name, *model.card.aliases)))
        )

    @property
    def default(self) -> ServedModel:
        """The model of requests that name none."""
        return next(iter(self._models.values()))

    @property
    def local(self) -> list[LocalModel]:
        return [model for model in self if isinstance(model, LocalModel)]

    def add(self, model: ServedModel) -> None:
        """Raises InvalidRequest if one of its names is taken."""
        names = [model.card.name, *model.card.aliases]
        for name in names:
            if (owner := self._names.get(untagged(name))) is not None:
                raise InvalidRequest(f"the name {name!r} is taken by the model {owner.card.name!r}", param="name")
        self._models[model.card.name] = model
        self._names.update((untagged(name), model) for name in names)

    def remove(self, name: str) -> None:
        model = self.find(name)
        del self._models[model.card.name]
        self._names = {name: other for name, other in self._names.items() if other is not model}

    def find(self, name: str | None) -> ServedModel:
        """None: the default. Raises ModelNotFound, which lists what there is."""
        if name is None:
            if not self._models:
                raise ModelNotFound("there is no model for this API key", param="model")
            return self.default
        found = self._names.get(untagged(name))
        if found is not None:
            return found
        base, at, adapter = name.rpartition("@")
        if at and (model := self._names.get(untagged(base))) is not None:
            raise ModelNotFound(f"the model {model.card.name!r} has no adapter {adapter[:128]!r}", param="model")
        names = [model.card.name for model in self]
        listed = ", ".join(map(repr, names[:MAX_LISTED])) + (", …" if len(names) > MAX_LISTED else "")
        others = f"; this server has {listed}" if names else ""
        raise ModelNotFound(f"the model {name[:128]!r} does not exist{others}", param="model")

    def name_of(self, name: str | None) -> str | None:
        """The name of the model that has this name or alias; None: there is none."""
        if name is None:
            return self.default.card.name if self._models else None
        found = self._names.get(untagged(name))
        return None if found is None else found.card.name

    def find_local(self, name: str | None) -> LocalModel:
        """For what needs the model's tokenizer or engine here. Raises InvalidRequest for an upstream."""
        model = self.find(name) if name is not None or not self.local else self.local[0]
        if not isinstance(model, LocalModel):
            raise InvalidRequest(
                f"{model.card.name} is an upstream or a route: this needs a model that runs here", param="model"
            )
        return model


def untagged(name: str) -> str:
    return name.removesuffix(LATEST)
