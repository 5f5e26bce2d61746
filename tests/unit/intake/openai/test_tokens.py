"""The small endpoints."""

from __future__ import annotations

import json

from openai.types import Model as SdkModel

from openai_samples import CHAT, raw
from penstock.intake.openai import chat, models, tokens
from penstock.intake.parse import parse
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
    plain = parse(tokens.TokenizeRequest, raw({"prompt": "ab c"}))
    spelt = parse(tokens.TokenizeRequest, raw({"prompt": "ab c", "return_token_strs": True}))
    wanted = {"count": 4, "max_model_len": 128, "tokens": ids}

    assert json.loads(tokens.tokenized(plain, ids, context=128, vocabulary=vocabulary)) == wanted
    assert json.loads(tokens.tokenized(spelt, ids, context=128, vocabulary=vocabulary)) == {
        **wanted,
        "token_strs": ["<|start|>", "ab", " ", "c"],
    }


def test_a_conversation_to_tokenize_is_rendered_as_chat_would() -> None:
    fields = {"messages": CHAT["messages"], "chat_template_kwargs": {"a": 1}, "continue_final_message": True}
    asked = parse(tokens.TokenizeRequest, raw(fields))

    assert asked.template_options() == parse(chat.REQUEST, raw({**CHAT, **fields})).template_options()


def test_detokenized() -> None:
    assert json.loads(tokens.detokenized("naïve 🦙")) == {"prompt": "naïve 🦙"}
