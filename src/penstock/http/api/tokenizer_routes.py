"""POST /tokenize, POST /detokenize and GET /tokenizer_info, as vLLM has them."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from penstock import flow
from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import PromptCount, ServedModel
from penstock.errors import InvalidRequest
from penstock.flow.protocols import Vocabulary
from penstock.gateway.keys.identity import Scope
from penstock.http.api.chat_messages import ChatTemplateFields, Messages, to_template
from penstock.http.api.fields import MODEL, MODEL_PARAMETER, StrictModel, field_error
from penstock.http.api.generation_fields import TokenId
from penstock.http.api.response_bodies import Body
from penstock.http.json_response import json_response
from penstock.http.middleware.tenants import identity_of
from penstock.http.openapi.route_docs import route_docs
from penstock.http.parse.body import read_body
from penstock.http.parse.long_lists import InPieces
from penstock.http.parse.query import read_query
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.store.files import ModelFiles

MAX_IDS = 1 << 18  # decoded at once: more would delay the tokens of running streams


class TokenizeRequest(ChatTemplateFields):
    """Exactly one of `prompt` and `messages`."""

    model: str | None = MODEL
    prompt: str | None = Field(None, description="A text.")
    messages: Messages | None = Field(None, description="A conversation, which the model's chat template makes a text.")
    add_special_tokens: bool | None = Field(
        None,
        description="Whether the model's own begin and end tokens are put around a `prompt`. Default: true. Chat "
        "templates write them themselves.",
    )
    return_token_strs: bool | None = Field(None, description="Send the text of each token, too.")

    @model_validator(mode="after")
    def _check_pairs(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise field_error("or messages is required, and not both", "prompt")
        if self.messages is None:
            for name in ChatTemplateFields.model_fields:
                if getattr(self, name) is not None:
                    raise field_error("goes with messages only", name)
        elif self.add_special_tokens:
            raise field_error("goes with prompt only: the chat template writes them itself", "add_special_tokens")
        return self


class DetokenizeRequest(StrictModel):
    model: str | None = MODEL
    tokens: Annotated[list[TokenId], Field(max_length=MAX_IDS, fail_fast=True), InPieces(MAX_IDS)] = Field(
        description="Token ids."
    )


class Tokens(Body, kw_only=True, frozen=True):
    count: int
    max_model_len: int | None  # tokens the context holds; null: that is not known of an upstream
    tokens: list[int]  # none for the messages of an upstream, whose template is not known
    token_strs: list[str] | UnsetType = UNSET  # on request
    estimated: bool | UnsetType = UNSET  # of an upstream or a route


class AddedToken(Body, kw_only=True, frozen=True):
    content: str
    special: bool


class TokenizerInfo(Body, kw_only=True, frozen=True):
    """Named as in Hugging Face's tokenizer_config.json."""

    tokenizer_class: str
    model_max_length: int  # tokens the context holds
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None  # Jinja
    added_tokens_decoder: dict[str, AddedToken]  # by token id; the special ones


class Text(Body, kw_only=True, frozen=True):
    prompt: str


REQUESTS = (TokenizeRequest, DetokenizeRequest)
ANSWERS = (Tokens, Text, TokenizerInfo)


def add(app: App, service: Service) -> None:
    inference = app.requiring(Scope.INFERENCE)

    @inference.post("/tokenize", **route_docs(TokenizeRequest, Tokens))
    async def tokenize(request: Request) -> Response:
        """The token ids of a text or a conversation."""
        body = await read_body(TokenizeRequest, request)
        model = service.models_of(identity_of(request.scope)).find(body.model)
        counted = await asyncio.to_thread(_count, model, body)
        local = model if isinstance(model, LocalModel) else None
        context = model.card.context if local is None else local.pipeline.context
        vocabulary = None if local is None else local.tokenizer
        return json_response(encode_tokens(body, counted, context=context, vocabulary=vocabulary))

    @inference.get("/tokenizer_info", **route_docs(None, TokenizerInfo, may_reject=True, parameters=(MODEL_PARAMETER,)))
    async def tokenizer_info(request: Request) -> Response:
        """The model's tokenizer, as its tokenizer_config.json has it."""
        name = read_query(request, (MODEL_PARAMETER,))["model"]
        model = service.models_of(identity_of(request.scope)).find_local(name)
        return json_response(encode_tokenizer_info(model.files, model.tokenizer, context=model.pipeline.context))

    @inference.post("/detokenize", **route_docs(DetokenizeRequest, Text))
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        body = await read_body(DetokenizeRequest, request)
        model = service.models_of(identity_of(request.scope)).find_local(body.model)
        text = await asyncio.to_thread(model.detokenize, body.tokens)
        return json_response(encode_text(text))


def _count(model: ServedModel, body: TokenizeRequest) -> PromptCount:
    if isinstance(model, LocalModel) and body.messages is None:
        tokens = model.tokenize_text(body.prompt or "", add_special=body.add_special_tokens is not False)
        return PromptCount(len(tokens), tokens)
    if not isinstance(model, LocalModel) and body.return_token_strs:
        raise InvalidRequest(
            f"return_token_strs needs a model that runs here: {model.card.name} is an upstream or a route",
            param="return_token_strs",
        )
    messages = None if body.messages is None else to_template(body.messages)
    options = {} if messages is None else body.template_options()
    request = flow.Request(id="", params=flow.SamplingParams(), text=body.prompt, messages=messages, **options)
    return model.count_prompt(request)


def encode_tokens(
    body: TokenizeRequest, counted: PromptCount, *, context: int | None, vocabulary: Vocabulary | None
) -> bytes:
    """`vocabulary`: of a model that runs here."""
    texts: list[str] | UnsetType = UNSET
    if body.return_token_strs and vocabulary is not None:
        texts = [vocabulary.token_bytes(token).decode(errors="replace") for token in counted.tokens]
    return msgspec.json.encode(
        Tokens(
            count=counted.num_tokens,
            max_model_len=context,
            tokens=list(counted.tokens),
            token_strs=texts,
            estimated=counted.estimated or UNSET,
        )
    )


def encode_tokenizer_info(files: ModelFiles, vocabulary: Vocabulary, *, context: int) -> bytes:
    added = {
        str(token): AddedToken(content=vocabulary.token_bytes(token).decode(errors="replace"), special=True)
        for token in sorted(vocabulary.special_ids)
    }
    return msgspec.json.encode(
        TokenizerInfo(
            tokenizer_class="PreTrainedTokenizerFast",  # what reads a tokenizer.json
            model_max_length=context,
            vocab_size=files.spec.vocab_size,
            **{name: files.special_tokens.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")},
            chat_template=files.chat_template,
            added_tokens_decoder=added,
        )
    )


def encode_text(text: str) -> bytes:
    return msgspec.json.encode(Text(prompt=text))
