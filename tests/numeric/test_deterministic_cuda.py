"""`deterministic` on a GPU: the same bits for a sequence, whoever is beside it and however it is computed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers import tiny_models
from helpers.paged_model import PagedModel
from penstock import LLM, Completion, SamplingParams
from penstock.model import Decoder, open_source
from penstock.model.load_dense import load_dense
from penstock.store.hf_config import spec_from_config

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

FAMILIES = ["llama", "qwen3", "gemma3"]
WIDE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
}
OF_FAMILY = {"gemma3": {"sliding_window": 150, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 20.0}}
BATCHES = [1, 2, 7, 16, 33, 64, 128, 256]
LENGTH = 700


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = request.param
    return tiny_models.make(family, tmp_path_factory.mktemp(family), **WIDE, **OF_FAMILY.get(family, {}))


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    spec = spec_from_config(json.loads((folder / "config.json").read_text()), None, folder.name)
    source = open_source(sorted(folder.glob("*.safetensors")), "safetensors")
    return load_dense(spec, source, dtype=torch.bfloat16, device=torch.device("cuda"), context=2048)


def tokens(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(2, tiny_models.VOCAB), k=length)


def paged(model: Decoder) -> PagedModel:
    from penstock.kernels.cuda_ops import CudaOperations

    return PagedModel(
        model,
        block_size=16,
        num_blocks=12_000,
        ops=CudaOperations(deterministic=True),
        dtype=torch.bfloat16,
        device=torch.device("cuda"),
    )


def whole(model: Decoder) -> Tensor:
    alone = paged(model)
    index = alone.add(tokens(LENGTH, 0))
    alone.step({index: LENGTH})
    return alone.logits(index)


@pytest.mark.parametrize("chunk", [16, 100, 512])
def test_chunks(model: Decoder, chunk: int) -> None:
    cut = paged(model)
    index = cut.add(tokens(LENGTH, 0))
    while cut.sequences[index].computed < LENGTH:
        cut.step({index: min(chunk, LENGTH - cut.sequences[index].computed)})
    assert torch.equal(cut.logits(index), whole(model))


@pytest.mark.parametrize("batch", BATCHES)
def test_neighbours(model: Decoder, batch: int) -> None:
    """The prompt beside prompts and rows of one token, then one token at a time beside others."""
    drawn = random.Random(batch)
    together = paged(model)
    index = together.add(tokens(LENGTH, 0))
    lengths = [drawn.randint(2, 300) for _ in range(batch - 1)]
    others = [together.add(tokens(length + 60, 1 + n)) for n, length in enumerate(lengths)]
    for first in range(0, len(others), 64):
        together.step({other: length for other, length in zip(others, lengths, strict=True)
                       if others[first] <= other < others[first] + 64})  # fmt: skip
    for count in (400, 1, 200):
        together.step({index: count} | dict.fromkeys(others, 1))
    while together.sequences[index].computed < 650:
        together.step({index: 1} | dict.fromkeys(others, 1))
    together.step({index: 50} | dict.fromkeys(others[:3], 1))
    assert torch.equal(together.logits(index), whole(model))


def outcome(result: Completion) -> object:
    (choice,) = result.choices
    assert choice.logprobs is not None
    return result.tokens, [entry.logprob for entry in choice.logprobs]


def open_engine(folder: Path, **settings: object) -> LLM:
    common = {"device": "cuda", "dtype": "bfloat16", "deterministic": True, "context": 1024, "kv_memory": "512MiB"}
    return LLM(str(folder), **{**common, **settings})  # type: ignore[arg-type]


PROMPTS = [tokens(length, 100 + length) for length in (1, 30, 333, 700)]
PARAMS = [
    SamplingParams(temperature=temperature, max_tokens=24, ignore_eos=True, logprobs=1, seed=5, **more)
    for temperature, more in (
        (0.0, {}),
        (0.9, {}),
        (0.8, {"top_p": 0.9}),
        (1.0, {"top_k": 40, "presence_penalty": 0.5}),
    )
]


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[list[object]]:
    with open_engine(folder, prefix_caching=False) as llm:
        yield [outcome(llm.generate(prompt, params)) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]


def among(others: int) -> tuple[list[list[int]], list[SamplingParams]]:
    drawn = random.Random(others)
    lengths = [drawn.randint(1, 400) for _ in range(others)]
    params = [SamplingParams(temperature=0.7, max_tokens=drawn.randint(1, 40), ignore_eos=True) for _ in lengths]
    return PROMPTS + [tokens(length, n) for n, length in enumerate(lengths)], PARAMS + params


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_sequences": 4},  # larger steps are not graphs
        {"step_tokens": 300, "max_sequences": 64},
        {"step_tokens": 41, "max_sequences": 33, "lookahead": 0},
        {"kv_memory": "2200KiB", "max_sequences": 128},
    ],
)
def test_engine(folder: Path, alone: list[object], settings: dict[str, object]) -> None:
    hits = 0
    with open_engine(folder, **settings) as llm:
        for others in (0, 30, 250):
            results = llm.generate(*among(others), progress=False)
            assert [outcome(result) for result in results[: len(PROMPTS)]] == alone  # later: with prefix hits
            hits += results[3].cached_tokens
        assert hits > 0
        assert llm.stats()["preemptions"] > 0 or "kv_memory" not in settings
        llm.check_integrity()


def test_without_graphs(folder: Path, alone: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.forward.cuda_backend import CudaBackend

    monkeypatch.setattr(CudaBackend, "use", lambda self, graphs: None)
    with open_engine(folder) as llm:
        results = llm.generate(*among(60), progress=False)
    assert [outcome(result) for result in results[: len(PROMPTS)]] == alone
