"""Adapters of an LLM: each call names the one it wants, and answers as the merged model does."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from helpers.adapter_samples import write_adapter
from penstock import LLM, SamplingParams
from penstock.errors import InvalidRequest, WeightsMismatch
from penstock.model.merge import merge
from penstock.store.adapter import open_adapter
from penstock.store.resolve import resolve

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = [5, 9, 33, 7, 41]


def test_an_adapter_beside_its_base_answers_as_the_merged_model(tiny: Path, tmp_path: Path) -> None:
    files = resolve(str(tiny))
    adapter = write_adapter(tmp_path / "style", files.spec, size=1.0)
    merge(files, open_adapter(adapter), tmp_path / "merged", lambda done, count: None)
    with LLM(str(tmp_path / "merged"), dtype="float32", context=256) as llm:
        expected = llm.generate(PROMPT, GREEDY).tokens
    with LLM(str(tiny), dtype="float32", context=256, adapters={"style": str(adapter)}) as llm:
        plain = llm.generate(PROMPT, GREEDY).tokens
        assert llm.generate(PROMPT, GREEDY, adapter="style").tokens == expected != plain
        assert llm.generate([PROMPT, PROMPT], GREEDY, adapter="style")[1].tokens == expected
        streamed = [token for chunk in llm.stream(PROMPT, GREEDY, adapter="style") for token in chunk.tokens]
        assert streamed == expected
        assert llm.embed(PROMPT, adapter="style").vector != llm.embed(PROMPT).vector
        with pytest.raises(InvalidRequest, match="there is no adapter 'tone': there are style") as error:
            llm.generate(PROMPT, GREEDY, adapter="tone")
        assert error.value.param == "adapter"
        llm.check_integrity()


def test_adapters_are_checked_before_the_model_is_loaded(tiny: Path, tmp_path: Path) -> None:
    other = structs.replace(resolve(str(tiny)).spec, vocab_size=99)
    head = write_adapter(tmp_path / "head", other, modules=("lm_head",))
    with pytest.raises(WeightsMismatch, match=r"adapter style: .* head takes 64 inputs to 99 outputs") as error:
        LLM(str(tiny), adapters={"style": str(head)})
    assert error.value.param == "adapters"
