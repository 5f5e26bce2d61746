from __future__ import annotations

import json
from pathlib import Path

from helpers import tiny_models
from helpers.openai_samples import CHAT, raw
from helpers.schema_tables import assert_matches_schema
from penstock.deployment.protocol import PromptCount
from penstock.http.api import tokenizer_routes
from penstock.http.api.openai import chat
from penstock.http.parse.schema import parse
from penstock.store.resolve import resolve
from penstock.tokenize import Tokenizer


def test_tokenized(vocabulary: Tokenizer) -> None:
    ids = vocabulary.encode("ab c")
    plain = parse(tokenizer_routes.TokenizeRequest, raw({"prompt": "ab c"}))
    spelt = parse(tokenizer_routes.TokenizeRequest, raw({"prompt": "ab c", "return_token_strs": True}))
    wanted = {"count": 4, "max_model_len": 128, "tokens": ids}
    counted = PromptCount(4, ids)

    assert json.loads(tokenizer_routes.encode_tokens(plain, counted, context=128, vocabulary=vocabulary)) == wanted
    assert json.loads(tokenizer_routes.encode_tokens(spelt, counted, context=128, vocabulary=vocabulary)) == {
        **wanted,
        "token_strs": ["<|start|>", "ab", " ", "c"],
    }


def test_a_conversation_to_tokenize_is_rendered_as_chat_would() -> None:
    fields = {"messages": CHAT["messages"], "chat_template_kwargs": {"a": 1}, "continue_final_message": True}
    asked = parse(tokenizer_routes.TokenizeRequest, raw(fields))

    assert asked.template_options() == parse(chat.REQUEST, raw({**CHAT, **fields})).template_options()


def test_tokenizer_info(vocabulary: Tokenizer, tmp_path: Path) -> None:
    files = resolve(str(tiny_models.make("llama", tmp_path)))

    info = json.loads(tokenizer_routes.encode_tokenizer_info(files, vocabulary, context=128))

    assert_matches_schema(tokenizer_routes.TokenizerInfo, info)
    assert (info["model_max_length"], info["vocab_size"]) == (128, files.spec.vocab_size)
    assert info["chat_template"] == files.chat_template
    assert {name: info[name] for name in files.special_tokens} == files.special_tokens
    start = vocabulary.mark("<|start|>")
    assert info["added_tokens_decoder"][str(start)] == {"content": "<|start|>", "special": True}


def test_detokenized() -> None:
    assert json.loads(tokenizer_routes.encode_text("naïve 🦙")) == {"prompt": "naïve 🦙"}
