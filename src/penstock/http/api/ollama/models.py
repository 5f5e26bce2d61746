"""The served models in Ollama's form: GET /api/tags, POST /api/show, GET /api/ps.

Models that are downloaded but not served are not listed: requests could not use them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET

from penstock.capacity.shape import shape_of
from penstock.deployment.adapter_model import AdapterModel
from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import ModelCard, ServedModel
from penstock.deployment.registry import LATEST, ModelRegistry
from penstock.errors import ModelNotFound
from penstock.http.api.ollama.response_bodies import (
    OllamaDetails,
    OllamaModel,
    OllamaModelInfo,
    OllamaModelList,
    OllamaRunningList,
    OllamaRunningModel,
)
from penstock.http.api.ollama.think import can_think
from penstock.prompt.chat_format import ChatFormat
from penstock.store.files import ModelFiles

# For GET /api/version: the version of Ollama with this API. Clients require a minimum version.
API_LEVEL = "0.12.11"

_NEVER = datetime(2262, 1, 1, tzinfo=UTC)  # nanoseconds since 1970 fit 64 bits until then
_FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
# Modelfile names of SamplingParams' fields, where they differ.
_PARAMETERS = {"repetition_penalty": "repeat_penalty"}


def with_tag(name: str) -> str:
    """The name with its tag, which is `latest` where it has none."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def find_served(name: str, models: ModelRegistry) -> ServedModel:
    try:
        return models.find(name)
    except ModelNotFound:
        here = ", ".join(f'"{with_tag(model.card.name)}"' for model in models)
        raise ModelNotFound(f'model "{name[:128]}" not found; this server has {here}', param="model") from None


def encode_list(models: Iterable[ServedModel]) -> bytes:
    return msgspec.json.encode(OllamaModelList(models=[details_of(model).listed() for model in models]))


def encode_running(models: Iterable[LocalModel], expires_in: Callable[[LocalModel], float | None]) -> bytes:
    loaded = [(model, facts) for model in models if (facts := model.replicas.facts)]
    shown = [_local_details(model).running(facts, expires_in(model)) for model, facts in loaded]
    return msgspec.json.encode(OllamaRunningList(models=shown))


def details_of(model: ServedModel) -> LocalDetails | UpstreamDetails:
    if isinstance(model, AdapterModel):
        return AdapterDetails(model)
    return _local_details(model) if isinstance(model, LocalModel) else UpstreamDetails(model.card)


def _local_details(model: LocalModel) -> LocalDetails:
    return LocalDetails(model.files, model.pipeline.context, model.chat_format, model.card.created)


class UpstreamDetails:
    """Of a model that another server runs: what can be said without its files."""

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self.name = with_tag(card.name)
        self.size = 0
        self.modified = datetime.fromtimestamp(card.created, UTC)
        self.digest = hashlib.sha256(msgspec.json.encode([card.name, card.owner])).hexdigest()
        self.details = OllamaDetails(
            format="", family="", families=[], parameter_size="", quantization_level="", parent_model=card.owner
        )

    def listed(self) -> OllamaModel:
        return OllamaModel(
            name=self.name,
            model=self.name,
            modified_at=self.modified,
            size=self.size,
            digest=self.digest,
            details=self.details,
        )

    def shown(self) -> bytes:
        names = {"chat": "completion", "tools": "tools", "reasoning": "thinking", "embedding": "embedding"}
        return msgspec.json.encode(
            OllamaModelInfo(
                modelfile=f"FROM {self.card.name}",
                parameters="" if self.card.context is None else f"{'num_ctx':<30} {self.card.context}",
                template="",
                details=self.details,
                model_info={},
                capabilities=[shown for name, shown in names.items() if name in self.card.capabilities],
                modified_at=self.modified,
            )
        )


