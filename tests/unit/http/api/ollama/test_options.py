from __future__ import annotations

import json
from typing import Any

import ollama
import pytest

from helpers.schema_tables import NO_BOOLEANS, NO_INTEGERS, NO_NUMBERS, Checked, Table, rows
from penstock.errors import InvalidRequest
from penstock.flow import SamplingParams
from penstock.http.api.ollama.options import LOADING, OllamaOptions, option_warnings, sampling_params
from penstock.http.api.ollama.schemas import OllamaChatRequest
from penstock.http.parse.schema import parse

WHOLE = ((-1, 0, 1, 99), (2**31, *NO_INTEGERS))
FLAG = ((True, False), NO_BOOLEANS)
TABLE: Table = {
    "temperature": ((0, 0.8, 100), (-0.1, 101, *NO_NUMBERS)),
    "top_k": ((-1, 0, 40, 40.0), (-2, *NO_INTEGERS)),
    "speculation": FLAG,
    "top_p": ((0.1, 1), (0, 1.1, *NO_NUMBERS)),
    "min_p": ((0, 1), (-0.1, 1.1, *NO_NUMBERS)),
    "typical_p": ((0.1, 1), (0, 1.1, *NO_NUMBERS)),
    "seed": ((-1, 0, 42, 2**63 - 1), (2**63, *NO_INTEGERS)),
    "num_predict": ((-2, -1, 1, 128.0), (-3, 2**31, *NO_INTEGERS)),
    "stop": (("a", [], ["a"] * 16), ("", [""], ["a"] * 17, 1, {})),
    "repeat_penalty": ((0.01, 1, 1.1), (0, 101, *NO_NUMBERS)),
    "repeat_last_n": ((-1, 0, 64), (-2, *NO_INTEGERS)),
    "presence_penalty": ((-1, 1.5), (101, *NO_NUMBERS)),
    "frequency_penalty": ((-1, 1.5), (101, *NO_NUMBERS)),
    "penalize_newline": FLAG,
    "num_ctx": ((1, 4096, 4096.0, 1 << 20), (0, -1, *NO_INTEGERS)),
    "num_keep": WHOLE,
    "mirostat": ((0,), (1, 2, True)),
    "mirostat_tau": ((5, 0.8), NO_NUMBERS),
    "mirostat_eta": ((0.1,), NO_NUMBERS),
    "tfs_z": ((1, 1.0), (0.5, True)),
    "num_gpu": WHOLE,
    "main_gpu": WHOLE,
    "num_thread": WHOLE,
    "num_batch": WHOLE,
    "numa": FLAG,
    "low_vram": FLAG,
    "f16_kv": FLAG,
    "use_mmap": FLAG,
    "use_mlock": FLAG,
    "vocab_only": ((False,), (True, 0)),
    "logits_all": ((False,), (True,)),
    "embedding_only": ((False,), (True,)),
}


def asked(options: dict[str, Any]) -> OllamaOptions:
    body = parse(OllamaChatRequest, json.dumps({"model": "m", "options": options}).encode())
    assert body.options is not None
    return body.options


def params(options: dict[str, Any] | None, recommended: dict[str, Any] | None = None) -> SamplingParams:
    return sampling_params(None if options is None else asked(options), recommended or {})


def test_the_table_has_every_option_and_all_of_the_sdk() -> None:
    assert set(TABLE) == set(OllamaOptions.model_fields)
    assert set(ollama.Options.model_fields) <= set(TABLE)


@pytest.mark.parametrize(("name", "value"), rows(TABLE, 0))
def test_taken(name: str, value: Any) -> None:
    Checked(OllamaChatRequest).takes({"model": "m", "options": {name: value, "num_keep": None}})


@pytest.mark.parametrize(("name", "value"), rows(TABLE, 1))
def test_refused_by_its_name(name: str, value: Any) -> None:
    Checked(OllamaChatRequest).refuses({"model": "m", "options": {name: value}}, f"options.{name}")


@pytest.mark.parametrize(
    ("options", "named"),
    [({"num_predict": 0}, "num_predict"), ({"penalize_newline": False, "repeat_penalty": 1.1}, "penalize_newline")],
)
def test_what_the_schema_cannot_tell(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=f"options.{named}") as caught:
        asked(options)
    assert caught.value.param == f"options.{named}"


def test_the_defaults_are_ollamas_and_before_them_the_models() -> None:
    assert params(None) == SamplingParams(temperature=0.8, top_k=40, top_p=0.9, max_tokens=None)
    assert params({}, {"temperature": 0.2}) == SamplingParams(temperature=0.2, top_k=40, top_p=0.9, max_tokens=None)
    assert params({"temperature": 1}, {"temperature": 0.2}).temperature == 1


def test_every_option_that_counts_arrives() -> None:
    made = params(
        {
            "temperature": 0.5, "top_k": 7, "top_p": 0.6, "min_p": 0.1, "typical_p": 0.7, "seed": 42, "num_predict": 9,
            "stop": ["a", "b"], "repeat_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.4,
            "speculation": False,
        }
    )  # fmt: skip
    assert made == SamplingParams(
        temperature=0.5, top_k=7, top_p=0.6, min_p=0.1, typical_p=0.7, seed=42, max_tokens=9, stop=("a", "b"),
        repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.4, speculation=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "field", "wanted"),
    [
        ({"num_predict": -1}, "max_tokens", None),
        ({"num_predict": -2}, "max_tokens", None),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 0}, "top_k", 0),
        ({"seed": -1}, "seed", None),
        ({"seed": 0}, "seed", 0),
        ({"stop": "x"}, "stop", ("x",)),
        ({"repeat_penalty": 1.5, "repeat_last_n": 0}, "repetition_penalty", 1.0),
        ({"repeat_penalty": 1.5, "repeat_last_n": -1}, "repetition_penalty", 1.5),
    ],
)
def test_values_of_a_meaning_of_their_own(options: dict[str, Any], field: str, wanted: Any) -> None:
    assert getattr(params(options), field) == wanted


# --- what is taken and does nothing


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_ctx": 512, "num_keep": 24, "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "tfs_z": 1.0},
        {"num_gpu": -1, "main_gpu": 0, "use_mmap": True, "low_vram": False, "numa": False, "f16_kv": True},
        {"repeat_last_n": 64, "penalize_newline": False},
        {"repeat_last_n": 64, "repeat_penalty": 1.0},
        {"repeat_last_n": -1, "repeat_penalty": 1.1},
        {"repeat_last_n": 0, "repeat_penalty": 1.1, "penalize_newline": False},
    ],
)
def test_neutral_values_are_not_worth_a_word(options: dict[str, Any]) -> None:
    assert option_warnings(asked(options), context=512) == ()


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"num_ctx": 513}, "options.num_ctx is 513, but this server's context is 512"),
        (
            {"repeat_last_n": 64, "repeat_penalty": 1.1},
            "options.repeat_last_n has no effect: repeat_penalty applies to the whole text",
        ),
        *[
            ({name: value}, f"options.{name} has no effect: the server's settings decide how the model is loaded")
            for name, value in (
                ("num_gpu", 1), ("main_gpu", 1), ("num_thread", 8), ("num_batch", 512), ("numa", True),
                ("low_vram", True), ("f16_kv", False), ("use_mlock", True),
            )
        ],
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_named(options: dict[str, Any], wanted: str) -> None:
    assert option_warnings(asked(options), context=512) == (wanted,)


def test_all_that_is_about_loading_is_an_option() -> None:
    assert set(LOADING) < set(OllamaOptions.model_fields)
