"""The small endpoints."""

from __future__ import annotations

import json
from pathlib import Path

from openai.types import Model as SdkModel

from helpers import tiny_models
from helpers.openai_samples import CHAT, raw
from helpers.schema_tables import assert_matches_schema
from penstock.http.api.openai import chat, models, tokenize
from penstock.http.parse.schema import parse
from penstock.store.resolve import resolve
from penstock.tokenize import Tokenizer

MODEL = models.Model(id="tiny", created=1_700_000_000, max_model_len=128)


def test_models() -> None:
    one = models.one(MODEL)

    SdkModel.model_validate_json(one, strict=True)
    assert json.loads(one) == {
        "id": "tiny",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "penstock",
        "max_model_len": 128,
    }
    assert json.loads(models.listed([MODEL])) == {"object": "list", "data": [json.loads(one)]}


def test_tokenized(vocabulary: Tokenizer) -> None:
    ids = vocabulary.encode("ab c")
    plain = parse(tokenize.TokenizeRequest, raw({"prompt": "ab c"}))
    spelt = parse(tokenize.TokenizeRequest, raw({"prompt": "ab c", "return_token_strs": True}))
    wanted = {"count": 4, "max_model_len": 128, "tokens": ids}

    assert json.loads(tokenize.tokenized(plain, ids, context=128, vocabulary=vocabulary)) == wanted
    assert json.loads(tokenize.tokenized(spelt, ids, context=128, vocabulary=vocabulary)) == {
        **wanted,
        "token_strs": ["<|start|>", "ab", " ", "c"],
    }


def test_a_conversation_to_tokenize_is_rendered_as_chat_would() -> None:
    fields = {"messages": CHAT["messages"], "chat_template_kwargs": {"a": 1}, "continue_final_message": True}
    asked = parse(tokenize.TokenizeRequest, raw(fields))

    assert asked.template_options() == parse(chat.REQUEST, raw({**CHAT, **fields})).template_options()


def test_tokenizer_info(vocabulary: Tokenizer, tmp_path: Path) -> None:
    files = resolve(str(tiny_models.make("llama", tmp_path)))

    info = json.loads(tokenize.info(files, vocabulary, context=128))

    assert_matches_schema(tokenize.TokenizerInfo, info)
    assert (info["model_max_length"], info["vocab_size"]) == (128, files.spec.vocab_size)
    assert info["chat_template"] == files.chat_template
    assert {name: info[name] for name in files.special_tokens} == files.special_tokens
    start = vocabulary.mark("<|start|>")
    assert info["added_tokens_decoder"][str(start)] == {"content": "<|start|>", "special": True}


def test_detokenized() -> None:
    assert json.loads(tokenize.detokenized("naïve 🦙")) == {"prompt": "naïve 🦙"}