class LocalDetails:
    """Of a model that this server runs."""

    def __init__(self, files: ModelFiles, context: int, chat_format: ChatFormat | None, created: int) -> None:
        """`context` is the server's, `created` when it began: for models without weights."""
        self.files = files
        self.context = context
        self.chat_format = chat_format
        self.name = with_tag(files.name)
        states = [path.stat() for path in files.weights]
        self.size = sum(state.st_size for state in states)
        self.modified = datetime.fromtimestamp(max((state.st_mtime for state in states), default=created), UTC)
        self.digest = _digest(files, [state.st_size for state in states])
        self.parameters = shape_of(files.spec).parameters
        self.details = OllamaDetails(
            format=files.format,
            family=files.spec.architecture,
            families=[files.spec.architecture],
            parameter_size=format_parameters(self.parameters),
            quantization_level=_FLOATS.get(files.spec.weights, files.spec.weights),
        )

    def listed(self) -> OllamaModel:
        return OllamaModel(
            name=self.name,
            model=self.name,
            modified_at=self.modified,
            size=self.size,
            digest=self.digest,
            details=self.details,
        )

    def running(self, facts: Mapping[str, Any], expires_in_s: float | None = None) -> OllamaRunningModel:
        """`facts` are the engine's."""
        size = facts["weights_bytes"] + facts["kv_bytes"]
        return OllamaRunningModel(
            name=self.name,
            model=self.name,
            size=size,
            digest=self.digest,
            details=self.details,
            expires_at=_NEVER if expires_in_s is None else datetime.now(UTC) + timedelta(seconds=expires_in_s),
            size_vram=0 if facts["device"] == "cpu" else size,
            context_length=self.context,
        )

    def shown(self) -> bytes:
        parameters = {"num_ctx": self.context} | {
            _PARAMETERS.get(name, name): value for name, value in self.files.sampling.items()
        }
        lines = [f"PARAMETER {name} {value}" for name, value in parameters.items()]
        return msgspec.json.encode(
            OllamaModelInfo(
                license=self.files.license or UNSET,
                modelfile="\n".join([f"FROM {self.files.name}", *lines]),
                parameters="\n".join(f"{name:<30} {value}" for name, value in parameters.items()),
                template=self.files.chat_template or "",
                details=self.details,
                model_info=self._info(),
                capabilities=self._capabilities(),
                modified_at=self.modified,
            )
        )

    def _capabilities(self) -> list[str]:
        tools = ["tools"] if self.chat_format is not None else []
        return ["completion", *tools, *(["thinking"] if can_think(self.chat_format) else []), "embedding"]

    def _info(self) -> dict[str, Any]:
        """GGUF metadata names, for weights of every format. The context is the server's."""
        spec = self.files.spec
        of_architecture = {
            "context_length": self.context,
            "embedding_length": spec.hidden_size,
            "block_count": spec.num_layers,
            "feed_forward_length": spec.intermediate_size,
            "attention.head_count": spec.num_heads,
            "attention.head_count_kv": spec.num_kv_heads,
            "attention.key_length": spec.head_dim,
            "attention.value_length": spec.head_dim,
            "attention.layer_norm_rms_epsilon": spec.norm_eps,
            "rope.dimension_count": spec.rope.dim,
            "rope.freq_base": spec.rope.theta,
            "vocab_size": spec.vocab_size,
        }
        return {
            "general.architecture": spec.architecture,
            "general.basename": self.files.name,
            "general.parameter_count": self.parameters,
            **{f"{spec.architecture}.{name}": value for name, value in of_architecture.items()},
        }


class AdapterDetails(LocalDetails):
    """Of a LoRA adapter: its base's, but for name, size and digest."""

    def __init__(self, model: AdapterModel) -> None:
        super().__init__(model.files, model.pipeline.context, model.chat_format, model.card.created)
        spec = model.adapter_files.spec
        self.name = with_tag(model.card.name)
        self.size = spec.num_bytes
        self.modified = datetime.fromtimestamp(model.card.created, UTC)
        self.digest = hashlib.sha256(f"{self.digest} {spec.version}".encode()).hexdigest()
        self.details = msgspec.structs.replace(self.details, parent_model=model.base.name)


def format_parameters(count: int) -> str:
    """Ollama's notation: 134.52M, 1.5B."""
    if count >= 10**9:
        return f"{count / 10**9:.1f}B"
    return f"{count / 10**6:.2f}M" if count >= 10**6 else f"{count / 10**3:.0f}K"


def _digest(files: ModelFiles, sizes: list[int]) -> str:
    """A hash of the model's description, as Ollama's is of its manifest: the weights are not read."""
    names = [path.name for path in files.weights]
    described = [files.name, files.format, names, sizes, files.spec, files.chat_template, files.sampling]
    return hashlib.sha256(msgspec.json.encode(described)).hexdigest()
